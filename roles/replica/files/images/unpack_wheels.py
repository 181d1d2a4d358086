# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Unpack wheels for an image: unpack_wheels.py WHEELS SITE [PATTERN...]

Every wheel in the directory WHEELS is unpacked into SITE, readable by everybody, executable where the wheel says so. Members that
match a PATTERN (fnmatch, "*" crosses slashes) stay out. Programs, headers and documents that a wheel keeps in its .data directory
stay out too: the image starts its engine by itself.
"""

from __future__ import annotations

import fnmatch
import os
import shutil
import sys
import zipfile


def place_of(member: str) -> str:
    """Where a member belongs below SITE; empty for what stays out."""
    first, _slash, rest = member.partition("/")
    if not first.endswith(".data"):
        return member
    scheme, _slash, inner = rest.partition("/")
    return inner if scheme in ("purelib", "platlib") else ""


def unpack(wheel: str, site: str, patterns: list[str]) -> int:
    """Unpack one wheel; returns how many files it gave. Raises ValueError for a member that would leave ``site``."""
    count = 0
    with zipfile.ZipFile(wheel) as archive:
        for info in archive.infolist():
            place = place_of(info.filename)
            if not place or place.endswith("/") or any(fnmatch.fnmatchcase(place, pattern) for pattern in patterns):
                continue
            target = os.path.normpath(os.path.join(site, place))
            if not target.startswith(os.path.normpath(site) + os.sep):
                raise ValueError("{0}: member {1!r} would leave {2}".format(wheel, info.filename, site))
            os.makedirs(os.path.dirname(target), mode=0o755, exist_ok=True)
            with archive.open(info) as read, open(target, "wb") as write:
                shutil.copyfileobj(read, write, 1 << 20)
            os.chmod(target, 0o755 if info.external_attr >> 16 & 0o100 else 0o644)
            count += 1
    return count


def main(argv: list[str]) -> int:
    """Entry point. Exit status: 0 unpacked, 1 no wheel or a bad one, 2 wrong usage."""
    if len(argv) < 3:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    wheels, site, patterns = argv[1], argv[2], argv[3:]
    os.umask(0o022)
    names = sorted(name for name in os.listdir(wheels) if name.endswith(".whl"))
    if not names:
        print("unpack_wheels: {0} holds no wheel".format(wheels), file=sys.stderr)
        return 1
    try:
        total = sum(unpack(os.path.join(wheels, name), site, patterns) for name in names)
    except (OSError, ValueError, zipfile.BadZipFile) as exc:
        print("unpack_wheels: {0}".format(exc), file=sys.stderr)
        return 1
    print("{0} wheels, {1} files".format(len(names), total))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
