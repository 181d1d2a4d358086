#!/usr/bin/python
# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: host_info
short_description: Read what a host is and has, in one call
version_added: "0.1.0"
description:
  - Reads the service manager, memory, free disk space, listening ports and who has them, packages and the container engine.
  - Judges them against O(needs), one check each. What cannot be found out is V(unknown), which is not good.
  - Needs nothing but Python's standard library on the host, so it works before anything is installed.
author:
  - ironserve.llm contributors (@ironserve)
extends_documentation_fragment:
  - ironserve.llm.attributes
attributes:
  check_mode:
    support: full
    description: The module changes nothing.
  diff_mode:
    support: none
    description: The module changes nothing.
options:
  paths:
    description: Directories, there already or not, whose free space is asked for.
    type: list
    elements: path
    default: []
  directories:
    description:
      - Directories that shall be there, root's own. Which of them still have to be made or set right is returned as RV(directories_wanting),
        so that a host on which all are as they should be costs no further task.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: The directory.
        type: path
        required: true
      mode:
        description: Its permissions as an octal number, such as V(0755).
        type: str
        required: true
  files:
    description:
      - Files that shall be there, root's own. Which of them still have to be brought or set right is returned as RV(files_wanting), so that
        a host on which all are as they should be costs no further task.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: The file.
        type: path
        required: true
      mode:
        description: Its permissions as an octal number, such as V(0644).
        type: str
        required: true
      sha256:
        description: Digest of its content, in hexadecimal.
        type: str
        required: true
  ports:
    description: TCP ports to look at.
    type: list
    elements: int
    default: []
  own_markers:
    description: A taken port is this collection's own when the command line or container that has it holds one of these texts.
    type: list
    elements: str
    default: [ironserve]
  packages:
    description: Debian packages that shall be installed.
    type: list
    elements: str
    default: []
  list_packages:
    description: Whether to return the names of all installed packages.
    type: bool
    default: false
  engine_socket:
    description: Socket of the container engine.
    type: path
    default: /var/run/docker.sock
  needs:
    description: What the host must have.
    type: dict
    default: {}
    suboptions:
      memory_mib:
        description: Memory in all, in MiB.
        type: int
      disk_mib:
        description: Free space in the file system of each of O(paths), in MiB.
        type: int
      controller_clock:
        description: The controller's clock, in seconds since the epoch.
        type: float
notes:
  - Processes of other users can only be named by root.
"""

EXAMPLES = r"""
- name: Look at the host before anything is changed
  ironserve.llm.host_info:
    paths: [/var/lib/ironserve]
    ports: [8000, 8001]
    needs: {memory_mib: 4096, disk_mib: 3000}
  register: host

- name: Stop when something is wrong
  ansible.builtin.assert:
    that: host.failures | length == 0
    fail_msg: "{{ host.failures | join(' ') }}"
"""

RETURN = r"""
init:
  description: What starts services, V(systemd), V(sysv), or V(direct) where PID 1 is no init system.
  returned: always
  type: str
uid:
  description: Numeric user the module ran as.
  returned: always
  type: int
python:
  description: The interpreter the module ran with, its C(executable), C(version) and C(version_info).
  returned: always
  type: dict
os:
  description: The system, its C(id), C(family) (V(debian) or V(other)), C(codename), C(version) and C(pretty) name.
  returned: always
  type: dict
architecture:
  description: Machine architecture as the kernel calls it.
  returned: always
  type: str
  sample: x86_64
boot_id:
  description: The kernel's identity of this boot.
  returned: always
  type: str
clock:
  description: The host's clock, in seconds since the epoch.
  returned: always
  type: float
memory_total_mib:
  description: Memory in all, in MiB.
  returned: always
  type: int
memory_available_mib:
  description: Memory that can be had without swapping, in MiB.
  returned: always
  type: int
cpus:
  description: Processors this process may run on.
  returned: always
  type: int
nofile_hard:
  description: Hard limit of open files; -1 means none.
  returned: always
  type: int
disks:
  description: Per asked path its nearest existing C(parent), C(free_mib) and C(total_mib) there, and the C(device) number.
  returned: always
  type: list
  elements: dict
directories_wanting:
  description: Those of O(directories), as they were given, that are not there, are no directory, or have another owner or other permissions.
  returned: always
  type: list
  elements: dict
files_wanting:
  description: Paths of those of O(files) that are not there, are no file, or have another content, another owner or other permissions.
  returned: always
  type: list
  elements: str
ports:
  description:
    - Per asked port whether it is C(free) or C(own), and the C(address), C(pid), C(command) and C(container) that has it.
    - C(pid) is 0 and texts are empty where there is nothing or it cannot be seen.
  returned: always
  type: list
  elements: dict
packages_missing:
  description: Those of the asked packages that are not installed.
  returned: always
  type: list
  elements: str
packages_installed:
  description: Names of all installed packages; empty unless O(list_packages=true).
  returned: always
  type: list
  elements: str
apt:
  description: The C(mirror) and C(keyring) the host's own release comes from, empty where there is none.
  returned: always
  type: dict
engine:
  description:
    - The container engine, whether it is C(installed), C(running) and C(reachable), its C(version), C(api_version),
      C(cgroup_driver), C(cgroup_version), C(storage_driver), C(root_dir), number of C(containers), C(pids), C(program) and,
      when it is not reachable, the C(error).
  returned: always
  type: dict
checks:
  description: One C(name), C(status), C(detail) and C(fix) per check.
  returned: always
  type: list
  elements: dict
lines:
  description: The checks as a person reads them.
  returned: always
  type: list
  elements: str
failures:
  description: Those lines that stop a deployment.
  returned: always
  type: list
  elements: str
"""

import os
import platform
import re
import resource
import sys
import time

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.ironserve.llm.plugins.module_utils import _checks, _host, _lock, _ports
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError


def read(path: str) -> str:
    """The text of a file, empty when there is none."""
    if not os.path.exists(path):
        return ""
    with open(path, encoding="utf-8", errors="replace") as handle:
        return handle.read()


def look(params: dict) -> dict:
    """Everything the module returns but the checks."""
    release = _host.parse_os_release(read("/etc/os-release"))
    family = "debian" if "debian" in [release.get("ID", "")] + release.get("ID_LIKE", "").split() else "other"
    codename = release.get("VERSION_CODENAME", "")
    total, available = _host.parse_meminfo(read("/proc/meminfo"))
    packages = _host.installed_packages(read("/var/lib/dpkg/status")) if params["packages"] or params["list_packages"] else []
    engine = _host.engine_report(params["engine_socket"])
    ports = []
    if params["ports"]:
        listeners = _ports.read_listeners()
        owners = _ports.socket_owners({item.inode for item in listeners if item.port in params["ports"]})
        containers = _ports.container_ports(_host.engine_get(params["engine_socket"], "/containers/json")) if engine["reachable"] else {}
        ports = _ports.port_report(params["ports"], listeners, owners, containers, params["own_markers"])
    return {
        "init": _host.init_kind(),
        "uid": os.geteuid(),
        "python": {"executable": sys.executable, "version": platform.python_version(), "version_info": list(sys.version_info[:3])},
        "os": {
            "id": release.get("ID", ""),
            "family": family,
            "codename": codename,
            "version": release.get("VERSION_ID", ""),
            "pretty": release.get("PRETTY_NAME", ""),
        },
        "architecture": platform.machine(),
        "boot_id": _lock.boot_id(),
        "clock": time.time(),
        "memory_total_mib": total,
        "memory_available_mib": available,
        "cpus": len(os.sched_getaffinity(0)),
        "nofile_hard": resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        "disks": _host.disk_report(params["paths"]),
        "directories_wanting": [item for item in params["directories"] if _host.is_wanting(item["path"], int(item["mode"], 8))],
        "files_wanting": [
            item["path"] for item in params["files"] if _host.is_file_wanting(item["path"], int(item["mode"], 8), item["sha256"])
        ],
        "ports": ports,
        "packages_missing": sorted(set(params["packages"]) - set(packages)),
        "packages_installed": packages if params["list_packages"] else [],
        "apt": _host.distribution_source(_host.read_apt_sources(), codename, release.get("ID", "")),
        "engine": engine,
    }


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "paths": {"type": "list", "elements": "path", "default": []},
            "directories": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {"path": {"type": "path", "required": True}, "mode": {"type": "str", "required": True}},
            },
            "files": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "path": {"type": "path", "required": True},
                    "mode": {"type": "str", "required": True},
                    "sha256": {"type": "str", "required": True},
                },
            },
            "ports": {"type": "list", "elements": "int", "default": []},
            "own_markers": {"type": "list", "elements": "str", "default": ["ironserve"]},
            "packages": {"type": "list", "elements": "str", "default": []},
            "list_packages": {"type": "bool", "default": False},
            "engine_socket": {"type": "path", "default": "/var/run/docker.sock"},
            "needs": {
                "type": "dict",
                "default": {},
                "options": {"memory_mib": {"type": "int"}, "disk_mib": {"type": "int"}, "controller_clock": {"type": "float"}},
            },
        },
        supports_check_mode=True,
    )
    for option in ("directories", "files"):
        for item in module.params[option]:
            if not re.match("^0?[0-7]{3}$", item["mode"]):
                module.fail_json(
                    msg="{0}: the mode of {1} must be an octal number such as 0755, not {2}".format(option, item["path"], item["mode"])
                )
    try:
        facts = look(module.params)
        checks = _host.host_checks(facts, module.params["needs"])
    except LLMError as exc:
        module.fail_json(msg=str(exc))
    except OSError as exc:
        module.fail_json(msg="host_info: {0}".format(exc))
    module.exit_json(
        changed=False,
        checks=[check.as_dict() for check in checks],
        lines=[check.line() for check in checks],
        failures=_checks.failures(checks),
        **facts,
    )


if __name__ == "__main__":
    main()
