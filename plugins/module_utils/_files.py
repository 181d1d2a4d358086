# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Files that are there as a whole or as they were. Private to the collection."""

from __future__ import annotations

import os
import tempfile

from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError

PRIVATE = 0o600
PUBLIC = 0o644


def put(path: str, text: str, mode: int = PRIVATE, folder_mode: int = 0) -> None:
    """Replace the file ``path`` in one step, or leave it as it was and no copy of ``text`` elsewhere.

    Half of a surrogate pair, which no encoding takes, is written as its escape.

    Args:
        path: where; what was there is replaced, whatever its mode was.
        text: all of it.
        mode: of the file.
        folder_mode: of directories that are missing; 0 makes none.
    Raises LLMError naming ``path``.
    """
    partial = ""
    folder = os.path.dirname(path) or "."
    try:
        if folder_mode:
            os.makedirs(folder, mode=folder_mode, exist_ok=True)
        number, partial = tempfile.mkstemp(prefix=".{0}.".format(os.path.basename(path)), dir=folder)
        with os.fdopen(number, "w", encoding="utf-8", errors="backslashreplace") as sink:
            sink.write(text)
            sink.flush()
            os.fsync(sink.fileno())
        os.chmod(partial, mode)
        os.replace(partial, path)
    except OSError as exc:
        if partial and os.path.exists(partial):
            os.unlink(partial)
        raise LLMError("{0} cannot be written: {1}".format(path, exc.strerror or exc)) from exc


def is_private(path: str) -> bool:
    """Whether only its owner can use a file."""
    return os.stat(path).st_mode & 0o777 == PRIVATE
