#!/usr/bin/env bash
# Unit tests and the contract of the house, on the interpreter of .venv. No container is touched.
. "$(dirname "$0")/common.sh"
export ANSIBLE_CONFIG=$ROOT/ansible.cfg
"$VENV/bin/python" -m pytest -n 2 --dist loadfile -m "not long and not slow" "$@"
