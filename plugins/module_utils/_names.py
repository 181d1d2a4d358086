# Copyright: ironserve.llm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Names of many hosts, short. Pure; private to the collection."""

from __future__ import annotations

import re


def fold(names: list[str]) -> str:
    """Host names as a person writes many: ``node[01-06,08-64]``, ``k100-01``, ``10.0.0.[5-7]``; the others behind a comma."""
    families: dict[tuple[str, str, int], list[tuple[int, str]]] = {}
    order = []
    split = {}
    for name in names:
        # The number that counts is the last one of the first label; an IP address has no labels.
        label = name if re.match(r"^[\d.]+$", name) else name.split(".")[0]
        match = re.match(r"^(.*?)(\d+)(\D*)$", label)
        split[name] = (match.group(1), match.group(3) + name[len(label) :], match.group(2)) if match else (name, "", "")
    padded = {(head, tail, len(number)) for head, tail, number in split.values() if number.startswith("0") and len(number) > 1}
    for name in names:
        head, tail, number = split[name]
        key = (head, tail, len(number) if (head, tail, len(number)) in padded else 0)
        if key not in families:
            order.append(key)
        families.setdefault(key, []).append((int(number) if number else -1, number))
    parts = []
    for key in order:
        head, tail, _width = key
        numbers = sorted(set(families[key]))
        if len(numbers) == 1:
            parts.append("{0}{1}{2}".format(head, numbers[0][1], tail))
            continue
        runs: list[list[tuple[int, str]]] = []
        for item in numbers:
            if runs and item[0] == runs[-1][-1][0] + 1:
                runs[-1].append(item)
            else:
                runs.append([item])
        ranges = ["{0}-{1}".format(run[0][1], run[-1][1]) if len(run) > 1 else run[0][1] for run in runs]
        parts.append("{0}[{1}]{2}".format(head, ",".join(ranges), tail))
    return ", ".join(parts)
