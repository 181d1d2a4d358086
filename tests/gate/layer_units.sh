#!/usr/bin/env bash
# Unit tests and the contract of the house, on the interpreter of .venv. No container is touched. Many of them wait, so three share two cores.
. "$(dirname "$0")/common.sh"
export ANSIBLE_CONFIG=$ROOT/ansible.cfg
"$VENV/bin/python" -m pytest -n 3 --dist worksteal -m "not long and not slow" "$@"
