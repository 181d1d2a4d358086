# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Say who used which model how much, from the gateway's access log on standard input: usage.py [--json].

    journalctl -u ironserve-gateway -o cat --since today | python3 usage.py

One line for each key and model: requests, those that failed (status 400 and above), those that were refused before any replica got
them, answers that began well and were cut before their end, those that the client did not wait for, bytes answered, the median time
to the first byte and to the last in seconds. Lines that are no requests are passed over, and counted when they look like damaged ones.
Exit status: 0, 1 when there was no request, 2 for wrong arguments.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable

COUNTS = ("requests", "failed", "refused", "cut", "left", "bytes")
HEAD = ("key", "model", *COUNTS, "first byte s", "all s")
NEEDED = ("key", "model", "status", "server", "first_byte_ms", "total_ms", "bytes")


def median(values: list[float]) -> float | None:
    """Return the middle of some values, None for none."""
    if not values:
        return None
    values = sorted(values)
    middle = len(values) // 2
    return values[middle] if len(values) % 2 else (values[middle - 1] + values[middle]) / 2


def record(line: str) -> dict[str, object] | None:
    """Return the request that a line tells of, None for other lines. Raises ValueError for one that is damaged."""
    start = line.find('{"time":')
    if start < 0:
        return None
    found = json.loads(line[start:])
    if any(name not in found for name in NEEDED):
        raise ValueError("a field is missing")
    return found


def usage(lines: Iterable[str]) -> tuple[list[dict[str, object]], int]:
    """Return one element for each key and model, the most requests first, and the number of damaged lines."""
    groups: dict[tuple[str, str], dict[str, object]] = {}
    damaged = 0
    for line in lines:
        try:
            found = record(line)
            if found is None:
                continue
            numbers = [float(found[name]) for name in ("status", "first_byte_ms", "total_ms", "bytes")]
            if not all(math.isfinite(number) for number in numbers):
                raise ValueError("a number has no end")
        except (ValueError, TypeError, OverflowError, RecursionError):
            damaged += 1
            continue
        name = (str(found["key"]), str(found["model"]))
        group = groups.setdefault(name, {**dict.fromkeys(COUNTS, 0), "first": [], "all": []})
        group["requests"] += 1
        group["failed"] += numbers[0] >= 400 or numbers[0] < 0
        group["refused"] += found["server"] == "<NOSRV>" and numbers[0] >= 400
        # How a request ended, by HAProxy: "-" well, "C" and "c" by the client, any other letter not as it should. By nginx: "OK", or nothing,
        # whoever ended it.
        end = str(found.get("end", "-"))[:1]
        group["left"] += numbers[0] < 400 and end in ("C", "c")
        group["cut"] += numbers[0] < 400 and end not in ("-", "O", "C", "c")
        group["bytes"] += int(numbers[3])
        # -1 is a time that never came.
        if numbers[1] >= 0:
            group["first"].append(numbers[1] / 1000)
        if numbers[2] >= 0:
            group["all"].append(numbers[2] / 1000)
    rows = []
    for name in sorted(groups, key=lambda item: (-groups[item]["requests"], item)):
        group = groups[name]
        row = {"key": name[0], "model": name[1]}
        row.update((field, group[field]) for field in COUNTS)
        row.update(first_byte_s=median(group["first"]), all_s=median(group["all"]))
        rows.append(row)
    return rows, damaged


def table(rows: list[dict[str, object]]) -> str:
    """Return the rows as text in columns."""
    cells = [HEAD]
    for row in rows:
        times = ["-" if row[name] is None else "{0:.2f}".format(row[name]) for name in ("first_byte_s", "all_s")]
        cells.append(tuple([str(row[name]) for name in ("key", "model", *COUNTS)] + times))
    widths = [max(len(line[place]) for line in cells) for place in range(len(HEAD))]
    # Names to the left, figures to the right.
    shown = []
    for line in cells:
        words = [cell.ljust(width) if place < 2 else cell.rjust(width) for place, (cell, width) in enumerate(zip(line, widths))]
        shown.append("  ".join(words).rstrip())
    return "\n".join(shown) + "\n"


def main(arguments: list[str]) -> int:
    """Read, sum up, print; return the exit status."""
    if arguments not in ([], ["--json"]):
        sys.stderr.write("usage: usage.py [--json] < access log\n")
        return 2
    # What the encoding of this terminal does not know must not cost the whole report.
    for stream in (sys.stdin, sys.stdout):
        stream.reconfigure(errors="replace")
    rows, damaged = usage(sys.stdin)
    sys.stdout.write(json.dumps(rows, indent=1) + "\n" if arguments else table(rows))
    if damaged:
        sys.stderr.write("{0} lines could not be read and were left out\n".format(damaged))
    if not rows:
        sys.stderr.write("no request in the log; is gateway_access_log true?\n")
    return 0 if rows else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
