#!/usr/bin/env bash
# Run gate layers in the order given, all of them, and say at the very end how many passed.
# Usage: layers.sh LAYER...      each layer is a script tests/gate/layer_<LAYER>.sh
. "$(dirname "$0")/common.sh"

passed=0
failed=0
names=()
summary() {
  local status=$?
  trap - EXIT
  # Interrupted or broken half-way: the layer that was running, and every later one, did not pass.
  local missing=$((total - passed - failed))
  if [ "$missing" -gt 0 ]; then failed=$((failed + missing)); [ "$status" -ne 0 ] || status=1; fi
  [ "$failed" -eq 0 ] || printf 'not passed: %s\n' "${names[*]:-interrupted}"
  printf '%d passed, %d failed\n' "$passed" "$failed"
  exit "$((status != 0 || failed > 0))"
}
total=$#
trap summary EXIT
trap 'exit 130' INT TERM

for layer in "$@"; do
  say "gate: $layer"
  start=$SECONDS
  if "$ROOT/tests/gate/layer_$layer.sh"; then
    passed=$((passed + 1))
    say "gate: $layer passed in $((SECONDS - start)) s"
  else
    failed=$((failed + 1))
    names+=("$layer")
    say "gate: $layer FAILED after $((SECONDS - start)) s"
  fi
done
