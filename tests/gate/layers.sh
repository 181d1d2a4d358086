#!/usr/bin/env bash
# Run gate layers in the order given, all of them, and say at the very end how many passed.
# Usage: layers.sh LAYER[+LAYER]...      each layer is a script tests/gate/layer_<LAYER>.sh
# Layers joined by + run at the same time: what the second one says is shown when both have ended.
. "$(dirname "$0")/common.sh"

passed=0
failed=0
names=()
summary() {
  local status=$?
  trap - EXIT
  [ -z "$beside" ] || kill -TERM -- "-$beside" 2>/dev/null || true
  # Interrupted or broken half-way: the layer that was running, and every later one, did not pass.
  local missing=$((total - passed - failed))
  if [ "$missing" -gt 0 ]; then failed=$((failed + missing)); [ "$status" -ne 0 ] || status=1; fi
  [ "$failed" -eq 0 ] || printf 'not passed: %s\n' "${names[*]:-interrupted}"
  printf '%d passed, %d failed\n' "$passed" "$failed"
  exit "$((status != 0 || failed > 0))"
}
all=${*//+/ }
total=$(wc -w <<<"$all")
beside=
trap summary EXIT
trap 'exit 130' INT TERM

# count STATUS LAYER SECONDS
count() {
  if [ "$1" -eq 0 ]; then
    passed=$((passed + 1))
    say "gate: $2 passed in $3 s"
  else
    failed=$((failed + 1))
    names+=("$2")
    say "gate: $2 FAILED after $3 s"
  fi
}

for group in "$@"; do
  layer=${group%%+*}
  other=${group#"$layer"}
  other=${other#+}
  start=$SECONDS
  if [ -n "$other" ]; then
    log=$CACHE/layer-$other.log
    # A process group of its own, so that all of it can be ended.
    set -m
    { status=0; "$ROOT/tests/gate/layer_$other.sh" >"$log" 2>&1 </dev/null || status=$?; echo "$((SECONDS - start))" >"$log.seconds"; exit "$status"; } &
    beside=$!
    set +m
    say "gate: $other, beside $layer"
  fi
  say "gate: $layer"
  status=0
  "$ROOT/tests/gate/layer_$layer.sh" || status=$?
  count "$status" "$layer" "$((SECONDS - start))"
  if [ -n "$other" ]; then
    status=0
    wait "$beside" || status=$?
    beside=
    say "gate: $other"
    cat "$log"
    count "$status" "$other" "$(cat "$log.seconds" 2>/dev/null || echo "$((SECONDS - start))")"
  fi
done
