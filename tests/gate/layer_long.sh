#!/usr/bin/env bash
# Soaks and repeats: long prompts on real engines, the lab fleet on both engines and the played fleet, from nothing to nothing.
. "$(dirname "$0")/common.sh"
export ANSIBLE_CONFIG=$ROOT/ansible.cfg
"$VENV/bin/python" -m pytest -m long tests/unit tests/long
SCENARIOS="fleet preflight" tests/gate/layer_molecule.sh
FLEET_ENGINE=vllm SCENARIOS=fleet tests/gate/layer_molecule.sh
