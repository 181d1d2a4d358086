#!/usr/bin/python
# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: accelerator_host_info
short_description: Read what preflight must know of a host besides its cards
version_added: "0.1.0"
description:
  - Reads the kernel's settings, limits, IOMMU and PCI bridges, free disk space, ports, firewalls, the container engine and the
    vendors' container toolkits. It judges nothing; M(ironserve.llm.accelerator_preflight) does.
  - Needs nothing but Python's standard library on the host, so it works before anything is installed.
author:
  - ironserve.llm contributors (@ironserve)
extends_documentation_fragment:
  - ironserve.llm.attributes.reads
options:
  addresses:
    description: PCI addresses of the cards, for the bridges above them.
    type: list
    elements: str
    default: []
  paths:
    description: Directories, there already or not, whose free space is asked for.
    type: list
    elements: path
    default: []
  measured_paths:
    description: Those of O(paths) whose content is added up.
    type: list
    elements: path
    default: []
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
  image:
    description: Reference of the engine image; empty asks for none.
    type: str
    default: ""
  engine_socket:
    description: Socket of the container engine.
    type: path
    default: /var/run/docker.sock
  controller_clock:
    description: The controller's clock, in seconds since the epoch; V(0) means that it is not compared.
    type: float
    default: 0
  root:
    description: Directory that stands for the root of the host, to read a host that is played.
    type: path
    default: /
  sysfs:
    description: Directory that stands for C(/sys), to read a host that is played. Default is C(sys) under O(root).
    type: path
    default: ""
  proc:
    description: Directory that stands for C(/proc), to read a host that is played. Default is C(proc) under O(root).
    type: path
    default: ""
notes:
  - Only root sees the processes of other users and the whole configuration space of PCI bridges.
"""

EXAMPLES = r"""
---
- name: Read the host
  ironserve.llm.accelerator_host_info:
    addresses: ["0000:07:00.0", "0000:0a:00.0"]
    paths: [/var/lib/ironserve/weights, /tmp]
    measured_paths: [/var/lib/ironserve/weights]
    ports: [8001, 8002]
  register: host
"""

RETURN = r"""
kernel:
  description:
    - The kernel's C(release), boot C(arguments), loaded C(modules), C(sysctl) values by name, C(governors) with the number of processors,
      C(hugepages) (C(reserved_mib), C(transparent)), C(memory_total_mib), C(numa_nodes), C(limits) (soft and hard, -1 is none) of the process C(limits_of),
      C(iommu) (C(active), C(groups) by type) and C(acs) (C(bridges) above the cards, those C(redirecting), those C(unreadable)).
    - What the kernel does not show is null.
  returned: success
  type: dict
disks:
  description:
    - Per asked path, and for the engine's own directory (C(/var/lib/docker) where it does not say), C(free_mib) and C(total_mib) of its
      file system, its nearest existing C(parent) and the C(device) number. C(present_mib) is what a measured path holds already, null for
      the others.
  returned: success
  type: list
  elements: dict
ports:
  description: Per asked port C(free), C(own), C(address), C(pid), C(command) and C(container). Null where the kernel does not show its sockets.
  returned: success
  type: list
  elements: dict
firewalls:
  description: Firewalls that are on, of V(firewalld), V(ufw) and V(nftables).
  returned: success
  type: list
  elements: str
engine:
  description:
    - The container engine, C(installed), C(running), C(reachable), C(version), C(default_runtime), C(runtimes), C(cgroup_version),
      C(storage_driver), C(root_dir), C(live_restore), C(warnings), C(error), and of its configuration file C(configured_runtime) and
      C(configuration_error).
  returned: success
  type: dict
image:
  description: Whether the image is C(present), its C(digests), and the names and values of those C(environment) variables that choose cards.
  returned: success
  type: dict
toolkits:
  description: Version of each vendor's container toolkit that is installed as a package, by name. Null where packages cannot be listed.
  returned: success
  type: dict
clock_skew_s:
  description: The host's clock minus O(controller_clock), in seconds; null where it was not asked for.
  returned: success
  type: float
"""

import time

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.ironserve.llm.plugins.module_utils import _host_engine, _kernel
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError


def look(params: dict) -> dict:
    """Everything the module returns."""
    tree = _kernel.Tree(params["root"], params["sysfs"], params["proc"])
    clock = time.time()
    engine = _host_engine.read_engine(tree, params["engine_socket"])
    limits_pid = (engine["pids"] or [1])[0]
    kernel = _kernel.read_kernel(tree, limits_pid, params["addresses"])
    kernel["limits_of"] = "the container engine" if engine["pids"] else "process 1"
    paths = params["paths"] + [engine["root_dir"] or _host_engine.ENGINE_ROOT]
    return {
        "kernel": kernel,
        "disks": _host_engine.read_disks(tree, paths, params["measured_paths"]),
        "ports": _host_engine.read_ports(tree, params["ports"], params["own_markers"], engine, params["engine_socket"]),
        "firewalls": _host_engine.read_firewalls(tree),
        "engine": engine,
        "image": _host_engine.read_image(tree, params["engine_socket"], engine, params["image"]),
        "toolkits": _host_engine.read_toolkits(tree),
        "clock_skew_s": clock - params["controller_clock"] if params["controller_clock"] else None,
    }


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "addresses": {"type": "list", "elements": "str", "default": []},
            "paths": {"type": "list", "elements": "path", "default": []},
            "measured_paths": {"type": "list", "elements": "path", "default": []},
            "ports": {"type": "list", "elements": "int", "default": []},
            "own_markers": {"type": "list", "elements": "str", "default": ["ironserve"]},
            "image": {"type": "str", "default": ""},
            "engine_socket": {"type": "path", "default": "/var/run/docker.sock"},
            "controller_clock": {"type": "float", "default": 0.0},
            "root": {"type": "path", "default": "/"},
            "sysfs": {"type": "path", "default": ""},
            "proc": {"type": "path", "default": ""},
        },
        supports_check_mode=True,
    )
    try:
        facts = look(module.params)
    except LLMError as exc:
        module.fail_json(msg=str(exc))
    except OSError as exc:
        module.fail_json(msg="accelerator_host_info: {0}".format(exc))
    module.exit_json(changed=False, **facts)


if __name__ == "__main__":
    main()
