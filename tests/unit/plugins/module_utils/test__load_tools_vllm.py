# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Our figures and those of ``vllm bench serve``, through its adapter, of the same streams: within 2 %, the time to the first token within 5 %.

The program is played by tests/samples/vllm_bench.py, a client that shares nothing with ours but the rules. tests/long/test_vllm_client.py does the
same with the real one.
"""

from __future__ import annotations

import os

import pytest

from ansible_collections.ironserve.llm.plugins.module_utils import _load_tools, _stream
from ansible_collections.ironserve.llm.plugins.module_utils._card_watch import Watch
from ansible_collections.ironserve.llm.plugins.module_utils._load import Bench, Endpoint, Protocol

fleet = pytest.importorskip("standin.fleet")
played_docker = pytest.importorskip("samples.played_docker")
# Real streams in real time.
pytestmark = pytest.mark.long

LIMITS = _stream.Limits(silence_s=20.0, request_s=60.0, run_s=120.0)
#: Requests, at a time, tokens of an answer.
REQUESTS, STREAMS, TOKENS = 8, 4, 25
KINDS = {
    "plain": {},
    "speculative": {"spec_tokens": 3, "spec_acceptance": 1.0},
    "reasoning": {"reasoning_tokens": 12},
    "early_role": {"first_delta": "early"},
}
#: Figures, and by how much they may differ. A gap is told by its mean: a median of bursts jumps between two values.
SAME = {
    "mean_ttft_ms": 0.05,
    "median_ttft_ms": 0.05,
    "mean_tpot_ms": 0.02,
    "median_tpot_ms": 0.02,
    "mean_gap_ms": 0.02,
    "mean_e2el_ms": 0.02,
    "median_e2el_ms": 0.02,
    "output_throughput": 0.02,
    "request_throughput": 0.02,
}
#: A role that is sent at once comes after a few milliseconds, of which each client's own work is a good part.
CLIENT_MS = 5.0
#: A busy machine spoils what two clients measure one after the other.
TRIES = 4


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    """One engine of each kind, slow enough for a client in threads."""
    common = {"slots": STREAMS, "decode_tokens_per_s": 20, "prefill_tokens_per_s": 1e6, "prefill_base_s": 1.0}
    with fleet.Fleet(list(KINDS.values()), tmp_path_factory.mktemp("vllm"), **common) as started:
        yield dict(zip(KINDS, started.engines, strict=True))


@pytest.fixture
def played(tmp_path, monkeypatch):
    """Docker and the program, played."""
    monkeypatch.setenv("PATH", "{0}:{1}".format(played_docker.put(tmp_path), os.environ["PATH"]))


def ours(engine):
    """What our client says."""
    protocol = Protocol("standin", (STREAMS,), input_tokens=64, output_tokens=TOKENS, requests=REQUESTS, repeats=1, warmup=1)
    (run,) = Bench(protocol, [Endpoint("c0", engine.url)], LIMITS, lambda _endpoint: Watch(None, "nobody looks")).run()["runs"]
    assert run["publishable"], run["refused"]
    return run["figures"]


def theirs(engine, folder, image="played", weights="/srv/m"):
    """What the adapter reads."""
    job = _load_tools.Job("vllm", engine.url, "standin", image, weights, "", REQUESTS, 64, TOKENS, concurrency=STREAMS, timeout_s=300.0)
    found = _load_tools.run(job, "", str(folder))
    assert (found["completed"], found["failed"]) == (REQUESTS, 0)
    return found["figures"]


def apart(one, other):
    """The figures that differ by more than they may, with both values."""
    assert one["total_output_tokens"] == other["total_output_tokens"] == REQUESTS * TOKENS
    return {
        name: (one[name], other[name])
        for name, share in SAME.items()
        if abs(one[name] - other[name]) > max(share * other[name], CLIENT_MS if name.endswith("_ttft_ms") else 0.0)
    }


def agree(engine, *program):
    """Measure with both clients until they say the same; the last try has to."""
    for left in reversed(range(TRIES)):
        try:
            differ = apart(ours(engine), theirs(engine, *program))
            assert differ == {}
            return
        except AssertionError:
            if not left:
                raise


@pytest.mark.parametrize("kind", KINDS)
def test_two_clients_say_the_same_of_the_same_streams(engines, played, tmp_path, kind):
    agree(engines[kind], tmp_path)


def test_what_differs_is_seen():
    figures = dict.fromkeys(SAME, 1000.0)
    figures["total_output_tokens"] = REQUESTS * TOKENS
    assert apart(dict(figures, mean_ttft_ms=1050.0, mean_tpot_ms=1020.0), figures) == {}
    assert set(apart(dict(figures, mean_ttft_ms=1060.0, mean_tpot_ms=1030.0), figures)) == {"mean_ttft_ms", "mean_tpot_ms"}
    # The role alone is a chunk to both: who waits for the first token is a second late.
    early = dict(figures, mean_ttft_ms=4.0)
    assert apart(dict(early, mean_ttft_ms=8.0), early) == {} and "mean_ttft_ms" in apart(dict(early, mean_ttft_ms=1004.0), early)
