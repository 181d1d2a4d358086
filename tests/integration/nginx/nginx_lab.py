# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The gateway as the role makes it where it is nginx, with a real nginx on loopback and without an init system."""

from __future__ import annotations

import http.client
import os
import shutil
from pathlib import Path

from integration.gateway.gateway_lab import Gateway, run_module

from ansible_collections.ironserve.llm.plugins.module_utils import _nginx
from ansible_collections.ironserve.llm.plugins.modules import gateway_config, gateway_info, gateway_keys

#: Another nginx than the host's, in a tree like that of its packages: IRONSERVE_NGINX.
NGINX = os.environ.get("IRONSERVE_NGINX", "/usr/sbin/nginx")
JS_MODULE = str(Path(NGINX).parents[1] / "lib/nginx/modules/ngx_http_js_module.so")


def missing():
    """Return what this machine lacks, or ""."""
    for path in (NGINX, JS_MODULE):
        if not os.path.exists(path):
            return f"no {path}"
    if not shutil.which("start-stop-daemon"):
        return "no start-stop-daemon"
    return "" if os.geteuid() == 0 else "root is needed"


class NginxGateway(Gateway):
    """The gateway as the role makes it where it is nginx, in a directory of its own."""

    def __init__(self, **options):
        binaries = {"gateway_software": "nginx", "gateway_nginx_binary": NGINX, "gateway_nginx_js_module": JS_MODULE}
        super().__init__(**{**binaries, **options})
        # The lab of HAProxy may have set them for that one.
        self.options.update(gateway_user="www-data", gateway_group="www-data")
        self.home.chmod(0o755)
        self.config = self.home / "etc/gateway/nginx.conf"

    def keys(self, check=False, **options):
        return run_module(gateway_keys, dict(self.keys_options, software="nginx", **options), check_mode=check)

    def info(self, config="haproxy.cfg", software=""):
        """Ask as those do who know HAProxy only."""
        return run_module(
            gateway_info,
            {
                "software": software,
                "nginx": NGINX,
                "nginx_js_module": JS_MODULE,
                "config": str(self.home / "etc/gateway" / config),
                "socket": self.socket,
                "pid_file": str(self.home / "run/gateway.pid"),
            },
        )

    def put(self, servers, check=False, config=None, wait_s=10, keys_change=False, **changes):
        """Do what the role does with its service file and its configuration."""
        script = self.home / "test-gateway"
        script.write_text(self.render("nginx.init.j2", servers, **changes), encoding="utf-8")
        script.chmod(0o755)
        evaluate = self.templar(servers, **changes)
        options = {
            "software": "nginx",
            "nginx": NGINX,
            "config": config or self.render("nginx.conf.j2", servers, **changes),
            "lua_path": evaluate("{{ __gateway_lua }}"),
            "lua": evaluate("{{ __gateway_lua_text }}"),
            "includes_change": keys_change,
            "path": str(self.config),
            "socket": self.socket,
            "service_manager": "direct",
            "script": str(script),
            "wait_s": wait_s,
        }
        return run_module(gateway_config, options, check_mode=check)

    def set(self, check=False, wait_s=5, missing="fail", **states):
        """Ask as those do who know HAProxy only."""
        wanted, self.config = self.config, self.config.with_name("haproxy.cfg")
        try:
            return super().set(check, wait_s, missing, **states)
        finally:
            self.config = wanted

    def raw_post(self, body):
        """Return the status and what came of the answer, also of one that broke off."""
        door = self.connect()
        try:
            door.request("POST", "/v1/completions", body, {"Authorization": "Bearer " + self.key})
            answer = door.getresponse()
            try:
                return answer.status, answer.read()
            except http.client.IncompleteRead as cut:
                return answer.status, cut.partial
        finally:
            door.close()

    def loaded(self):
        """The identity and the states that the running nginx tells."""
        return _nginx.loaded(self.socket)
