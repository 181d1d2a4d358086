#!/usr/bin/python
# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: run_lock
short_description: Let only one deployment at a time work on a host
version_added: "0.1.0"
description:
  - Takes, renews or gives back the run lock of a host. The lock belongs to the whole C(ansible-playbook) process that
    takes it, so every later task of the same run may take it again, which renews its lease.
  - When another living run has it, the task fails at once and names that run's user, controller, process and start time.
  - A lock is taken over, and the result says so, when its process is gone on this same controller, when its lease ran out,
    or when the host was restarted since.
  - A lock is no part of a host's configuration, so taking and releasing it never reports a change.
author:
  - ironserve.llm contributors (@ironserve)
extends_documentation_fragment:
  - ironserve.llm.attributes
attributes:
  check_mode:
    support: full
    description: Looks and warns about a lock that stands in the way, but writes nothing and does not fail.
  diff_mode:
    support: none
    description: A lock is no part of a host's configuration.
options:
  path:
    description: The lock file on the host. It should lie where a restart removes it.
    type: path
    default: /run/ironserve/lock.json
  state:
    description:
      - V(present) takes or renews the lock.
      - V(absent) gives it back. The lock of another run is left alone, unless O(takeover=true).
    type: str
    choices: [present, absent]
    default: present
  lease_s:
    description:
      - For how many seconds the lock holds when nothing is heard of its run any more.
      - This matters only to runs from another controller, which cannot see whether the process lives.
    type: int
    default: 14400
  takeover:
    description: Take the lock from whoever has it.
    type: bool
    default: false
  owner:
    description: Who asks. Filled in on the controller; not for use in playbooks.
    type: dict
  dead_run_id:
    description: A run whose process the controller knows to be gone. Filled in on the controller; not for use in playbooks.
    type: str
    default: ""
notes:
  - The file is written on the host with the host's clock, so the clocks of two controllers need not agree.
"""

EXAMPLES = r"""
- name: Let nobody else deploy meanwhile
  ironserve.llm.run_lock:
    state: present
    takeover: "{{ llm_lock_takeover | default(false) | bool }}"

- name: Let others in again
  ironserve.llm.run_lock:
    state: absent
"""

RETURN = r"""
held:
  description: Whether this run has the lock after the call, or would have it in check mode.
  returned: always
  type: bool
holder:
  description:
    - The record in the lock file. Empty when there is none.
    - C(started) and C(expires) are seconds since the epoch, C(pid_start) is in clock ticks since the
      controller's boot.
  returned: always
  type: dict
  sample: {"user": "ann", "controller": "ctl1", "pid": 4711, "pid_start": "12345", "started": 1790000000.0, "expires": 1790014400.0}
takeover:
  description: Whether the lock of another run was replaced or removed.
  returned: always
  type: bool
msg:
  description: What happened, in one line.
  returned: always
  type: str
  sample: lock taken
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.ironserve.llm.plugins.module_utils import _lock
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "default": "/run/ironserve/lock.json"},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "lease_s": {"type": "int", "default": 14400},
            "takeover": {"type": "bool", "default": False},
            "owner": {"type": "dict"},
            "dead_run_id": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    params = module.params
    owner = params["owner"]
    if not owner:
        module.fail_json(msg="run_lock: nobody said who asks; call it as a task, its controller side fills in owner")
    # Arguments travel as JSON, yet a templated record may have turned numbers into text.
    owner = dict(owner, pid=int(owner["pid"]), started=float(owner["started"]))
    try:
        if params["state"] == "absent":
            outcome = _lock.release(params["path"], owner, params["takeover"], look_only=module.check_mode)
        else:
            outcome = _lock.acquire(
                params["path"], owner, params["lease_s"], params["takeover"], params["dead_run_id"], look_only=module.check_mode
            )
    except LLMError as exc:
        module.fail_json(msg=str(exc))
    module.exit_json(changed=False, held=outcome.held, holder=outcome.holder, takeover=outcome.takeover, msg=outcome.message)


if __name__ == "__main__":
    main()
