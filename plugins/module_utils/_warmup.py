# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Wait until a replica really generates, and notice at once when it dies instead. Private to the collection."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import threading
import time
from typing import Any

from ansible_collections.ironserve.llm.plugins.module_utils import _cgroup, _http, _sse
from ansible_collections.ironserve.llm.plugins.module_utils._endpoints import Endpoint
from ansible_collections.ironserve.llm.plugins.module_utils._errors import LLMError
from ansible_collections.ironserve.llm.plugins.module_utils._liveness import Liveness, Sample
from ansible_collections.ironserve.llm.plugins.module_utils._log_messages import last_words
from ansible_collections.ironserve.llm.plugins.module_utils._memory import Fit, compare, read_log

POLL_S = 0.25
#: How often the container is looked at; together with one poll well below the 10 s within which a death is noticed.
WATCH_S = 3.0
#: Never one of the measured prompts: a warm cache for them would spoil the figures.
PROMPT = "Say hello."
TOKENS = 4


@dataclasses.dataclass
class Warmth:
    """What warming up one replica took, in seconds from the call; ``error`` is empty when it generates, ``memory`` what its engine says of
    its memory, held against the plan."""

    name: str
    url: str
    health_s: float | None = None
    first_token_s: float | None = None
    error: str = ""
    memory: list[str] = dataclasses.field(default_factory=list)

    def as_dict(self) -> dict:
        """Plain data for module results."""
        return dataclasses.asdict(self)


@dataclasses.dataclass
class Knowledge:
    """What is known of the replicas beforehand.

    Attributes:
        messages: what an engine's last words mean, see ``_log_messages.translate``.
        fits: name of an endpoint -> what the plan expects of its memory, as plain data of a ``Fit``.
        max_model_len: the longest context, tokens.
        stall_s: seconds without a sign of life after which a container is given up; 0 waits for the deadline.
    """

    messages: dict[str, Any] = dataclasses.field(default_factory=dict)
    fits: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    max_model_len: int = 0
    stall_s: float = 0


class Warmer:
    """Warms up one replica."""

    def __init__(
        self, endpoint: Endpoint, model: str, requests: int, timeout_s: float, health_path: str, knowledge: Knowledge | None = None
    ) -> None:
        self._knowledge = knowledge or Knowledge()
        self._endpoint = endpoint
        self._base = endpoint.url.rstrip("/")
        self._model = model
        self._requests = requests
        self._timeout_s = timeout_s
        self._health_path = health_path
        self._key = ""
        self._start = 0.0
        self._watch_at = 0.0
        self._last = "no answer yet"
        self._liveness = Liveness(self._knowledge.stall_s)
        self._unread = ""

    def warm(self) -> Warmth:
        """Wait for health, then generate; what goes wrong is in the result's ``error``."""
        self._start = time.monotonic()
        result = Warmth(self._endpoint.name, self._endpoint.url)
        try:
            self._key = _http.read_key(self._endpoint.api_key_file)
            self._wait_for_health()
            result.health_s = round(time.monotonic() - self._start, 3)
            for number in range(self._requests):
                at = self._generate()
                if number == 0:
                    result.first_token_s = round(at - self._start, 3)
            result.memory = self._memory()
        except LLMError as exc:
            result.error = "replica {0} at {1} did not warm up: {2}".format(self._endpoint.name, self._endpoint.url, exc)
        return result

    def _left(self) -> float:
        return self._start + self._timeout_s - time.monotonic()

    def _check_container(self, force: bool = False) -> None:
        """Raise LLMError with the log's last lines when the container has ended, or stands still."""
        now = time.monotonic()
        if not self._endpoint.container or (now < self._watch_at and not force):
            return
        self._watch_at = now + WATCH_S
        # Lazily: an endpoint without a container must not need the docker library.
        from ansible_collections.ironserve.llm.plugins.module_utils import _docker

        state = _docker.container_state(self._endpoint.container)
        if not state["running"]:
            oom_killed = bool(state.get("oom_killed", False))
            words = last_words(str(state["log_tail"]), self._knowledge.messages, state["exit_code"], oom_killed, [self._key])
            raise LLMError("container {0} exited with code {1}. {2}".format(self._endpoint.container, state["exit_code"], words))
        stalled = self._sample(state.get("pid", 0))
        if stalled:
            words = last_words(_docker.last_log(self._endpoint.container), self._knowledge.messages, 0, False, [self._key])
            raise LLMError(
                "container {0} runs and stands still: {1}; last seen: {2}. {3}".format(self._endpoint.container, stalled, self._last, words)
            )

    def _sample(self, pid: int) -> str:
        """What the container used so far, held against what it had used before; what stands still, or nothing."""
        if not pid:
            return ""
        try:
            cpu_s = _cgroup.cpu_seconds(_cgroup.account_of(pid, "cpu"))
            memory_mib = _cgroup.memory_bytes(pid) / 2**20
        except (LLMError, OSError) as exc:
            # It may have ended this moment, which the next look tells. Where the kernel never says, the deadline alone is left.
            self._unread = "; whether it is at work cannot be read: {0}".format(exc)
            return ""
        self._unread = ""
        return self._liveness.note(Sample(time.monotonic(), cpu_s, memory_mib))

    def _memory(self) -> list[str]:
        """What the engine said of its memory at its start, held against the plan; nothing where the plan is not in its blocks."""
        planned = self._knowledge.fits.get(self._endpoint.name, {})
        if not self._endpoint.container or not planned.get("block_tokens"):
            return []
        from ansible_collections.ironserve.llm.plugins.module_utils import _docker

        try:
            said = read_log(_docker.start_log(self._endpoint.container))
        except (LLMError, *_docker.ENGINE_ERRORS) as exc:
            # It generates; what cannot be compared is said and no more.
            return ["{0}: its log cannot be read: {1}".format(self._endpoint.name, exc)]
        return ["{0}: {1}".format(self._endpoint.name, line) for line in compare(Fit(**planned), said, self._knowledge.max_model_len)]

    def _pause(self) -> None:
        self._check_container()
        if self._left() <= 0:
            seen = self._liveness.line()
            at_work = self._unread or ("; " + seen if seen else "")
            raise LLMError("not ready after {0:g} s; last seen: {1}{2}".format(self._timeout_s, self._last, at_work))
        time.sleep(min(POLL_S, max(self._left(), 0.0)))

    def _wait_for_health(self) -> None:
        url = self._base + self._health_path
        while True:
            try:
                reply = _http.request("GET", url, "", None, _http.Deadlines(2.0, 5.0, 5.0))
            except _http.HttpError as exc:
                self._last = str(exc)
            else:
                if reply.status == 200:
                    return
                self._last = "{0}: HTTP {1} {2}".format(url, reply.status, reply.head())
            self._pause()

    def _generate(self) -> float:
        """Make one real generation; returns the monotonic second of its first token. Retries while it is only loading."""
        url = self._base + "/v1/chat/completions"
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": PROMPT}],
            "max_tokens": TOKENS,
            "temperature": 0,
            "stream": True,
        }
        while True:
            try:
                transcript, status, text = self._watched(url, body)
            except _http.HttpError as exc:
                self._last = str(exc)
                if exc.kind in (_http.RESET, _http.REFUSED):
                    self._await_death(exc)
            else:
                if status == 200 and transcript.token_events:
                    return transcript.sent_at + transcript.ttft_s
                self._last = "{0}: HTTP {1} {2}".format(url, status, text or transcript.error or "without one token")
                if status not in (429, 503):
                    raise LLMError("it is up but does not generate, {0}".format(self._last))
            self._pause()

    def _await_death(self, exc: _http.HttpError) -> None:
        """A closed connection is the engine dying: give the container a moment to end, so that its log can be shown."""
        for _turn in range(8):
            self._check_container(force=True)
            if not self._endpoint.container:
                break
            time.sleep(POLL_S)
        raise LLMError("it died at its warm-up request: {0}".format(exc))

    def _watched(self, url: str, body: dict) -> tuple[_sse.Transcript, int, str]:
        """Ask once while the container is looked at: a first request may compile for minutes, and an engine that dies
        meanwhile does not always close its connection."""
        box = []

        def ask() -> None:
            try:
                box.append(self._once(url, body))
            except LLMError as exc:
                box.append(exc)

        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(WATCH_S)
            if thread.is_alive():
                self._check_container()
        if isinstance(box[0], LLMError):
            raise box[0]
        return box[0]

    def _once(self, url: str, body: dict) -> tuple[_sse.Transcript, int, str]:
        left = max(self._left(), POLL_S)
        with _http.open_stream("POST", url, self._key, body, _http.Deadlines(3.0, left, left)) as stream:
            transcript = _sse.Transcript(stream.sent_at)
            if stream.status != 200:
                return transcript, stream.status, _http.one_line(b"".join(chunk for _at, chunk in stream).decode("utf-8", "replace"))
            for at, chunk in stream:
                transcript.feed(at, chunk)
                if transcript.done or transcript.error:
                    break
            return transcript, stream.status, ""


def warm_all(
    endpoints: list[Endpoint],
    model: str,
    requests: int = 1,
    timeout_s: float = 2700,
    health_path: str = "/health",
    knowledge: Knowledge | None = None,
) -> list[Warmth]:
    """Warm every endpoint up at the same time; the results come in the order of ``endpoints``."""
    if not endpoints:
        return []
    warmers = [Warmer(endpoint, model, requests, timeout_s, health_path, knowledge) for endpoint in endpoints]
    with concurrent.futures.ThreadPoolExecutor(max_workers=len(warmers)) as pool:
        return list(pool.map(Warmer.warm, warmers))
