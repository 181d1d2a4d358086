# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What is to be done about a driver, firmware, runtime or toolkit package, from what a host shows. Pure. Private to the collection.

A package is pinned: one file, one sha256, one version. What is on the disk, what the kernel runs and what the journal on the host says
of earlier runs decide together; what contradicts itself is refused, never guessed.
"""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError, UnknownOutput, nearest

#: What a package can bring, in the order it has to come. A toolkit is worth nothing before its driver runs.
PROVIDES = ("driver", "firmware", "runtime", "toolkit")
KINDS = ("run", "deb", "rpm", "archive")

NOTHING = "nothing"
INSTALL = "install"
UPGRADE = "upgrade"
RESUME = "resume"
WAIT = "wait"
REBOOT = "reboot"
REFUSE = "refuse"
#: Actions that put files on the host.
WRITES = (INSTALL, UPGRADE, RESUME)

#: States of a package in the journal. ``found`` is one that somebody else installed.
STARTED = "started"
FAILED = "failed"
INSTALLED = "installed"
FOUND = "found"

_SHA256 = re.compile(r"^[0-9a-f]{64}$")
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_TOKEN = re.compile(r"\d+|[a-z]+")
#: Words that stand before the release they lead to: 24.1.rc3 comes before 24.1.0.
_BEFORE_RELEASE = ("alpha", "beta", "pre", "rc")

_SAYS_REBOOT = re.compile(
    r"reboot(?:ing)?\s+(?:is\s+)?(?:needed|required)|(?:needs?|requires?)\s+(?:a\s+|to\s+be\s+)?reboot"
    r"|please\s+(?:reboot|restart)\s+(?:the\s+|your\s+)?(?:system|server|host|machine|computer|os)\b",
    re.I,
)
_SAYS_LIVE = re.compile(r"takes?\s+effect\s+immediately", re.I)

#: What installers say when they fail, in words a person can act on: pattern, cause, what to do.
_CAUSES = (
    (
        r"no space left on device|not enough (?:disk )?space|free space only|insufficient (?:disk )?space",
        "the disk is full",
        "free space under {space} ({free} MiB free now), then run again",
    ),
    (
        r"kernel[- ](?:headers?|source|devel)|kernel source tree|rebuild ko has something wrong|kernel absolute path|/lib/modules/\S+/build",
        "the kernel module could not be built",
        "install the headers of the running kernel {kernel} (kernel-devel-{kernel} or linux-headers-{kernel}), then run again",
    ),
    (
        r"not exists! please add|(?:user|group) \S+ does not exist",
        "an account the package wants is missing",
        "make the account the package names, then run again",
    ),
    (
        r"module \S+ is in use|kernel modules? can ?not be removed|resource busy|device or resource busy",
        "something still uses the old driver",
        "stop what uses the cards, then run again",
    ),
    (
        r"already a process being executed|another instance|is another process using",
        "another installation is at work",
        "wait for it, then run again",
    ),
    (
        r"error in (?:md5|sha256|check) ?sums?|checksum|unexpected end of file|gzip: stdin",
        "the package's own check of its content failed",
        "fetch the package again",
    ),
)


@dataclasses.dataclass
class Reader:
    """Where a version is read: a file, a command's standard output, a kernel module, or the package manager.

    Attributes:
        file: path on the host.
        command: argument list; an absolute path that is not there means that nothing is installed.
        module: names of the kernel module, the first that is loaded counts; read from ``/sys/module/<name>/version``.
        package: name of the deb or rpm.
        pattern: regular expression over the text; its first group, or all of it, is the version. Empty takes the first line.
        absent_status: exit statuses of ``command`` that mean that nothing is installed.
    """

    file: str = ""
    command: list[str] = dataclasses.field(default_factory=list)
    module: list[str] = dataclasses.field(default_factory=list)
    package: str = ""
    pattern: str = ""
    absent_status: list[int] = dataclasses.field(default_factory=list)

    @property
    def where(self) -> str:
        """The place, for a message."""
        return self.file or " ".join(self.command) or self.package or "/sys/module/{0}/version".format("|".join(self.module))


@dataclasses.dataclass
class Package:
    """One package to be installed.

    Attributes:
        name: what we call it, unique.
        kind: ``run`` (an installer), ``deb``, ``rpm`` or ``archive`` (unpacked into ``directory``).
        file: path of the file, as the user gave it.
        sha256: of the file, lower-case hex.
        version: the pinned version, as ``installed`` reads it.
        provides: one of PROVIDES.
        installed: where the version on the disk is read.
        live: where the version that runs is read; None where there is none.
        complete: file and pattern that must match once an installation is whole; None where the vendor has none.
        arguments: of a ``run`` installer.
        upgrade_arguments: the same over another version; empty means ``arguments``.
        needs_reboot: ``auto``, ``true`` or ``false``.
        reboot_status: exit statuses that mean installed, and to be rebooted.
        needs_kernel_headers: whether it builds a kernel module on the host.
        free_mib: free space it needs under each of ``free_paths``, MiB.
        free_paths: places that must have it.
        log: the installer's own log.
        timeout_s: longest run of the installer, seconds; 0 means the module's.
        directory: where an archive is unpacked.
        allow_downgrade: whether an older version may replace a newer one.
    """

    name: str
    kind: str
    file: str
    sha256: str
    version: str
    provides: str
    installed: Reader
    live: Reader | None = None
    complete: Reader | None = None
    arguments: list[str] = dataclasses.field(default_factory=list)
    upgrade_arguments: list[str] = dataclasses.field(default_factory=list)
    needs_reboot: str = "auto"
    reboot_status: list[int] = dataclasses.field(default_factory=list)
    needs_kernel_headers: bool = False
    free_mib: int = 0
    free_paths: list[str] = dataclasses.field(default_factory=list)
    log: str = ""
    timeout_s: float = 0.0
    directory: str = ""
    allow_downgrade: bool = False


@dataclasses.dataclass
class Reading:
    """A version that was read: ``value`` None when there is none; ``problem`` when it cannot be told."""

    value: str | None = None
    problem: str = ""

    @property
    def text(self) -> str:
        """The reading as a word for a message."""
        return "unreadable" if self.problem else self.value if self.value is not None else "none"


@dataclasses.dataclass
class Seen:
    """What a host shows of one package.

    Attributes:
        installed: the version on the disk.
        live: the version that runs; None where the package has no such thing.
        complete: whether the vendor's record says that the installation is whole; None where there is no such record.
        entry: the package's entry in the journal; empty when there is none.
        boot_id: the kernel's identity of this boot.
        kernel: release of the running kernel.
        working: pid of an installer that an earlier run started and that still works; 0 for none.
        left_status: whether it ended and left its exit status, which nobody read yet.
        held: why nothing may be touched now, such as replicas that run.
        obstacles: why this package could not be installed, such as a full disk.
    """

    installed: Reading
    live: Reading | None
    complete: bool | None
    entry: dict[str, Any]
    boot_id: str
    kernel: str
    working: int = 0
    left_status: bool = False
    held: list[str] = dataclasses.field(default_factory=list)
    obstacles: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Decision:
    """What is to be done about one package, and why."""

    name: str
    provides: str
    kind: str
    version: str
    action: str
    reason: str
    installed: str
    live: str | None

    def line(self) -> str:
        """The decision as the one line a person reads."""
        return "{0:<8} {1:<24} {2}: {3}".format(self.action.upper(), self.name, self.version, self.reason)

    def state(self) -> str:
        """What is there, as one line of a diff."""
        live = "" if self.live is None else ", live {0}".format(self.live)
        return "{0} {1}{2}".format(self.name, self.installed, live)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for module results."""
        return dataclasses.asdict(self)


# ---- the packages as the user gives them


def _reader(item: dict[str, Any] | None, where: str) -> Reader | None:
    values = {key: value for key, value in (item or {}).items() if value not in (None, "", [])}
    if not values:
        return None
    ways = [key for key in ("file", "command", "module", "package") if key in values]
    if len(ways) != 1:
        raise LLMError("{0}: name exactly one of file, command, module and package, found {1}".format(where, ", ".join(ways) or "none"))
    reader = Reader(**values)
    try:
        compiled = re.compile(reader.pattern)
    except re.error as exc:
        raise LLMError("{0}: the pattern {1!r} is no regular expression: {2}".format(where, reader.pattern, exc)) from exc
    if compiled.groups > 1:
        raise LLMError(
            "{0}: the pattern {1!r} has {2} groups, one at most can be the version".format(where, reader.pattern, compiled.groups)
        )
    return reader


def read_packages(items: list[dict[str, Any]]) -> list[Package]:
    """Turn option ``accelerator_packages`` into packages, in the order they have to come.

    Within one kind of thing they keep the order they were given in. Raises LLMError for a package that could not be installed, or of
    which nobody could tell afterwards whether it is there.
    """
    found: list[Package] = []
    for number, item in enumerate(items):
        where = "accelerator_packages[{0}] ({1})".format(number, item.get("name") or "no name")
        for key in ("name", "kind", "file", "sha256", "version", "provides"):
            if not str(item.get(key) or ""):
                raise LLMError("{0}: {1} is missing".format(where, key))
        for key, known in (("kind", KINDS), ("provides", PROVIDES)):
            if item[key] not in known:
                raise LLMError("{0}: unknown {1} {2!r}: {3}".format(where, key, item[key], nearest(str(item[key]), list(known))))
        # The name becomes the name of files.
        if not re.match(r"^[A-Za-z0-9][A-Za-z0-9._+-]*$", item["name"]):
            raise LLMError("{0}: a name is made of letters, digits and . _ + -".format(where))
        if item["name"] in [package.name for package in found]:
            raise LLMError("{0}: this name is there twice".format(where))
        sha256 = str(item["sha256"]).lower()
        if not _SHA256.match(sha256):
            raise LLMError("{0}: sha256 must be 64 hex digits, not {1!r}".format(where, item["sha256"]))
        installed = _reader(item.get("installed_version"), where + ", installed_version")
        if installed is None:
            raise LLMError("{0}: installed_version is missing: nothing could show that the package is there".format(where))
        live = _reader(item.get("live_version"), where + ", live_version")
        if live is None and installed.module:
            live = installed
        if live is None and item["provides"] == "driver":
            raise LLMError(
                "{0}: a driver needs live_version (or installed_version by module): after a reboot nothing could show that it runs".format(
                    where
                )
            )
        complete = _reader(item.get("complete"), where + ", complete")
        if complete is not None and not (complete.file and complete.pattern):
            raise LLMError("{0}, complete: name a file and a pattern".format(where))
        if item["kind"] == "archive" and not item.get("directory"):
            raise LLMError("{0}: an archive needs the directory it is unpacked into".format(where))
        needs_reboot = str(item.get("needs_reboot", "auto")).lower()
        if needs_reboot not in ("auto", "true", "false"):
            raise LLMError("{0}: needs_reboot must be auto, true or false, not {1!r}".format(where, item["needs_reboot"]))
        found.append(
            Package(
                name=item["name"],
                kind=item["kind"],
                file=str(item["file"]),
                sha256=sha256,
                version=str(item["version"]),
                provides=item["provides"],
                installed=installed,
                live=live,
                complete=complete,
                arguments=[str(word) for word in item.get("arguments") or []],
                upgrade_arguments=[str(word) for word in item.get("upgrade_arguments") or []],
                needs_reboot=needs_reboot,
                reboot_status=[int(status) for status in item.get("reboot_status") or []],
                needs_kernel_headers=bool(item.get("needs_kernel_headers")),
                free_mib=int(item.get("free_mib") or 0),
                free_paths=list(item.get("free_paths") or ["/usr/local", "/tmp"]),
                log=str(item.get("log") or ""),
                timeout_s=float(item.get("timeout_s") or 0),
                directory=str(item.get("directory") or ""),
                allow_downgrade=bool(item.get("allow_downgrade")),
            )
        )
    return sorted(found, key=lambda package: PROVIDES.index(package.provides))


# ---- versions


def extract(text: str, reader: Reader) -> str:
    """The version in a text. Raises UnknownOutput, with the first line, when it is not there, or when the text gives several."""
    if reader.pattern:
        found = sorted({match.group(match.re.groups).strip() for match in re.finditer(reader.pattern, text, re.M)})
    else:
        found = [line.strip() for line in text.splitlines() if line.strip()][:1]
    found = [value for value in found if value]
    if len(found) != 1:
        first = [line.strip() for line in text.splitlines() if line.strip()][:1]
        raise UnknownOutput(
            "{0}: {1}; it begins with {2!r}".format(
                reader.where, "no version in it" if not found else "several versions in it: " + ", ".join(found), (first or [""])[0][:120]
            )
        )
    return found[0]


def same(left: str | None, right: str) -> bool:
    """Whether two versions are the same; vendors mix RC3 and rc3."""
    return left is not None and left.strip().lower() == right.strip().lower()


def newer(left: str, right: str) -> bool | None:
    """Whether ``left`` is newer than ``right``; None when their forms are too unlike to tell (``rock-5.7.1-6.2.26`` and ``6.3.31``)."""
    tokens = [_TOKEN.findall(text.lower()) for text in (left, right)]
    for mine, theirs in zip(*tokens):
        if mine == theirs:
            continue
        if mine.isdigit() and theirs.isdigit():
            if int(mine) == int(theirs):
                continue
            return int(mine) > int(theirs)
        if mine in _BEFORE_RELEASE and theirs.isdigit():
            return False
        if theirs in _BEFORE_RELEASE and mine.isdigit():
            return True
        if not mine.isdigit() and not theirs.isdigit() and len(mine) == len(theirs) == 1:
            return mine > theirs
        return None
    longer = tokens[0][len(tokens[1]) :] or tokens[1][len(tokens[0]) :]
    if not longer:
        return None
    return (longer[0] not in _BEFORE_RELEASE) == (len(tokens[0]) > len(tokens[1]))


# ---- what is to be done


def decide(package: Package, seen: Seen) -> Decision:
    """What is to be done about ``package`` on a host that shows ``seen``."""
    action, reason = _wanted(package, seen)
    stops = (seen.held if action in WRITES + (REBOOT,) else []) + (seen.obstacles if action in WRITES else [])
    if stops:
        action, reason = REFUSE, "to {0} ({1}), but {2}".format(action, reason, "; and ".join(stops))
    return Decision(
        name=package.name,
        provides=package.provides,
        kind=package.kind,
        version=package.version,
        action=action,
        reason=reason,
        installed=seen.installed.text,
        live=None if seen.live is None else seen.live.text,
    )


def _wanted(package: Package, seen: Seen) -> tuple[str, str]:
    """Action and reason, whatever may stand in the way."""
    entry, status = seen.entry, seen.entry.get("status", "")
    installed, live = seen.installed, seen.live
    lives = live is not None and same(live.value, package.version)
    if status == STARTED:
        if seen.working:
            return WAIT, "an installer of an earlier run still works (pid {0}, since {1})".format(seen.working, entry.get("at"))
        if seen.left_status:
            return WAIT, "an installer of an earlier run (since {0}) ended after that run was cut short".format(entry.get("at"))
        return RESUME, "a run was cut short here at {0}; what it left cannot be trusted, {1} says {2}".format(
            entry.get("at"), package.installed.where, installed.text
        )
    there = same(installed.value, package.version)
    if status == FAILED and not (there and lives and seen.complete is not False):
        return RESUME, "the last attempt failed at {0}: {1}".format(entry.get("at"), entry.get("cause"))
    if installed.problem:
        return REFUSE, "nobody can tell what is installed: {0}".format(installed.problem)
    if installed.value is None:
        gone = status == INSTALLED and same(entry.get("version"), package.version)
        return INSTALL, "was installed at {0} and is gone".format(entry.get("at")) if gone else "not installed"
    if not there:
        return _replace(package, installed.value)
    if seen.complete is False:
        return RESUME, "half-installed: {0} is on the disk, but {1} does not say that the installation is whole".format(
            installed.value, package.complete.file if package.complete else ""
        )
    return _alive(package, seen, lives)


def _replace(package: Package, installed: str) -> tuple[str, str]:
    """What to do about another version on the disk."""
    order = newer(package.version, installed)
    if order or package.allow_downgrade:
        return UPGRADE, "{0} is installed".format(installed)
    what = "is older than" if order is False else "cannot be told to be newer than"
    return REFUSE, "{0} {1} what is installed, {2}; set allow_downgrade: true to replace it all the same".format(
        package.version, what, installed
    )


def _alive(package: Package, seen: Seen, lives: bool) -> tuple[str, str]:
    """What to do when the pinned version is on the disk: does it run?"""
    entry, due = seen.entry, seen.entry.get("reboot_due", "")
    if due and due == seen.boot_id and package.needs_reboot != "false":
        return REBOOT, entry.get("why_reboot") or "installed, and not rebooted since"
    if seen.live is None:
        return NOTHING, "installed"
    if lives:
        return NOTHING, "installed and live"
    says = "{0} {1}".format(package.live.where if package.live else "", seen.live.problem or "says " + seen.live.text)
    built_for = entry.get("kernel", "") if entry.get("status") == INSTALLED else ""
    if built_for and built_for != seen.kernel:
        return RESUME, "installed for kernel {0}, but {1} runs, and {2}".format(built_for, seen.kernel, says)
    if due:
        return (
            REFUSE,
            "on the disk, and the host was restarted since, but {0}; see {1}, or remove the entry from the journal to install anew".format(
                says, package.log or "the kernel's log"
            ),
        )
    if package.needs_reboot == "false":
        return REFUSE, "on the disk, but {0}, and needs_reboot is false; load the driver, or see {1}".format(
            says, package.log or "the kernel's log"
        )
    return REBOOT, "on the disk, but {0}".format(says)


# ---- what an installer said


def plain(text: str) -> str:
    """A text without the colours of a terminal."""
    return _COLOUR.sub("", text.replace("\r", "\n"))


def tail(text: str, lines: int = 20) -> list[str]:
    """The last lines with anything in them, at most 300 characters each."""
    return [line.rstrip()[:300] for line in plain(text).splitlines() if line.strip()][-lines:]


def says_reboot(text: str) -> bool:
    """Whether an installer asks for a reboot of the host; what it says last counts."""
    asks = [match.start() for match in _SAYS_REBOOT.finditer(plain(text))]
    lives = [match.start() for match in _SAYS_LIVE.finditer(plain(text))]
    return bool(asks) and (not lives or asks[-1] > lives[-1])


def diagnose(text: str, space: str, free: int, kernel: str) -> tuple[str, str]:
    """Cause and remedy of a failed installation, from what the installer said last; both empty when it said nothing known.

    ``space`` and ``free`` name the place it writes to and what is free there, MiB; ``kernel`` is the running kernel's release.
    """
    said = "\n".join(tail(text, 60))
    for pattern, cause, fix in _CAUSES:
        if re.search(pattern, said, re.I):
            return cause, fix.format(space=space, free=free, kernel=kernel)
    return "", ""


def status_text(rc: int | None) -> str:
    """An exit status in words; a shell reports a signal as 128 and its number."""
    if rc is None:
        return "left no exit status: it was killed"
    return "was killed by signal {0}".format(rc - 128 if rc > 128 else -rc) if rc > 128 or rc < 0 else "ended with status {0}".format(rc)


# ---- the container engine's configuration


def engine_default(text: str | None, path: str) -> str:
    """The default runtime that the engine's configuration names, empty for none. Raises UnknownOutput when it is not JSON."""
    return str(_engine_configuration(text, path).get("default-runtime", ""))


def keep_engine_default(before: str, text: str | None, path: str) -> str | None:
    """The engine's configuration with the default runtime it had ``before``; None when there is nothing to put right.

    Toolkits register their runtime, which is wanted, and make it the default, which hands every card to every container.
    """
    configuration = _engine_configuration(text, path)
    if str(configuration.get("default-runtime", "")) == before:
        return None
    if before:
        configuration["default-runtime"] = before
    else:
        del configuration["default-runtime"]
    return json.dumps(configuration, indent=4) + "\n"


def _engine_configuration(text: str | None, path: str) -> dict[str, Any]:
    if text is None or not text.strip():
        return {}
    try:
        configuration = json.loads(text)
    except ValueError as exc:
        raise UnknownOutput("{0}: not JSON: {1}; put it right before a toolkit writes to it".format(path, exc)) from exc
    if not isinstance(configuration, dict):
        raise UnknownOutput("{0}: not a JSON object; put it right before a toolkit writes to it".format(path))
    return configuration


# ---- the journal


def parse_journal(text: str | None, path: str) -> dict[str, dict[str, Any]]:
    """Read the journal: package name -> entry. LLMError names the file when it is not one of ours."""
    if text is None:
        return {}
    try:
        journal = json.loads(text)
        if journal["format"] != 1:
            raise ValueError("format {0!r}".format(journal["format"]))
        for name, entry in journal["packages"].items():
            if entry["status"] not in (STARTED, FAILED, INSTALLED, FOUND):
                raise ValueError("{0}: status {1!r}".format(name, entry["status"]))
        return dict(journal["packages"])
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise LLMError(
            "{0}: not a journal of this collection ({1!r}); look at it, and move it away if nothing is being installed".format(path, exc)
        ) from exc


def render_journal(entries: dict[str, dict[str, Any]]) -> str:
    """The journal as text."""
    return json.dumps({"format": 1, "packages": entries}, indent=1, sort_keys=True) + "\n"
