# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A docker whose images all hold ``vllm_bench.py`` as the program ``vllm``, and nothing else: for tests without a container engine."""

from __future__ import annotations

import pathlib
import stat
import sys

PROGRAM = pathlib.Path(__file__).resolve().with_name("vllm_bench.py")

#: What is run is what stands after the image, with a folder of its own as /tmp.
DOCKER = """#!/bin/sh
case "$1" in
  ps) cat "{folder}/ps" ;;
  inspect) cat "{folder}/inspect" ;;
  run)
    while [ "$1" != "-c" ]; do shift; done
    script="$(printf %s "$2" | sed "s#/tmp#{inside}#g")"
    shift 2
    exec sh -c "$script" "$@"
    ;;
esac
"""
VLLM = """#!/bin/sh
exec "{python}" "{program}" "$@" --dataset-path "{inside}/dataset.json" --result-dir "{inside}"
"""


def put(folder: pathlib.Path, ps: str = "", inspect: str = "") -> pathlib.Path:
    """Make both programs below ``folder``; returns the directory that has to be the first in PATH.

    ``ps`` and ``inspect`` are what docker says to these words.
    """
    inside, programs = folder / "inside", folder / "bin"
    inside.mkdir()
    programs.mkdir()
    (folder / "ps").write_text(ps)
    (folder / "inspect").write_text(inspect)
    for name, text in (("docker", DOCKER), ("vllm", VLLM)):
        path = programs / name
        path.write_text(text.format(folder=folder, inside=inside, python=sys.executable, program=PROGRAM))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return programs
