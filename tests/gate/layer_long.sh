#!/usr/bin/env bash
# Soaks and repeats: long prompts on real engines, and the lab fleet on the real vLLM from nothing to nothing.
. "$(dirname "$0")/common.sh"
export ANSIBLE_CONFIG=$ROOT/ansible.cfg
"$VENV/bin/python" -m pytest -m long tests/unit tests/long
export PATH=$VENV/bin:$PATH COLUMNS=${COLUMNS:-160}
"$VENV/bin/python" tests/gate/machine.py forget "$CACHE/machine-fleet.json"
molecule reset --scenario-name fleet
FLEET_ENGINE=vllm molecule test --scenario-name fleet --destroy always
