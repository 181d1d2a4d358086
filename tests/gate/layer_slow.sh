#!/usr/bin/env bash
# Whole playbooks and downloads on this machine's own interpreter, against hosts that are played. No container is touched.
. "$(dirname "$0")/common.sh"
export ANSIBLE_CONFIG=$ROOT/ansible.cfg
"$VENV/bin/python" -m pytest -n 2 --dist loadfile -m "slow and not long" tests/unit "$@"
