# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The gateway as the role makes it, with a real HAProxy on loopback and without an init system; for tests and benchmarks."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import io
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import yaml
from ansible.module_utils.testing import patch_module_args

from ansible_collections.ironserve.llm.plugins.module_utils import _haproxy
from ansible_collections.ironserve.llm.plugins.modules import (
    gateway_certificate,
    gateway_config,
    gateway_info,
    gateway_keys,
    gateway_servers,
)

ROOT = Path(__file__).resolve().parents[3]
ROLE = ROOT / "roles" / "gateway"
#: Another HAProxy than the host's, with its libraries in LD_LIBRARY_PATH: IRONSERVE_HAPROXY.
HAPROXY = os.environ.get("IRONSERVE_HAPROXY", "/usr/sbin/haproxy")


def missing():
    """Return what this machine lacks, or ""."""
    if not os.path.exists(HAPROXY):
        return f"no HAProxy at {HAPROXY}"
    if not shutil.which("start-stop-daemon"):
        return "no start-stop-daemon"
    return "" if os.geteuid() == 0 else "root is needed"


def run_module(module, arguments, check_mode=False):
    """Run a module's own ``main``; a failed module is an AssertionError with its message."""
    out = io.StringIO()
    with patch_module_args(dict(arguments, _ansible_check_mode=check_mode)), contextlib.redirect_stdout(out):
        try:
            module.main()
        except SystemExit:
            pass
    result = json.loads(out.getvalue())
    if result.get("failed"):
        raise AssertionError(result["msg"])
    return result


def free_port():
    """Return a port that is free, and that the kernel gives to nobody who only wants any."""
    while True:
        port = random.randrange(20000, 32000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def until(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError("what was waited for did not come")


def runs(pid):
    """Whether a process is there and not only waits for a busy init to take note of its end."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Engine:
    """A small engine: answers with what it saw, streams on demand, holds requests while ``gate`` is closed."""

    def __init__(self, port=0):
        self.seen = []
        self.gate = threading.Event()
        self.gate.set()
        self.step = threading.Event()
        self.busy = self.most = 0
        self.lock = threading.Lock()
        engine = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_arguments):
                pass

            def reply(self, data):
                body = json.dumps(data).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_GET(self):
                if self.path != "/health":
                    engine.seen.append((self.path, dict(self.headers.items())))
                self.reply({"port": engine.port})

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                with engine.lock:
                    engine.busy += 1
                    engine.most = max(engine.most, engine.busy)
                engine.seen.append((self.path, dict(self.headers.items())))
                try:
                    try:
                        wish = json.loads(body)
                    except ValueError:
                        wish = {}
                    if wish.get("stream"):
                        self.stream(wish)
                    else:
                        engine.gate.wait(20)
                        self.reply({"port": engine.port, "length": len(body)})
                except OSError:
                    self.close_connection = True
                finally:
                    with engine.lock:
                        engine.busy -= 1

            def stream(self, wish):
                self.send_response(200)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                for number in range(wish["stream"]):
                    event = b"data: %d\n\n" % number
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
                    self.wfile.flush()
                    engine.step.wait(20)
                    if wish.get("once_a_step"):
                        engine.step.clear()
                self.wfile.write(b"0\r\n\r\n")

        class Server(http.server.ThreadingHTTPServer):
            request_queue_size = 128
            daemon_threads = True

            def handle_error(self, *_arguments):
                pass

        self.server = Server(("127.0.0.1", port), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def stop(self):
        self.gate.set()
        self.step.set()
        self.server.shutdown()
        self.server.server_close()


class Gateway:
    """The gateway as the role makes it, in a directory of its own."""

    ENGINE_KEY = "engine-key-that-nobody-may-see"

    def __init__(self, **options):
        # Short, because the path of a Unix socket has to fit into 107 bytes.
        self.home = Path(tempfile.mkdtemp(prefix="gw"))
        for name in ("etc/gateway", "etc/keys", "run"):
            (self.home / name).mkdir(parents=True)
        (self.home / "etc/keys/engine.key").write_text(self.ENGINE_KEY + "\n", encoding="utf-8")
        shutil.copy(ROLE / "files/save_server_state.py", self.home / "etc/gateway")
        (self.home / "etc/gateway/save_server_state.py").chmod(0o700)
        self.port, self.stats_port = free_port(), free_port()
        self.options = {
            "llm_config_dir": str(self.home / "etc"),
            "llm_run_dir": str(self.home / "run"),
            "gateway_bind_address": "127.0.0.1",
            "gateway_port": self.port,
            "gateway_stats_port": self.stats_port,
            "gateway_service_name": "test-gateway",
            "gateway_script": str(self.home / "test-gateway"),
            "gateway_threads": 1,
            "gateway_haproxy_binary": HAPROXY,
            **options,
        }
        if HAPROXY != "/usr/sbin/haproxy":
            # Without its package, which brings them.
            self.options.update(gateway_user="", gateway_chroot_dir="")
        self.socket = str(self.home / "run/gateway.sock")
        self.config = self.home / "etc/gateway/haproxy.cfg"
        self.door = _haproxy.AdminSocket(self.socket)
        self.keys_options = {
            "default_key_file": str(self.home / "etc/keys/client-default.key"),
            "engine_key_file": str(self.home / "etc/keys/engine.key"),
            "keys_map": str(self.home / "etc/gateway/keys.map"),
            "engine_map": str(self.home / "etc/gateway/engine.map"),
            "socket": self.socket,
        }
        self.keys()
        self.key = (self.home / "etc/keys/client-default.key").read_text(encoding="utf-8").strip()

    def info(self):
        return run_module(
            gateway_info,
            {"haproxy": HAPROXY, "config": str(self.config), "socket": self.socket, "pid_file": str(self.home / "run/gateway.pid")},
        )

    def templar(self, servers, **changes):
        """Return what evaluates the role's variables."""
        from ansible.parsing.dataloader import DataLoader
        from ansible.template import Templar

        try:
            from ansible.template import trust_as_template as trust
        except ImportError:

            def trust(text):
                return text

        def trusted(value):
            if isinstance(value, dict):
                return {key: trusted(item) for key, item in value.items()}
            if isinstance(value, list):
                return [trusted(item) for item in value]
            return trust(value) if isinstance(value, str) else value

        variables = {}
        for part in ("defaults", "vars"):
            variables.update(yaml.safe_load((ROLE / part / "main.yml").read_text(encoding="utf-8")))
        variables.update(self.options, **changes)
        variables.update(__gateway_info=self.info(), __gateway_servers=servers, __gateway_manager="direct", role_path=str(ROLE))
        templar = Templar(loader=DataLoader(), variables=trusted(variables))
        return lambda text: templar.template(trust(text))

    def render(self, name, servers, **changes):
        path = ROLE / "templates" / name
        return self.templar(servers, **changes)("{{ lookup('ansible.builtin.template', '%s') }}" % path)

    def certify(self, source, check=False):
        """Do what the role does with its certificate."""
        where = {"path": str(self.home / "etc/gateway/tls.pem"), "socket": self.socket}
        return run_module(gateway_certificate, {"source": str(source), **where}, check_mode=check)

    def put(self, servers, check=False, config=None, wait_s=10, **changes):
        """Do what the role does with its service file and its configuration."""
        script = self.home / "test-gateway"
        script.write_text(self.render("gateway.init.j2", servers, **changes), encoding="utf-8")
        script.chmod(0o755)
        evaluate = self.templar(servers, **changes)
        options = {
            "config": config or self.render("haproxy.cfg.j2", servers, **changes),
            "haproxy": HAPROXY,
            "path": str(self.config),
            "socket": self.socket,
            "service_manager": "direct",
            "script": str(script),
            "wait_s": wait_s,
        }
        if evaluate("{{ __gateway_tls }}"):
            options["certificate"] = evaluate("{{ __gateway_certificate }}")
        if evaluate("{{ __gateway_reads_bodies }}"):
            options.update(lua_path=evaluate("{{ __gateway_lua }}"), lua=evaluate("{{ __gateway_lua_text }}"))
        self.names = evaluate("{{ __gateway_names }}")
        return run_module(gateway_config, options, check_mode=check)

    def keys(self, check=False, **options):
        return run_module(gateway_keys, dict(self.keys_options, **options), check_mode=check)

    def set(self, check=False, wait_s=5, missing="fail", **states):
        return run_module(
            gateway_servers,
            {
                "socket": self.socket,
                "master_socket": str(self.home / "run/gateway-master.sock"),
                "servers": [{"name": name, "state": state} for name, state in states.items()],
                "config": str(self.config),
                "wait_s": wait_s,
                "missing": missing,
            },
            check_mode=check,
        )

    def script(self, verb):
        return subprocess.run([str(self.home / "test-gateway"), verb], capture_output=True, text=True, timeout=30, check=False)

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)

    def post(self, wish=None, key=None, path="/v1/chat/completions", **headers):
        door = self.connect()
        try:
            door.request("POST", path, json.dumps(wish or {}), {"Authorization": "Bearer " + (key or self.key), **headers})
            answer = door.getresponse()
            return answer.status, json.loads(answer.read()), answer.headers
        finally:
            door.close()

    def raw(self, text):
        """Send bytes as they are; return the status line and the body."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=20) as door:
            door.sendall(text.encode())
            answer = http.client.HTTPResponse(door)
            answer.begin()
            return answer.status, answer.read()

    def remove(self):
        pids = self.info()["pids"]
        for pid in pids[:1]:
            os.kill(pid, signal.SIGTERM)
        until(lambda: not any(runs(pid) for pid in pids))
        shutil.rmtree(self.home)


def server(name, port, proven=True, places=2, models=()):
    return {"name": name, "address": "127.0.0.1", "port": port, "max_num_seqs": places, "proven": proven, "models": list(models)}


@contextlib.contextmanager
def maker(kind):
    """Make gateways of a kind, and with ``.engine`` engines, that are gone afterwards."""
    made = []

    def keep(thing):
        made.append(thing)
        return thing

    def gateway(**options):
        return keep(kind(**options))

    gateway.engine = lambda *arguments, **options: keep(Engine(*arguments, **options))
    try:
        yield gateway
    finally:
        for thing in reversed(made):
            getattr(thing, "remove", getattr(thing, "stop", None))()


def with_two_engines(make, models=()):
    """A gateway with two healthy engines behind it: the gateway, the engines and the servers."""
    gateway = make()
    engines = [make.engine(), make.engine()]
    servers = [server(name, engine.port, models=models) for name, engine in zip(("n-c0", "n-c1"), engines, strict=True)]
    assert gateway.put(servers)["action"] == "started"
    return gateway, engines, servers


def refused(gateway):
    """Heads of requests that a gateway of either kind refuses by itself, and the status of each."""
    key = "Authorization: Bearer " + gateway.key
    return {
        "GET /v1/models HTTP/1.1\r\nHost: a": 401,
        "GET /v1/models HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer wrong-key": 401,
        "GET /v1/models HTTP/1.1\r\nHost: a\r\nAuthorization: " + gateway.key: 401,
        f"GET /v1/models HTTP/1.1\r\nHost: x/y?\r\n{key}": 400,
        f"GET /v1/models HTTP/1.1\r\nHost: a\r\nHost: b\r\n{key}": 400,
        f"GET /v1/models HTTP/1.1\r\n{key}": 400,
        f"GET //v1/models HTTP/1.1\r\nHost: a\r\n{key}": 404,
        f"GET /v1/../v1/models HTTP/1.1\r\nHost: a\r\n{key}": 404,
        f"GET /%761/models HTTP/1.1\r\nHost: a\r\n{key}": 404,
        f"GET /v1/models/ HTTP/1.1\r\nHost: a\r\n{key}": 404,
        f"GET /metrics HTTP/1.1\r\nHost: a\r\n{key}": 404,
        f"GET /health HTTP/1.1\r\nHost: a\r\n{key}": 404,
        f"POST /invocations HTTP/1.1\r\nHost: a\r\n{key}\r\nContent-Length: 0": 404,
        f"DELETE /v1/models HTTP/1.1\r\nHost: a\r\n{key}": 405,
        f"GET /v1/completions HTTP/1.1\r\nHost: a\r\n{key}": 405,
        f"POST /v1/completions HTTP/1.1\r\nHost: a\r\n{key}\r\nTransfer-Encoding: chunked": 411,
        f"POST /v1/completions HTTP/1.1\r\nHost: a\r\n{key}\r\nContent-Length: 99999999": 413,
    }


def version():
    """Return HAProxy's first line about itself."""
    return subprocess.run([HAPROXY, "-v"], capture_output=True, text=True, timeout=10, check=True).stdout.splitlines()[0]
