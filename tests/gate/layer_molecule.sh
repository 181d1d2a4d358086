#!/usr/bin/env bash
# The shipped site.yml on real parts, on this machine: molecule scenario "default". SCENARIOS names others: "fleet" is the same on nodes
# over ssh, "preflight" the shipped preflight.yml on hosts of all vendors, played on such nodes.
. "$(dirname "$0")/common.sh"
[ "$(id -u)" -eq 0 ] || sudo -n true 2>/dev/null || die "molecule needs root or a sudo that asks no password: it converges this machine."
# Molecule frames what ansible prints and wraps it at the width of the terminal.
export PATH=$VENV/bin:$PATH COLUMNS=${COLUMNS:-160}
for scenario in ${SCENARIOS:-default}; do
  "$VENV/bin/python" tests/gate/machine.py forget "$CACHE/machine-$scenario.json"
  molecule reset --scenario-name "$scenario"
  # When a step fails, cleanup still runs: what was started is stopped.
  molecule test --scenario-name "$scenario" --destroy always
done
