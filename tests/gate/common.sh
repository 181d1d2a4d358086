# shellcheck shell=bash
# Shared by the gate's scripts: where we are, how we speak, how we become root. Sourced, never run.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
ROOT=$PWD
VENV=$ROOT/.venv
CACHE=$ROOT/.cache
mkdir -p "$CACHE"
# What Python compiles is kept: everything here is loaded again and again, and compiling it takes longer than running it.
unset PYTHONDONTWRITEBYTECODE
# A checkout that belongs to somebody else (a mount, a build user) is still this checkout; git wants to be told.
export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'

say() { printf '==> %s\n' "$*" >&2; }
die() { printf 'ironserve: %s\n' "$*" >&2; exit 1; }

# Run a command as root, by the cheapest way this user has.
as_root() {
  if [ "$(id -u)" -eq 0 ]; then "$@"; elif command -v sudo >/dev/null; then sudo "$@"; else return 1; fi
}

# Print the bin directory of every Python on this machine, one line each. A version manager's shims answer to names they
# cannot run, so each interpreter is asked, and its real home is what counts.
python_homes() {
  local candidate
  for candidate in "$HOME"/.pyenv/versions/*/bin/python3 /usr/local/bin/python3.? /usr/local/bin/python3.?? /usr/bin/python3.? /usr/bin/python3.??; do
    [ -x "$candidate" ] || continue
    "$candidate" -c 'import os, sys; print("%d.%d %s" % (sys.version_info[0], sys.version_info[1], os.path.dirname(os.path.realpath(sys.executable))))' 2>/dev/null || true
  done | sort -t. -k2,2n -s -u -k1,1
}
