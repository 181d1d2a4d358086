# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Wait until a replica really generates, and notice at once when it dies instead; then ask in rounds until nothing gets quicker any more.
Private to the collection.

An engine makes kernels and graphs at the first request of a shape: so many tokens of prompt, so many sequences at once. What the rounds
do not show it, the first user waits for.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import itertools
import threading
import time
from typing import Any, Sequence

from ansible_collections.ironserve.llm.plugins.module_utils import _cgroup, _http, _prompts, _sse
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
#: Tokens of an answer in a round: enough that all sequences of a step decode together for a while.
ROUND_TOKENS = 16
#: Tokens that a word of the made-up prose takes, and what comes around it (a code of this run, the model's own template).
TOKENS_PER_WORD, TOKENS_AROUND = 1.125, 24
#: Two rounds agree when the slower one takes no more than this many times what the quicker one took.
AGREE = 1.25


@dataclasses.dataclass
class Warmth:
    """What warming up one replica took, in seconds.

    Attributes:
        health_s, first_token_s: from the call until it was healthy, and until its first token.
        cold_ttft_s, warm_ttft_s: time to first token of the very first request, and of the same kind of request in the last round.
        rounds_s: what each round took; ``steady`` whether the last two agree, None without rounds.
        memory: what its engine says of its memory, held against the plan.
        error: empty when it generates.
    """

    name: str
    url: str
    health_s: float | None = None
    first_token_s: float | None = None
    cold_ttft_s: float | None = None
    warm_ttft_s: float | None = None
    rounds_s: list[float] = dataclasses.field(default_factory=list)
    steady: bool | None = None
    error: str = ""
    memory: list[str] = dataclasses.field(default_factory=list)

    def as_dict(self) -> dict:
        """Plain data for module results."""
        return dataclasses.asdict(self)

    def line(self) -> str:
        """What the rounds came to, for a person; empty without rounds, and where they ended with an error."""
        if self.steady is None or self.error:
            return ""
        text = "{0}: warmed up, first token after {1:g} s cold and {2:g} s warm; ".format(self.name, self.cold_ttft_s, self.warm_ttft_s)
        if self.steady:
            return text + "{0} rounds, the last two agree".format(len(self.rounds_s))
        took = ", ".join("{0:g}".format(seconds) for seconds in self.rounds_s)
        return text + "no two of {0} rounds agree ({1} s): kernels may still be made under traffic".format(len(self.rounds_s), took)


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


@dataclasses.dataclass(frozen=True)
class Sweep:
    """What a round asks.

    Attributes:
        prompt_tokens: lengths of prompts, about; none means no rounds.
        max_num_seqs: most sequences at once.
        rounds: most rounds, 2 or more.
    """

    prompt_tokens: Sequence[int] = ()
    max_num_seqs: int = 1
    rounds: int = 6

    def steps(self, max_model_len: int = 0) -> list[list[int]]:
        """Lengths of the prompts that are asked at once, one list for each step of a round.

        Each length alone; then the shortest twice, four times and so on up to ``max_num_seqs`` at once; then all lengths mixed. Lengths
        that leave no room for an answer in half of ``max_model_len`` (0: not known) are left out, for they are no more than estimates.
        """
        lengths = sorted({length for length in self.prompt_tokens if not max_model_len or length <= max_model_len // 2})
        if not lengths:
            return []
        most, counts = self.max_num_seqs, [2]
        while counts[-1] * 2 < most:
            counts.append(counts[-1] * 2)
        steps = [[length] for length in lengths]
        if most > 1:
            steps += [[lengths[0]] * count for count in counts if count < most] + [[lengths[0]] * most]
        if most > 1 and len(lengths) > 1:
            steps.append(list(itertools.islice(itertools.cycle(reversed(lengths)), most)))
        return steps


def prompt_of(tokens: int, seed: int) -> str:
    """A prompt of about so many tokens, whose beginning no cache can know; never one of the measured ones."""
    return _prompts.fresh(_prompts.prose(max(int((tokens - TOKENS_AROUND) / TOKENS_PER_WORD), 1), seed))


class Warmer:
    """Warms up one replica."""

    def __init__(
        self,
        endpoint: Endpoint,
        model: str,
        sweep: Sweep,
        timeout_s: float,
        health_path: str,
        knowledge: Knowledge | None = None,
    ) -> None:
        self._knowledge = knowledge or Knowledge()
        self._endpoint = endpoint
        self._base = endpoint.url.rstrip("/")
        self._model = model
        self._sweep = sweep
        self._timeout_s = timeout_s
        self._health_path = health_path
        self._key = ""
        self._start = 0.0
        self._watch_at = 0.0
        self._last = "no answer yet"
        self._liveness = Liveness(self._knowledge.stall_s)
        self._unread = ""
        self._restarts: int | None = None

    def warm(self) -> Warmth:
        """Wait for health, then generate, then make the rounds; what goes wrong is in the result's ``error``."""
        self._start = time.monotonic()
        result = Warmth(self._endpoint.name, self._endpoint.url)
        try:
            self._key = _http.read_key(self._endpoint.api_key_file)
            self._wait_for_health()
            result.health_s = round(time.monotonic() - self._start, 3)
            first = self._generate()
            result.first_token_s = round(first.sent_at + first.ttft_s - self._start, 3)
            result.cold_ttft_s = round(first.ttft_s, 3)
            self._make_rounds(result)
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
        # The container engine starts what ended within a tenth of a second, sooner than anybody looks.
        restarts = int(state.get("restarts", 0))
        if self._restarts is not None and restarts > self._restarts:
            words = last_words(_docker.last_log(self._endpoint.container), self._knowledge.messages, 0, False, [self._key])
            raise LLMError("container {0} ended while it warmed up, and was started again. {1}".format(self._endpoint.container, words))
        self._restarts = restarts
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

    def _body(self, prompt: str, tokens: int) -> dict:
        messages = [{"role": "user", "content": prompt}]
        return {"model": self._model, "messages": messages, "max_tokens": tokens, "temperature": 0, "stream": True}

    def _generate(self) -> _sse.Transcript:
        """Make one real generation. Retries while it is only loading."""
        while True:
            try:
                transcript, status, text = self._watched([self._body(PROMPT, TOKENS)])[0]
            except _http.HttpError as exc:
                self._last = str(exc)
                if exc.kind in (_http.RESET, _http.REFUSED):
                    self._await_death(exc)
            else:
                if status == 200 and transcript.token_events:
                    return transcript
                self._last = self._said(transcript, status, text)
                if status not in (429, 503):
                    raise LLMError("it is up but does not generate, {0}".format(self._last))
            self._pause()

    def _said(self, transcript: _sse.Transcript, status: int, text: str) -> str:
        return "{0}: HTTP {1} {2}".format(self._url(), status, text or transcript.error or "without one token")

    def _url(self) -> str:
        return self._base + "/v1/chat/completions"

    def _make_rounds(self, result: Warmth) -> None:
        """Ask all steps again and again, until two rounds in a row agree in time or there were enough of them."""
        steps = self._sweep.steps(self._knowledge.max_model_len)
        if not steps:
            return
        seeds = itertools.count()
        while len(result.rounds_s) < self._sweep.rounds and not result.steady:
            start = time.monotonic()
            for number, lengths in enumerate(steps):
                alone = self._step(lengths, seeds)
                if number == 0:
                    result.warm_ttft_s = round(alone, 3)
            result.rounds_s.append(round(time.monotonic() - start, 3))
            last = sorted(result.rounds_s[-2:])
            result.steady = len(last) == 2 and last[1] <= AGREE * last[0]

    def _step(self, lengths: list[int], seeds: Any) -> float:
        """Ask prompts of these lengths at once; the longest time to first token, seconds."""
        what = "{0} at once with prompts of about {1} tokens".format(len(lengths), ", ".join(str(n) for n in sorted(set(lengths))))
        self._last = "warm-up with {0}".format(what)
        try:
            answers = self._watched([self._body(prompt_of(length, next(seeds)), ROUND_TOKENS) for length in lengths])
        except _http.HttpError as exc:
            if exc.kind in (_http.RESET, _http.REFUSED):
                self._await_death(exc)
            raise LLMError("{0}: {1}".format(what, exc)) from None
        for transcript, status, text in answers:
            if status != 200 or not transcript.token_events:
                raise LLMError("{0}: {1}".format(what, self._said(transcript, status, text)))
        return max(transcript.ttft_s for transcript, _status, _text in answers)

    def _await_death(self, exc: _http.HttpError) -> None:
        """A closed connection is the engine dying: give the container a moment to end, so that its log can be shown."""
        for _turn in range(8):
            self._check_container(force=True)
            if not self._endpoint.container:
                break
            time.sleep(POLL_S)
        raise LLMError("it died at its warm-up request: {0}".format(exc))

    def _watched(self, bodies: list[dict]) -> list[tuple[_sse.Transcript, int, str]]:
        """Ask all at once while the container is looked at: a first request may compile for minutes, and an engine that dies
        meanwhile does not always close its connection."""
        box = {}

        def ask(number: int, body: dict) -> None:
            try:
                box[number] = self._once(body)
            except LLMError as exc:
                box[number] = exc

        threads = [threading.Thread(target=ask, args=item, daemon=True) for item in enumerate(bodies)]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(WATCH_S)
                if thread.is_alive():
                    self._check_container()
        for number in range(len(bodies)):
            if isinstance(box[number], LLMError):
                raise box[number]
        return [box[number] for number in range(len(bodies))]

    def _once(self, body: dict) -> tuple[_sse.Transcript, int, str]:
        left = max(self._left(), POLL_S)
        with _http.open_stream("POST", self._url(), self._key, body, _http.Deadlines(3.0, left, left)) as stream:
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
    sweep: Sweep | None = None,
    timeout_s: float = 2700,
    health_path: str = "/health",
    knowledge: Knowledge | None = None,
) -> list[Warmth]:
    """Warm every endpoint up at the same time; the results come in the order of ``endpoints``."""
    if not endpoints:
        return []
    warmers = [Warmer(endpoint, model, sweep or Sweep(), timeout_s, health_path, knowledge) for endpoint in endpoints]
    with concurrent.futures.ThreadPoolExecutor(max_workers=len(warmers)) as pool:
        return list(pool.map(Warmer.warm, warmers))
