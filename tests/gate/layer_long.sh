#!/usr/bin/env bash
# Soaks and repeats: long prompts on real engines, the lab fleet on both engines and the played fleet, from nothing to nothing.
. "$(dirname "$0")/common.sh"
export ANSIBLE_CONFIG=$ROOT/ansible.cfg
"$VENV/bin/python" -m pytest -n 3 -m long tests/unit/faults
tests/gate/browser.sh
"$VENV/bin/python" -m pytest -m long --ignore tests/unit/faults tests/unit tests/long
# Real engines that turn bad in a fleet that serves.
trap 'tests/gate/play.sh playbooks/teardown.yml -i inventories/local' EXIT
tests/gate/play.sh site.yml -i inventories/local
as_root "$VENV/bin/python" tests/gate/bad_engines.py --turned
# With the HAProxy that the site brought.
as_root env ANSIBLE_CONFIG="$ANSIBLE_CONFIG" "$VENV/bin/python" -m pytest -m long tests/integration
trap - EXIT
tests/gate/play.sh playbooks/teardown.yml -i inventories/local
FLEET_LONG=1 SCENARIOS="fleet preflight" tests/gate/layer_molecule.sh
FLEET_ENGINE=vllm SCENARIOS=fleet tests/gate/layer_molecule.sh
