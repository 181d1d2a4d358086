# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a fleet leaves behind after an acceptance, made up: two hosts of four cards, a gateway, a sweep. The figures follow a simple model
of a server (service time, queueing at saturation), so that plots look as real ones do; they are nobody's figures.
"""

from __future__ import annotations

import hashlib
import json
import random

from ansible_collections.ironserve.llm.plugins.module_utils import _accuracy, _report

DATE = "2026-03-01T10:00:00+00:00"
START = 1772359200.0

#: Answers a hostile or broken model may give.
HOSTILE = [
    "<script>document.title='owned'</script>",
    '"><img src=x onerror="document.title=1"><svg onload=alert(1)>',
    "</style></title><link rel=stylesheet href=https://attacker.invalid/x.css>",
    "]]> &amp; &lt;b&gt; \\ ` * _ | # [x](https://attacker.invalid) <!-- ",
    "\u202eright to left\u202c, a bell \x07, a nul \x00, half a pair \ud800, \ufffe",
    "@everyone ![](https://attacker.invalid/pixel.png) {{ lookup('pipe', 'id') }}",
]


def check(kind: str, name: str = "", status: str = "pass", detail: str = "", language: str = "", figure=None, unit: str = "") -> dict:
    return {
        "check": kind,
        "id": name,
        "status": status,
        "detail": detail,
        "sign": "",
        "language": language,
        "figure": figure,
        "unit": unit,
    }


def checks(ttft: float, speed: float, use: float | None) -> list:
    rows = [
        check("models", detail="lists qwen3.6-35b-a3b"),
        check("exact", "capital_japan", detail='says "Tokyo", as expected', language="en"),
        check("exact", "capital_france_zh", detail='says "巴黎", as expected', language="zh"),
        check("exact", "sum_zh", detail='says "一共是 57 个苹果。", as expected', language="zh"),
        check("nonce_recall", "code_en", detail="gave back 530917", language="en"),
        check("nonce_recall", "code_zh", detail="gave back 118240", language="zh"),
        check("multi_turn", detail="the code of turn 1 came back in turn 3"),
        check(
            "tool_loop", detail="unary and streamed: arguments match the schema and each other; the answer holds what only the tool knew"
        ),
        check("quality", "history_of_bread", detail="812 characters, nothing wrong", language="en"),
        check("quality", "prose_zh", detail="604 characters, nothing wrong", language="zh"),
        check("stream_equals_unary", "capital_japan", detail="both say the same"),
        check("long_context", detail="41,207 tokens by usage, 5 of 5 needles", figure=41207, unit="tokens"),
        check("vision", status="not_applicable", detail="the recipe serves text only"),
        check("speed", detail="{0:.1f} ms to the first token, {1:.1f} tokens/s".format(ttft, speed), figure=speed, unit="tokens/s"),
    ]
    if use is not None:
        rows.append(check("card_use", detail="{0:.0f} % of its card".format(use), figure=use, unit="%"))
    return rows


def result(name: str, url: str, seed: int, replica: bool = True) -> dict:
    draw = random.Random(seed)
    ttft, speed = 205 + draw.gauss(0, 9), 49 + draw.gauss(0, 1.1)
    use = 88 + draw.gauss(0, 2) if replica else None
    return {
        "name": name,
        "url": url,
        "verdict": "ok",
        "evidence": ['exact capital_japan: says "Tokyo", as expected'],
        "next_step": "",
        "checks": checks(ttft, speed, use),
        "ttft_ms": round(ttft, 1),
        "decode_tokens_per_s": round(speed, 2),
        "card_use_pct": None if use is None else round(use, 1),
    }


def results(hosts: int = 2, cards: int = 4) -> list:
    rows = [result("gateway", "http://10.0.0.2:8000", 1, replica=False)]
    for host in range(1, hosts + 1):
        for card in range(cards):
            name = "node{0:02d}-c{1}".format(host, card)
            rows.append(result(name, "http://10.0.1.{0}:{1}".format(host, 8001 + card), host * 100 + card))
    return rows


def score(
    right: int, wrong: int, recorded: float | None = 0.9, unanswered: int = 0, text: str = "What is 2 + 2?", name: str = "gateway"
) -> dict:
    """What the probe says of so many answers; 5 % may be lost."""
    answers = [("#### 4", "")] * right + [(text + " #### 5", "")] * wrong + [("", "timed out: " + text)] * unanswered
    problems = [_accuracy.Problem(text, _accuracy.number("4"), "en")] * len(answers)
    return dict(_accuracy.judge(problems, answers, recorded, 0.05), name=name)


def fail(row: dict, verdict: str, evidence: list, next_step: str, **changed: str) -> dict:
    """The result of an endpoint that did not prove itself: no figures, and the named checks failed."""
    marked = []
    for item in row["checks"]:
        key = "{0} {1}".format(item["check"], item["id"]).strip()
        marked.append(
            dict(item, status="fail", detail=changed[key.replace(" ", "_")], figure=None) if key.replace(" ", "_") in changed else item
        )
    none = {"ttft_ms": None, "decode_tokens_per_s": None, "card_use_pct": None}
    return dict(row, verdict=verdict, evidence=evidence, next_step=next_step, checks=marked, **none)


def plan(host: int, cards: int = 4) -> dict:
    replicas = []
    for card in range(cards):
        name = "node{0:02d}-c{1}".format(host, card)
        replicas.append(
            {
                "name": name,
                "container": "ironserve-c{0}".format(card),
                "cards": ["0000:0{0}:00.0".format(card + 4)],
                "port": 8001 + card,
                "tensor_parallel_size": 1,
                "max_model_len": 131072,
                "max_num_seqs": 4,
                "spec": {
                    "image": "registry.example.com/vllm:0.18.1@sha256:" + "ab" * 32,
                    "command": [
                        "vllm", "serve", "/weights", "--served-model-name", "qwen3.6-35b-a3b", "--host", "0.0.0.0", "--port", "8000",
                        "--max-model-len", "131072", "--max-num-seqs", "4", "--gpu-memory-utilization", "0.92", "--enable-prefix-caching",
                        "--speculative-config", '{"method": "mtp", "num_speculative_tokens": 2}', "--api-key", "sk-never-shown",
                    ],
                    "environment": {"HF_TOKEN": "hf_never_shown", "HIP_VISIBLE_DEVICES": str(card), "VLLM_USE_V1": "1"},
                    "labels": {"ironserve.weights": "5e" * 32},
                },
            }
        )  # fmt: skip
    return {
        "host": "node{0:02d}".format(host),
        "platform": "hygon_k100ai",
        "engine": "vllm",
        "model": "qwen3.6-35b-a3b",
        "weights": "w8a8",
        "image": "registry.example.com/vllm:0.18.1@sha256:" + "ab" * 32,
        "enhancements": [{"name": "mtp", "state": "on", "reason": "asked for"}, {"name": "long_context", "state": "off", "reason": ""}],
        "replicas": replicas,
        "left_out": [],
    }


def fleet(hosts: int = 2, cards: int = 4, **accelerator: str) -> list:
    rows = []
    for host in range(1, hosts + 1):
        facts = {
            "cards": [
                {
                    "id": "0000:0{0}:00.0".format(card + 4),
                    "index": card,
                    "name": "K100-AI",
                    "architecture": "gfx928",
                    "memory_total_mib": 65520,
                }
                for card in range(cards)
            ],
            "driver_version": "6.3.8",
            "runtime_version": "DTK 25.04",
            "firmware_version": "none",
            "source": "hy-smi 1.9",
            "platform": "hygon_k100ai",
        }
        left = {"plan": plan(host, cards), "image_id": "sha256:" + "cd" * 32}
        catalog = {"platform": {"container": {"environment_per_card": {"HIP_VISIBLE_DEVICES": "{index}"}}}}
        rows.append(_report.fleet_row("node{0:02d}".format(host), dict(facts, **accelerator), left, catalog))
    return rows


def _spread(values: list) -> dict:
    mean = sum(values) / len(values)
    std = (sum((value - mean) ** 2 for value in values) / len(values)) ** 0.5
    return {
        "mean": mean,
        "std": std,
        "min": min(values),
        "max": max(values),
        "spread_pct": 100 * (max(values) - min(values)) / mean if mean else 0.0,
        "values": values,
    }


def _figures(level: int, width: int, added: float, slow: float, draw: random.Random) -> dict:
    """One run of ``level`` requests at a time on ``width`` replicas of four slots each."""
    share = level / float(width)
    busy = min(share, 4.0)
    tpot = (20.2 + 2.6 * (busy - 1 if busy > 1 else 0)) * slow * draw.gauss(1, 0.008)
    wait = max(0.0, share - 4.0) * 128 * tpot / 4
    ttft = (190 + 38 * busy + wait + added) * slow * draw.gauss(1, 0.012)
    speed = min(level, 4 * width) * 1000 / tpot
    return {
        "median_ttft_ms": ttft,
        "p99_ttft_ms": ttft * 1.7 + wait * 0.3,
        "median_tpot_ms": tpot,
        "median_itl_ms": tpot * 0.98,
        "p99_itl_ms": tpot * 2.1,
        "median_gap_ms": tpot * 1.9,
        "output_throughput": speed,
        "median_decode_tokens_per_s": 1000 / tpot,
        "request_goodput": speed / 128 * (1.0 if ttft < 1500 else 0.35),
    }


def benchmark(
    hosts: int = 2, cards: int = 4, repeats: int = 5, slow: float = 1.0, seed: int = 7, levels: tuple = (1, 2, 4, 8, 16, 32, 64)
) -> dict:
    """A sweep over a gateway, then over all replicas at once."""
    draw = random.Random(seed)
    names = ["node{0:02d}-c{1}".format(host, card) for host in range(1, hosts + 1) for card in range(cards)]
    protocol = {
        "model": "qwen3.6-35b-a3b",
        "prompts": {"kind": "synthetic", "count": 64, "sha256": "9a" * 32, "input_tokens": 1024},
        "output_tokens": 128,
        "ignore_eos": True,
        "request": {},
        "load": "closed",
        "levels": list(levels),
        "requests": 64,
        "repeats": repeats,
        "warmup": 8,
        "seed": 1,
        "cache": "cold",
        "together": True,
        "slo": {"ttft_ms": 1500.0, "tpot_ms": 60.0, "e2el_ms": None},
    }
    protocol["id"] = hashlib.sha256(json.dumps(protocol, sort_keys=True).encode()).hexdigest()[:16]
    data = {
        "version": 1,
        "ok": True,
        "protocol": protocol,
        "endpoints": [{"name": "gateway", "url": "http://10.0.0.2:8000", "kind": "gateway", "container": "", "cards": [], "platform": ""}]
        + [{"name": name, "url": "", "kind": "replica", "container": "", "cards": [], "platform": "hygon_k100ai"} for name in names],
        "runs": [],
        "summary": {"levels": [], "saturation": [], "gateway": [], "lines": []},
        "cards": [],
    }
    clock = START
    for who, width, added in (("gateway", len(names), 6.0), ("all replicas", len(names), 0.0)):
        for level in levels:
            kept = {}
            for repeat in range(1, repeats + 1):
                figures = _figures(level, width, added, slow, draw)
                length = 12.0
                index = len(data["runs"])
                row = {
                    "endpoint": who,
                    "tool": "ironserve",
                    "load": "closed",
                    "concurrency": level,
                    "request_rate": None,
                    "repeat": repeat,
                    "started_unix": clock,
                    "duration_s": length,
                    "completed": 64,
                    "failed": 0,
                    "errors": [],
                    "publishable": True,
                    "refused": [],
                    "figures": figures,
                    "client": {"lag_p50_ms": 0.05, "lag_p99_ms": 0.31, "lag_max_ms": 1.2, "limit_ms": 2.0, "cpu_pct": 6.5, "probes": 900},
                    "notes": ["tokens per chunk vary: the engine speculates"] if level == 8 else [],
                    "timeline": [
                        {
                            "at_s": second,
                            "running": min(level, 4 * width) * (1 if 0 < second < 11 else 0.6),
                            "output_tokens_per_s": figures["output_throughput"] * draw.gauss(1, 0.05) * (0.7 if second in (0, 11) else 1),
                            "ttft_ms": figures["median_ttft_ms"] * draw.gauss(1, 0.1),
                            "gap_ms": figures["median_gap_ms"] * draw.gauss(1, 0.04),
                        }
                        for second in range(12)
                    ],
                    "requests": [],
                }
                if who == "all replicas":
                    row["members"] = names
                data["runs"].append(row)
                for name in names:
                    busy = min(1.0, level / (4.0 * width))
                    use = [min(100.0, 34 + 60 * busy + draw.gauss(0, 2)) for _second in range(12)]
                    samples = [[second, use[second], 60800 + 900 * busy, 160 + 190 * busy + draw.gauss(0, 4)] for second in range(12)]
                    data["cards"].append(
                        {"run": index, "endpoint": name, "cards": [], "platform": "hygon_k100ai", "samples": samples, "why": ""}
                    )
                for key, value in figures.items():
                    kept.setdefault(key, []).append(value)
                clock += length + 1.5
            data["summary"]["levels"].append(
                {
                    "endpoint": who,
                    "tool": "ironserve",
                    "load": "closed",
                    "concurrency": level,
                    "request_rate": None,
                    "repeats": repeats,
                    "publishable": True,
                    "figures": {key: _spread(values) for key, values in kept.items()},
                }
            )
        best = data["summary"]["levels"][-2]["figures"]["output_throughput"]["mean"]
        data["summary"]["saturation"].append(
            {
                "endpoint": who,
                "tool": "ironserve",
                "saturated": True,
                "level": 32,
                "output_throughput": best,
                "why": "64 at a time give 0.3 % more",
            }
        )
    data["summary"]["gateway"] = [
        {
            "concurrency": level,
            "request_rate": None,
            "through": "gateway",
            "direct": "all replicas",
            "ttft_added_ms": 6.0 + draw.gauss(0, 0.4),
            "ttft_ratio": 1.02,
            "gap_p99_added_ms": 0.4,
        }
        for level in levels
    ]
    return data
