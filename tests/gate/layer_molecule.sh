#!/usr/bin/env bash
# The shipped playbooks on real parts. Scenario "default" is site.yml on this machine; "fleet" the same on nodes over ssh, in a lab beside
# it; "preflight" the shipped preflight.yml on hosts of all vendors, played on such nodes. SCENARIOS names others than the first two.
. "$(dirname "$0")/common.sh"
[ "$(id -u)" -eq 0 ] || sudo -n true 2>/dev/null || die "molecule needs root or a sudo that asks no password: it converges this machine."
# Molecule frames what ansible prints and wraps it at the width of the terminal.
export PATH=$VENV/bin:$PATH COLUMNS=${COLUMNS:-160}

# The site on this machine goes last, whatever happens: the lab finds its container engine and its images there, and must disturb neither.
site=
finish() {
  local status=$?
  trap - EXIT
  [ -z "$site" ] || molecule cleanup --scenario-name default || status=1
  exit "$status"
}
trap finish EXIT
trap 'exit 130' INT TERM
for scenario in ${SCENARIOS:-default fleet}; do
  [ "$scenario" != default ] || site=1
  "$VENV/bin/python" tests/gate/machine.py forget "$CACHE/machine-$scenario.json"
  molecule reset --scenario-name "$scenario"
  # When a step fails, cleanup still runs: what was started is stopped.
  molecule test --scenario-name "$scenario" --destroy always
done
