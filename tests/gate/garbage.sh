#!/usr/bin/env bash
# The lesson, live: a damaged model that loads, lists and answers 200 is refused by the proof. See garbage.py.
. "$(dirname "$0")/common.sh"
tests/gate/bootstrap.sh
[ "$(id -u)" -eq 0 ] || command -v sudo >/dev/null || die "root is needed on this machine and there is no sudo: run this as root."
as_root env ANSIBLE_CONFIG="$ROOT/ansible.cfg" "$VENV/bin/python" tests/gate/garbage.py "$@"
