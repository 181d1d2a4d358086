#!/usr/bin/python
# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gateway_config
short_description: Put the gateway's configuration into force without losing requests or server states
version_added: "0.1.0"
description:
  - Validates the configuration with C(haproxy -c) before anything is replaced, keeps the file before as C(<path>.previous), and
    starts or reloads the gateway.
  - A reload keeps the administrative state of each server (drain, maintenance) and the result of its health checks. The states
    are compared afterwards, and those that were lost are set again.
  - A file that differs only in which servers are C(disabled) is written without a reload;
    M(ironserve.llm.gateway_servers) brings such a difference to the running gateway.
  - The running gateway says which file it has loaded, so a run that was killed between writing and reloading is made good by the next one.
  - When the gateway does not come up with the new file, the file before is put back and the old process goes on serving.
  - With O(software=nginx) all of this holds, save that every difference is a reload, since the file is all the state nginx has, and that
    C(nginx -t) judges. A reload is over when no worker from before takes requests any more.
author:
  - ironserve.llm contributors (@ironserve)
extends_documentation_fragment:
  - ironserve.llm.attributes
attributes:
  check_mode:
    support: full
    description: Validates too, as far as HAProxy is installed.
  diff_mode:
    support: full
    description: Shows the configuration, which holds no secret.
options:
  config:
    description:
      - The text of the configuration. It holds V(@CONFIG_ID@) at the end of the C(description) line of its C(global) section.
      - With O(software=nginx) it holds V(@CONFIG_ID@) in what the server on O(socket) returns.
    type: str
    required: true
  path:
    description: Where the configuration belongs. The file gets mode 0600.
    type: path
    required: true
  software:
    description: What the gateway is.
    type: str
    choices: [haproxy, nginx]
    default: haproxy
  haproxy:
    description: The HAProxy binary.
    type: path
    default: /usr/sbin/haproxy
  nginx:
    description: The nginx binary.
    type: path
    default: /usr/sbin/nginx
  includes_change:
    description:
      - Whether a run would change the files that nginx's configuration includes, which this run, in check mode, cannot see.
      - Ignored with O(software=haproxy), which learns of them through its socket.
    type: bool
    default: false
  socket:
    description: The gateway's runtime socket, or the one on which nginx says which file it has loaded.
    type: path
    required: true
  lua_path:
    description:
      - Where the Lua file, or nginx's JavaScript file, belongs that the configuration loads.
      - Its name changes with its content, so that no running gateway sees it change.
    type: path
  lua:
    description: The text of that file. Written before the configuration. Files of the same kind that nothing names any more are removed.
    type: str
  certificate:
    description:
      - The file with the certificate that the configuration names, brought by M(ironserve.llm.gateway_certificate).
      - Where it does not exist yet, in check mode, the configuration is judged without it.
    type: path
  backend:
    description: The backend whose server states are kept. Those of its models, C(<backend>.<model>), belong to it.
    type: str
    default: ironserve_replicas
  service_manager:
    description: How the service is run.
    type: str
    choices: [systemd, sysv, direct]
    required: true
  service_name:
    description: The name of the service.
    type: str
    default: ironserve-gateway
  script:
    description: The script that starts and reloads the gateway where there is no systemd. It understands C(start) and C(reload).
    type: path
    default: /etc/init.d/ironserve-gateway
  restart:
    description: Restart instead of reloading, which cuts open streams. Only for what no reload can change, such as the service's own file.
    type: bool
    default: false
  wait_s:
    description: How long to wait, in seconds, for the gateway to have loaded the file.
    type: float
    default: 15
"""

EXAMPLES = r"""
- name: Put the gateway's configuration into force
  ironserve.llm.gateway_config:
    config: "{{ lookup('ansible.builtin.template', 'haproxy.cfg.j2') }}"
    path: /etc/ironserve/gateway/haproxy.cfg
    socket: /run/ironserve/gateway.sock
    service_manager: systemd
"""

RETURN = r"""
action:
  description:
    - What was done, or would be done in check mode.
    - V(none), V(written) without a reload, V(started), V(reloaded) or V(restarted).
  returned: success
  type: str
config_id:
  description: The identity of the configuration that is in force.
  returned: success
  type: str
validated:
  description:
    - Whether HAProxy found the configuration valid.
    - False where nothing was to be done, and in check mode where HAProxy or nginx is not installed yet.
  returned: success
  type: bool
affinity_restored:
  description: How many prefixes were given back to the replica that has them in its cache, after a reload that forgot them.
  returned: success
  type: int
restored:
  description: The servers that the reload put into another administrative state than they had, and which got it back.
  returned: success
  type: dict
"""

import os
import re
import shutil
import tempfile
import time

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.ironserve.llm.plugins.module_utils import _files, _haproxy, _nginx
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError


def read(path: str) -> str | None:
    """Return the text of a file, None when it does not exist."""
    try:
        with open(path, encoding="utf-8", errors="replace") as source:
            return source.read()
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise LLMError("{0} cannot be read: {1}".format(path, exc.strerror)) from exc


def disabled(text: str | None, backend: str) -> set[str]:
    """Return the servers that a file holds back."""
    return {server.name for server in _haproxy.config_servers(text or "", backend) if server.disabled}


class Config:
    """One call of the module."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.options = module.params
        self.path = module.params["path"]
        self.previous = self.path + ".previous"
        self.before = read(self.path)
        self.affinity_restored = 0
        self.door = _haproxy.AdminSocket(module.params["socket"])
        self.binary = module.params[module.params["software"]]
        self.text, self.identity = self.identified()

    def identified(self) -> tuple[str, str]:
        """Return the text with its identity in it, and the identity."""
        return _haproxy.with_identity(self.options["config"])

    def loaded(self) -> str | None:
        """Return the identity of the file that the running gateway has loaded, None when it does not run."""
        info = _haproxy.running(self.options["socket"])
        return None if info is None else _haproxy.loaded_identity(info)

    def binds(self, text: str) -> list[tuple[str, int]]:
        """Return the addresses and ports that a file binds."""
        return _haproxy.binds(text)

    def stale(self) -> bool:
        """Whether what the running gateway has loaded beside its file is about to change."""
        return False

    def installed(self) -> bool:
        """Whether there is something to judge the text with."""
        return os.access(self.binary, os.X_OK)

    def refused(self, words: str) -> LLMError:
        """Return the error for a text that the gateway's software finds invalid."""
        return LLMError(
            "the new gateway configuration is invalid and was not installed: {0}. {1}".format(
                words, "The one before stays in force" if self.before is not None else "Nothing was changed"
            )
        )

    def validate(self) -> None:
        """Let HAProxy judge the text in a directory of its own; maps that do not exist yet are empty ones there."""
        with tempfile.TemporaryDirectory(prefix="ironserve-gateway-") as room:
            text = self.text
            for number, path in enumerate(_haproxy.map_paths(text)):
                if not os.path.exists(path):
                    empty = os.path.join(room, "{0}.map".format(number))
                    with open(empty, "w", encoding="utf-8"):
                        pass
                    text = text.replace("({0})".format(path), "({0})".format(empty))
            certificate = self.options["certificate"]
            if certificate and not os.path.exists(certificate):
                # Only in check mode: a run has brought it before.
                text = _haproxy.without_tls(text)
            if self.options["lua"] is not None:
                lua = os.path.join(room, "requests.lua")
                with open(lua, "w", encoding="utf-8") as sink:
                    sink.write(self.options["lua"])
                text = text.replace(self.options["lua_path"], lua)
            checked = os.path.join(room, "haproxy.cfg")
            with open(checked, "w", encoding="utf-8") as sink:
                sink.write(text)
            status, out, err = self.module.run_command([self.options["haproxy"], "-c", "-f", checked])
        if status != 0:
            raise self.refused(_haproxy.validation_error(err or out, checked, self.path))

    def write(self, text: str, keep: bool) -> None:
        """Replace the file at once; with ``keep`` the present one becomes the previous one."""
        try:
            if keep and self.before is not None:
                shutil.copy2(self.path, self.previous)
                os.chmod(self.previous, 0o600)
            _files.put(self.path, text)
        except OSError as exc:
            raise LLMError("{0} cannot be written: {1}".format(self.path, exc.strerror)) from exc

    def lua_stands(self) -> bool:
        """Whether the Lua file is as it is to be."""
        return self.options["lua"] is None or (
            read(self.options["lua_path"]) == self.options["lua"] and _files.is_private(self.options["lua_path"])
        )

    def write_lua(self) -> None:
        """Bring the Lua file, and remove those that neither this configuration nor the one before names."""
        path = self.options["lua_path"]
        if self.options["lua"] is None:
            return
        try:
            if not self.lua_stands():
                _files.put(path, self.options["lua"])
            folder = os.path.dirname(path)
            named = self.text + (self.before or "")
            for name in os.listdir(folder):
                if name.startswith("requests-") and name.endswith((".lua", ".js")) and os.path.join(folder, name) not in named:
                    os.unlink(os.path.join(folder, name))
        except OSError as exc:
            raise LLMError("{0} cannot be written: {1}".format(path, exc.strerror)) from exc

    def service(self, verb: str) -> None:
        """Call the service by the way this host has."""
        if self.options["service_manager"] == "systemd":
            command = ["systemctl", verb, self.options["service_name"] + ".service"]
        else:
            command = [self.options["script"], verb]
        status, out, err = self.module.run_command(command)
        if status != 0:
            raise LLMError("{0} failed: {1}".format(" ".join(command), _haproxy.validation_error(err or out, "", "")))

    def wait(self) -> None:
        """Wait until the running gateway says that it has the new file."""
        deadline = time.monotonic() + self.options["wait_s"]
        while True:
            identity = self.loaded()
            if identity == self.identity:
                return
            if time.monotonic() > deadline:
                raise LLMError(
                    "the gateway {0} after {1:g} s".format(
                        "still has the file before" if identity is not None else "does not answer on " + self.options["socket"],
                        self.options["wait_s"],
                    )
                )
            time.sleep(0.05)

    def bring_up(self, verb: str, was_running: bool) -> dict[str, str]:
        """Start, reload or restart, and give servers back the state they had."""
        states = self.door.servers(self.options["backend"]) if was_running else {}
        prefixes = {table: self.door.affinity(table) for table in _haproxy.AFFINITY_TABLES} if was_running else {}
        self.service(verb)
        self.wait()
        if not was_running:
            return {}
        now = self.door.servers(self.options["backend"])
        for table, entries in prefixes.items():
            if re.search(r"^backend {0}$".format(table), self.text, re.MULTILINE):
                self.affinity_restored += self.door.restore_affinity(entries, now, table)
        if verb == "restart":
            return {}
        lost = _haproxy.lost_states(
            states,
            now,
            disabled(self.before, self.options["backend"]),
            disabled(self.text, self.options["backend"]),
        )
        for name, state in lost.items():
            self.door.set_state(now[name].backend, name, state)
        return lost

    def undo(self, fault: LLMError, verb: str) -> None:
        """Put the file before back after the gateway refused the new one."""
        if self.before is None or self.before == self.text:
            raise fault
        self.write(self.before, keep=False)
        identity = self.loaded()
        if identity is not None and identity != self.identity:
            raise LLMError(
                "{0}: it is valid, and the gateway cannot start with it. Look at the addresses and ports it binds and at the limit of"
                " open files. The file before was put back and is still in force".format(fault)
            )
        try:
            self.service("reload" if identity is not None else "start")
        except LLMError as second:
            raise LLMError(
                "{0}. The file before was put back, but the gateway does not run with it either: {1}".format(fault, second)
            ) from second
        raise LLMError("{0}. The file before was put back and is in force again".format(fault))

    def run(self) -> dict[str, object]:
        """Do it and return the result."""
        identity = self.loaded()
        differs = self.before != self.text
        private = self.before is not None and _files.is_private(self.path)
        if identity is None:
            verb, action = "start", "started"
        elif self.options["restart"]:
            verb, action = "restart", "restarted"
        elif identity != self.identity or self.stale():
            verb, action = "reload", "reloaded"
        else:
            verb, action = "", "written" if differs or not private or not self.lua_stands() else "none"
        result = {
            "changed": action != "none",
            "action": action,
            "config_id": self.identity,
            "validated": False,
            "restored": {},
            "affinity_restored": 0,
            "diff": {
                "before_header": self.path,
                "after_header": self.path,
                "before": self.before or "",
                "after": self.text,
            },
        }
        if action == "none":
            return result
        if self.installed():
            self.validate()
            result["validated"] = True
        elif not self.module.check_mode:
            raise LLMError("{0} is not installed".format(self.binary))
        if verb != "restart":
            # What the running gateway has bound stays bound over a reload.
            bound = self.binds(self.before or "") if identity is not None else []
            held = {port for _address, port in bound}
            _haproxy.require_bindable([item for item in self.binds(self.text) if item not in bound], held)
        if self.module.check_mode:
            return result
        self.write_lua()
        if differs:
            self.write(self.text, keep=True)
        elif not private:
            os.chmod(self.path, 0o600)
        if verb:
            try:
                result["restored"] = self.bring_up(verb, identity is not None)
            except LLMError as fault:
                self.undo(fault, verb)
            result["affinity_restored"] = self.affinity_restored
        return result


class NginxConfig(Config):
    """One call of the module where the gateway is nginx."""

    def identified(self) -> tuple[str, str]:
        """Return the text with its identity and the states of its servers in it, and the identity."""
        text = self.options["config"]
        return _nginx.with_identity(text, self.options["backend"], _nginx.read_all(_nginx.included(text)))

    def loaded(self) -> str | None:
        """Return the identity of the file that the running gateway has loaded, None when it does not run."""
        found = _nginx.loaded(self.options["socket"])
        return None if found is None else found[0]

    def binds(self, text: str) -> list[tuple[str, int]]:
        """Return the addresses and ports that a file binds."""
        return _nginx.binds(text)

    def stale(self) -> bool:
        """Whether the keys are about to change, which nginx has loaded with its file."""
        return self.module.check_mode and self.options["includes_change"]

    def installed(self) -> bool:
        """Whether nginx and the modules that the text loads are there."""
        return super().installed() and all(os.path.exists(path) for path in re.findall(r"(?m)^load_module (\S+);$", self.text))

    def validate(self) -> None:
        """Let nginx judge the text in a directory of its own; maps that do not exist yet are empty ones there."""
        with tempfile.TemporaryDirectory(prefix="gw-") as room:
            replaced = {}
            for number, path in enumerate(_nginx.included(self.text)):
                if not os.path.exists(path):
                    replaced[path] = os.path.join(room, "{0}.map".format(number))
                    _files.put(replaced[path], "")
            if self.options["lua"] is not None:
                replaced[self.options["lua_path"]] = os.path.join(room, "requests.js")
                _files.put(replaced[self.options["lua_path"]], self.options["lua"])
            checked = os.path.join(room, _nginx.FILE)
            _files.put(checked, _nginx.in_room(self.text, room, replaced))
            os.mkdir(os.path.join(room, os.path.basename(_nginx.temp_dir(self.text))))
            status, out, err = self.module.run_command([self.binary, "-t", "-q", "-c", checked])
        if status != 0:
            raise self.refused(_nginx.validation_error(err or out, checked, self.path))

    def bring_up(self, verb: str, was_running: bool) -> dict[str, str]:
        """Start, reload or restart; the states of the servers are those of the file."""
        old = _nginx.family(_nginx.setting(self.text, "pid"), self.path)[1:] if was_running else []
        self.service(verb)
        _nginx.wait_for(self.options["socket"], self.identity, old, self.options["wait_s"])
        return {}


def main() -> None:
    """Answer the module call."""
    module = AnsibleModule(
        argument_spec={
            "config": {"type": "str", "required": True},
            "path": {"type": "path", "required": True},
            "software": {"type": "str", "choices": ["haproxy", "nginx"], "default": "haproxy"},
            "haproxy": {"type": "path", "default": "/usr/sbin/haproxy"},
            "nginx": {"type": "path", "default": "/usr/sbin/nginx"},
            "includes_change": {"type": "bool", "default": False},
            "socket": {"type": "path", "required": True},
            "lua_path": {"type": "path"},
            "lua": {"type": "str"},
            "certificate": {"type": "path"},
            "backend": {"type": "str", "default": _haproxy.BACKEND},
            "service_manager": {"type": "str", "required": True, "choices": ["systemd", "sysv", "direct"]},
            "service_name": {"type": "str", "default": "ironserve-gateway"},
            "script": {"type": "path", "default": "/etc/init.d/ironserve-gateway"},
            "restart": {"type": "bool", "default": False},
            "wait_s": {"type": "float", "default": 15},
        },
        required_together=[["lua", "lua_path"]],
        supports_check_mode=True,
    )
    try:
        with _haproxy.turn(module.params["socket"], module.check_mode):
            result = (NginxConfig if module.params["software"] == "nginx" else Config)(module).run()
    except LLMError as exc:
        module.fail_json(msg=str(exc))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
