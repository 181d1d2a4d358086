# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Scripted engines: an OpenAI-compatible server that is healthy, or broken in one chosen way.

Real sockets, standard library only, so that one file can play in a test process as well as in a container:
``scripted.py --behaviour garbage_run --port 8001 --key-file engine.key``.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import socketserver
import threading
import time
from http.server import BaseHTTPRequestHandler

CAPITALS = {
    "Japan": "Tokyo",
    "Greece": "Athens",
    "England": "London",
    "Russia": "Moscow",
    "China": "Beijing",
    "Germany": "Berlin",
}

PROSE = (
    "Bread is one of the oldest foods that people prepare. Long before there were ovens, grain was crushed between stones, "
    "mixed with water and baked on hot rocks beside the fire. Someone later noticed that dough which had been left alone "
    "overnight rose by itself, because wild yeast from the air had settled in it. Egyptian bakers learned to keep a piece of "
    "the old dough for the next day, and from there the craft travelled along the trade routes to Greece and to Rome, where "
    "public bakeries fed whole districts of the city."
)
PROSE_ZH = (
    "面包是人类最古老的食物之一。在烤炉出现以前，人们用石头把谷物磨碎，加水揉成面团，放在火边的热石板上烤熟。"
    "后来有人发现，放了一夜的面团会自己膨胀起来，那是因为空气中的酵母落在了里面。埃及的面包师学会了留下一小块老面，"
    "第二天再用。这门手艺沿着商路传到希腊和罗马，城里渐渐有了公共面包房，为整个街区供应食物。到了中世纪，"
    "每个村庄都有自己的磨坊，面包的颜色和重量由法律规定，偷工减料的人会受到惩罚。直到今天，清晨烤面包的香气"
    "仍然让许多人想起童年时住过的老街，以及邻居家窗台上慢慢变凉的长面包和旁边那壶刚刚烧开的热茶。"
)

SOUP = "жуѣ កា தமி かな ⵣⵍ เมื گفت હતું " * 12
GARBAGE = {
    "garbage_run": "!" * 64,
    "garbage_replacement": "The capital \ufffd\ufffd\ufffd of \ufffd is \ufffd",
    "garbage_control": "The capital\x00 of\x01 it is\x02",
    # Halves of pairs: JSON takes them escaped, no encoding does.
    "garbage_surrogates": "The capital \ud83d\ud83d of \udc00 is \ud83d",
    "garbage_soup": SOUP,
    "garbage_words": "_The out to_ the a to_ out native further to. the out a in the",
    "garbage_loop": "and the English and the " * 30,
    "garbage_line_loop": "Wait - writing each line of the answer down again now.\n" * 14,
    "garbage_newlines": "The" + "\n" * 40,
    "garbage_empty": "",
    "garbage_html": "<html><body>It works!</body></html>",
}

#: Every behaviour and the verdict that a proof must give it.
BEHAVIOURS = {
    "healthy": "ok",
    "healthy_bursts": "ok",
    "healthy_early_role": "ok",
    "healthy_keeps_open": "ok",
    "never_answers": "stalled",
    "headers_then_silence": "stalled",
    "stops_midway": "stalled",
    "dies_at_first_request": "dead",
    "dies_midway": "dead",
    "status_500": "dead",
    "error_in_stream": "dead",
    "status_401": "unknown",
    "status_503": "saturated",
    "loading": "not_loaded",
    "other_model": "not_loaded",
    "slow": "slow",
    "slow_first_token": "slow",
    "canned": "garbage",
    "wrong_field": "garbage",
    "no_done": "partial",
    "never_ends": "garbage",
    "lying_usage": "partial",
    "stream_differs": "partial",
    "broken_json": "garbage",
    "not_a_stream": "garbage",
    "chinese_only": "partial",
}
BEHAVIOURS.update(dict.fromkeys(GARBAGE, "garbage"))


def pieces(text: str, size: int = 6) -> list[str]:
    """Cut a text into what plays the tokens."""
    return [text[start : start + size] for start in range(0, len(text), size)]


def answer(messages: list[dict]) -> str:
    """The right answer, found the way a model would: from the conversation."""
    question = messages[-1]["content"]
    code = re.search("[0-9]{4,}", question)
    if code:
        earlier = [message["content"] for message in messages if message["role"] == "assistant"]
        return re.sub("[0-9]{4,}", code.group(), earlier[-1]) if earlier else code.group()
    for country, capital in CAPITALS.items():
        if country in question:
            return f"The capital of {country} is {capital}."
    return PROSE_ZH if re.search("[\u4e00-\u9fff]", question) else PROSE


class Handler(BaseHTTPRequestHandler):
    """One connection to a scripted engine."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_args: object) -> None:
        """Say nothing: tests read their own output."""

    @property
    def engine(self) -> Engine:
        """The server, by its real type."""
        return self.server

    def _json(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _authorised(self) -> bool:
        key = self.engine.key
        if self.engine.behaviour == "status_401" or (key and self.headers.get("Authorization") != f"Bearer {key}"):
            self._json(401, {"error": "Unauthorized"})
            return False
        return True

    def do_GET(self) -> None:
        """Health and the list of models; several names stand with blanks between them."""
        if self.path == "/health":
            status = 503 if self.engine.behaviour == "loading" or not self.engine.started() else 200
            self._json(status, {})
        elif self.path == "/v1/models":
            if self._authorised():
                name = "another-model" if self.engine.behaviour == "other_model" else self.engine.model
                self._json(200, {"object": "list", "data": [{"id": item, "object": "model"} for item in name.split()]})
        else:
            self._json(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        """Chat completions, or the chosen fault."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self._authorised():
            return
        behaviour = self.engine.behaviour
        self.engine.asked.append(body)
        if behaviour == "never_answers":
            self.engine.stopped.wait()
            return
        if behaviour == "dies_at_first_request":
            self.engine.die()
            return
        statuses = {
            "status_500": (500, "EngineCore encountered an issue"),
            "status_503": (503, "queue full"),
            "loading": (503, "Loading model"),
        }
        if behaviour in statuses:
            status, text = statuses[behaviour]
            self._json(status, {"error": {"message": text, "type": "x", "code": status}})
            return
        text = self._text(body)
        if not body.get("stream"):
            whole = text + " Truly." if behaviour == "stream_differs" else text
            usage = {"prompt_tokens": 10, "completion_tokens": len(pieces(text)) + 1}
            self._json(
                200,
                {"choices": [{"index": 0, "message": {"role": "assistant", "content": whole}, "finish_reason": "stop"}], "usage": usage},
            )
        elif behaviour == "not_a_stream":
            self._json(200, {"status": "success"})
        else:
            self._stream(text, body)

    def _text(self, body: dict) -> str:
        behaviour = self.engine.behaviour
        if behaviour in GARBAGE:
            return GARBAGE[behaviour]
        if behaviour == "canned":
            return "The secret code is 418362. Tokyo, Athens, London, Moscow, Beijing and Berlin are capitals."
        if behaviour == "chinese_only" and re.search("[\u4e00-\u9fff]", body["messages"][-1]["content"]):
            return "！" * 12
        return answer(body["messages"])

    def _chunk(self, data: str) -> None:
        raw = f"data: {data}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(raw), raw))

    def _delta(self, delta: dict, finish: str | None = None) -> None:
        self._chunk(json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}))

    def _stream(self, text: str, body: dict) -> None:
        behaviour = self.engine.behaviour
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            self._events(behaviour, text, body)
        except OSError:
            # The proof hung up, which is its right.
            self.close_connection = True

    def _events(self, behaviour: str, text: str, body: dict) -> None:
        if behaviour == "headers_then_silence":
            self.engine.stopped.wait()
            return
        self._delta({"role": "assistant", "content": ""})
        pause = {"slow": self.engine.slow_s, "healthy_early_role": 0.0}.get(behaviour, 0.001)
        if behaviour == "slow_first_token":
            self.engine.stopped.wait(self.engine.slow_s * 1.2)
        parts = pieces(text)[: body["max_tokens"]]
        field = "reasoning_content" if behaviour == "wrong_field" else "content"
        step = 4 if behaviour == "healthy_bursts" else 1
        for index in range(0, len(parts), step):
            self._delta({field: "".join(parts[index : index + step])})
            if behaviour == "stops_midway" and index == 3:
                self.engine.stopped.wait()
                return
            if behaviour == "dies_midway" and index == 3:
                self.engine.die()
                return
            if behaviour == "error_in_stream" and index == 3:
                self._chunk(json.dumps({"error": {"message": "EngineDeadError", "code": 500}}))
                return
            if behaviour == "broken_json" and index == 3:
                self._chunk('{"choices": [{"delta": {"content": ')
            if self.engine.stopped.wait(pause):
                return
        if behaviour == "never_ends":
            while not self.engine.stopped.wait(0.002):
                self._delta({"content": " more"})
            return
        self._delta({}, "length" if len(pieces(text)) > len(parts) else "stop")
        count = 1 if behaviour == "lying_usage" else len(parts)
        self._chunk(json.dumps({"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": count, "total_tokens": 10 + count}}))
        if behaviour != "no_done":
            self._chunk("[DONE]")
        if behaviour == "healthy_keeps_open":
            self.engine.stopped.wait()
            return
        self.wfile.write(b"0\r\n\r\n")


class Engine(socketserver.ThreadingTCPServer):
    """A scripted engine on a port of its own. Use as a context manager.

    ``exit_on_death`` ends the whole process when the script says that the engine dies, for use in a container.
    """

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False

    def __init__(
        self,
        behaviour: str,
        model: str = "scripted",
        key: str = "",
        host: str = "127.0.0.1",
        port: int = 0,
        slow_s: float = 17.0,
        exit_on_death: bool = False,
        start_s: float = 0.0,
    ) -> None:
        if behaviour not in BEHAVIOURS:
            raise ValueError(f"unknown behaviour {behaviour}; known: {', '.join(BEHAVIOURS)}")
        self.behaviour = behaviour
        self.model = model
        self.key = key
        self.slow_s = slow_s
        self.stopped = threading.Event()
        self.asked = []
        self._exit_on_death = exit_on_death
        self._connections = []
        self._healthy_at = time.monotonic() + start_s
        super().__init__((host, port), Handler)
        self.url = f"http://{host}:{self.server_address[1]}"

    def started(self) -> bool:
        """Whether loading has ended."""
        return time.monotonic() >= self._healthy_at

    def get_request(self) -> tuple:
        """Remember every connection, so that death can close them all."""
        request = super().get_request()
        self._connections.append(request[0])
        return request

    def die(self) -> None:
        """End like a crashed process: nothing listens, every connection is cut."""
        if self._exit_on_death:
            print("engine: fatal: illegal memory access", flush=True)
            os._exit(139)
        self.socket.close()
        for connection in self._connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def handle_error(self, *_args: object) -> None:
        """Connections cut by either side are part of the play."""

    def __enter__(self) -> Engine:
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def _serve(self) -> None:
        try:
            self.serve_forever(poll_interval=0.05)
        except (OSError, ValueError):
            # The script closed the listening socket.
            pass

    def __exit__(self, *_exc: object) -> None:
        self.stopped.set()
        self.shutdown()
        self.server_close()


def main() -> None:
    """Serve until ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--behaviour", choices=sorted(BEHAVIOURS), default="healthy")
    parser.add_argument("--model", "--served-model-name", dest="model", default="scripted")
    parser.add_argument("--key-file", "--api-key-file", dest="key_file")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--slow-s", type=float, default=17.0, help="seconds per token of behaviour slow")
    # Where it plays a real engine it is given that engine's whole command line.
    options, _passed_over = parser.parse_known_args()
    key = ""
    if options.key_file:
        with open(options.key_file, encoding="utf-8") as handle:
            key = handle.read().strip()
    engine = Engine(options.behaviour, options.model, key, options.host, options.port, options.slow_s, exit_on_death=True)
    engine.serve_forever()


if __name__ == "__main__":
    main()
