#!/usr/bin/env bash
# Run ansible-playbook of .venv, having made sure that this user may become root on this machine.
# Usage: play.sh PLAYBOOK [ARGUMENTS...]
. "$(dirname "$0")/common.sh"

ask=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || die "root is needed on this machine and there is no sudo: run this as root."
  if ! sudo -n true 2>/dev/null; then
    [ -t 0 ] || die "root is needed on this machine: sudo wants a password and there is no terminal to ask on. Run this as root or from a terminal."
    ask=(--ask-become-pass)
  fi
fi
tests/gate/bootstrap.sh
say "ansible-playbook $*"
exec "$VENV/bin/ansible-playbook" "${ask[@]}" "$@"
