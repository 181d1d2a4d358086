# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A host on which packages are installed: what it shows, its journal, and running a vendor's installer. Private to the collection.

What is decided lies in ``_drivers``. The journal is written before anything is changed, so that a run that is killed at any moment leaves
word of what it did. An installer is never ended because its run was: the next one waits for it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import time
import urllib.parse
from typing import Any

from ansible_collections.ironserve.llm.plugins.module_utils import _drivers, _host, _run
from ansible_collections.ironserve.llm.plugins.module_utils._drivers import Decision, Package, Reader, Reading, Seen
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError, UnknownOutput
from ansible_collections.ironserve.llm.plugins.module_utils._vendor import Vendor, first_odd_line

BOOT_ID = "/proc/sys/kernel/random/boot_id"
KERNEL = "/proc/sys/kernel/osrelease"
ENGINE_CONFIGURATION = "/etc/docker/daemon.json"
DPKG_STATUS = "/var/lib/dpkg/status"
#: An installer that writes more than this has asked a question nobody answers.
FLOOD_BYTES = 64 * 2**20
#: Directories of administration tools that a shell of Ansible may lack, and installers need.
ADMIN_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def now_text() -> str:
    """This moment as a person reads it."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())


def sha256_of(path: str) -> str:
    """SHA-256 of a file, lower-case hex. Raises LLMError when it cannot be read."""
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as handle:
            for block in iter(lambda: handle.read(2**20), b""):
                digest.update(block)
    except OSError as exc:
        raise LLMError("{0}: cannot be read: {1}".format(path, exc.strerror or exc)) from exc
    return digest.hexdigest()


def write_whole(path: str, text: str, mode: int = 0o600) -> None:
    """Replace a file in one step, on the disk before it counts. Raises LLMError when it cannot be written."""
    temporary = "{0}.new".format(path)
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with os.fdopen(descriptor, "w", encoding="utf-8") as handle:
            handle.write(text)
            handle.flush()
            os.fsync(handle.fileno())
        os.rename(temporary, path)
    except OSError as exc:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise LLMError("{0}: cannot be written: {1}".format(path, exc.strerror or exc)) from exc


def dpkg_version(status: str, name: str) -> Reading:
    """Version of a package in the text of dpkg's status file; a package that is not whole is a problem that says so."""
    for stanza in status.split("\n\n"):
        if not re.search(r"^Package: {0}$".format(re.escape(name)), stanza, re.M):
            continue
        state = re.search(r"^Status: \S+ \S+ (\S+)$", stanza, re.M)
        version = re.search(r"^Version: (\S+)$", stanza, re.M)
        word = state.group(1) if state else "unknown"
        if word in ("not-installed", "config-files"):
            continue
        if word != "installed" or not version:
            return Reading(None, "dpkg says that {0} is {1}; run dpkg --configure -a, or reinstall it".format(name, word))
        return Reading(version.group(1))
    return Reading()


class Site:
    """One host and the place on it where we keep packages, logs and the journal.

    Args:
        vendor: the host, real or played; its environment goes to commands that read a version.
        directory: where packages, logs and the journal lie; a real path, also on a host that is played.
        socket: the container engine's socket, as the host sees it.
        timeout_s: longest run of an installer, seconds.
        grace_s: how long an installer that is told to end may take, seconds.
        flood_bytes: output of an installer beyond which it counts as asking without end.
    """

    def __init__(
        self,
        vendor: Vendor,
        directory: str,
        socket: str = "/var/run/docker.sock",
        timeout_s: float = 3600.0,
        grace_s: float = 10.0,
        flood_bytes: int = FLOOD_BYTES,
    ) -> None:
        self.vendor = vendor
        self.directory = directory
        self.socket = socket
        self.timeout_s = timeout_s
        self.grace_s = grace_s
        self.flood_bytes = flood_bytes
        self.journal_path = os.path.join(directory, "journal.json")
        self._held: list[str] | None = None

    # ---- reading

    def must_read(self, path: str) -> str:
        """First line of a file the kernel always has. Raises LLMError when it is not there."""
        text = (self.vendor.read(path) or "").strip()
        if not text:
            raise LLMError("{0}: not there or empty; without it nobody can tell one boot or kernel from another".format(path))
        return text.splitlines()[0]

    @property
    def boot_id(self) -> str:
        """The kernel's identity of this boot."""
        return self.must_read(BOOT_ID)

    @property
    def kernel(self) -> str:
        """Release of the running kernel."""
        return self.must_read(KERNEL)

    def read(self, reader: Reader, package_kind: str = "") -> Reading:
        """Read a version where ``reader`` says. What cannot be told is a problem, never an absence."""
        try:
            if reader.module:
                for name in reader.module:
                    text = self.vendor.read("/sys/module/{0}/version".format(name))
                    if text is not None:
                        return Reading(_drivers.extract(text, reader))
                    if self.vendor.exists("/sys/module/{0}".format(name)):
                        raise UnknownOutput("kernel module {0} is loaded and gives no version".format(name))
                return Reading()
            if reader.file:
                text = self.vendor.read(reader.file)
                return Reading() if text is None else Reading(_drivers.extract(text, reader))
            if reader.package:
                return self._package_version(reader, package_kind)
            return self._command_version(reader)
        except LLMError as exc:
            return Reading(None, str(exc))

    def _command_version(self, reader: Reader) -> Reading:
        argv = list(reader.command)
        if os.path.isabs(argv[0]):
            argv[0] = self.vendor.path(argv[0])
            if not os.path.exists(argv[0]):
                return Reading()
        elif shutil.which(argv[0], path=self._environment()["PATH"]) is None:
            return Reading()
        done = _run.run(argv, self.vendor.timeout_s, env=self._environment())
        if done.rc in reader.absent_status:
            return Reading()
        if done.rc != 0:
            raise UnknownOutput(
                "{0} ended with status {1} and said {2}".format(reader.where, done.rc, first_odd_line(done.stderr, done.stdout))
            )
        return Reading(_drivers.extract(done.stdout, reader))

    def _package_version(self, reader: Reader, kind: str) -> Reading:
        if kind == "deb" or (kind != "rpm" and self.vendor.exists(DPKG_STATUS)):
            found = dpkg_version(self.vendor.read(DPKG_STATUS) or "", reader.package)
        else:
            root = [] if self.vendor.root == "/" else ["--root", self.vendor.root]
            argv = ["rpm"] + root + ["-q", "--queryformat", "%{VERSION}-%{RELEASE}\\n", reader.package]
            done = _run.run(argv, self.vendor.timeout_s, env=self._environment())
            if done.rc != 0 and "is not installed" in done.stdout + done.stderr:
                return Reading()
            if done.rc != 0:
                raise UnknownOutput(
                    "rpm -q {0} ended with status {1} and said {2}".format(
                        reader.package, done.rc, first_odd_line(done.stderr, done.stdout)
                    )
                )
            found = Reading(done.stdout.strip())
        if found.value is None:
            return found
        return Reading(_drivers.extract(found.value, reader))

    def _environment(self) -> dict[str, str]:
        own = os.environ.get("PATH", "")
        return dict(self.vendor.environment, PATH="{0}:{1}".format(own, ADMIN_PATH) if own else ADMIN_PATH)

    def installed(self, package: Package, entry: dict[str, Any]) -> Reading:
        """The version on the disk. A kernel module tells of the running one only; then the journal knows what was put on the disk."""
        if package.installed.module and entry.get("status") == _drivers.INSTALLED:
            return Reading(str(entry.get("version")))
        return self.read(package.installed, package.kind)

    def complete(self, package: Package) -> bool | None:
        """Whether the vendor's own record says that the installation is whole; None where there is no such record."""
        if package.complete is None:
            return None
        text = self.vendor.read(package.complete.file)
        return text is not None and re.search(package.complete.pattern, text, re.M) is not None

    # ---- what stands in the way

    def held(self) -> list[str]:
        """Why nothing may be touched now: replicas of this collection that run, or an engine that does not say."""
        if self._held is None:
            self._held = self._look_for_replicas()
        return self._held

    def _look_for_replicas(self) -> list[str]:
        socket = self.vendor.path(self.socket)
        if not os.path.exists(socket):
            return []
        query = urllib.parse.quote(json.dumps({"label": ["ironserve.replica"]}))
        try:
            running = _host.engine_get(socket, "/containers/json?filters={0}".format(query))
            names = sorted(item["Names"][0].lstrip("/") for item in running)
        except (OSError, LLMError, KeyError, IndexError, TypeError, AttributeError) as exc:
            return ["the container engine does not say whether replicas run ({0}: {1}); start it, and run again".format(self.socket, exc)]
        if not names:
            return []
        return [
            "this collection's replicas run here ({0}); drain them from the gateway and stop them, then run again".format(", ".join(names))
        ]

    def obstacles(self, package: Package) -> list[str]:
        """Why this package could not be installed, each in one sentence with its remedy."""
        return self._headers(package) + self._space(package) + self._configuration(package)

    def _headers(self, package: Package) -> list[str]:
        if not package.needs_kernel_headers:
            return []
        kernel = self.kernel
        build = "/lib/modules/{0}/build".format(kernel)
        remedy = "install kernel-devel-{0} or linux-headers-{0}".format(kernel)
        if not self.vendor.exists(build):
            return ["there are no headers of the running kernel ({0} is not there); {1}".format(build, remedy)]
        release = self.vendor.read(build + "/include/config/kernel.release")
        if release is None:
            match = re.search(r'UTS_RELEASE "([^"]+)"', self.vendor.read(build + "/include/generated/utsrelease.h") or "")
            release = match.group(1) if match else ""
        release = release.strip()
        if release == kernel:
            return []
        what = "are for kernel {0}".format(release) if release else "do not say which kernel they are for"
        return ["the headers in {0} {1}, and {2} runs; {3}".format(build, what, kernel, remedy)]

    def _space(self, package: Package) -> list[str]:
        if not package.free_mib:
            return []
        report = _host.disk_report([self.vendor.path(path) for path in package.free_paths])
        return [
            "{0} has {1} MiB free, {2} MiB needed; free some".format(path, item["free_mib"], package.free_mib)
            for path, item in zip(package.free_paths, report)
            if item["free_mib"] < package.free_mib
        ]

    def _configuration(self, package: Package) -> list[str]:
        if package.provides not in ("runtime", "toolkit"):
            return []
        try:
            _drivers.engine_default(self.vendor.read(ENGINE_CONFIGURATION), ENGINE_CONFIGURATION)
        except LLMError as exc:
            return [str(exc)]
        return []

    # ---- the journal

    def journal(self) -> dict[str, dict[str, Any]]:
        """What earlier runs wrote: package name -> entry."""
        try:
            with open(self.journal_path, encoding="utf-8") as handle:
                return _drivers.parse_journal(handle.read(), self.journal_path)
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as exc:
            raise LLMError("{0}: cannot be read: {1}".format(self.journal_path, exc)) from exc

    def record(self, package: Package, entry: dict[str, Any]) -> None:
        """Write down the entry of one package."""
        entries = self.journal()
        entries[package.name] = entry
        write_whole(self.journal_path, _drivers.render_journal(entries))

    def file_of(self, package: Package) -> str:
        """Where the copy lies that is verified and used."""
        return os.path.join(self.directory, os.path.basename(package.file))

    def output_of(self, package: Package) -> str:
        """File that takes what the installer says."""
        return os.path.join(self.directory, package.name + ".log")

    def status_of(self, package: Package) -> str:
        """File that takes the installer's exit status."""
        return os.path.join(self.directory, package.name + ".status")

    # ---- looking

    def look(self, package: Package) -> Seen:
        """Everything a decision about one package needs."""
        entry = self.journal().get(package.name, {})
        started = entry.get("status") == _drivers.STARTED
        return Seen(
            installed=self.installed(package, entry),
            live=None if package.live is None else self.read(package.live, package.kind),
            complete=self.complete(package),
            entry=entry,
            boot_id=self.boot_id,
            kernel=self.kernel,
            working=_run.worker(self.status_of(package)) if started and _run.alive(self.status_of(package)) else 0,
            left_status=started and os.path.exists(self.status_of(package)),
            held=self.held(),
            obstacles=self.obstacles(package),
        )

    def decide(self, package: Package) -> Decision:
        """What is to be done about one package."""
        return _drivers.decide(package, self.look(package))

    # ---- doing

    def verify(self, package: Package) -> str:
        """Path of the package's copy, once its bytes are the pinned ones. Raises LLMError that names both digests."""
        path = self.file_of(package)
        found = sha256_of(path)
        if found != package.sha256:
            raise LLMError(
                "{0}: sha256 is {1}, pinned is {2}; fetch the file again, or correct the sha256 of {3} in accelerator_packages".format(
                    path, found, package.sha256, package.name
                )
            )
        return path

    def begin(self, package: Package, action: str) -> dict[str, Any]:
        """Write down that something is about to put files on the host; returns the entry."""
        self.verify(package)
        before = self.journal().get(package.name, {})
        installed = self.installed(package, before)
        over = installed != Reading() and package.upgrade_arguments
        entry: dict[str, Any] = {
            "status": _drivers.STARTED,
            "action": action,
            "version": package.version,
            "sha256": package.sha256,
            "at": now_text(),
            "began": time.time(),
            "boot_id": self.boot_id,
            "kernel": self.kernel,
            "before": installed.text,
            "arguments": package.upgrade_arguments if over else package.arguments,
            "log_from": self._own_log_size(package),
        }
        if package.provides in ("runtime", "toolkit"):
            # A run that was cut short may have left the toolkit's own default; the one before it counts.
            cut = before.get("status") in (_drivers.STARTED, _drivers.FAILED) and "engine_default" in before
            text = self.vendor.read(ENGINE_CONFIGURATION)
            entry["engine_default"] = before["engine_default"] if cut else _drivers.engine_default(text, ENGINE_CONFIGURATION)
        # An exit status that lies there from now on is the one of this attempt.
        _run.forget(self.status_of(package))
        self.record(package, entry)
        return entry

    def install(self, package: Package) -> list[str]:
        """Run the package's installer if it has to run, or wait for the one an earlier run started.

        Returns the last lines of what the installer said, none when it had not to run. Raises LLMError that says what failed,
        what is installed now, and what to do; the journal keeps it for the next run.
        """
        decision = self.decide(package)
        if decision.action != _drivers.WAIT and decision.action not in _drivers.WRITES:
            return []
        process = None
        if decision.action == _drivers.WAIT:
            entry = self.journal()[package.name]
        else:
            entry = self.begin(package, decision.action)
            path = self.file_of(package)
            os.chmod(path, 0o700)
            argv = [path] + entry["arguments"]
            process = _run.start_logged(
                argv, self.output_of(package), self.status_of(package), self.directory, self._installer_environment()
            )
        left = float(entry["began"]) + self._limit(package) - time.time()
        ended = _run.watch(self.status_of(package), left, self.output_of(package), self.flood_bytes, self.grace_s)
        # On a full disk the status may not be there, yet a child's own parent knows it.
        known = process.wait() if process is not None else -1
        return self._judge_installer(package, entry, ended, known if known >= 0 else None)

    def _limit(self, package: Package) -> float:
        return package.timeout_s or self.timeout_s

    def _installer_environment(self) -> dict[str, str]:
        # The library path of a vendor's tools is not for its installer, which runs the system's.
        return {"PATH": self._environment()["PATH"]}

    def _own_log_size(self, package: Package) -> int:
        path = self.vendor.path(package.log) if package.log else ""
        return os.path.getsize(path) if path and os.path.exists(path) else 0

    def own_log(self, package: Package, entry: dict[str, Any]) -> str:
        """What the installer added to its own log since it was started; all of it when the log was begun anew."""
        try:
            with open(self.vendor.path(package.log), "rb") as handle:
                raw = handle.read()
        except OSError:
            return ""
        begin = int(entry.get("log_from", 0))
        return raw[begin if begin <= len(raw) else 0 :].decode("utf-8", "replace")

    def _exit_status(self, package: Package) -> int | None:
        try:
            with open(self.status_of(package), encoding="ascii") as handle:
                return int(handle.read().strip())
        except (FileNotFoundError, ValueError):
            return None
        except OSError as exc:
            raise LLMError("{0}: cannot be read: {1}".format(self.status_of(package), exc.strerror or exc)) from exc

    def _said(self, package: Package) -> str:
        try:
            with open(self.output_of(package), "rb") as handle:
                handle.seek(max(0, os.path.getsize(self.output_of(package)) - 2**20))
                return handle.read().decode("utf-8", "replace")
        except FileNotFoundError:
            return ""

    def _judge_installer(self, package: Package, entry: dict[str, Any], ended: str, known: int | None) -> list[str]:
        said, log = self._said(package), self.own_log(package, entry)
        rc = self._exit_status(package)
        rc = known if rc is None else rc
        entry = dict(entry, rc=rc, seconds=round(time.time() - float(entry["began"]), 1))
        trouble, fix = "", ""
        if ended == _run.TIMEOUT:
            trouble = "did not end within {0:g} s and was stopped".format(self._limit(package))
            fix = "see what it waits for, or give it more time (timeout_s)"
        elif ended == _run.FLOOD:
            trouble = "wrote more than {0} MiB and was stopped: it asks what nobody answers".format(self.flood_bytes // 2**20)
            fix = "give it its argument for silence (--quiet, --silent)"
        elif rc is None or (rc != 0 and rc not in package.reboot_status):
            trouble = _drivers.status_text(rc)
            cause, fix = self._diagnose(package, log + "\n" + said)
            trouble += ": " + cause if cause else ""
        if trouble:
            self._fail(package, entry, "the installer " + trouble, fix, said, log)
        self._settle(package, entry, rc in package.reboot_status, said, log)
        return _drivers.tail(said)

    def _diagnose(self, package: Package, text: str) -> tuple[str, str]:
        space = package.free_paths[0]
        free = _host.disk_report([self.vendor.path(space)])[0]["free_mib"]
        return _drivers.diagnose(text, space, free, self.kernel)

    def _fail(self, package: Package, entry: dict[str, Any], trouble: str, fix: str, said: str = "", log: str = "") -> None:
        """Put the engine's default runtime right, write the failure down, and raise it."""
        self._keep_engine_default(entry)
        now = self.read(package.installed, package.kind)
        before = str(entry.get("before"))
        if self.complete(package) is False and now.value is not None:
            state = "half-installed: {0} says {1}, but {2} does not say that it is whole".format(
                package.installed.where, now.text, package.complete.file if package.complete else ""
            )
        elif _drivers.same(now.value, package.version):
            state = "{0} says {1} all the same, which is not to be trusted".format(package.installed.where, now.text)
        elif now.text == before:
            state = "as before, {0} is installed".format(before) if before != "none" else "nothing is installed, as before"
        else:
            state = "before, {0} was installed; now {1}".format(before, now.problem or now.text)
        self.record(package, dict(entry, status=_drivers.FAILED, cause=trouble, at=now_text()))
        parts = [
            "{0}: {1}. {2}. {3}".format(package.name, trouble, state[0].upper() + state[1:], "Fix: " + fix if fix else "See what it said")
        ]
        if said.strip():
            parts.append("It said last ({0}):\n{1}".format(self.output_of(package), "\n".join(_drivers.tail(said))))
        if log.strip():
            parts.append("Its log ({0}):\n{1}".format(package.log, "\n".join(_drivers.tail(log))))
        raise LLMError("\n".join(parts))

    def _settle(self, package: Package, entry: dict[str, Any], asked: bool, said: str = "", log: str = "") -> None:
        """Judge an installation that claims to be good by what the host shows now, and write it down."""
        self._keep_engine_default(entry)
        live = None if package.live is None else self.read(package.live, package.kind)
        lives = live is None or _drivers.same(live.value, package.version)
        reasons = ["its installer asks for it"] if asked or _drivers.says_reboot(said) else []
        if live is not None and not lives:
            reasons.append("{0} {1}".format(package.live.where if package.live else "", live.problem or "says " + live.text))
        due = package.needs_reboot == "true" or (package.needs_reboot == "auto" and bool(reasons))
        wrong = ""
        if not package.installed.module:
            now = self.read(package.installed, package.kind)
            if not _drivers.same(now.value, package.version):
                wrong = "claims to be done, but {0} {1}".format(package.installed.where, now.problem or "says " + now.text)
        if not wrong and self.complete(package) is False:
            wrong = "claims to be done, but {0} does not say that the installation is whole".format(
                package.complete.file if package.complete else ""
            )
        if not wrong and package.needs_reboot == "false" and not lives:
            wrong = "claims to be done and needs no reboot, but {0}".format(reasons[-1])
        if wrong:
            fix = "see whether the file is the version that is pinned, {0}".format(package.version)
            self._fail(package, entry, "the installer " + wrong, fix, said, log)
        # The boot it began in: a host that was restarted since has had its reboot.
        entry = dict(entry, status=_drivers.INSTALLED, reboot_due=entry["boot_id"] if due else "")
        if due:
            entry["why_reboot"] = "installed; " + (", and ".join(reasons) if reasons else "it is to be rebooted after")
        self.record(package, entry)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.file_of(package))

    def finish(self, package: Package) -> None:
        """Judge what the package manager left and write it down. Raises LLMError when it is not what was pinned."""
        entry = self.journal().get(package.name, {})
        if entry.get("status") != _drivers.STARTED:
            raise LLMError("{0}: nothing was begun, so nothing can be finished; use state begun before".format(package.name))
        self._settle(package, entry, False)

    def _keep_engine_default(self, entry: dict[str, Any]) -> None:
        """Undo that a toolkit made itself the engine's default runtime. The engine is not restarted, so it never knew."""
        if "engine_default" not in entry:
            return
        path = self.vendor.path(ENGINE_CONFIGURATION)
        text = _drivers.keep_engine_default(entry["engine_default"], self.vendor.read(ENGINE_CONFIGURATION), ENGINE_CONFIGURATION)
        if text is not None:
            mode = os.stat(path).st_mode & 0o777 if os.path.exists(path) else 0o644
            write_whole(path, text, mode)
            os.chmod(path, mode)

    def expect_reboot(self, packages: list[Package]) -> list[Decision]:
        """Write down, for every package that waits for a reboot, that one follows now: what does not run after it never will by itself."""
        due = []
        for package in packages:
            decision = self.decide(package)
            if decision.action != _drivers.REBOOT:
                continue
            entry = dict(self.journal().get(package.name) or {"status": _drivers.FOUND, "version": package.version, "at": now_text()})
            entry.setdefault("why_reboot", decision.reason)
            entry["reboot_due"] = self.boot_id
            self.record(package, entry)
            due.append(decision)
        return due
