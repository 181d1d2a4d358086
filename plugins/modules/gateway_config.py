#!/usr/bin/python
# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gateway_config
short_description: Put a HAProxy configuration into force without losing requests or server states
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
author:
  - ironserve.llm contributors (@ironserve)
attributes:
  check_mode:
    support: full
    description: Validates too, as far as HAProxy is installed.
  diff_mode:
    support: full
    description: Shows the configuration, which holds no secret.
options:
  config:
    description: The text of the configuration. It holds V(@CONFIG_ID@) at the end of the C(description) line of its C(global) section.
    type: str
    required: true
  path:
    description: Where the configuration belongs. The file gets mode 0600.
    type: path
    required: true
  haproxy:
    description: The HAProxy binary.
    type: path
    default: /usr/sbin/haproxy
  socket:
    description: The gateway's runtime socket.
    type: path
    required: true
  lua_path:
    description: Where the Lua file belongs that the configuration loads. Its name changes with its content, so that no running gateway sees it change.
    type: path
  lua:
    description: The text of the Lua file. Written before the configuration. Files of the same kind that nothing names any more are removed.
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
    - False where nothing was to be done, and in check mode where HAProxy is not installed yet.
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
import shutil
import tempfile
import time

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.ironserve.llm.plugins.module_utils import _haproxy
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
        self.text, self.identity = _haproxy.with_identity(module.params["config"])
        self.before = read(self.path)
        self.affinity_restored = 0
        self.door = _haproxy.AdminSocket(module.params["socket"])

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
            raise LLMError(
                "the new gateway configuration is invalid and was not installed: {0}. {1}".format(
                    _haproxy.validation_error(err or out, checked, self.path),
                    "The one before stays in force" if self.before is not None else "Nothing was changed",
                )
            )

    @staticmethod
    def put(path: str, text: str) -> None:
        """Put a private file in place at once."""
        handle, partial = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".haproxy-")
        with os.fdopen(handle, "w", encoding="utf-8") as sink:
            sink.write(text)
            sink.flush()
            os.fsync(sink.fileno())
        os.rename(partial, path)

    def write(self, text: str, keep: bool) -> None:
        """Replace the file at once; with ``keep`` the present one becomes the previous one."""
        try:
            if keep and self.before is not None:
                shutil.copy2(self.path, self.previous)
                os.chmod(self.previous, 0o600)
            self.put(self.path, text)
        except OSError as exc:
            raise LLMError("{0} cannot be written: {1}".format(self.path, exc.strerror)) from exc

    def lua_stands(self) -> bool:
        """Whether the Lua file is as it is to be."""
        return self.options["lua"] is None or (
            read(self.options["lua_path"]) == self.options["lua"] and os.stat(self.options["lua_path"]).st_mode & 0o777 == 0o600
        )

    def write_lua(self) -> None:
        """Bring the Lua file, and remove those that neither this configuration nor the one before names."""
        path = self.options["lua_path"]
        if self.options["lua"] is None:
            return
        try:
            if not self.lua_stands():
                self.put(path, self.options["lua"])
            folder = os.path.dirname(path)
            named = self.text + (self.before or "")
            for name in os.listdir(folder):
                if name.startswith("requests-") and name.endswith(".lua") and os.path.join(folder, name) not in named:
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
            info = _haproxy.running(self.options["socket"])
            if info is not None and _haproxy.loaded_identity(info) == self.identity:
                return
            if time.monotonic() > deadline:
                raise LLMError(
                    "the gateway {0} after {1:g} s".format(
                        "still has the file before" if info is not None else "does not answer on " + self.options["socket"],
                        self.options["wait_s"],
                    )
                )
            time.sleep(0.05)

    def bring_up(self, verb: str, was_running: bool) -> dict[str, str]:
        """Start, reload or restart, and give servers back the state they had."""
        states = self.door.servers(self.options["backend"]) if was_running else {}
        prefixes = self.door.affinity() if was_running else {}
        self.service(verb)
        self.wait()
        if not was_running:
            return {}
        now = self.door.servers(self.options["backend"])
        if _haproxy.AFFINITY_TABLE in self.text:
            self.affinity_restored = self.door.restore_affinity(prefixes, now)
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
        info = _haproxy.running(self.options["socket"])
        if info is not None and _haproxy.loaded_identity(info) != self.identity:
            raise LLMError(
                "{0}: HAProxy finds it valid and cannot start with it. Look at the addresses and ports it binds and at the limit of"
                " open files. The file before was put back and is still in force".format(fault)
            )
        try:
            self.service("reload" if info is not None else "start")
        except LLMError as second:
            raise LLMError(
                "{0}. The file before was put back, but the gateway does not run with it either: {1}".format(fault, second)
            ) from second
        raise LLMError("{0}. The file before was put back and is in force again".format(fault))

    def run(self) -> dict[str, object]:
        """Do it and return the result."""
        info = _haproxy.running(self.options["socket"])
        differs = self.before != self.text
        private = self.before is not None and os.stat(self.path).st_mode & 0o777 == 0o600
        if info is None:
            verb, action = "start", "started"
        elif self.options["restart"]:
            verb, action = "restart", "restarted"
        elif _haproxy.loaded_identity(info) != self.identity:
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
        if os.access(self.options["haproxy"], os.X_OK):
            self.validate()
            result["validated"] = True
        elif not self.module.check_mode:
            raise LLMError("{0} is not installed".format(self.options["haproxy"]))
        if verb != "restart":
            # What the running gateway has bound stays bound over a reload.
            bound = _haproxy.binds(self.before or "") if info is not None else []
            held = {port for _address, port in bound}
            _haproxy.require_bindable([item for item in _haproxy.binds(self.text) if item not in bound], held)
        if self.module.check_mode:
            return result
        self.write_lua()
        if differs:
            self.write(self.text, keep=True)
        elif not private:
            os.chmod(self.path, 0o600)
        if verb:
            try:
                result["restored"] = self.bring_up(verb, info is not None)
            except LLMError as fault:
                self.undo(fault, verb)
            result["affinity_restored"] = self.affinity_restored
        return result


def main() -> None:
    """Answer the module call."""
    module = AnsibleModule(
        argument_spec={
            "config": {"type": "str", "required": True},
            "path": {"type": "path", "required": True},
            "haproxy": {"type": "path", "default": "/usr/sbin/haproxy"},
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
        module.exit_json(**Config(module).run())
    except LLMError as exc:
        module.fail_json(msg=str(exc))


if __name__ == "__main__":
    main()
