#!/usr/bin/env bash
# Style and syntax, without running anything: YAML, Python, Ansible, and the Python of the managed hosts.
. "$(dirname "$0")/common.sh"
export PATH=$VENV/bin:$PATH NO_COLOR=1 ANSIBLE_CONFIG=$ROOT/ansible.cfg

status=0
check() { # check NAME COMMAND...: all checks run, so that one round shows everything
  local name=$1; shift
  say "lint: $name"
  "$@" || { status=1; say "lint: $name FAILED"; }
}

check yamllint yamllint --strict .
check "ruff check" ruff check --quiet --output-format concise .
check "ruff format" ruff format --check --output-format concise .
check vermin vermin --target=3.7- --no-tips --violations --quiet plugins/modules plugins/module_utils
check "managed hosts' Python" tests/gate/targets.sh
check changelog antsibull-changelog lint
check ansible-lint ansible-lint --offline -c .config/ansible-lint.yml -q
exit "$status"
