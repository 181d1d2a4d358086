# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A host played from a directory, and vendor packages that install on it: real self-extracting files that really run.

The packages behave as vendors' installers are known to: they check their own archive, unpack it to a temporary directory, ask on a
terminal unless told to be quiet, remove the old version before the new one is there, append to a log of their own, and say by exit
status and text whether a reboot is needed.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import io
import json
import socketserver
import tarfile
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

KERNEL = "5.10.0-182.0.0.95.oe2203sp3.aarch64"

#: Head of a self-extracting package: looks at its own archive, unpacks it, hands over to the script in it.
HEAD = """#!/bin/sh
lines={lines}
sum={sum}
quiet=n
for word in "$@"; do [ "$word" = --quiet ] && quiet=y; done
[ "$quiet" = y ] || printf 'Verifying archive integrity...  '
found=$(tail -n +$((lines + 1)) "$0" | cksum)
if [ "$found" != "$sum" ]; then
  echo "Error in checksums: $found is different from $sum" >&2
  exit 1
fi
place=$(mktemp -d) || exit 1
trap 'rm -rf "$place"' EXIT
tail -n +$((lines + 1)) "$0" | tar -xzf - -C "$place" || exit 1
[ "$quiet" = y ] || echo "100%   checksums are OK. All good."
cd "$place" && ./install.sh "$@"
exit $?
"""

#: The script inside. ``behaviour`` is what goes wrong, or how it ends well.
INSTALL = r"""#!/bin/sh
root={root} name={name} version={version} behaviour={behaviour}
log=$root/var/log/vendor/install.log
info=$root/opt/vendor/$name/version.info
record=$root/etc/vendor_install.info
mkdir -p "$root/var/log/vendor" "$root/opt/vendor/$name" "$root/etc"
say() {{ echo "[Vendor] [$(date +%H:%M:%S)] $1"; echo "[Vendor] $1" >>"$log"; }}
echo "$name $version began $*" >>"$root/runs"
echo "${{root##*/}} $name" >>"$root/../order"
say "[INFO]Start time"
say "[WARNING]Do not power off or restart the system during the installation/upgrade"
quiet=n
for word in "$@"; do [ "$word" = --quiet ] && quiet=y; done
if [ "$behaviour" = asks ] && [ "$quiet" = n ]; then
  while true; do
    echo "do you want to continue? [y/n]"
    read answer
    [ "$answer" = y ] && break
    echo "[ERROR]ERR_NO:0x0002;ERR_DES:input error, please input again!"
  done
fi
case $behaviour in
  headers)
    say "[WARNING]rebuild ko has something wrong, detail in /var/log/vendor/rebuild.log"
    say "[ERROR]driver installation failed"
    exit 1 ;;
  rejects)
    say "[ERROR]ERR_NO:0x0091;ERR_DES:HwCardUser not exists! Please add HwCardUser"
    exit 1 ;;
esac
# The old version goes before the new one comes.
rm -f "$info"
[ -e "$record" ] && sed -i "/^${{name}}_Status=/d" "$record"
case $behaviour in
  full)
    cat payload >/dev/full || {{ say "[ERROR]copy of the files failed"; exit 1; }} ;;
  hang) echo "$$" >"$root/waits"; sleep 300 ;;
  slow) echo "$$" >"$root/waits"; while [ ! -e "$root/go" ]; do sleep 0.05; done ;;
esac
[ "$behaviour" = liar ] && {{ echo "Version=0.0.1" >"$info"; say "[INFO]package installed successfully!"; exit 0; }}
printf 'Version=%s\npackage_version=%s\n' "$version" "$version" >"$info"
if [ "$behaviour" = half ]; then
  say "[INFO]package installed successfully! The new version takes effect immediately."
  exit 0
fi
[ "$behaviour" = noisy ] && exit 3
if [ "$name" = toolkit ]; then
  mkdir -p "$root/etc/docker"
  printf '{{"default-runtime": "vendor", "runtimes": {{"vendor": {{"path": "/opt/vendor/runtime"}}}}%s}}' "{more}" >"$root/etc/docker/daemon.json"
  [ "$behaviour" = breaks ] && {{ say "[ERROR]the hook cannot be registered"; exit 1; }}
  say 'please reboot daemon and container engine to take effect'
fi
echo "${{name}}_Status=complete" >>"$record"
echo "$name $version ended" >>"$root/runs"
case $behaviour in
  status2) say "[INFO]package installed successfully! Reboot needed for installation/upgrade to take effect!"; exit 2 ;;
  text) say "[INFO]package installed successfully! Reboot needed for installation/upgrade to take effect!"; exit 0 ;;
  silent) exit 0 ;;
esac
if [ "$name" = driver ]; then
  mkdir -p "$root/sys/module/vendor_drv"
  echo "$version" >"$root/sys/module/vendor_drv/version"
fi
say "[INFO]package installed successfully! The new version takes effect immediately."
exit 0
"""


def bytes_of(script: str) -> bytes:
    """A self-extracting package that runs ``script``."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, text, mode in (("install.sh", script, 0o755), ("payload", "x" * 100_000, 0o644)):
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(text), mode
            archive.addfile(member, io.BytesIO(text.encode()))
    body = buffer.getvalue()
    head = HEAD.format(lines=HEAD.count("\n"), sum="'{0} {1}'".format(cksum(body), len(body)))
    return head.encode() + body


def cksum(data: bytes) -> int:
    """The checksum that ``cksum`` prints (POSIX CRC)."""
    crc = 0
    length, tail = len(data), bytearray()
    while length:
        tail.append(length & 0xFF)
        length >>= 8
    for byte in data + bytes(tail):
        crc = (crc << 8) & 0xFFFFFFFF ^ _CRC[(crc >> 24) ^ byte]
    return crc ^ 0xFFFFFFFF


def _table() -> list[int]:
    table = []
    for number in range(256):
        value = number << 24
        for _bit in range(8):
            value = (value << 1) & 0xFFFFFFFF ^ (0x04C11DB7 if value & 0x80000000 else 0)
        table.append(value)
    return table


_CRC = _table()


class Host:
    """A host in a directory: kernel, headers, places to install to. It runs no driver yet."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.packages = root / "var/lib/ironserve/packages"
        for name in ("usr/local", "tmp", "sys/module", "var/log", "etc"):
            (root / name).mkdir(parents=True, exist_ok=True)
        self.write("proc/sys/kernel/osrelease", KERNEL + "\n")
        self.headers(KERNEL)
        self.boot()

    def write(self, name: str, text: str) -> None:
        """Make a file of the host."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def read(self, name: str) -> str:
        """Text of a file of the host; empty when it is not there."""
        path = self.root / name
        return path.read_text() if path.exists() else ""

    def headers(self, release: str) -> None:
        """Lay the headers of ``release`` where those of the running kernel belong."""
        self.write("lib/modules/{0}/build/include/config/kernel.release".format(KERNEL), release + "\n")

    def boot(self) -> None:
        """Restart the host: another boot, and the driver that is on the disk comes up."""
        self.write("proc/sys/kernel/random/boot_id", str(uuid.uuid4()) + "\n")
        version = self.version("driver")
        if version:
            self.write("sys/module/vendor_drv/version", version + "\n")

    def version(self, name: str) -> str:
        """What is on the disk; empty for nothing."""
        text = self.read("opt/vendor/{0}/version.info".format(name))
        return text.partition("Version=")[2].partition("\n")[0]

    def runs(self) -> list[str]:
        """What installers did, one line for each begin and each good end."""
        return self.read("runs").splitlines()

    def journal(self) -> dict[str, Any]:
        """The journal's entries."""
        return json.loads((self.packages / "journal.json").read_text())["packages"]

    def offer(
        self, name: str = "driver", version: str = "25.5.1", behaviour: str = "good", place: Path | None = None, **changes: Any
    ) -> dict:
        """A package, its file laid where the module takes it from (or into ``place``); returns its entry for the module."""
        more = r", \"log-level\": \"info\"" if name == "toolkit" else ""
        script = INSTALL.format(root=self.root, name=name, version=version, behaviour=behaviour, more=more)
        place = place or self.packages
        place.mkdir(parents=True, exist_ok=True)
        path = place / "vendor-{0}_{1}.run".format(name, version)
        data = bytes_of(script)
        path.write_bytes(data)
        entry: dict[str, Any] = {
            "name": name,
            "kind": "run",
            "file": str(path),
            "sha256": hashlib.sha256(data).hexdigest(),
            "version": version,
            "provides": name,
            "arguments": ["--full", "--quiet"],
            "installed_version": {"file": "/opt/vendor/{0}/version.info".format(name), "pattern": r"^Version=(\S+)"},
            "log": "/var/log/vendor/install.log",
        }
        if name == "driver":
            entry.update(live_version={"module": ["vendor_drv"]}, reboot_status=[2])
        entry.update(changes)
        return entry

    def reboot_command(self) -> str:
        """Path of a command that restarts the host, as ``boot`` does."""
        self.write(
            "sbin/reboot",
            "#!/bin/sh\nroot={0}\n"
            'echo "${{root##*/}} reboot" >>"$root/../order"\n'
            'version=$(sed -n "s/^Version=//p" "$root/opt/vendor/driver/version.info" 2>/dev/null)\n'
            '[ -n "$version" ] && mkdir -p "$root/sys/module/vendor_drv" && echo "$version" >"$root/sys/module/vendor_drv/version"\n'
            'cat /proc/sys/kernel/random/uuid >"$root/proc/sys/kernel/random/boot_id"\n'.format(self.root),
        )
        (self.root / "sbin/reboot").chmod(0o755)
        return str(self.root / "sbin/reboot")

    @contextlib.contextmanager
    def engine(self, names: list[str], status: int = 200) -> Iterator[list[str]]:
        """A container engine that says which replicas run; yields the paths it was asked for."""
        asked: list[str] = []
        body = json.dumps([{"Names": ["/" + name]} for name in names]).encode()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked.append(self.path)
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body)

            def address_string(self) -> str:
                return "unix"

            def log_message(self, *args: Any) -> None:
                pass

        class Server(socketserver.ThreadingUnixStreamServer):
            daemon_threads = True

        path = self.root / "var/run/docker.sock"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        server = Server(str(path), Handler)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield asked
        finally:
            server.shutdown()
            thread.join()
            server.server_close()
            path.unlink()
