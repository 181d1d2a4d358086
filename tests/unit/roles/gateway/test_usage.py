# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Usage by key and model, out of an access log as HAProxy writes it."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).resolve().parents[4] / "roles/gateway/files/usage.py"


def line(key: str, model: str, status: int = 200, first: int = 100, total: int = 1000, size: int = 50, server: str = "n-c0") -> str:
    record = {
        "time": "30/Nov/2026:15:39:39.741",
        "client": "127.0.0.1",
        "key": key,
        "model": model,
        "method": "POST",
        "path": "/v1/completions",
    }
    record.update(status=status, server=server, queue_ms=0, first_byte_ms=first, total_ms=total, bytes=size, end="----", retries="0")
    return json.dumps(record, separators=(",", ":"))


def run(*lines: str, arguments: tuple[str, ...] = ()) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], input="\n".join(lines) + "\n", capture_output=True, text=True, check=False, timeout=30
    )


LOG = (
    line("chat", "m1", first=300, total=3000),
    # As "show events" prints it.
    "<134>Nov 30 15:39:39 localhost haproxy[1]: " + line("chat", "m1", first=100, total=1000),
    line("chat", "m1", first=200, total=2000, size=500),
    line("chat", "m2", first=100, total=400),
    line("search", "m1", status=502, first=-1, total=20),
    line("search", "m1", status=503, first=-1, total=20, server="<NOSRV>"),
    "Proxy ironserve_api started.",
    "",
)


def test_sums_by_key_and_model() -> None:
    result = run(*LOG, arguments=("--json",))
    assert result.returncode == 0
    assert result.stderr == ""
    assert json.loads(result.stdout) == [
        {
            "key": "chat",
            "model": "m1",
            "requests": 3,
            "failed": 0,
            "refused": 0,
            "cut": 0,
            "left": 0,
            "bytes": 600,
            "first_byte_s": 0.2,
            "all_s": 2.0,
        },
        {
            "key": "search",
            "model": "m1",
            "requests": 2,
            "failed": 2,
            "refused": 1,
            "cut": 0,
            "left": 0,
            "bytes": 100,
            "first_byte_s": None,
            "all_s": 0.02,
        },
        {
            "key": "chat",
            "model": "m2",
            "requests": 1,
            "failed": 0,
            "refused": 0,
            "cut": 0,
            "left": 0,
            "bytes": 50,
            "first_byte_s": 0.1,
            "all_s": 0.4,
        },
    ]


def test_a_table_for_people() -> None:
    assert run(*LOG).stdout.splitlines() == [
        "key     model  requests  failed  refused  cut  left  bytes  first byte s  all s",
        "chat    m1            3       0        0    0     0    600          0.20   2.00",
        "search  m1            2       2        1    0     0    100             -   0.02",
        "chat    m2            1       0        0    0     0     50          0.10   0.40",
    ]


@pytest.mark.parametrize(
    "bad",
    [
        '{"time":"30/Nov',
        '{"time":"x","key":"a"}',
        line("a", "m").replace("200", '"many"'),
        line("a", "m").replace('"bytes":50', '"bytes":1e999'),
        line("a", "m").replace('"bytes":50', '"bytes":NaN'),
        line("a", "m").replace('"bytes":50', '"bytes":1' + "0" * 400),
        '{"time":' + "[" * 100000,
    ],
    ids=["cut", "short", "word", "infinite", "nan", "huge", "deep"],
)
def test_a_damaged_line_is_said_and_not_guessed(bad: str) -> None:
    result = run(LOG[0], bad)
    assert result.stderr == "1 lines could not be read and were left out\n"
    assert len(result.stdout.splitlines()) == 2


@pytest.mark.parametrize("model", [b"m\xff", b"m\\ud800"], ids=["no text", "half a character"])
def test_a_model_that_cannot_be_written_costs_no_report(model: bytes) -> None:
    log = LOG[0].encode() + b"\n" + line("odd", "MODEL").encode().replace(b"MODEL", model) + b"\n"
    environment = dict(os.environ, PYTHONIOENCODING="utf-8:strict")
    result = subprocess.run([sys.executable, str(SCRIPT)], input=log, capture_output=True, env=environment, check=False, timeout=30)
    assert (result.returncode, result.stderr) == (0, b"")
    rows = [row.split()[:3] for row in result.stdout.decode().splitlines()[1:]]
    assert rows[0] == ["chat", "m1", "1"]
    assert rows[1][0] == "odd"
    assert rows[1][2] == "1"


def test_nothing_to_sum_up_is_no_success() -> None:
    assert run("Proxy started.").returncode == 1
    assert "is gateway_access_log true?" in run("").stderr
    assert run(*LOG, arguments=("--help",)).returncode == 2


@pytest.mark.parametrize(
    ("end", "cut", "left"),
    [
        ("----", 0, 0),
        ("SD--", 1, 0),
        ("sD--", 1, 0),
        ("KD--", 1, 0),
        ("CD--", 0, 1),
        ("cD--", 0, 1),
        ("OK", 0, 0),
        ("", 1, 0),
        (None, 0, 0),
    ],
)
def test_an_answer_that_began_well_and_was_cut_is_no_success(end: str | None, cut: int, left: int) -> None:
    entry = {"time": "x", "key": "k", "model": "m", "status": 200, "server": "n-c0", "first_byte_ms": 100, "total_ms": 1000, "bytes": 50}
    if end is not None:
        entry["end"] = end
    (row,) = json.loads(run(json.dumps(entry, separators=(",", ":")), arguments=("--json",)).stdout)
    assert (row["requests"], row["failed"], row["cut"], row["left"]) == (1, 0, cut, left)
