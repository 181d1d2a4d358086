# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A real prompt of 40,000 tokens through the shipped gateway to real engines: body size, silence, prefix cache, refusals.

The model is a cut of the demo model with a window of 65536 tokens. Its answers are noise; everything around them is real.
"""

from __future__ import annotations

import http.client
import importlib.util
import json
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODEL = "smollm2-135m-cut"
TOKENS = 40000
#: Lines as in a log, each with a number of its own and as many digits: some 20 tokens.
LINE = "Request {0:05d} was answered by replica {1} after {2:03d} ms.\n"

pytestmark = pytest.mark.long


def load_gateway():
    """The gateway of the integration tests: the shipped template and modules with a real HAProxy."""
    path = ROOT / "tests" / "integration" / "gateway" / "test_gateway_real.py"
    spec = importlib.util.spec_from_file_location("long_gateway_real", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


REAL = load_gateway()
call = REAL.call


@pytest.fixture(scope="module", params=["llama_cpp", "vllm"])
def replica(request, tmp_path_factory, play):
    """One replica of the cut model in the engine's own container; gone afterwards."""
    folder = tmp_path_factory.mktemp("long")
    try:
        play("serve.yml", folder, request.param)
        found = json.loads((folder / "replicas.json").read_text(encoding="utf-8"))
        key = (folder / "etc" / "keys" / "engine.key").read_text(encoding="utf-8").strip()
        yield found[0], key
    finally:
        play("remove.yml", folder, request.param)


@pytest.fixture
def gateway(replica, call):
    """The shipped gateway before the replica."""
    found, key = replica

    class Gateway(REAL.Gateway):
        ENGINE_KEY = key

    made = Gateway(call)
    made.put([REAL.server(found["name"], found["port"], places=found["max_num_seqs"])])
    hello = "GET /v1/models HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {0}\r\n\r\n".format(made.key)
    REAL.until(lambda: made.raw(hello)[0] == 200, 30)
    yield made
    made.remove()


def report(lines, code):
    """A prompt that begins with a code of its own, so that no cache knows it."""
    return "Report {0}.\n".format(code) + "".join(LINE.format(number, number % 8, number * 37 % 1000) for number in range(lines))


def ask(gateway, prompt, max_tokens=4):
    """Ask as a stream; returns status, seconds to the first token, prompt tokens, and whether the stream ended well."""
    door = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=900)
    body = {
        "model": MODEL,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    begin = time.monotonic()
    first, tokens, done = None, None, False
    try:
        door.request(
            "POST", "/v1/completions", json.dumps(body), {"Authorization": "Bearer " + gateway.key, "Content-Type": "application/json"}
        )
        answer = door.getresponse()
        if answer.status != 200:
            return answer.status, None, answer.read().decode("utf-8", "replace"), False
        for raw in answer:
            line = raw.decode("utf-8", "replace").strip()
            if line == "data: [DONE]":
                done = True
            elif line.startswith("data: "):
                event = json.loads(line[6:])
                if first is None and event.get("choices"):
                    first = time.monotonic() - begin
                tokens = (event.get("usage") or {}).get("prompt_tokens", tokens)
        return 200, first, tokens, done
    finally:
        door.close()


def test_forty_thousand_tokens_arrive_and_the_second_time_come_from_the_cache(gateway, replica, capsys):
    measured = ask(gateway, report(100, "measure"))[2]
    # The report's first line is in the measure too, which makes it a little too few lines.
    lines = TOKENS * 100 // measured + 50
    prompt = report(lines, time.time_ns())
    status, cold, tokens, done = ask(gateway, prompt)
    assert (status, done) == (200, True)
    assert tokens >= TOKENS
    status, warm, again, done = ask(gateway, prompt)
    assert (status, done, again) == (200, True, tokens)
    with capsys.disabled():
        said = "{0}: {1} tokens, {2} bytes: first token after {3:.1f} s cold, {4:.2f} s warm"
        print("\n" + said.format(replica[0]["spec"]["image"], tokens, len(prompt), cold, warm))
    assert warm < cold / 4


def test_more_than_the_window_is_refused_with_the_engine_s_own_words(gateway):
    status, _first, said, _done = ask(gateway, report(6000, "too long"))
    assert status == 400, said
    assert "context" in said or "exceed" in said


def test_the_replica_serves_on_after_a_client_that_went_away(gateway):
    door = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=3)
    body = json.dumps({"model": MODEL, "prompt": report(2000, time.time_ns()), "max_tokens": 4, "stream": True})
    # Some engines answer with headers at once, others only with the first token, which takes much longer than this client has.
    with pytest.raises(TimeoutError):
        door.request("POST", "/v1/completions", body, {"Authorization": "Bearer " + gateway.key, "Content-Type": "application/json"})
        door.getresponse().read()
    door.close()
    status, first, _tokens, done = ask(gateway, "Hello")
    assert (status, done) == (200, True)
    assert first < 30
