#!/usr/bin/env bash
# Style and syntax, without running anything: YAML, Python, Ansible, and the Python of the managed hosts.
. "$(dirname "$0")/common.sh"
export PATH=$VENV/bin:$PATH NO_COLOR=1 ANSIBLE_CONFIG=$ROOT/ansible.cfg

check() { # check NAME COMMAND...
  local name=$1; shift
  say "lint: $name"
  "$@" || { say "lint: $name FAILED"; return 1; }
}

roles() {
  check ansible-lint ansible-lint --offline -c .config/ansible-lint.yml -q
}

files() { # all checks run, so that one round shows everything
  local status=0
  check yamllint yamllint --strict . || status=1
  check "ruff check" ruff check --quiet --output-format concise . || status=1
  check "ruff format" ruff format --check --output-format concise . || status=1
  check vermin vermin --target=3.7- --no-tips --violations --quiet plugins/modules plugins/module_utils || status=1
  check "managed hosts' Python" tests/gate/targets.sh || status=1
  check changelog antsibull-changelog lint || status=1
  return "$status"
}

export -f say check roles files
# Side by side: ansible-lint alone takes longer than all others. xargs hands on what interrupts it.
printf '%s\n' roles files | xargs -P 2 -I '{}' bash -uo pipefail -c '{}' || exit 1
