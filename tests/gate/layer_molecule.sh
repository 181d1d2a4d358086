#!/usr/bin/env bash
# The shipped site.yml on this machine, on real parts: molecule scenario "default".
. "$(dirname "$0")/common.sh"
[ "$(id -u)" -eq 0 ] || sudo -n true 2>/dev/null || die "molecule needs root or a sudo that asks no password: it converges this machine."
# Molecule frames what ansible prints and wraps it at the width of the terminal.
export PATH=$VENV/bin:$PATH COLUMNS=${COLUMNS:-160}
"$VENV/bin/python" tests/gate/machine.py forget "$CACHE/machine.json"
molecule reset --scenario-name default
# When a step fails, cleanup still runs: what was started is stopped.
molecule test --scenario-name default --destroy always
