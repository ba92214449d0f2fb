"""One row of stored results, computed again next to what is stored."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flax_linattn.bench import Journal
from flax_linattn.bench.report import markdown

TIME = re.compile(r"second|_ms$|^ms$|_us$")
"""In the last name of a value that differs from run to run, or in the one before ``runs``."""

COSTS = ("core_seconds", "cpu_seconds", "seconds")
"""Names of what a row took, the best one first; seconds alone are of the wall clock."""


MIN_COST = 3.0
"""Seconds; what took less is a measured time, or no example."""


class Repeated(Exception):  # noqa: N818 (it ends a computation, and is no error)
    """The row that was asked for is computed; the rest need not be."""

    def __init__(self, row: dict[str, Any]) -> None:
        super().__init__()
        self.row = row


class RepeatJournal(Journal):
    """Computes one row again, and gives what is stored for all others.

    Args:
        path: where they are stored, which is not written.
        rows: all that is stored.
        wanted: the one of them to compute.
    """

    def __init__(self, path: Path, rows: Sequence[dict[str, Any]], wanted: dict[str, Any]) -> None:
        self.path, self.rows = path, []
        self._known, self._wanted = rows, wanted

    def row(self, key: dict[str, Any], measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The stored row of a key.

        Raises:
            Repeated: it is the wanted one, which is computed.
        """
        stored = next((row for row in self._known if key.items() <= row.items()), dict(key))
        if stored is self._wanted:
            raise Repeated(json.loads(json.dumps({**key, **measure()})))
        self.rows.append(stored)
        return stored


def name_parts(row: Mapping[str, Any]) -> list[str]:
    """What a row can be named by: each text and number in it, with its name."""
    return [
        f"{name} {value}" for name, value in row.items() if isinstance(value, (str, int, float))
    ]


def choose(names: Sequence[str], text: str) -> int:
    """The place of the only name that has a text as a part, from comma to comma.

    Raises:
        ValueError: none has, or several have.
    """
    matching = [n for n, name in enumerate(names) if f", {text}, " in f", {name}, "]
    if len(matching) == 1:
        return matching[0]
    listed = "\n".join(f"  {names[n]}"[:120] for n in (matching or range(len(names)))[:8])
    count = f"names {len(matching)} stored rows" if matching else "names no stored row"
    raise ValueError(f"--again {text!r} {count}; name one by a part of its line:\n{listed}")


def shortest_name(names: Sequence[Sequence[str]], place: int) -> str:
    """The first parts of a name that no other one has as well."""
    own = names[place]
    lines = [", ".join(parts) for parts in names]
    for count in range(1, len(own)):
        text = ", ".join(own[:count])
        if sum(f", {text}, " in f", {line}, " for line in lines) == 1:
            return text
    return ", ".join(own)


def usage(command: str, rows: Sequence[Mapping[str, Any]], extras: str) -> str:
    """How to compute the cheapest row again, with what it takes, for a page.

    Args:
        command: of the experiment.
        rows: all that is stored.
        extras: that the experiment needs, separated by commas.
    """
    costs = [next((row[name] for name in COSTS if name in row), None) for row in rows]
    known = [cost for cost in costs if isinstance(cost, (int, float)) and cost >= MIN_COST]
    place = costs.index(min(known)) if known else 0
    name = shortest_name([name_parts(row) for row in rows], place)
    parts = [f"`{command} --again '{name}'` computes one row next to the stored one"]
    if known:
        one, total = (f"{seconds / 60:,.1f}" for seconds in (min(known), sum(known)))
        parts.append(f"this one took {one} minutes of a core, all {len(known)} took {total}")
    return "; ".join([*parts, *([f"extras: `.[{extras}]`"] if extras else [])])


def leaves(values: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every text and number of a row, by its path in it."""
    if isinstance(values, Mapping):
        for key, value in values.items():
            yield from leaves(value, f"{name}.{key}" if name else str(key))
    elif isinstance(values, list):
        for place, value in enumerate(values):
            yield from leaves(value, f"{name}[{place}]")
    else:
        yield name, values


def compare(stored: Mapping[str, Any], again: Mapping[str, Any], max_lines: int = 20) -> str:
    """A table of both rows, values that differ first, and how many are equal.

    Args:
        stored: the row.
        again: the same, computed now.
        max_lines: of the table.
    """
    before, now = dict(leaves(stored)), dict(leaves(again))
    names = [*before, *(name for name in now if name not in before)]
    times = [name for name in names if _is_time(name)]
    alone = [name for name in names if (name in before) != (name in now) and name not in times]
    both = [name for name in names if name not in times and name not in alone]
    differing = [name for name in both if before[name] != now[name]]
    order = [*differing, *alone, *(name for name in both if name not in differing), *times]
    lines = [
        [name, str(before.get(name, "-")), str(now.get(name, "-"))] for name in order[:max_lines]
    ]
    parts = [f"{len(both) - len(differing)} of {len(both)} values are equal"]
    numbers = [name for name in differing
               if all(isinstance(x, (int, float)) for x in (before[name], now[name]))]  # fmt: skip
    if numbers:
        relative = {name: abs(before[name] - now[name]) / (abs(before[name]) or 1.0)
                    for name in numbers}  # fmt: skip
        name = max(numbers, key=relative.__getitem__)
        parts.append(f"the largest relative difference is {relative[name]:.1e} ({name})")
    parts += [f"{len(alone)} values are in one alone"] * bool(alone)
    parts += [f"{len(order) - max_lines} more lines are left out"] * (len(order) > max_lines)
    ending = f"{'; '.join(parts)}. Times ({len(times)}) are not compared. Nothing was stored."
    return f"{markdown(['value', 'stored', 'again'], lines)}\n\n{ending}\n"


def _is_time(name: str) -> bool:
    """Whether a value is a time, by its path; "runs" next to "milliseconds" are times, too."""
    last = name.rsplit(".", 1)[-1]
    in_times = ".milliseconds." in f".{name}." or re.search(r"results\..*\.runs\[", name)
    return bool(in_times or TIME.search(last))
