#!/usr/bin/python
# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gateway_keys
short_description: Set which client keys the gateway accepts and which key it shows to the engines
version_added: "0.1.0"
description:
  - Writes the map of client keys, which holds their sha256 hashes and names, and the map with the engine key. Both files have mode 0600.
  - A running gateway learns the difference through its socket, new keys first. Nothing is reloaded or restarted, no request is lost.
  - The engine key is read on the host and is never sent to the controller.
  - With O(software=nginx) only the files are written. M(ironserve.llm.gateway_config) then reloads nginx, which has them in memory.
author:
  - ironserve.llm contributors (@ironserve)
extends_documentation_fragment:
  - ironserve.llm.attributes
attributes:
  check_mode:
    support: full
    description: Makes no key and tells the gateway nothing.
  diff_mode:
    support: full
    description: Shows names and the first six digits of each hash, never a key.
options:
  client_keys:
    description:
      - The keys that clients may use. Several keys may have one name, which is how a client changes its key without a gap.
      - A key of the host's own, with the name C(default), is made, kept in O(default_key_file), and good beside them.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Who has the key. It appears in the access log.
        type: str
        required: true
      key:
        description: The key, at least 16 printable characters without blanks.
        type: str
        required: true
      models:
        description: The models that the key may use, by any of their names. Empty for all.
        type: list
        elements: str
        default: []
      default_model:
        description:
          - The model of requests that name none, or whose body is so long before the name that the gateway cannot read it.
          - Not needed with one element in O(client_keys[].models), or where there is one model only.
        type: str
        default: ""
      expires:
        description: When the key ends, as a day (V(2027-01-31), its beginning in UTC) or a time (V(2027-01-31T12:00:00Z)). Empty for never.
        type: str
        default: ""
      requests_per_minute:
        description: Requests per minute, of all keys with this name together. V(0) for the gateway's own limit.
        type: int
        default: 0
      concurrent:
        description: Requests at a time, of all keys with this name together. V(0) for the gateway's own limit.
        type: int
        default: 0
  default_key_file:
    description: Where the key is kept that is made when O(client_keys) is empty. Left alone when there are others.
    type: path
    required: true
  engine_key_file:
    description: The file with the key that the engines want. Empty for engines without a key.
    type: str
    default: ""
  keys_map:
    description: The map of client keys.
    type: path
    required: true
  engine_map:
    description: The map with the engine key.
    type: path
    required: true
  software:
    description: What the gateway is, which decides the form of the files. Nginx keeps no limits for single keys.
    type: str
    choices: [haproxy, nginx]
    default: haproxy
  models:
    description:
      - All names of all models behind the gateway, with the main name of each.
      - Empty where the servers do not say which models they have. Then no key can be limited to some.
    type: dict
    default: {}
  socket:
    description: The gateway's runtime socket. Without a gateway behind it only the files are written.
    type: path
    required: true
"""

EXAMPLES = r"""
- name: Let two clients in
  ironserve.llm.gateway_keys:
    client_keys:
      - name: search
        key: "{{ vault_search_key }}"
      - name: chat
        key: "{{ vault_chat_key }}"
    default_key_file: /etc/ironserve/keys/client-default.key
    engine_key_file: /etc/ironserve/keys/engine.key
    keys_map: /etc/ironserve/gateway/keys.map
    engine_map: /etc/ironserve/gateway/engine.map
    socket: /run/ironserve/gateway.sock
  no_log: true
"""

RETURN = r"""
added:
  description: The names of the keys that the gateway accepts from now on.
  returned: success
  type: list
  elements: str
removed:
  description: The names of the keys that the gateway refuses from now on.
  returned: success
  type: list
  elements: str
limits_changed:
  description: The names of the keys whose models, end or limits are others than before.
  returned: success
  type: list
  elements: str
names:
  description: The names of all accepted keys.
  returned: success
  type: list
  elements: str
engine_key_changed:
  description: Whether the engine key is another one than before.
  returned: success
  type: bool
live:
  description: Whether a running gateway was told.
  returned: success
  type: bool
client_key_file:
  description: The file with the host's own key, which acceptance and a person on the host can use.
  returned: success
  type: str
"""

import os
import secrets

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.ironserve.llm.plugins.module_utils import _files, _haproxy, _nginx
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError

#: The one entry of the map with the engine key.
ENGINE = "engine"


def read(path: str) -> str | None:
    """Return the text of a file, None when it does not exist."""
    try:
        with open(path, encoding="utf-8") as source:
            return source.read()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as exc:
        raise LLMError("{0} cannot be read: {1}".format(path, exc)) from exc


def one_key(path: str, text: str) -> str:
    """Return the key that a key file holds."""
    key = text.strip()
    if not key or len(key.split()) != 1:
        raise LLMError("{0} does not hold one key on one line".format(path))
    return key


class Keys:
    """One call of the module."""

    def __init__(self, options: dict[str, object], check: bool) -> None:
        self.options = options
        self.check = check
        self.changed = False
        self.nginx = options["software"] == "nginx"

    def wanted_clients(self) -> dict[str, str]:
        """Return hash to entry; makes the host's own key, which acceptance asks with, when it is missing."""
        path = self.options["default_key_file"]
        text = read(path)
        if text is None:
            text = "sk-" + secrets.token_hex(24)
            self.changed = True
            if not self.check:
                _files.put(path, text + "\n")
        elif not _files.is_private(path):
            self.changed = True
            if not self.check:
                os.chmod(path, 0o600)
        clients = list(self.options["client_keys"]) + [{"name": "default", "key": one_key(path, text)}]
        return _haproxy.checked_keys(clients, self.options["models"] or None)

    def wanted_engine(self) -> dict[str, str]:
        """Return the entry with the engine key; empty for engines without one."""
        path = self.options["engine_key_file"]
        if not path:
            return {}
        text = read(path)
        if text is None:
            if self.check:
                return {ENGINE: "made-by-the-run"}
            raise LLMError(
                "the engine key {0} is not on this host: the role replica makes it, or copies it to gateways that are hosts"
                " of their own".format(path)
            )
        return {ENGINE: one_key(path, text)}

    def file(self, path: str, entries: dict[str, str]) -> dict[str, str]:
        """Bring a map file up to date; return what it held before."""
        before = read(path)
        text = self.text(path, entries)
        if before != text or not _files.is_private(path):
            self.changed = True
            if not self.check:
                _files.put(path, text)
        if not self.nginx:
            return _haproxy.parse_map_file(before or "")
        if path == self.options["keys_map"]:
            return _nginx.parse_keys(before or "")
        # The key itself is nobody's business: only whether it is the same.
        return entries if before == text else {ENGINE: "another"} if before else {}

    def text(self, path: str, entries: dict[str, str]) -> str:
        """Return the text of a map file in the form of the gateway's software."""
        if not self.nginx:
            return _haproxy.map_text(entries)
        return _nginx.keys_text(entries) if path == self.options["keys_map"] else _nginx.engine_text(entries.get(ENGINE, ""))

    def tell(self, door: _haproxy.AdminSocket, path: str, entries: dict[str, str]) -> None:
        """Bring a map in the memory of a running gateway up to date: what is new first, so that there is no gap."""
        try:
            loaded = door.map(path)
        except LLMError:
            # This gateway was started with another file; it is about to be reloaded and then reads the map.
            return
        for key, value in entries.items():
            if loaded.get(key) != value:
                self.changed = True
                if not self.check:
                    if key in loaded:
                        door.map_set(path, key, value)
                    else:
                        door.map_add(path, key, value)
        for key in loaded:
            if key not in entries:
                self.changed = True
                if not self.check:
                    door.map_delete(path, key)

    def run(self) -> dict[str, object]:
        """Do it and return the result."""
        clients, engine = self.wanted_clients(), self.wanted_engine()
        old_clients = self.file(self.options["keys_map"], clients)
        old_engine = self.file(self.options["engine_map"], engine)
        live = not self.nginx and _haproxy.running(self.options["socket"]) is not None
        if live:
            door = _haproxy.AdminSocket(self.options["socket"])
            self.tell(door, self.options["keys_map"], clients)
            self.tell(door, self.options["engine_map"], engine)
        changed_engine = old_engine != engine
        mark = " (changed)\n" if changed_engine and old_engine else "\n"
        return {
            "changed": self.changed,
            "added": sorted(_haproxy.entry_name(clients[key]) for key in clients if key not in old_clients),
            "removed": sorted(_haproxy.entry_name(old_clients[key]) for key in old_clients if key not in clients),
            "limits_changed": sorted(
                {_haproxy.entry_name(clients[key]) for key in clients if key in old_clients and old_clients[key] != clients[key]}
            ),
            "names": sorted({_haproxy.entry_name(entry) for entry in clients.values()}),
            "engine_key_changed": changed_engine,
            "live": live,
            "client_key_file": self.options["default_key_file"],
            "diff": {
                "before_header": self.options["keys_map"],
                "after_header": self.options["keys_map"],
                "before": _haproxy.masked_keys(old_clients) + ("engine key\n" if old_engine else ""),
                "after": _haproxy.masked_keys(clients) + ("engine key" + mark if engine else ""),
            },
        }


def main() -> None:
    """Answer the module call."""
    module = AnsibleModule(
        argument_spec={
            "client_keys": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "no_log": False,
                "options": {
                    "name": {"type": "str", "required": True},
                    "key": {"type": "str", "required": True, "no_log": True},
                    "models": {"type": "list", "elements": "str", "default": []},
                    "default_model": {"type": "str", "default": ""},
                    "expires": {"type": "str", "default": ""},
                    "requests_per_minute": {"type": "int", "default": 0},
                    "concurrent": {"type": "int", "default": 0},
                },
            },
            "default_key_file": {"type": "path", "required": True, "no_log": False},
            "engine_key_file": {"type": "str", "default": "", "no_log": False},
            "keys_map": {"type": "path", "required": True, "no_log": False},
            "engine_map": {"type": "path", "required": True},
            "software": {"type": "str", "choices": ["haproxy", "nginx"], "default": "haproxy"},
            "models": {"type": "dict", "default": {}},
            "socket": {"type": "path", "required": True},
        },
        supports_check_mode=True,
    )
    try:
        with _haproxy.turn(module.params["socket"], module.check_mode):
            result = Keys(module.params, module.check_mode).run()
    except LLMError as exc:
        module.fail_json(msg=str(exc))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
