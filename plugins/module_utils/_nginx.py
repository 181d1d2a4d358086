# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""nginx as the gateway uses it: its file, which is all the state it has, and its processes. Private to the collection.

nginx has no runtime socket. What a server's state is stands in the file; a running nginx says on a socket of its own which file it has
loaded; any change is a new file and a reload, and whether a server is empty is counted by the open connections of its processes.
"""

from __future__ import annotations

import hashlib
import os
import re
import signal
import socket
import time
from typing import Iterable

from ansible_collections.ironserve.llm.plugins.module_utils import _files, _haproxy, _ports, _run
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError, UnknownOutput, nearest

#: The name of the gateway's file; HAProxy's stands in the same directory, and only one of them is there.
FILE = "nginx.conf"
HAPROXY_FILE = "haproxy.cfg"

# Chosen by the role: everything after the address is written there and nowhere else.
_SERVER_LINE = re.compile(
    r"^(?P<head>\s+server (?P<address>\S+):(?P<port>\d+) max_conns=(?P<places>\d+) max_fails=\d+ fail_timeout=\d+s)(?P<down> down)?;"
    r" # (?P<name>\S+)$"
)
_UPSTREAM = re.compile(r"^\s+upstream (\S+) \{$")
_MODELS_LINE = re.compile(r"^\s+# models: (?P<names>\S.*)$")
# What stands between the quotes of the line that says which file is loaded.
_SAID = re.compile(r'(?m)^(\s+return 200 ")(?:@CONFIG_ID@|ironserve [0-9a-f]{16}[^"\\]*)(\\n";)$')
# nginx reads "$" and quotes in a value in its own way; keys that openssl makes have none.
_PLAIN_KEY = re.compile(r"^[A-Za-z0-9._~+/=:@-]+$")
_TITLE = "nginx: "
_LEAVING = "is shutting down"


def other(config: str) -> str:
    """Return where the file of the other gateway would be: nginx's for HAProxy's, and the reverse."""
    return os.path.join(os.path.dirname(config), HAPROXY_FILE if is_ours(config) else FILE)


def present(config: str) -> str:
    """Return the file of the gateway that is on this host: ``config``, or that of the other one where only that is there.

    Callers name HAProxy's file and need not know which gateway runs.
    """
    return other(config) if not os.path.exists(config) and os.path.exists(other(config)) else config


def is_ours(config: str) -> bool:
    """Whether a gateway's file, by its name, is nginx's."""
    return os.path.basename(config) == FILE


# The file


def config_servers(text: str, backend: str = _haproxy.BACKEND) -> list[_haproxy.ConfigServer]:
    """Return the servers of the upstream ``backend`` in the order of the file; an empty list for an empty file."""
    found = []
    inside = False
    models: tuple[str, ...] = ()
    for line in text.splitlines():
        opened = _UPSTREAM.match(line)
        if opened is not None:
            inside = opened.group(1) == backend
        elif line.strip() == "}":
            inside = False
        if not inside:
            continue
        said = _MODELS_LINE.match(line)
        if said is not None:
            models = tuple(said.group("names").split())
        match = _SERVER_LINE.match(line)
        if match is not None:
            found.append(
                _haproxy.ConfigServer(
                    name=match.group("name"),
                    address=match.group("address").strip("[]"),
                    port=int(match.group("port")),
                    maxconn=int(match.group("places")),
                    disabled=match.group("down") is not None,
                    models=models,
                )
            )
        elif re.match(r"^\s+server\s", line):
            raise UnknownOutput('the gateway\'s file has a server line that was not written here: "{0}"'.format(line.strip()))
    return found


def with_down(text: str, names: dict[str, bool]) -> str:
    """Return the text of a configuration in which the servers of ``names`` are ``down`` (true) or not (false)."""
    lines = []
    for line in text.splitlines(True):
        match = _SERVER_LINE.match(line.rstrip("\n"))
        if match and match.group("name") in names:
            line = "{0}{1}; # {2}\n".format(match.group("head"), " down" if names[match.group("name")] else "", match.group("name"))
        lines.append(line)
    return "".join(lines)


def included(text: str) -> list[str]:
    """Return the files that a configuration includes."""
    return re.findall(r"(?m)^\s+include (/[^;]+);$", text)


def with_identity(text: str, backend: str = _haproxy.BACKEND, files: Iterable[str] = ()) -> tuple[str, str]:
    """Put the identity of a file and the states of its servers into it; return the file and the identity.

    ``files`` are the texts of what it includes: nginx has them in memory too, so another key is another configuration.
    """
    if not _SAID.search(text):
        raise LLMError("the rendered {0} does not say which file it is: the gateway could not tell what is loaded".format(FILE))
    bare = _SAID.sub(lambda found: found.group(1) + _haproxy.ID_PLACEHOLDER + found.group(2), text)
    digest = hashlib.sha256(bare.encode("utf-8"))
    for content in files:
        digest.update(b"\0" + content.encode("utf-8"))
    identity = digest.hexdigest()[:16]
    states = "".join(
        " {0}={1}".format(item.name, _haproxy.MAINT if item.disabled else _haproxy.READY) for item in config_servers(text, backend)
    )
    return _SAID.sub(lambda found: "{0}ironserve {1}{2}{3}".format(found.group(1), identity, states, found.group(2)), bare), identity


def parse_said(text: str) -> tuple[str, dict[str, str]]:
    """Return the identity and the state of each server from what a running nginx says about itself."""
    words = text.split()
    if len(words) < 2 or words[0] != "ironserve" or not all(re.match(r"^\S+=(?:ready|maint)$", word) for word in words[2:]):
        raise UnknownOutput("nginx said something unknown about the file it has loaded: {0!r}".format(text[:80]))
    return words[1], dict(word.rsplit("=", 1) for word in words[2:])


def setting(text: str, name: str) -> str:
    """Return the value of a directive outside of all blocks. Raises UnknownOutput where there is none."""
    found = re.search(r"(?m)^{0} (\S+);$".format(re.escape(name)), text)
    if found is None:
        raise UnknownOutput('the gateway\'s {0} has no line "{1}"; it was not written here'.format(FILE, name))
    return found.group(1)


def binary(text: str) -> str:
    """Return the nginx that a file was written for."""
    found = re.search(r"(?m)^# nginx: (/\S+)$", text)
    if found is None:
        raise UnknownOutput("the gateway's {0} does not say which nginx it is for; it was not written here".format(FILE))
    return found.group(1)


def binds(text: str) -> list[tuple[str, int]]:
    """Return the addresses and ports that a file binds, each once; ``*`` is every address. Unix sockets are left out."""
    found = []
    for address, port in re.findall(r"(?m)^\s+listen (\S+):(\d+);$", text):
        item = (address.strip("[]"), int(port))
        if item not in found:
            found.append(item)
    return found


def validation_error(output: str, checked: str, path: str) -> str:
    """Return nginx's own words about an invalid file, with the name of the real file in place of the copy's."""
    lines = [line for line in output.replace(checked, path).splitlines() if line.strip()]
    for line in lines:
        # With a time and process ids in front once the file has named a log.
        found = re.search(r"\[emerg\] (?:\d+#\d+: )?(.*)$", line)
        if found is not None:
            return found.group(1).rstrip(".")
    return lines[-1] if lines else "nginx gave no reason"


def temp_dir(text: str) -> str:
    """Return the directory that a configuration wants for bodies on their way; nginx makes what is in it, and not itself."""
    found = re.search(r"(?m)^\s+client_body_temp_path (/\S+)/body;$", text)
    if found is None:
        raise UnknownOutput("the gateway's {0} names no directory for bodies; it was not written here".format(FILE))
    return found.group(1)


def outspoken(text: str) -> str:
    """Return a copy of a configuration with which ``nginx -t`` says what is wrong to whoever asks, and not to a log."""
    return re.sub(r"(?m)^error_log \S+ crit;$", "error_log stderr crit;", text)


def in_room(text: str, room: str, replaced: dict[str, str]) -> str:
    """Return a copy of a configuration for ``nginx -t`` that makes and binds nothing of the gateway's own: pid file, socket and directories.

    ``replaced`` has the files that stand elsewhere for now.
    """
    run_dir = os.path.dirname(setting(text, "pid"))
    for before, after in replaced.items():
        text = text.replace(before, after)
    # A path of a Unix socket has to fit into 107 bytes, so the room's name is short.
    return outspoken(text.replace(run_dir + "/", room + "/"))


# The maps


def keys_text(entries: dict[str, str]) -> str:
    """Return the text of keys.map, hash to entry, in a stable order. Raises LLMError for limits that nginx cannot keep."""
    for entry in entries.values():
        fields = entry.split("|")
        if len(fields) > 1 and fields[2:] != ["0", "0", "-", "-"]:
            raise LLMError(
                'client key "{0}": nginx knows one limit for all keys and all models; take haproxy, or leave models and limits out'.format(
                    _haproxy.entry_name(entry)
                )
            )
    return "".join('{0} "{1}";\n'.format(key, entries[key]) for key in sorted(entries, key=lambda k: (entries[k], k)))


def engine_text(key: str) -> str:
    """Return the text of engine.map: what is put into the engines' Authorization."""
    if not key:
        return ""
    if not _PLAIN_KEY.match(key):
        raise LLMError("the engine key has characters that nginx cannot be told: make it of letters, digits and any of . _ ~ + / = : @ -")
    return 'default "Bearer {0}";\n'.format(key)


def parse_keys(text: str) -> dict[str, str]:
    """Return the entries of keys.map as this collection writes it."""
    return dict(re.findall(r'(?m)^([0-9a-f]{64}) "([^"]*)";$', text))


# The running nginx


def said(path: str, timeout_s: float = 5.0) -> str | None:
    """Return what the nginx behind a socket says about itself, or None if nobody listens there.

    Anything else than nobody listening is an error: unknown is never "no".
    """
    if not os.path.exists(path):
        return None
    chunks = []
    door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        door.settimeout(timeout_s)
        door.connect(path)
        door.sendall(b"GET / HTTP/1.0\r\n\r\n")
        while True:
            chunk = door.recv(65536)
            if not chunk:
                break
            chunks.append(chunk)
    except (ConnectionRefusedError, FileNotFoundError):
        return None
    except OSError as exc:
        raise LLMError("nginx's socket {0} cannot be used: {1}".format(path, exc)) from exc
    finally:
        door.close()
    head, blank, body = b"".join(chunks).decode("utf-8", "replace").partition("\r\n\r\n")
    if not blank or " 200 " not in head.splitlines()[0]:
        raise UnknownOutput("{0} answered with something unknown: {1!r}".format(path, head[:80]))
    return body


def loaded(path: str) -> tuple[str, dict[str, str]] | None:
    """Return identity and server states of the running nginx, None when it does not run."""
    text = said(path)
    return None if text is None else parse_said(text)


def family(pid_file: str, config: str, proc: str = "/proc") -> list[int]:
    """Return the master process with this file and its workers, those from before a reload included; empty when it does not run."""
    try:
        with open(pid_file, encoding="ascii", errors="replace") as source:
            first = source.read().split()
    except FileNotFoundError:
        return []
    if not first or not first[0].isdigit():
        return []
    title = _ports.command_line(int(first[0]), proc)
    if _TITLE not in title or config not in title.split():
        return []
    master = int(first[0])
    found = [master]
    for entry in sorted((name for name in os.listdir(proc) if name.isdigit()), key=int):
        try:
            with open(os.path.join(proc, entry, "stat"), encoding="utf-8", errors="replace") as source:
                # The name of a process is in parentheses and may hold anything, so the parent is counted from the last one.
                parent = source.read().rpartition(")")[2].split()[1:2]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if parent == [str(master)]:
            found.append(int(entry))
    return found


def takes_no_more(pid: int, proc: str = "/proc") -> bool:
    """Whether a worker has gone, or finishes its last requests only."""
    title = _ports.command_line(pid, proc)
    return not title.startswith(_TITLE) or _LEAVING in title


def sockets_of(pid: int, proc: str = "/proc") -> set[str]:
    """Return the inodes of the sockets that a process has open; empty when it has gone."""
    found = set()
    directory = os.path.join(proc, str(pid), "fd")
    try:
        numbers = os.listdir(directory)
    except (FileNotFoundError, ProcessLookupError):
        return found
    except OSError as exc:
        raise LLMError("the connections of the gateway cannot be counted: {0}: {1}".format(directory, exc.strerror)) from exc
    for number in numbers:
        try:
            target = os.readlink(os.path.join(directory, number))
        except OSError:
            continue
        if target.startswith("socket:["):
            found.add(target[len("socket:[") : -1])
    return found


def connections(pid: int, proc: str = "/proc") -> list[tuple[tuple[str, int], tuple[str, int]]]:
    """Return the TCP connections of a process, each this side's and the other side's address and port; listening sockets left out."""
    own = sockets_of(pid, proc)
    found = []
    for name in ("tcp", "tcp6"):
        try:
            with open(os.path.join(proc, str(pid), "net", name), encoding="ascii") as source:
                lines = source.read().splitlines()[1:]
        except (FileNotFoundError, ProcessLookupError):
            continue
        for line in lines:
            fields = line.split()
            if len(fields) < 10:
                raise UnknownOutput("/proc/net/tcp has a line this collection does not know: {0!r}".format(line))
            if fields[3] != _ports.LISTEN and fields[9] in own:
                found.append((_side(fields[1]), _side(fields[2])))
    return found


def _side(text: str) -> tuple[str, int]:
    address, _colon, port = text.rpartition(":")
    address = _ports.decode_address(address)
    # IPv4 on a socket that takes both.
    return (address[len("::ffff:") :] if address.startswith("::ffff:") and "." in address else address), int(port, 16)


def open_requests(workers: list[int], servers: dict[str, set[tuple[str, int]]], doors: set[int], proc: str = "/proc") -> dict[str, int]:
    """Return how many requests each server is working on, by the connections of the workers.

    ``servers`` has the addresses and ports of each, ``doors`` the ports that clients connect to. A request that a worker from before a
    reload has not sent to any server yet (its body is still coming) may go to any of them, and counts for each.
    """
    found = dict.fromkeys(servers, 0)
    undecided = 0
    for pid in workers:
        clients = sent = 0
        for here, there in connections(pid, proc):
            if here[1] in doors:
                clients += 1
            for name, places in servers.items():
                if there in places:
                    found[name] += 1
                    sent += 1
        if _LEAVING in _ports.command_line(pid, proc):
            undecided += max(0, clients - sent)
    return {name: count + undecided for name, count in found.items()}


def places(address: str, port: int) -> set[tuple[str, int]]:
    """Return what connections to a server may be to."""
    try:
        return {(str(found[4][0]), port) for found in socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)}
    except socket.gaierror as exc:
        raise LLMError('the address "{0}" of a server of the gateway cannot be found: {1}'.format(address, exc)) from exc


class Gateway:
    """A running nginx and its file."""

    def __init__(self, config: str, socket_path: str, backend: str = _haproxy.BACKEND) -> None:
        self.config = config
        self.socket = socket_path
        self.backend = backend

    def text(self) -> str:
        """Return the file."""
        try:
            with open(self.config, encoding="utf-8") as source:
                return source.read()
        except OSError as exc:
            raise LLMError("{0} cannot be read: {1}".format(self.config, exc.strerror)) from exc

    def states(self) -> dict[str, str] | None:
        """Return the state of each server as the running nginx has it, None when it does not run."""
        found = loaded(self.socket)
        return None if found is None else found[1]

    def workers(self) -> list[int]:
        """Return the workers, those from before a reload included."""
        return family(setting(self.text(), "pid"), self.config)[1:]

    def sessions(self) -> dict[str, int]:
        """Return how many requests each server is working on."""
        text = self.text()
        found = {item.name: places(item.address, item.port) for item in config_servers(text, self.backend)}
        return open_requests(self.workers(), found, {port for _address, port in binds(text)})

    def validate(self, text: str) -> None:
        """Raise LLMError with nginx's reason when it would not take this text."""
        copy = self.config + ".new"
        _files.put(copy, outspoken(text))
        try:
            done = _run.run([binary(text), "-t", "-q", "-c", copy], timeout_s=30)
        finally:
            os.unlink(copy)
        if done.rc != 0:
            raise LLMError("the gateway's file was not changed: {0}".format(validation_error(done.stderr, copy, self.config)))

    def set_states(self, states: dict[str, str], wait_s: float = 15.0) -> None:
        """Bring servers to ``ready`` or ``maint``: a new file, a reload, and no worker left that takes requests by the file before.

        Raises LLMError, with the file before in place again, when nginx does not take it.
        """
        before = self.text()
        known = {item.name for item in config_servers(before, self.backend)}
        for name in states:
            if name not in known:
                raise LLMError('the gateway has no server "{0}": {1}'.format(name, nearest(name, sorted(known))))
        text, identity = with_identity(
            with_down(before, {name: state == _haproxy.MAINT for name, state in states.items()}), self.backend, read_all(included(before))
        )
        self.validate(text)
        master = family(setting(text, "pid"), self.config)
        if not master:
            raise LLMError("no nginx with the file {0} runs".format(self.config))
        _files.put(self.config, text)
        os.kill(master[0], signal.SIGHUP)
        try:
            wait_for(self.socket, identity, master[1:], wait_s)
        except LLMError as fault:
            _files.put(self.config, before)
            os.kill(master[0], signal.SIGHUP)
            raise LLMError("{0}. The file before was put back".format(fault)) from fault


def read_all(paths: list[str]) -> list[str]:
    """Return the texts of files; "" for one that does not exist yet."""
    found = []
    for path in paths:
        try:
            with open(path, encoding="utf-8") as source:
                found.append(source.read())
        except FileNotFoundError:
            found.append("")
        except OSError as exc:
            raise LLMError("{0} cannot be read: {1}".format(path, exc.strerror)) from exc
    return found


def wait_for(path: str, identity: str, old_workers: list[int], wait_s: float) -> None:
    """Wait until the running nginx has a file loaded and none of the workers from before takes another request."""
    deadline = time.monotonic() + wait_s
    while True:
        try:
            found = loaded(path)
        except LLMError:
            # A worker that was just told to leave may close a connection it had taken.
            found = None
        if found is not None and found[0] == identity and all(takes_no_more(pid) for pid in old_workers):
            return
        if time.monotonic() > deadline:
            raise LLMError(
                "the gateway {0} after {1:g} s".format(
                    "still has the file before" if found is not None else "does not answer on " + path, wait_s
                )
            )
        time.sleep(0.05)
