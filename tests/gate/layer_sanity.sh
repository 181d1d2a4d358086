#!/usr/bin/env bash
# ansible-test sanity on the built artifact, with the newest and the oldest supported ansible-core, then an
# installation of the artifact in an empty place, from which every module's documentation must render.
. "$(dirname "$0")/common.sh"

# Beside another layer it takes what is left over.
renice -n 19 -p $$ >/dev/null
OLD_CORE=2.16.19
unset ANSIBLE_CONFIG ANSIBLE_COLLECTIONS_PATH

# ansible-test makes bare virtual environments and wants to download a pip bootstrap for them. It takes a file that is
# already there, and the interpreter carries a pip of its own.
seed_pip() {
  local seeds=$HOME/.ansible/test/cache name
  mkdir -p "$seeds"
  for name in get_pip_23_1_2.py get_pip_24_2.py get_pip_25_2.py; do
    [ -s "$seeds/$name" ] || printf 'import ensurepip\n\nensurepip.bootstrap()\n' >"$seeds/$name"
  done
}

old_core() {
  local venv=$CACHE/core-2.16
  [ "$(cat "$venv/.stamp" 2>/dev/null)" = "$ROOT $OLD_CORE" ] && return
  # 2.16 runs on Python 3.10 to 3.12 only.
  local version home python=
  while read -r version home; do
    case $version in 3.11|3.12|3.10) python=$home/python$version; "$python" -c 'import ensurepip' 2>/dev/null && break ;; esac
    python=
  done < <(python_homes)
  if [ -z "$python" ]; then return 1; fi
  say "sanity: installing ansible-core $OLD_CORE into .cache (once)"
  rm -rf "$venv"
  "$python" -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "ansible-core==$OLD_CORE"
  printf '%s\n' "$ROOT $OLD_CORE" >"$venv/.stamp"
}

# Every interpreter by its real place: a version manager's shims would be found first and fail.
target_path() {
  local path=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin version home
  while read -r version home; do
    case $version in 2.*|3.[0-6]) ;; *) path=$home:$path ;; esac
  done < <(python_homes)
  printf '%s' "$path"
}

seed_pip
artifact=$(tests/gate/build.sh "$CACHE/artifact")
path=$(target_path)
status=0

run_sanity() { # run_sanity VENV: in a tree of its own, so that two can run at once
  local core tree log
  core=ansible-core-$("$1/bin/python" -c 'from ansible.release import __version__; print(__version__)')
  tree=$CACHE/sanity/$core/ansible_collections/ironserve/llm
  mkdir -p "$tree"
  tar --extract --gzip --file "$artifact" -C "$tree"
  # ansible-test asks git which files there are.
  git -C "$tree" init --quiet
  git -C "$tree" add --all
  say "sanity: $core"
  # The set-up of its environments fills screens; what matters of a failure is in the lines that say so.
  log=$CACHE/$core.log
  if (cd "$tree" && PATH=$1/bin:$path "$1/bin/ansible-test" sanity --color no) >"$log" 2>&1; then
    grep -E '^WARNING: Skipping' "$log" >&2 || true
  else
    grep -E '^(ERROR|FATAL|See documentation)' "$log" >&2 || tail -30 "$log" >&2
    say "sanity: $core FAILED; everything it said: $log"
    return 1
  fi
}

rm -rf "$CACHE/sanity"
environments=("$VENV")
if old_core; then
  environments+=("$CACHE/core-2.16")
else
  say "sanity: ansible-core $OLD_CORE NOT run: it needs Python 3.10, 3.11 or 3.12 with ensurepip, and there is none here"
fi
export -f run_sanity say
export artifact path CACHE
# Side by side: each keeps one core busy. xargs hands on what interrupts it, which a job in the background would not see.
printf '%s\n' "${environments[@]}" | xargs -P 2 -I '{}' bash -euo pipefail -c 'run_sanity "$1"' _ '{}' || status=1

say "sanity: the artifact installed in an empty place"
scratch=$CACHE/installed
rm -rf "$scratch"
mkdir -p "$scratch"
(
  # Elsewhere, so that neither the checkout's ansible.cfg nor its collections directory is seen.
  cd "$scratch"
  export ANSIBLE_COLLECTIONS_PATH=$scratch
  "$VENV/bin/ansible-galaxy" collection install "$artifact" --no-deps --offline -p "$scratch" >"$CACHE/install.log" 2>&1 \
    || { cat "$CACHE/install.log"; exit 1; }
  mapfile -t modules < <(cd ansible_collections/ironserve/llm/plugins/modules && ls ./*.py | sed 's|^\./|ironserve.llm.|; s|\.py$||')
  "$VENV/bin/ansible-doc" --json -t module "${modules[@]}" >"$scratch/modules.json"
  "$VENV/bin/python" - "$scratch/modules.json" "${modules[@]}" <<'PY'
import json, sys
shown = json.load(open(sys.argv[1]))
missing = [name for name in sys.argv[2:] if not shown.get(name, {}).get("doc")]
sys.exit("ansible-doc shows no documentation of " + ", ".join(missing) if missing else 0)
PY
  mapfile -t roles < <(cd ansible_collections/ironserve/llm/roles && ls | sed 's|^|ironserve.llm.|')
  [ "${#roles[@]}" -eq 0 ] || "$VENV/bin/ansible-doc" --json -t role "${roles[@]}" >"$scratch/roles.json"
) || status=1
exit "$status"
