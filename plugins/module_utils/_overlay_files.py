# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Files that lie over an image's own in a replica's container: tuned kernel tables, patches, chat templates. Private to the collection.

Each is pinned by its digest, and lies on the host under its digest. So another content is another place, and another specification.
"""

from __future__ import annotations

import os
import posixpath
import re
from typing import Any

from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError, nearest
from ansible_collections.ironserve.llm.plugins.module_utils._hashing import sha256_of

#: Places that are another mount's, or the kernel's.
TAKEN = ("/models", "/cache", "/run/secrets", "/tmp", "/dev", "/proc", "/sys")

KEYS = ("source", "sha256")

_DIGEST = re.compile(r"\A[0-9a-f]{64}\Z")


def chosen(files: dict[str, Any]) -> dict[str, dict[str, str]]:
    """The files that are wanted, by their place in the container, without those that an overlay took away (null).

    Raises LLMError naming the file for a place that cannot be, a source outside of the folder, and a missing digest.
    """
    result = {}
    for target, entry in sorted(files.items()):
        if entry is None:
            continue
        where = "container file {0!r}".format(target)
        if not isinstance(target, str) or not target.startswith("/") or posixpath.normpath(target) != target or target == "/":
            raise LLMError("{0}: its place in the container must be a plain absolute path".format(where))
        for place in TAKEN:
            if target == place or target.startswith(place + "/"):
                raise LLMError("{0}: {1} is not part of the image; choose a place that is, and point the engine to it".format(where, place))
        if not isinstance(entry, dict):
            raise LLMError("{0}: it is a mapping with the keys {1}, found {2!r}".format(where, " and ".join(KEYS), entry))
        for key in entry:
            if key not in KEYS:
                raise LLMError("{0}: unknown key '{1}'; {2}".format(where, key, nearest(str(key), list(KEYS))))
        source, digest = entry.get("source"), entry.get("sha256")
        if not isinstance(source, str) or not source or posixpath.isabs(source) or ".." in source.split("/"):
            raise LLMError("{0}: 'source' is a path below the catalog's folder files, found {1!r}".format(where, source))
        if not isinstance(digest, str) or not _DIGEST.match(digest):
            raise LLMError(
                "{0}: 'sha256' must be the 64 hex digits of the content that was tested (sha256sum), found {1!r}".format(where, digest)
            )
        result[target] = {"source": source, "sha256": digest}
    return result


def find(files: dict[str, dict[str, str]], folders: list[str]) -> dict[str, dict[str, str]]:
    """Find each file in the ``folders`` on the controller, the last that has it wins, and hold it against its digest.

    Returns the entries, each with ``local``, its path on the controller.
    Raises LLMError naming the file, for one that is nowhere, cannot be read or has another content.
    """
    result = {}
    for target, entry in files.items():
        places = [os.path.join(folder, entry["source"]) for folder in folders]
        there = [path for path in places if os.path.isfile(path)]
        if not there:
            raise LLMError("container file {0!r}: none of {1} is there".format(target, ", ".join(places) or "(no folder)"))
        try:
            digest = sha256_of(there[-1])[0]
        except OSError as exc:
            raise LLMError("{0}: cannot be read: {1}".format(there[-1], exc.strerror or exc)) from exc
        if digest != entry["sha256"]:
            raise LLMError(
                "{0}: its sha256 is {1}, and the catalog pins {2} for {3}; test the new content and pin that, or bring the old one back".format(
                    there[-1], digest, entry["sha256"], target
                )
            )
        result[target] = dict(entry, local=there[-1])
    return result


def mounts(files: dict[str, dict[str, str]], folder: str) -> list[dict[str, Any]]:
    """The read-only mounts of the files, which lie in ``folder`` on the host under their digests."""
    return [
        {"source": posixpath.join(folder, entry["sha256"], posixpath.basename(entry["source"])), "target": target, "read_only": True}
        for target, entry in sorted(files.items())
    ]
