#!/usr/bin/env bash
# Whole playbooks and downloads on this machine's own interpreter, against hosts that are played, and the gateway with a real nginx. No
# container is touched. Many of them wait, so three share two cores. What takes longest is shown.
. "$(dirname "$0")/common.sh"
export ANSIBLE_CONFIG=$ROOT/ansible.cfg
nginx=$(tests/gate/nginx.sh)
while IFS= read -r setting; do [ -z "$setting" ] || export "${setting?}"; done <<<"$nginx"
"$VENV/bin/python" -m pytest -n 3 --dist loadfile -m "slow and not long" --durations 25 tests/unit tests/integration/nginx "$@"
