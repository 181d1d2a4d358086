# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""HAProxy as the gateway uses it: its file, its runtime socket, its key maps. Private to the collection.

Everything that HAProxy prints is read here and nowhere else; what is not understood raises ``UnknownOutput``.
The formats are those of the management guide, chapters 9.1 (CSV) and 9.3 (Unix socket commands), 2.4 to 3.x.
"""

from __future__ import annotations

import calendar
import contextlib
import csv
import dataclasses
import fcntl
import hashlib
import os
import re
import socket
import time
from typing import Collection, Iterator

from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError, UnknownOutput, nearest

#: The backend of the gateway, as in ``haproxy.cfg.j2``. With several models each has its own, ``<this>.<model>``; where a function
#: here takes a backend, it means all of these. Names of servers are unique among them.
BACKEND = "ironserve_replicas"

#: The table that remembers which replica has which prefix in its cache.
#: Which replica knows a prompt, which a second time, which a third time.
AFFINITY_TABLES = ("ironserve_affinity", "ironserve_affinity_2", "ironserve_affinity_3")
#: Entries restored with one line on the socket, which fits HAProxy's smallest buffer.
ENTRIES_A_LINE = 100

#: Stands in the rendered file where the identity of its content goes.
ID_PLACEHOLDER = "@CONFIG_ID@"

#: Bits of ``srv_admin_state`` in ``show servers state``.
FORCED_MAINT = 0x01
INHERITED_MAINT = 0x02
CONFIGURED_MAINT = 0x04
FORCED_DRAIN = 0x08
INHERITED_DRAIN = 0x10
RESOLUTION_MAINT = 0x20
HOSTNAME_MAINT = 0x40

# "Configured" only says that the file has ``disabled``: it stays when the socket makes the server ready.
_MAINT = FORCED_MAINT | INHERITED_MAINT | RESOLUTION_MAINT
_NOTES = CONFIGURED_MAINT | HOSTNAME_MAINT
_DRAIN = FORCED_DRAIN | INHERITED_DRAIN

READY = "ready"
DRAIN = "drain"
MAINT = "maint"

#: ``srv_op_state`` of ``show servers state``.
_OP_STATES = {0: "stopped", 1: "starting", 2: "running", 3: "stopping"}

_SERVER_LINE = re.compile(r"^\s*server\s+(?P<name>\S+)\s+(?P<address>\S+):(?P<port>\d+)(?P<rest>(?:\s.*)?)$")
_KEY_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
# What may stand in HAProxy's file, in its maps, and between separators of an entry of a key.
_MODEL_NAME = re.compile(r"^[^\s\x00-\x1f\x7f\"'\\\\$%{}#(),;|<>\[\]`]{1,200}$")
_MODELS_LINE = re.compile(r"^\s+# models: (?P<names>\S.*)$")
_MAP_OF = re.compile(r"map(?:_str)?\((/[^,)]+)")

#: Descriptors HAProxy needs beside two per connection: listeners, checks, pollers, the sockets between workers.
RESERVED_FDS = 300
FDS_PER_SERVER = 4
#: Below this a gateway is not worth starting.
MINIMUM_MAXCONN = 64


@dataclasses.dataclass
class ConfigServer:
    """One ``server`` line of the gateway's file."""

    name: str
    address: str
    port: int
    maxconn: int
    disabled: bool
    models: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, object]:
        """Return the line as an element of ``gateway_servers``."""
        return {
            "name": self.name,
            "address": self.address,
            "port": self.port,
            "max_num_seqs": self.maxconn,
            "proven": not self.disabled,
            "models": list(self.models),
        }


# The file


def belongs(name: str, backend: str) -> bool:
    """Whether a backend of this name is ``backend``, or that of one of its models."""
    return name == backend or name.startswith(backend + ".")


def config_servers(text: str, backend: str = BACKEND) -> list[ConfigServer]:
    """Return the servers of ``backend`` in the order of the file; an empty list for an empty file."""
    found = []
    inside = False
    models: tuple[str, ...] = ()
    for line in text.splitlines():
        if line[:1].strip() and not line.startswith("#"):
            words = line.split()
            inside = words[0] == "backend" and len(words) > 1 and belongs(words[1], backend)
            models = ()
            continue
        said = _MODELS_LINE.match(line)
        if inside and said is not None:
            models = tuple(said.group("names").split())
        match = _SERVER_LINE.match(line)
        if not inside or match is None:
            continue
        words = match.group("rest").split()
        maxconn = words[words.index("maxconn") + 1] if "maxconn" in words[:-1] else "0"
        if not maxconn.isdigit():
            raise UnknownOutput('the gateway\'s file has a server line that was not written here: "{0}"'.format(line.strip()))
        found.append(
            ConfigServer(
                name=match.group("name"),
                address=match.group("address").strip("[]"),
                port=int(match.group("port")),
                maxconn=int(maxconn),
                disabled="disabled" in words,
                models=models,
            )
        )
    return found


def kept_servers(present: list[ConfigServer], hosts: list[str], absent: list[str]) -> list[ConfigServer]:
    """Return the servers of hosts that are part of the fleet but not of this run.

    A server belongs to the host whose name, followed by ``-``, is the longest beginning of its name.
    """
    by_length = sorted(set(hosts) | set(absent), key=len, reverse=True)
    kept = []
    for server in present:
        owner = next((host for host in by_length if server.name.startswith(host + "-")), None)
        if owner in absent:
            kept.append(server)
    return kept


def planned_servers(outs: dict[str, object], assume_proven: bool = False) -> list[dict[str, object]]:
    """Return the servers of all plans, in the order of the hosts.

    ``outs`` has the ``replica_out`` of each host: ``plan.replicas`` and ``proven``, the names of the replicas that
    passed their proof. Without a list ``proven`` nothing is. With ``assume_proven`` everything is. ``models`` are the names
    under which the plan serves its model, the main one first.
    """
    servers: list[dict[str, object]] = []
    owners: dict[str, str] = {}
    for host, out in outs.items():
        proven = out.get("proven")
        for replica in out["plan"]["replicas"]:
            name = replica["name"]
            if name in owners:
                raise LLMError('hosts "{0}" and "{1}" both have a replica "{2}"'.format(owners[name], host, name))
            owners[name] = host
            servers.append(
                {
                    "name": name,
                    "address": replica["address"],
                    "port": int(replica["port"]),
                    "max_num_seqs": int(replica["max_num_seqs"]),
                    "proven": assume_proven or name in (proven or []),
                    "models": list(out["plan"].get("served_names") or []),
                }
            )
    return servers


def model_groups(servers: list[dict[str, object]], backend: str = BACKEND) -> list[dict[str, object]]:
    """Return ``{"model", "names", "known", "backend", "servers"}`` for each model, by name; servers in their order.

    ``servers`` are elements of ``gateway_servers``; the first of a server's ``models`` is the main name of its model, the others
    are aliases. Servers without names are one group, ``model`` "", if no server has any; beside one model they belong to it,
    because a file from before names were kept says nothing. Beside several it is an error, as is a name of two models.
    """
    groups: dict[str, dict[str, object]] = {}
    nameless = []
    owners: dict[str, str] = {}
    for server in servers:
        names = [str(name) for name in server.get("models") or []]
        if not names:
            nameless.append(server)
            continue
        for name in names:
            if not _MODEL_NAME.match(name):
                raise LLMError(
                    'server "{0}": the gateway cannot tell requests for the model "{1}" apart: a name has no blanks, quotes, brackets or'
                    " any of $ % # , ; |".format(server["name"], name)
                )
            if owners.setdefault(name, names[0]) != names[0]:
                raise LLMError('"{0}" is a name of both models "{1}" and "{2}"'.format(name, owners[name], names[0]))
        group = groups.setdefault(names[0], {"model": names[0], "names": [], "backend": backend, "servers": []})
        group["names"].extend(name for name in names if name not in group["names"])
        group["servers"].append(server)
    if nameless and len(groups) > 1:
        raise LLMError(
            "the gateway serves several models ({0}) and cannot tell which of them is on {1}: give these servers their models, or run"
            " once without --limit".format(", ".join(sorted(groups)), ", ".join(server["name"] for server in nameless))
        )
    if not groups:
        return [{"model": "", "names": [], "known": {}, "backend": backend, "servers": nameless}] if nameless else []
    found = [groups[name] for name in sorted(groups)]
    for group in found:
        group["known"] = dict.fromkeys(group["names"], group["model"])
    if len(found) == 1:
        found[0]["servers"] = list(servers)
        return found
    taken: dict[str, str] = {}
    for group in found:
        slug = re.sub(r"[^A-Za-z0-9_-]", "_", group["model"])
        if slug in taken or slug != group["model"]:
            slug = "{0}-{1}".format(slug[:40], hashlib.sha256(group["model"].encode("utf-8")).hexdigest()[:6])
        taken[slug] = group["model"]
        group["backend"] = "{0}.{1}".format(backend, slug)
    return found


def with_disabled(text: str, names: dict[str, bool]) -> str:
    """Return the text of a configuration in which the servers of ``names`` are ``disabled`` (true) or not (false)."""
    lines = []
    for line in text.splitlines(True):
        match = _SERVER_LINE.match(line.rstrip("\n"))
        if match and match.group("name") in names:
            bare = line.rstrip("\n")
            bare = bare[: -len(" disabled")] if bare.endswith(" disabled") else bare
            line = bare + (" disabled" if names[match.group("name")] else "") + "\n"
        lines.append(line)
    return "".join(lines)


def _identity_text(text: str) -> str:
    lines = []
    for line in text.splitlines():
        if _SERVER_LINE.match(line) and line.endswith(" disabled"):
            line = line[: -len(" disabled")]
        lines.append(line)
    return "\n".join(lines)


def with_identity(text: str) -> tuple[str, str]:
    """Put the identity of a rendered file into it; return the file and the identity.

    Two files that differ only in which servers are ``disabled`` have the same identity: that difference is
    brought to a running HAProxy through its socket and needs no reload.
    """
    if ID_PLACEHOLDER not in text:
        raise LLMError("the rendered haproxy.cfg has no {0}: the gateway could not tell what is loaded".format(ID_PLACEHOLDER))
    identity = hashlib.sha256(_identity_text(text).encode("utf-8")).hexdigest()[:16]
    return text.replace(ID_PLACEHOLDER, identity), identity


def loaded_identity(info: dict[str, str]) -> str:
    """Return the identity of the file that a running HAProxy has loaded, from ``show info``; "" if it has none."""
    words = info.get("description", "").split()
    return words[-1] if words else ""


def binds(text: str) -> list[tuple[str, int]]:
    """Return the addresses and ports that a file binds, each once; ``*`` is every address."""
    found = []
    for line in text.splitlines():
        match = re.match(r"^\s+bind\s+(\S+):(\d+)(?:\s|$)", line)
        if match:
            item = (match.group(1).strip("[]"), int(match.group(2)))
            if item not in found:
                found.append(item)
    return found


def without_tls(text: str) -> str:
    """Return the text of a configuration whose addresses are bound without their certificates."""
    return re.sub(r"(?m)^(\s+bind\s+\S+) ssl .*$", r"\1", text)


def require_bindable(wanted: list[tuple[str, int]], held: Collection[int] = ()) -> None:
    """Raise an error that names the first address and port this host cannot bind.

    ``haproxy -c`` does not try. A reload that fails there makes the running worker refuse connections for a while. ``held`` are ports of
    the running gateway: it shares them with its next worker, on whatever address.
    """
    for address, port in wanted:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        door = socket.socket(family, socket.SOCK_STREAM)
        try:
            door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if port in held:
                door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            door.bind(("" if address == "*" else address, port))
        except (OSError, OverflowError) as exc:
            raise LLMError(
                "the gateway cannot bind {0}:{1}: {2}. Nothing was changed".format(address, port, getattr(exc, "strerror", None) or exc)
            ) from exc
        finally:
            door.close()


def map_paths(text: str) -> list[str]:
    """Return the map files that a rendered file names, each once."""
    found: list[str] = []
    for path in _MAP_OF.findall(text):
        if path not in found:
            found.append(path)
    return found


def validation_error(output: str, checked: str, path: str) -> str:
    """Return HAProxy's own words about an invalid file, with the name of the real file in place of the copy's.

    ``output`` is what ``haproxy -c`` printed on standard error.
    """
    alerts = []
    for line in output.splitlines():
        if "[ALERT]" not in line:
            continue
        words = re.sub(r"^\[ALERT\]\s*\(\d+\)\s*:\s*(?:config\s*:\s*)?", "", line.strip()).replace(checked, path)
        if not re.match(r"(?:Error\(s\) found|Fatal errors found)", words):
            alerts.append(words)
    if alerts:
        return alerts[0].rstrip(".")
    last = [line for line in output.strip().splitlines() if line.strip()]
    return last[-1].replace(checked, path) if last else "haproxy gave no reason"


# Limits


def nofile_hard(text: str) -> int:
    """Return the hard limit of open files from the text of ``/proc/<pid>/limits``."""
    for line in text.splitlines():
        if line.startswith("Max open files"):
            hard = line.split()[4]
            if hard == "unlimited":
                return 2**31 - 1
            if hard.isdigit():
                return int(hard)
    raise UnknownOutput('/proc/<pid>/limits has no readable line "Max open files"')


def maxconn_for(nofile: int, servers: int, ceiling: int) -> int:
    """Return the most connections that fit under ``nofile`` descriptors, at most ``ceiling``.

    Each connection takes two descriptors, one on each side. ``haproxy -c`` accepts a figure that is too large; the
    start then fails, so the figure has to be right before.
    """
    fit = (nofile - RESERVED_FDS - FDS_PER_SERVER * servers) // 2
    if fit < MINIMUM_MAXCONN:
        raise LLMError(
            "the limit of open files on this host is {0}: too low for a gateway with {1} servers, which needs {2}."
            " Raise the hard limit (ulimit -Hn, /etc/security/limits.d, or LimitNOFILE of the service that starts it)".format(
                nofile, servers, needed_nofile(MINIMUM_MAXCONN, servers)
            )
        )
    return min(ceiling, fit)


def needed_nofile(maxconn: int, servers: int) -> int:
    """Return how many descriptors a gateway with ``maxconn`` connections may need."""
    return 2 * maxconn + RESERVED_FDS + FDS_PER_SERVER * servers


# What the socket says


def parse_info(text: str) -> dict[str, str]:
    """Return ``show info`` as a mapping; keys as printed."""
    found = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            found[key.strip()] = value.strip()
    if "Version" not in found:
        raise UnknownOutput('haproxy answered "show info" with something unknown: {0!r}'.format(text[:80]))
    return found


def parse_stat(text: str) -> list[dict[str, str]]:
    """Return ``show stat`` as rows by the names of its header line, whatever columns the version has."""
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines or not lines[0].startswith("# pxname,svname,"):
        raise UnknownOutput('haproxy answered "show stat" with something unknown: {0!r}'.format(text[:80]))
    names = lines[0][2:].split(",")
    return [dict(zip(names, row)) for row in csv.reader(lines[1:])]


def open_sessions(rows: list[dict[str, str]], backend: str) -> dict[str, int]:
    """Return the requests each server of ``backend`` is working on or has queued for itself, from ``show stat``."""
    found = {}
    for row in rows:
        if belongs(row.get("pxname", ""), backend) and row.get("svname") not in ("FRONTEND", "BACKEND"):
            found[row["svname"]] = int(row.get("scur") or 0) + int(row.get("qcur") or 0)
    return found


def queued_requests(rows: list[dict[str, str]], backend: str) -> dict[str, int]:
    """Return how many requests wait in each backend, for any server or for a certain one, from ``show stat``."""
    found: dict[str, int] = {}
    for row in rows:
        if belongs(row.get("pxname", ""), backend) and row.get("svname") != "FRONTEND":
            found[row["pxname"]] = found.get(row["pxname"], 0) + int(row.get("qcur") or 0)
    return found


def parse_servers_state(text: str) -> list[dict[str, str]]:
    """Return ``show servers state`` as rows by the names of its header line.

    The first line is the version of the format; only version 1 exists.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) < 2 or lines[0].strip() != "1" or not lines[1].startswith("# be_id be_name srv_id srv_name"):
        raise UnknownOutput('haproxy answered "show servers state" with something unknown: {0!r}'.format(text[:80]))
    names = lines[1][2:].split()
    rows = []
    for line in lines[2:]:
        values = line.split()
        if len(values) < len(names):
            raise UnknownOutput('haproxy printed a line of "show servers state" that is too short: "{0}"'.format(line))
        rows.append(dict(zip(names, values)))
    return rows


def admin_state(bits: int) -> str:
    """Return ``ready``, ``drain`` or ``maint`` for a value of ``srv_admin_state``; maintenance outweighs a drain."""
    if bits & ~(_MAINT | _DRAIN | _NOTES):
        raise UnknownOutput("haproxy printed srv_admin_state {0}, which has bits unknown here".format(bits))
    if bits & _MAINT:
        return MAINT
    return DRAIN if bits & _DRAIN else READY


@dataclasses.dataclass
class LiveServer:
    """One server as a running HAProxy sees it. ``op`` is ``stopped``, ``starting``, ``running`` or ``stopping``.

    ``number`` is its id in ``backend``; both are those of the running process only.
    """

    name: str
    address: str
    port: int
    admin: str
    op: str
    backend: str = BACKEND
    number: int = 0


def live_servers(text: str, backend: str = BACKEND) -> dict[str, LiveServer]:
    """Return the servers of ``backend`` by name, from ``show servers state``."""
    found = {}
    for row in parse_servers_state(text):
        if not belongs(row["be_name"], backend):
            continue
        op = int(row["srv_op_state"])
        if op not in _OP_STATES:
            raise UnknownOutput("haproxy printed srv_op_state {0}, unknown here".format(op))
        found[row["srv_name"]] = LiveServer(
            name=row["srv_name"],
            address=row["srv_addr"],
            port=int(row["srv_port"]),
            admin=admin_state(int(row["srv_admin_state"])),
            op=_OP_STATES[op],
            backend=row["be_name"],
            number=int(row["srv_id"]),
        )
    return found


def parse_table(text: str, names: dict[int, str] | None = None) -> dict[str, str]:
    """Return key to server name of an affinity table, from ``show table``; entries that have no server yet are left out.

    An entry that was set through the socket has its server's number only, until it is used: ``names`` are those of numbers.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines or not lines[0].startswith("# table: "):
        raise UnknownOutput('haproxy answered "show table" with something unknown: {0!r}'.format(text[:80]))
    found = {}
    for line in lines[1:]:
        fields = dict(word.split("=", 1) for word in line.split() if "=" in word)
        if "key" not in fields:
            raise UnknownOutput('haproxy printed a line of "show table" without a key: {0!r}'.format(line[:80]))
        name = fields.get("server_key", "-")
        if name in ("", "-"):
            name = (names or {}).get(int(fields.get("server_id", "0")), "")
        if name:
            found[fields["key"]] = name
    return found


def certificate_fingerprint(text: str) -> str:
    """Return the sha1 that ``show ssl cert <name>`` prints, lower-case hex; "" for a name that HAProxy does not know."""
    found = re.search(r"^SHA1 FingerPrint: ([0-9A-Fa-f]{40})\s*$", text, re.MULTILINE)
    if found is not None:
        return found.group(1).lower()
    if text.startswith("Can't display the certificate"):
        return ""
    raise UnknownOutput('haproxy answered "show ssl cert" with something unknown: {0!r}'.format(text[:80]))


def lost_states(
    before: dict[str, LiveServer], after: dict[str, LiveServer], disabled_before: set[str], disabled_after: set[str]
) -> dict[str, str]:
    """Return what a reload forgot: server name to the administrative state it had and has to get back.

    Left out: servers that are new, gone, or moved to another address or port, and those whose ``disabled`` flag the
    new file changed, because there the file is the newer wish.
    """
    lost = {}
    for name, old in before.items():
        new = after.get(name)
        if new is None or (new.address, new.port) != (old.address, old.port):
            continue
        if (name in disabled_before) != (name in disabled_after):
            continue
        if new.admin != old.admin:
            lost[name] = old.admin
    return lost


def old_workers(text: str) -> list[int]:
    """Return the process ids of workers that finish their last requests after a reload, from ``show proc``."""
    found = []
    section = ""
    for line in text.splitlines():
        if line.startswith("#"):
            section = line.lstrip("# ").strip()
        elif section == "old workers" and line.split()[1:2] == ["worker"]:
            found.append(int(line.split()[0]))
    return found


# Keys


def key_hash(key: str) -> str:
    """Return what stands in the map for a client key: sha256, lower-case hex."""
    return hashlib.sha256(key.encode("utf-8")).hexdigest()


def expiry(text: str, about: str) -> int:
    """Return the second of the epoch at which a key ends: a day (its beginning, UTC), or a time in UTC with ``Z``."""
    for form in ("%Y-%m-%d", "%Y-%m-%dT%H:%M:%SZ"):
        try:
            return calendar.timegm(time.strptime(text, form))
        except ValueError:
            continue
    raise LLMError('{0}: expires is a day such as 2027-01-31 or a time such as 2027-01-31T12:00:00Z (UTC), not "{1}"'.format(about, text))


def key_entry(item: dict[str, object], known: dict[str, str] | None) -> str:
    """Return what the map says about a client key: ``name``, or ``name|expires|per minute|at once|,model,model,|default``.

    0 and an empty field mean no limit of its own. ``known`` has all names of all models with the main name of each; None if
    models are not told apart, so that a limit to some of them cannot be kept.
    """
    about = 'client key "{0}"'.format(item["name"])
    numbers = []
    for field in ("requests_per_minute", "concurrent"):
        number = int(item.get(field) or 0)
        if number < 0:
            raise LLMError("{0}: {1} is {2}; it must be 0 (no limit of its own) or more".format(about, field, number))
        numbers.append(str(number))
    scope = []
    for name in list(item.get("models") or []) + ([item["default_model"]] if item.get("default_model") else []):
        if known is None:
            raise LLMError("{0}: it is limited to models, but the servers of this gateway do not say which models they have".format(about))
        if name not in known:
            raise LLMError('{0}: there is no model "{1}" here: {2}'.format(about, name, nearest(name, sorted(known))))
        scope.append(known[name])
    default = scope.pop() if item.get("default_model") else ""
    if default and scope and default not in scope:
        raise LLMError('{0}: default_model "{1}" is none of its models'.format(about, item["default_model"]))
    if not default and len(set(scope)) == 1:
        default = scope[0]
    ends = str(expiry(str(item["expires"]), about)) if item.get("expires") else "0"
    listed = ",{0},".format(",".join(sorted(set(scope)))) if scope else ""
    if ends == "0" and numbers == ["0", "0"] and not listed and not default:
        return str(item["name"])
    return "|".join([str(item["name"]), ends, numbers[0], numbers[1], listed or "-", default or "-"])


def entry_name(entry: str) -> str:
    """Return whose key it is, from an entry of the map."""
    return entry.partition("|")[0]


def checked_keys(keys: list[dict[str, object]], known: dict[str, str] | None = None) -> dict[str, str]:
    """Return hash to entry for a list of client keys, or raise an error that names the key by its name only.

    Several keys may share a name: that is how a client changes its key without a gap. ``known`` as in ``key_entry``.
    """
    found: dict[str, str] = {}
    for position, item in enumerate(keys, 1):
        name = item.get("name") or ""
        key = item.get("key") or ""
        if not _KEY_NAME.match(name):
            raise LLMError(
                'client key number {0}: the name "{1}" may have letters, digits, ".", "_", "-" and up to 64 of them'.format(position, name)
            )
        if len(key) < 16 or not re.match(r"^[\x21-\x7e]+$", key):
            raise LLMError(
                'client key "{0}": a key is at least 16 printable characters without blanks; make one: openssl rand -hex 24'.format(name)
            )
        digest = key_hash(key)
        if digest in found:
            raise LLMError('client keys "{0}" and "{1}" are the same key: give each its own'.format(entry_name(found[digest]), name))
        found[digest] = key_entry(item, known)
    return found


def map_text(entries: dict[str, str]) -> str:
    """Return the text of a map file, in a stable order."""
    return "".join("{0} {1}\n".format(key, entries[key]) for key in sorted(entries, key=lambda k: (entries[k], k)))


def parse_map_file(text: str) -> dict[str, str]:
    """Return the entries of a map file as this collection writes it."""
    found = {}
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            key, _blank, value = line.partition(" ")
            found[key] = value
    return found


def parse_show_map(text: str) -> dict[str, str]:
    """Return the entries that ``show map <file>`` prints: an address, the key, the value."""
    found = {}
    for line in text.splitlines():
        words = line.split(None, 2)
        if len(words) == 3 and words[0].startswith("0x"):
            found[words[1]] = words[2]
        elif words:
            raise UnknownOutput('haproxy answered "show map" with something unknown ({0} words in a line)'.format(len(words)))
    return found


def masked_keys(entries: dict[str, str]) -> str:
    """Return a map for people: names, and so much of each hash that two keys of one name can be told apart."""
    return "".join("{0} sha256:{1}...\n".format(entries[key], key[:6]) for key in sorted(entries, key=lambda k: (entries[k], k)))


# Doors


class AdminSocket:
    """HAProxy's runtime socket, or that of its master process.

    One connection per command. ``timeout_s`` bounds each command.
    """

    def __init__(self, path: str, timeout_s: float = 5.0) -> None:
        self.path = path
        self.timeout_s = timeout_s

    def ask(self, command: str) -> str:
        """Send one command and return the whole answer without its closing empty line.

        Raises LLMError that names the socket. The command is never part of the message: it may hold a key.
        """
        deadline = time.monotonic() + self.timeout_s
        chunks = []
        door = self._open(deadline)
        try:
            door.sendall(command.encode("utf-8") + b"\n")
            # The master's socket goes on listening for commands until it hears that there are no more.
            door.shutdown(socket.SHUT_WR)
            while True:
                door.settimeout(max(0.01, deadline - time.monotonic()))
                chunk = door.recv(65536)
                if not chunk:
                    break
                chunks.append(chunk)
        except socket.timeout as exc:
            raise LLMError("HAProxy did not answer on {0} within {1:g} s".format(self.path, self.timeout_s)) from exc
        except OSError as exc:
            raise LLMError("HAProxy's socket {0} broke off: {1}".format(self.path, exc.strerror or exc)) from exc
        finally:
            door.close()
        return b"".join(chunks).decode("utf-8", "replace").rstrip("\n")

    def _open(self, deadline: float) -> socket.socket:
        """Connect; during a reload the master's socket refuses for a moment, which is waited out."""
        while True:
            door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                door.settimeout(self.timeout_s)
                door.connect(self.path)
                return door
            except OSError as exc:
                door.close()
                if not isinstance(exc, ConnectionRefusedError) or time.monotonic() > deadline:
                    raise LLMError(
                        "HAProxy's socket {0} cannot be used: {1}. Is the gateway running?".format(self.path, exc.strerror or exc)
                    ) from exc
            time.sleep(0.05)

    def order(self, command: str, about: str) -> None:
        """Send a command whose success is silence; ``about`` names it in the error."""
        answer = self.ask(command).strip()
        if answer:
            raise LLMError("HAProxy refused to {0}: {1}".format(about, answer.splitlines()[0]))

    def info(self) -> dict[str, str]:
        """Return ``show info``."""
        return parse_info(self.ask("show info"))

    def servers(self, backend: str = BACKEND) -> dict[str, LiveServer]:
        """Return the live servers of ``backend`` by name."""
        return live_servers(self.ask("show servers state"), backend)

    def sessions(self, backend: str = BACKEND, master: str = "") -> dict[str, int]:
        """Return the open requests of each server of ``backend``.

        With ``master``, the socket of the master process, those that workers from before a reload still serve are
        counted too: the present worker does not know of them.
        """
        found = open_sessions(parse_stat(self.ask("show stat")), backend)
        if master and os.path.exists(master):
            door = AdminSocket(master, self.timeout_s)
            for pid in old_workers(door.ask("show proc")):
                answer = door.ask("@!{0} show stat".format(pid))
                # A worker may end between the two questions; then nothing is open in it.
                if answer.startswith("# pxname"):
                    for name, count in open_sessions(parse_stat(answer), backend).items():
                        found[name] = found.get(name, 0) + count
        return found

    def queued(self, backend: str = BACKEND) -> dict[str, int]:
        """Return how many requests wait in each backend that belongs to ``backend``."""
        return queued_requests(parse_stat(self.ask("show stat")), backend)

    def affinity(self, table: str = AFFINITY_TABLES[0]) -> dict[str, str]:
        """Return which key belongs to which server; empty for a gateway without affinity."""
        answer = self.ask("show table {0}".format(table))
        # "No such table", in the words of whatever version.
        if not answer.strip().startswith("# table: "):
            return {}
        named: dict[int, list[str]] = {}
        for row in parse_servers_state(self.ask("show servers state")):
            named.setdefault(int(row["srv_id"]), []).append(row["srv_name"])
        # Servers of several models have the same numbers: such an entry is nobody's until it is used.
        return parse_table(answer, {number: known[0] for number, known in named.items() if len(known) == 1})

    def restore_affinity(self, entries: dict[str, str], servers: dict[str, LiveServer], table: str = AFFINITY_TABLES[0]) -> int:
        """Give keys back to the servers they had, those that are still there; return how many were set.

        A reload empties the table, and with it goes what the replicas' caches are worth. Keys that found a server since keep it.
        """
        present = self.affinity(table)
        lines = [
            "set table {0} key {1} data.server_id {2}".format(table, key, servers[name].number)
            for key, name in entries.items()
            if name in servers and key not in present
        ]
        for start in range(0, len(lines), ENTRIES_A_LINE):
            self.order("; ".join(lines[start : start + ENTRIES_A_LINE]), "restore entries of the affinity table")
        return len(lines)

    def set_state(self, backend: str, name: str, state: str) -> None:
        """Put one server of the backend of exactly this name into ``ready``, ``drain`` or ``maint``."""
        self.order("set server {0}/{1} state {2}".format(backend, name, state), 'put server "{0}" into {1}'.format(name, state))

    def map(self, path: str) -> dict[str, str]:
        """Return the entries of a map as HAProxy has it in memory."""
        return parse_show_map(self.ask("show map {0}".format(path)))

    def map_add(self, path: str, key: str, value: str) -> None:
        """Add one entry to a map in memory."""
        self.order("add map {0} {1} {2}".format(path, key, value), "add an entry to {0}".format(path))

    def map_set(self, path: str, key: str, value: str) -> None:
        """Change one entry of a map in memory."""
        self.order("set map {0} {1} {2}".format(path, key, value), "change an entry of {0}".format(path))

    def map_delete(self, path: str, key: str) -> None:
        """Remove one entry from a map in memory."""
        self.order("del map {0} {1}".format(path, key), "remove an entry from {0}".format(path))

    def certificate(self, path: str) -> str:
        """Return the sha1 of the certificate that HAProxy uses under this name, lower-case hex; "" when it knows none."""
        return certificate_fingerprint(self.ask("show ssl cert {0}".format(path)))

    def set_certificate(self, path: str, pem: str) -> None:
        """Use another certificate, chain and key from the next connection on. ``pem`` has no empty line.

        Raises LLMError with HAProxy's reason; then the one before is still in use.
        """
        # An empty line ends what is sent.
        answer = self.ask("set ssl cert {0} <<\n{1}".format(path, pem))
        if "Transaction created" in answer or "Transaction updated" in answer:
            answer = self.ask("commit ssl cert {0}".format(path))
            if answer.strip().endswith("Success!"):
                return
        self.ask("abort ssl cert {0}".format(path))
        said = [line for line in answer.splitlines() if line.strip(" .")]
        raise LLMError(
            "HAProxy refused the certificate of {0}: {1}. The one before stays in use".format(
                path, said[-1] if said else "it gave no reason"
            )
        )


def running(path: str) -> dict[str, str] | None:
    """Return ``show info`` of the HAProxy behind a socket, or None if nobody listens there.

    Anything else than nobody listening, such as an HAProxy that does not answer, is an error: unknown is never "no".
    """
    if not os.path.exists(path):
        return None
    probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        probe.settimeout(5.0)
        probe.connect(path)
    except (ConnectionRefusedError, FileNotFoundError):
        return None
    except OSError as exc:
        raise LLMError("HAProxy's socket {0} cannot be used: {1}".format(path, exc)) from exc
    finally:
        probe.close()
    return AdminSocket(path).info()


@contextlib.contextmanager
def turn(path: str, check: bool = False, wait_s: float = 60.0) -> Iterator[None]:
    """Change the gateway behind a socket while nobody else does. Where none is behind it, and in check mode, nothing is waited for.

    A reload carries states, keys and certificates over from one worker to the next: what is told to the old one meanwhile would be forgotten.
    Raises LLMError when another one's turn does not end in ``wait_s`` seconds; a turn ends with its process.
    """
    if check or not os.path.exists(path):
        yield
        return
    number = os.open(path + ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    reason = "{0}: somebody else has been changing this gateway for {1:g} s; wait until that has ended, and run again"
                    raise LLMError(reason.format(path, wait_s)) from None
                time.sleep(0.02)
        yield
    finally:
        os.close(number)
