#!/usr/bin/env bash
# Make .venv hold exactly what the requirements files pin. Costs nothing when it already does; an interrupted
# installation has no stamp and is done again.
# Usage: bootstrap.sh [test]      with "test", the tools of the gates too
. "$(dirname "$0")/common.sh"

files=(requirements.txt)
[ "${1:-}" != test ] || files+=(requirements-test.txt)
stamp=$VENV/.stamp-$(basename "${files[-1]}" .txt)
# The place is part of the stamp: a virtual environment does not survive a move.
want=$( { printf '%s\n' "$ROOT"; cat "${files[@]}"; } | sha256sum | cut -d' ' -f1)
up_to_date() { [ "$(cat "$stamp" 2>/dev/null)" = "$want" ] && [ -x "$VENV/bin/python" ]; }
up_to_date && exit 0

# Two bootstraps at once would install into the same directory.
exec 9>"$CACHE/bootstrap.lock"
flock 9
up_to_date && exit 0

find_python() {
  local candidate
  for candidate in ${PYTHON:-} python3.13 python3.12 python3.11 python3; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
      command -v "$candidate"
      return
    fi
  done
  die "Python 3.11 or newer is needed on this machine (ansible-core 2.19 asks for it); found: $(python3 --version 2>&1 || echo none). Install one and run again, or name it: make PYTHON=/path/to/python3.11 ..."
}

# Debian leaves ensurepip to a package of its own.
ensure_venv_module() {
  "$1" -c 'import ensurepip' 2>/dev/null && return
  local package
  package=$("$1" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
  command -v apt-get >/dev/null || die "$1 cannot make virtual environments: its module ensurepip is missing. Install the package that carries it and run again."
  say "$1 has no ensurepip: installing $package (it stays after make down)"
  as_root sh -c "apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq -o=Dpkg::Use-Pty=0 --no-install-recommends $package" >&2 \
    || die "$package could not be installed (see above). Run: apt-get install $package   as root, then again."
}

python=$(find_python) || exit 1
# An environment without a working interpreter, or made where the checkout used to be, is not worth repairing.
# Neither is one in which an installation was cut off: pip takes half a package for a whole one.
if [ -e "$VENV/.installing" ] || ! "$VENV/bin/python" -m pip --version >/dev/null 2>&1 || ! grep -qsF "$VENV" "$VENV/bin/activate"; then
  ensure_venv_module "$python"
  say "making $VENV with $("$python" --version)"
  rm -rf "$VENV"
  "$python" -m venv "$VENV"
fi
rm -f "$stamp"
touch "$VENV/.installing"
say "installing ${files[*]} into .venv (once)"
arguments=()
for file in "${files[@]}"; do arguments+=(-r "$file"); done
# Python compiles what it loads; compiling everything now takes longer than installing it.
"$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile "${arguments[@]}" \
  || die "the packages of ${files[*]} could not be installed (see above). A package index or a mirror of it must be reachable; set PIP_INDEX_URL for a mirror, then run again."
rm "$VENV/.installing"
printf '%s\n' "$want" >"$stamp"
