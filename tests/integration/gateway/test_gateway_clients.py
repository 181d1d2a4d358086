# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Clients that people have, unchanged, through the gateway: the official openai client, curl, and what Open WebUI sends.

Engines are stand-ins, because every answer is the same each time it is asked: what comes through the gateway is held against what the
engine says when it is asked straight. They write down how each request ended, so that a client that left is seen where it matters.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import threading
import time

import aiohttp
import openai
import pytest
from integration.gateway.gateway_lab import Gateway, server, until
from standin.fleet import Fleet

from ansible_collections.ironserve.llm.plugins.module_utils import _haproxy

QUESTION = [{"role": "system", "content": "You are helpful."}, {"role": "user", "content": "What is the capital of Norway?"}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]},
        },
    }
]
#: At 50 tokens/s nobody waits for its end.
ENDLESS = {"tokens": 4000}
INTERN = "key-of-the-intern-1234"


class House:
    """Two engines with the model ``standin`` and one with ``other``, behind one gateway."""

    def __init__(self, directory) -> None:
        key = directory / "engine.key"
        key.write_text(Gateway.ENGINE_KEY + "\n", encoding="utf-8")
        # Nothing depends on which engine answers, nor on who asked before.
        engine = {"slots": 2, "prefill_tokens_per_s": 1_000_000, "enable_prefix_caching": False, "key_file": key}
        engine.update(max_model_len=1_000_000, kv_blocks=65536, enable_auto_tool_choice=True, tool_call_parser="hermes")
        self.fleet = Fleet([{}, {}, {"model": "other"}], directory, **engine)
        self.gateway = Gateway(gateway_retry_after_s=1, gateway_timeout_queue_s=1, gateway_max_body_mib=4)

    def start(self) -> None:
        self.fleet.start()
        models = ("standin", "standin", "other")
        servers = [server(e.name, e.port, models=[model]) for e, model in zip(self.fleet.engines, models, strict=True)]
        self.gateway.put(servers)
        self.gateway.keys(models=self.gateway.names, client_keys=[{"name": "intern", "key": INTERN, "models": ["other"], "concurrent": 1}])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.gateway.port}/v1"

    @property
    def straight(self) -> str:
        return self.fleet.engines[0].url + "/v1"

    def ended(self, aborted_in):
        """What clients left in this phase, of all there was."""
        return [record for record in self.fleet.records() if record.get("aborted_in") == aborted_in]

    def idle(self) -> bool:
        """Whether no engine works on anything, and the gateway keeps no place for anybody."""
        busy = sum(engine.metrics()["vllm:num_requests_running"] for engine in self.fleet.engines)
        return busy == 0 and set(self.gateway.door.sessions().values()) == {0}


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    made = House(tmp_path_factory.mktemp("fleet"))
    try:
        made.start()
        yield made
    finally:
        made.gateway.remove()
        made.fleet.stop()


@pytest.fixture(scope="module")
def pair(house):
    """The client at the gateway, and the same client at an engine."""
    with (
        openai.OpenAI(base_url=house.url, api_key=house.gateway.key, max_retries=0) as client,
        openai.OpenAI(base_url=house.straight, api_key=Gateway.ENGINE_KEY, max_retries=0) as straight,
    ):
        yield client, straight


def same(thing):
    """An answer without what is another each time: names and times."""
    if isinstance(thing, list):
        return [same(item) for item in thing]
    if isinstance(thing, dict):
        return {key: same(value) for key, value in thing.items() if key not in ("id", "created")}
    return thing


# The official client


def ask(client, **more):
    """What the client makes of one request: a list of its chunks, or one answer."""
    made = client.chat.completions.create(model="standin", **{"messages": QUESTION, **more})
    return same([chunk.model_dump() for chunk in made] if more.get("stream") else made.model_dump())


def test_openai_answers_are_those_of_the_engine(pair):
    client, straight = pair
    assert "Oslo" in ask(client)["choices"][0]["message"]["content"]
    assert ask(client) == ask(straight)
    prose = {"messages": [{"role": "user", "content": "讲一个关于面包师的故事。"}], "max_tokens": 60, "temperature": 0}
    assert ask(client, **prose) == ask(straight, **prose)


def test_openai_lists_the_models(pair):
    client, _straight = pair
    assert [model.id for model in client.models.list()] == ["other", "standin"]


def test_openai_streams_are_those_of_the_engine(pair):
    client, straight = pair
    chunks = ask(client, stream=True, stream_options={"include_usage": True})
    assert chunks == ask(straight, stream=True, stream_options={"include_usage": True})
    assert "Oslo" in "".join(chunk["choices"][0]["delta"]["content"] or "" for chunk in chunks if chunk["choices"])
    assert chunks[-1]["usage"]["completion_tokens"] > 0


def test_openai_tools_are_streamed_and_their_result_goes_back(pair):
    client, straight = pair
    wish = {"messages": [{"role": "user", "content": "What is the weather in Oslo?"}], "tools": TOOLS}
    chunks = ask(client, stream=True, **wish)
    assert chunks == ask(straight, stream=True, **wish)
    deltas = [chunk["choices"][0]["delta"]["tool_calls"] for chunk in chunks if chunk["choices"][0]["delta"].get("tool_calls")]
    assert len(deltas) > 2
    assert deltas[0][0]["function"]["name"] == "get_weather"
    arguments = "".join(delta[0]["function"]["arguments"] or "" for delta in deltas)
    assert set(json.loads(arguments)) >= {"city"}
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
    # The client's own words for it, and the second turn.
    call = client.chat.completions.create(model="standin", **wish).choices[0].message
    result = {"role": "tool", "tool_call_id": call.tool_calls[0].id, "content": '{"degrees": 7}'}
    more = {"messages": [*wish["messages"], call.model_dump(exclude_none=True), result], "tools": TOOLS}
    assert ask(client, **more)["choices"][0]["message"]["content"] == ask(straight, **more)["choices"][0]["message"]["content"] != ""


def test_openai_prompt_of_half_a_megabyte(pair):
    client, straight = pair
    # The client names the model behind the messages.
    wish = {"messages": [{"role": "user", "content": "word " * 100_000 + "What is the capital of Norway?"}]}
    assert ask(client, **wish) == ask(straight, **wish)


def test_openai_stream_that_is_closed_frees_its_slot(house, pair):
    client, _straight = pair
    before = len(house.ended("decode"))
    stream = client.chat.completions.create(model="standin", messages=QUESTION, stream=True, extra_body={"standin": ENDLESS})
    for _chunk in zip(range(3), stream, strict=False):
        pass
    assert not house.idle()
    stream.close()
    until(lambda: len(house.ended("decode")) == before + 1)
    until(house.idle)


def test_openai_task_that_is_cancelled_frees_its_slot(house):
    before = len(house.ended("decode"))

    async def leave():
        async with openai.AsyncOpenAI(base_url=house.url, api_key=house.gateway.key, max_retries=0) as client:
            begun = asyncio.Event()

            async def read():
                async for _chunk in await client.chat.completions.create(
                    model="standin", messages=QUESTION, stream=True, extra_body={"standin": ENDLESS}
                ):
                    begun.set()

            task = asyncio.create_task(read())
            await begun.wait()
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    asyncio.run(leave())
    until(lambda: len(house.ended("decode")) == before + 1)
    until(house.idle)


def test_openai_timeout_ends_the_prefill(house, pair):
    client, _straight = pair
    before = len(house.ended("prefill"))
    with pytest.raises(openai.APITimeoutError):
        client.chat.completions.create(model="standin", messages=QUESTION, timeout=1, extra_body={"standin": {"prefill_s": 600}})
    until(lambda: len(house.ended("prefill")) == before + 1)
    until(house.idle)


def code_of(kind, ask):
    """The code in the error of this kind that ``ask`` raises, and the error."""
    with pytest.raises(openai.APIError) as caught:
        ask()
    assert type(caught.value) is kind, caught.value
    assert caught.value.message and caught.value.type
    return caught.value.code, caught.value


@pytest.mark.parametrize("stream", [False, True])
def test_openai_knows_our_errors(house, pair, stream):
    client, straight = pair

    def chat(asker=client, **more):
        return asker.chat.completions.create(**{"model": "standin", "messages": QUESTION, "stream": stream, **more})

    stranger, intern = client.with_options(api_key="wrong-key-wrong-key"), client.with_options(api_key=INTERN)
    assert code_of(openai.AuthenticationError, lambda: chat(stranger))[0] == "invalid_api_key"
    code, fault = code_of(openai.NotFoundError, lambda: chat(model="gpt-4o"))
    assert code == "model_not_found" and "standin" in fault.message
    assert code_of(openai.PermissionDeniedError, lambda: chat(intern))[0] == "model_not_allowed"
    assert code_of(openai.NotFoundError, client.files.list)[0] == "unknown_path"
    # What the engine refuses comes through in its own words.
    ours, theirs = (code_of(openai.BadRequestError, lambda asker=asker: chat(asker, max_tokens=-1))[1] for asker in pair)
    assert ours.body == theirs.body
    code, fault = code_of(openai.APIStatusError, lambda: chat(messages=[{"role": "user", "content": "x" * (5 << 20)}]))
    assert (code, fault.status_code) == ("request_too_large", 413)
    house.gateway.set(e2="maint")
    try:
        code, fault = code_of(openai.InternalServerError, lambda: chat(model="other"))
        assert (code, fault.status_code, fault.response.headers["retry-after"]) == ("overloaded", 503, "1")
    finally:
        house.gateway.set(e2="ready")


def test_openai_waits_as_long_as_it_is_told_and_then_gets_its_answer(house, pair):
    """``concurrent: 1`` refuses a second request while a stream goes on; the client comes back by itself."""
    intern = pair[0].with_options(api_key=INTERN)
    held = intern.chat.completions.create(model="other", messages=QUESTION, stream=True, extra_body={"standin": ENDLESS})
    next(iter(held))
    code, fault = code_of(openai.RateLimitError, lambda: intern.chat.completions.create(model="other", messages=QUESTION))
    assert (code, fault.response.headers["retry-after"]) == ("concurrency_limit_exceeded", "1")
    answers, refused = [], refusals(house)
    begin = time.monotonic()

    def patient():
        answers.append(intern.with_options(max_retries=5).chat.completions.create(model="other", messages=QUESTION))

    thread = threading.Thread(target=patient)
    thread.start()
    try:
        until(lambda: refusals(house) > refused)
    finally:
        held.close()
        thread.join(30)
    assert "Oslo" in answers[0].choices[0].message.content
    assert time.monotonic() - begin >= 0.9


def refusals(house):
    """How many requests HAProxy answered with 4xx."""
    rows = _haproxy.parse_stat(house.gateway.door.ask("show stat"))
    return next(int(row["hrsp_4xx"]) for row in rows if (row["pxname"], row["svname"]) == ("ironserve_api", "FRONTEND"))


# curl


def curl(url, key, *more, body=None):
    """Run curl; return what it wrote."""
    command = ["curl", "--silent", "--show-error", "--fail-with-body", "-H", "Authorization: Bearer " + key, *more, url]
    if body is not None:
        command += ["-H", "Content-Type: application/json", "--data-binary", "@-"]
    return subprocess.run(command, input=body, capture_output=True, text=True, timeout=60, check=False)


def events(text):
    """The events of a stream, without what is another each time."""
    lines = [line[6:] for line in text.splitlines() if line]
    assert lines[-1] == "[DONE]"
    return [same(json.loads(line)) for line in lines[:-1]]


def test_curl(house):
    key, body = house.gateway.key, json.dumps({"model": "standin", "messages": QUESTION})
    both = [curl(url + "/chat/completions", secret, body=body) for url, secret in ((house.url, key), (house.straight, Gateway.ENGINE_KEY))]
    assert same(json.loads(both[0].stdout)) == same(json.loads(both[1].stdout))
    body = json.dumps({"messages": QUESTION, "tools": TOOLS, "stream": True, "model": "standin"})
    both = [
        curl(url + "/chat/completions", secret, "--no-buffer", body=body)
        for url, secret in ((house.url, key), (house.straight, Gateway.ENGINE_KEY))
    ]
    assert events(both[0].stdout) == events(both[1].stdout) != []
    assert [model["id"] for model in json.loads(curl(house.url + "/models", key).stdout)["data"]] == ["other", "standin"]
    refused = curl(house.url + "/models", "wrong-key-wrong-key")
    assert (refused.returncode, json.loads(refused.stdout)["error"]["code"]) == (22, "invalid_api_key")


@pytest.mark.parametrize("more", [[], ["-H", "Expect: 100-continue"], ["-H", "Expect:"], ["--http1.0"], ["--http2"]], ids=" ".join)
def test_curl_sends_much_in_every_way_it_has(house, more):
    """From 1 MiB on it asks for leave to send its body, and waits a second for it, unless it is told otherwise."""
    body = json.dumps({"model": "standin", "messages": [{"role": "user", "content": "word " * 300_000 + QUESTION[1]["content"]}]})
    got = curl(house.url + "/chat/completions", house.gateway.key, *more, body=body)
    assert got.returncode == 0, got.stdout + got.stderr
    assert json.loads(got.stdout)["usage"]["prompt_tokens"] > 300_000


def test_curl_that_is_killed_frees_its_slot(house):
    before = len(house.ended("decode"))
    body = json.dumps({"model": "standin", "messages": QUESTION, "stream": True, "standin": ENDLESS})
    command = ["curl", "--silent", "--no-buffer", "-H", "Authorization: Bearer " + house.gateway.key]
    command += ["-H", "Content-Type: application/json", "--data-binary", body]
    with subprocess.Popen([*command, house.url + "/chat/completions"], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline().startswith(b"data: {")
        process.kill()
    until(lambda: len(house.ended("decode")) == before + 1)
    until(house.idle)


# A front end


class OpenWebUI:
    """The requests of Open WebUI's connection to an OpenAI interface, in its order and with its client (aiohttp).

    It asks for the models with the key and who is logged in, adds ``stream_options`` to every stream, reads usage out of its last
    chunk, lets a model of its own choosing make a title of the chat, and closes response and session when a person presses stop.
    """

    def __init__(self, url, key):
        self.url, self.key = url, key

    def headers(self):
        person = {"Name": "M%C3%BCller%20Li", "Id": "3f0c", "Email": "li@example.org", "Role": "user", "Chat-Id": "0b1d"}
        said = {"X-OpenWebUI-" + ("" if name == "Chat-Id" else "User-") + name: value for name, value in person.items()}
        return {"Content-Type": "application/json", "Authorization": "Bearer " + self.key, **said}

    @contextlib.asynccontextmanager
    async def request(self, method, path, body=None):
        # A session for each request, as there.
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60), cookies={"token": "t"}) as session:
            data = None if body is None else json.dumps(body)
            async with session.request(method, self.url + path, data=data, headers=self.headers()) as answer:
                yield answer

    async def models(self):
        async with self.request("GET", "/models") as answer:
            return answer.status, await answer.json()

    async def chat(self, messages, stop_after=None, **more):
        """A turn as a person sees it; ``stop_after`` so many chunks the person presses stop."""
        body = {"stream": True, "model": "standin", "messages": messages, **more, "stream_options": {"include_usage": True}}
        async with self.request("POST", "/chat/completions", body) as answer:
            assert (answer.status, answer.content_type) == (200, "text/event-stream")
            lines = []
            async for line in answer.content:
                if line.strip():
                    lines.append(line.decode().strip())
                if stop_after and len(lines) >= stop_after:
                    answer.close()
                    break
            return lines

    async def title(self, messages):
        content = "Make a title of this chat, as JSON: " + json.dumps(messages)
        body = {"model": "standin", "messages": [{"role": "user", "content": content}], "stream": False, "max_completion_tokens": 50}
        async with self.request("POST", "/chat/completions", body) as answer:
            return answer.status, await answer.json()


def test_open_webui(house):
    async def session():
        front, engine = OpenWebUI(house.url, house.gateway.key), OpenWebUI(house.straight, Gateway.ENGINE_KEY)
        status, listed = await front.models()
        assert (status, sorted(model["id"] for model in listed["data"])) == (200, ["other", "standin"])
        lines = await front.chat(QUESTION, temperature=0.7, max_tokens=200)
        assert events("\n".join(lines)) == events("\n".join(await engine.chat(QUESTION, temperature=0.7, max_tokens=200)))
        assert events("\n".join(lines))[-1]["usage"]["completion_tokens"] > 0
        wish = [{"role": "user", "content": "What is the weather in Oslo?"}]
        called = events("\n".join(await front.chat(wish, tools=TOOLS)))
        assert called == events("\n".join(await engine.chat(wish, tools=TOOLS)))
        assert any(choice["delta"].get("tool_calls") for chunk in called for choice in chunk["choices"])
        status, title = await front.title(QUESTION)
        assert (status, same(title)) == (200, same((await engine.title(QUESTION))[1]))
        # A wrong key shows up in its settings as this.
        status, fault = await OpenWebUI(house.url, "wrong-key-wrong-key").models()
        assert (status, fault["error"]["code"]) == (401, "invalid_api_key")
        before = len(house.ended("decode"))
        assert len(await front.chat(QUESTION, stop_after=3, standin=ENDLESS)) == 3
        return before

    before = asyncio.run(session())
    until(lambda: len(house.ended("decode")) == before + 1)
    until(house.idle)
