# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The version is what the image says, or a message; and the catalog's own commands are run on a real Python."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ansible_collections.ironserve.llm.plugins.module_utils import _docker
from ansible_collections.ironserve.llm.plugins.modules import engine_version_info

ARGUMENTS = {"image": "img", "command": ["tell"], "pattern": r"^version (\S+)$"}


@pytest.fixture
def printed(monkeypatch):
    """Let the command end so: ``printed(exit code, output)``."""

    def let(exit_code, output):
        monkeypatch.setattr(_docker, "connect", lambda socket, timeout_s: "client")
        monkeypatch.setattr(_docker, "run_once", lambda client, image, command, timeout_s: (exit_code, output))

    return let


@pytest.mark.parametrize("version", ["0.18.1+das.fa71803.dtk2604", "0.17.0rc1", "0.32.0+cpu"])
def test_the_version_is_what_the_image_says(run_module, printed, version):
    printed(0, f"WARNING: something about CANN\nversion {version}")
    result = run_module(engine_version_info, ARGUMENTS)
    assert (result["changed"], result["version"]) == (False, version)


@pytest.mark.parametrize(
    ("exit_code", "output", "says"),
    [
        (
            1,
            "PackageNotFoundError: vllm",
            "image img: the command that tells the engine's version ended with 1: PackageNotFoundError: vllm",
        ),
        (127, "", "ended with 127: (nothing)"),
        (0, "", "image img: its engine does not tell its version; it printed '(nothing)'"),
        (0, "Version 1", "it printed 'Version 1'"),
        (0, "version latest", "'latest' is no version this collection knows"),
    ],
)
def test_what_is_no_version_is_a_message(run_module, printed, exit_code, output, says):
    printed(exit_code, output)
    result = run_module(engine_version_info, ARGUMENTS)
    assert result["failed"] is True and says in result["msg"]


def test_without_an_engine(run_module, tmp_path):
    result = run_module(engine_version_info, dict(ARGUMENTS, socket=str(tmp_path / "no.sock")))
    assert result["failed"] is True and "no container engine answers" in result["msg"]


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_the_catalogs_commands_tell_the_version_of_a_distribution(shipped, engine):
    """For real, with a distribution that is there in the engine's place."""
    how = shipped["engines"][engine]["version"]
    command = [sys.executable, *(word.replace(f"'{engine}'", "'pytest'") for word in how["command"][1:])]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert engine_version_info.read_version(output, how["pattern"], "img") == pytest.__version__
