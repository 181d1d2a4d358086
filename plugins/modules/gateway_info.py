#!/usr/bin/python
# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gateway_info
short_description: Look at the gateway of a host and at what it can have there
version_added: "0.1.0"
description:
  - Returns what the role C(gateway) needs before it renders anything, in one call. It tells whether and which HAProxy or nginx is installed,
    whether the gateway runs, which servers its present file has, and how many connections fit under the limit of open files.
  - Works where nothing is installed yet.
author:
  - ironserve.llm contributors (@ironserve)
extends_documentation_fragment:
  - ironserve.llm.attributes
attributes:
  check_mode:
    support: full
    description: Reads only.
  diff_mode:
    support: none
    description: Reads only.
options:
  software:
    description: What the gateway is to be, which has to be what it is. Empty for what its file says.
    type: str
    choices: ["", haproxy, nginx]
    default: ""
  haproxy:
    description: The HAProxy binary.
    type: path
    default: /usr/sbin/haproxy
  nginx:
    description: The nginx binary.
    type: path
    default: /usr/sbin/nginx
  nginx_js_module:
    description: The module that gives nginx JavaScript. Without it nginx counts as not installed.
    type: path
    default: /usr/lib/nginx/modules/ngx_http_js_module.so
  config:
    description:
      - The gateway's configuration file. It need not exist. One of the name C(nginx.conf) is nginx's, any other HAProxy's.
      - Where only the file of the other one, C(nginx.conf) or C(haproxy.cfg), is in that directory, that one is meant.
    type: path
    required: true
  socket:
    description: The gateway's runtime socket. It need not exist.
    type: path
    required: true
  pid_file:
    description: The file with the process id of the gateway's master process. It need not exist.
    type: path
    required: true
  backend:
    description: The backend of the configuration file that holds the replicas. Those of its models, C(<backend>.<model>), belong to it.
    type: str
    default: ironserve_replicas
  hosts:
    description: The hosts whose replicas belong behind this gateway.
    type: list
    elements: str
    default: []
  absent_hosts:
    description: Those of O(hosts) that are no part of this run. Their servers keep their place, see RV(kept).
    type: list
    elements: str
    default: []
  new_servers:
    description: How many servers the next configuration brings beside RV(kept). Each takes descriptors.
    type: int
    default: 0
  maxconn_ceiling:
    description: The most client connections wanted.
    type: int
    default: 10000
"""

EXAMPLES = r"""
- name: Look at the gateway
  ironserve.llm.gateway_info:
    config: /etc/ironserve/gateway/haproxy.cfg
    socket: /run/ironserve/gateway.sock
    pid_file: /run/ironserve/gateway.pid
  register: gateway
"""

RETURN = r"""
software:
  description: What was looked at, V(haproxy) or V(nginx).
  returned: always
  type: str
installed:
  description: Whether the binary is there.
  returned: always
  type: bool
version:
  description: The version of HAProxy or nginx. Empty when it is not installed.
  returned: always
  type: str
  sample: 2.6.12
prometheus:
  description: Whether this HAProxy has the Prometheus exporter built in. True when it is not installed yet.
  returned: always
  type: bool
lua:
  description: Whether this HAProxy has Lua built in. True when it is not installed yet.
  returned: always
  type: bool
running:
  description: Whether the gateway answers on its socket.
  returned: always
  type: bool
pids:
  description: The process ids of the gateway, the master process and its workers.
  returned: always
  type: list
  elements: int
servers:
  description: The servers of the present configuration file, as elements of the role's C(gateway_servers).
  returned: always
  type: list
  elements: dict
states:
  description:
    - The administrative state of each server of the running gateway, V(ready), V(drain) or V(maint). Empty when it does not run.
    - Nginx has V(ready) and V(maint) only.
  returned: always
  type: dict
down:
  description:
    - Servers of the running gateway that fail its health check. One that is drained or in maintenance is not checked.
    - Empty for nginx, which checks nothing by itself.
  returned: always
  type: list
  elements: str
queued:
  description:
    - How many requests wait for a free place, for each backend of the running gateway. Empty when it does not run.
    - Empty for nginx, where none waits.
  returned: always
  type: dict
  sample: {"ironserve_replicas": 3}
kept:
  description: Those of RV(servers) that belong to one of O(absent_hosts).
  returned: always
  type: list
  elements: dict
nofile:
  description: The number of open files the gateway may need with RV(maxconn) connections.
  returned: always
  type: int
maxconn:
  description: The number of client connections that fit under the limit of open files, at most O(maxconn_ceiling).
  returned: always
  type: int
service_manager:
  description: V(systemd), V(sysv) or V(direct), where the first process of the host is no init system.
  returned: always
  type: str
python:
  description: The Python interpreter that ran this.
  returned: always
  type: str
"""

import os
import re
import sys

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.ironserve.llm.plugins.module_utils import _haproxy, _nginx
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError, UnknownOutput


def read(path: str) -> str:
    """Return the text of a file, or "" when it does not exist."""
    try:
        with open(path, encoding="utf-8", errors="replace") as source:
            return source.read()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    except OSError as exc:
        raise LLMError("{0} cannot be read: {1}".format(path, exc.strerror)) from exc


def service_manager() -> str:
    """Return which of the three ways of running a service this host has."""
    if os.path.isdir("/run/systemd/system"):
        return "systemd"
    if read("/proc/1/comm").strip() == "init" and os.path.isdir("/etc/init.d"):
        return "sysv"
    return "direct"


def family(pid_file: str, config: str) -> list[int]:
    """Return the master process of the gateway and its children; empty when it does not run."""
    first = read(pid_file).split()
    if not first or not first[0].isdigit() or config not in read("/proc/{0}/cmdline".format(first[0])).split("\0"):
        return []
    master = int(first[0])
    found = [master]
    for entry in os.listdir("/proc"):
        # The name of a process is in parentheses and may hold anything, so the parent is counted from the last one.
        if entry.isdigit() and read("/proc/{0}/stat".format(entry)).rpartition(")")[2].split()[1:2] == [str(master)]:
            found.append(int(entry))
    return found


def nofile(manager: str, pids: list[int]) -> int:
    """Return the lowest hard limit that the gateway meets: of this process, of its running master, of the init system."""
    sources = ["self"]
    if manager != "direct":
        sources.append("1")
    sources.extend(str(pid) for pid in pids[:1])
    limits = [read("/proc/{0}/limits".format(source)) for source in sources]
    return min(_haproxy.nofile_hard(text) for text in limits if text)


def room(options: dict[str, object], present: list, pids: list[int]) -> dict[str, object]:
    """Which servers stay, and how many connections fit: what is found out in one way whatever the gateway is."""
    kept = _haproxy.kept_servers(present, options["hosts"], options["absent_hosts"])
    manager = service_manager()
    servers = len(kept) + options["new_servers"]
    maxconn = _haproxy.maxconn_for(nofile(manager, pids), servers, options["maxconn_ceiling"])
    return {
        "pids": pids,
        "servers": [server.as_dict() for server in present],
        "kept": [server.as_dict() for server in kept],
        "nofile": _haproxy.needed_nofile(maxconn, servers),
        "maxconn": maxconn,
        "service_manager": manager,
        "python": sys.executable,
    }


def look_at_nginx(module: AnsibleModule, config: str) -> dict[str, object]:
    """Collect the facts where the gateway is nginx."""
    options = module.params
    version = ""
    installed = os.access(options["nginx"], os.X_OK) and os.path.exists(options["nginx_js_module"])
    if installed:
        _status, out, err = module.run_command([options["nginx"], "-v"], check_rc=True)
        match = re.search(r"nginx/(\d+\.\d+[^\s]*)", out + err)
        if match is None:
            raise UnknownOutput('{0} -v says nothing about its version, but: "{1}"'.format(options["nginx"], (out + err)[:80]))
        version = match.group(1)
    present = _nginx.config_servers(read(config), options["backend"])
    pids = _nginx.family(options["pid_file"], config)
    found = _nginx.loaded(options["socket"])
    return {
        "software": "nginx",
        "installed": installed,
        "version": version,
        "prometheus": False,
        "lua": False,
        "running": found is not None,
        "states": found[1] if found is not None else {},
        "down": [],
        "queued": {},
        **room(options, present, pids),
    }


def look(module: AnsibleModule) -> dict[str, object]:
    """Collect the facts."""
    options = module.params
    config = _nginx.present(options["config"])
    found = "nginx" if _nginx.is_ours(config) else "haproxy"
    if options["software"] not in ("", found):
        raise LLMError(
            "the gateway of this host is {0}, by {1}, and {2} is wanted. Take it away first: run the role gateway with gateway_state absent"
            " and gateway_software {0}".format(found, config, options["software"])
        )
    if found == "nginx":
        return look_at_nginx(module, config)
    version, prometheus, lua = "", True, True
    installed = os.access(options["haproxy"], os.X_OK)
    if installed:
        _status, out, err = module.run_command([options["haproxy"], "-vv"], check_rc=True)
        match = re.search(r"HAProxy version (\d+\.\d+[^\s-]*)", out)
        if match is None:
            raise UnknownOutput('{0} -vv says nothing about its version, but: "{1}"'.format(options["haproxy"], (out + err)[:80]))
        version = match.group(1)
        prometheus = "prometheus-exporter" in out
        lua = "Built with Lua" in out
    present = _haproxy.config_servers(read(options["config"]), options["backend"])
    pids = family(options["pid_file"], options["config"])
    running = _haproxy.running(options["socket"]) is not None
    door = _haproxy.AdminSocket(options["socket"])
    live = door.servers(options["backend"]) if running else {}
    return {
        "software": "haproxy",
        "installed": installed,
        "version": version,
        "prometheus": prometheus,
        "lua": lua,
        "running": running,
        "states": {name: server.admin for name, server in live.items()},
        "down": sorted(name for name, server in live.items() if server.admin == _haproxy.READY and server.op in ("stopped", "stopping")),
        "queued": door.queued(options["backend"]) if running else {},
        **room(options, present, pids),
    }


def main() -> None:
    """Answer the module call."""
    module = AnsibleModule(
        argument_spec={
            "software": {"type": "str", "choices": ["", "haproxy", "nginx"], "default": ""},
            "haproxy": {"type": "path", "default": "/usr/sbin/haproxy"},
            "nginx": {"type": "path", "default": "/usr/sbin/nginx"},
            "nginx_js_module": {"type": "path", "default": "/usr/lib/nginx/modules/ngx_http_js_module.so"},
            "config": {"type": "path", "required": True},
            "socket": {"type": "path", "required": True},
            "pid_file": {"type": "path", "required": True},
            "backend": {"type": "str", "default": _haproxy.BACKEND},
            "hosts": {"type": "list", "elements": "str", "default": []},
            "absent_hosts": {"type": "list", "elements": "str", "default": []},
            "new_servers": {"type": "int", "default": 0},
            "maxconn_ceiling": {"type": "int", "default": 10000},
        },
        supports_check_mode=True,
    )
    try:
        module.exit_json(changed=False, **look(module))
    except LLMError as exc:
        module.fail_json(msg=str(exc))


if __name__ == "__main__":
    main()
