# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Serve one GGUF model with llama.cpp, with the arguments a replica of any engine gets."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time

#: Exit status of a start that was refused: wrong arguments, no model, no key. The same as argparse's own.
REFUSED = 2
#: Exit status when the engine itself failed.
ENGINE_FAILED = 1
HERE = os.path.dirname(os.path.abspath(__file__))


def say(text: str) -> None:
    """Write one log line."""
    print("serve: {0}".format(text), file=sys.stderr, flush=True)


def positive(text: str) -> int:
    """A whole number above 0."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("{0} is not above 0".format(value))
    return value


def arguments(argv: list[str]) -> argparse.Namespace:
    """Parse the command line. An unknown flag is refused: a silently dropped one would change what is served."""
    parser = argparse.ArgumentParser(prog="serve", description=__doc__, allow_abbrev=False)
    parser.add_argument("--model", required=True, help="GGUF file")
    parser.add_argument("--served-model-name", nargs="+", help="names the model answers to; default: the file name")
    parser.add_argument("--host", default="0.0.0.0", help="address to listen on")
    parser.add_argument("--port", type=positive, default=8000, help="TCP port")
    parser.add_argument("--max-model-len", type=positive, default=4096, help="context of one sequence, in tokens")
    parser.add_argument("--max-num-seqs", type=positive, default=1, help="sequences at the same time")
    parser.add_argument("--threads", type=positive, default=1, help="compute threads")
    parser.add_argument(
        "--chat-template",
        default=os.path.join(HERE, "chat_template.jinja"),
        help='Jinja file, or "model" for the template in the GGUF file (llama.cpp then drops tools it does not know)',
    )
    parser.add_argument("--api-key-file", help="file with one key a line; without it the server is open")
    return parser.parse_args(argv)


def read_keys(path: str) -> list[str]:
    """Read the keys, one a line. They never come by argument or environment, which others can read."""
    with open(path, encoding="ascii") as handle:
        keys = [line.strip() for line in handle if line.strip()]
    if not keys:
        raise ValueError("it holds no key")
    return keys


def parameters(options: argparse.Namespace):
    """Turn the arguments into the engine's own. Raises OSError or ValueError, naming the file."""
    import xllamacpp

    if not os.path.isfile(options.model):
        raise ValueError("--model {0}: there is no such file".format(options.model))
    params = xllamacpp.CommonParams()
    params.model.path = options.model
    params.model_alias = set(options.served_model_name or [os.path.basename(options.model)])
    params.hostnames = [options.host]
    params.port = options.port
    params.n_parallel = options.max_num_seqs
    # The engine shares one window out among its sequences.
    params.n_ctx = options.max_model_len * options.max_num_seqs
    params.kv_unified = False
    params.cpuparams.n_threads = options.threads
    params.cpuparams_batch.n_threads = options.threads
    # Its prompt store in main memory is not bounded by the card's memory limit.
    params.cache_ram_mib = 0
    # The plan has judged what fits, and the role warms up by real requests: the engine's own trials only cost time at its start.
    params.fit_params = False
    params.warmup = False
    params.use_jinja = True
    params.endpoint_metrics = True
    params.ui = False
    if options.chat_template != "model":
        try:
            with open(options.chat_template, encoding="utf-8") as handle:
                params.chat_template = handle.read()
        except OSError as exc:
            raise ValueError("--chat-template {0}: {1}".format(options.chat_template, exc.strerror)) from exc
    if options.api_key_file:
        try:
            params.api_keys = read_keys(options.api_key_file)
        except (OSError, ValueError) as exc:
            raise ValueError("--api-key-file {0}: {1}".format(options.api_key_file, exc)) from exc
    return params


def main(argv: list[str]) -> int:
    """Serve until a signal comes. Returns the exit status."""
    stop = threading.Event()

    def leave(number, _frame):
        # The engine's own threads cannot be interrupted, during model loading least of all: the process ends as a whole.
        say("stopping ({0})".format(signal.Signals(number).name))
        stop.set()
        os._exit(0)

    # As PID 1 a process gets no default handler, so a signal without one would be ignored.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, leave)

    options = arguments(argv)
    try:
        params = parameters(options)
    except (OSError, ValueError) as exc:
        say("refused: {0}".format(exc))
        return REFUSED

    import xllamacpp

    say(
        "llama.cpp (xllamacpp {0}), model {1}, {2} x {3} tokens, {4} threads, {5}".format(
            xllamacpp.__version__,
            options.model,
            options.max_num_seqs,
            options.max_model_len,
            options.threads,
            "key needed" if options.api_key_file else "OPEN: no key needed",
        )
    )
    begin = time.monotonic()
    # A native call that loads the model would keep the main thread from handling signals.
    failed = []
    servers = []

    def load():
        try:
            servers.append(xllamacpp.Server(params))
        except Exception as exc:
            failed.append(exc)

    loader = threading.Thread(target=load, daemon=True)
    loader.start()
    while loader.is_alive():
        loader.join(0.2)
    if failed:
        say("the engine failed: {0}".format(failed[0]))
        return ENGINE_FAILED
    say("ready at {0} after {1:.1f} s".format(servers[0].listening_address, time.monotonic() - begin))
    while not stop.wait(60):
        pass
    return 0


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stderr.flush()
    # The engine's threads must not be unwound by the interpreter.
    os._exit(status)
