"""Recomputes one row of stored results and compares it with the stored row."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flax_linattn.bench import Journal
from flax_linattn.bench.report import markdown

TIME = re.compile(r"second|_ms$|^ms$|_us$")
"""Pattern of the names of measured times, which differ between runs."""

COSTS = ("core_seconds", "cpu_seconds", "seconds")
"""Names of the cost of a row, in order of preference; ``seconds`` is wall-clock time."""


MIN_COST = 3.0
"""Minimum cost in seconds of the row that a page recommends."""


MEASURED_COSTS = Path(__file__).with_name("costs.json")


class Repeated(Exception):  # noqa: N818 (it ends a computation, and is no error)
    """The requested row is computed, so the computation ends."""

    def __init__(self, row: dict[str, Any]) -> None:
        super().__init__()
        self.row = row


class RepeatJournal(Journal):
    """A journal that recomputes one row, and returns all others from storage.

    Args:
        path: File of the stored rows, which is not written.
        rows: All stored rows.
        wanted: The row of ``rows`` to recompute.
    """

    def __init__(self, path: Path, rows: Sequence[dict[str, Any]], wanted: dict[str, Any]) -> None:
        self.path, self.rows = path, []
        self._known, self._wanted = rows, wanted

    def row(self, key: dict[str, Any], measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The stored row of a key.

        Raises:
            Repeated: It is the wanted row, which is now computed.
        """
        stored = next((row for row in self._known if key.items() <= row.items()), dict(key))
        if stored is self._wanted:
            raise Repeated(json.loads(json.dumps({**key, **measure()})))
        self.rows.append(stored)
        return stored


def name_parts(row: Mapping[str, Any]) -> list[str]:
    """Parts of the line that names a row: each string or number in it, after its name."""
    return [
        f"{name} {value}" for name, value in row.items() if isinstance(value, (str, int, float))
    ]


def choose(names: Sequence[str], text: str) -> int:
    """Index of the only name that contains a text, from comma to comma.

    Raises:
        ValueError: No row matches, or several do.
    """
    matching = [n for n, name in enumerate(names) if f", {text}, " in f", {name}, "]
    if len(matching) == 1:
        return matching[0]
    listed = "\n".join(f"  {names[n]}"[:120] for n in (matching or range(len(names)))[:8])
    count = f"{len(matching)} stored rows" if matching else "no stored row"
    advice = "Pass a part of exactly one of these lines, from comma to comma:"
    raise ValueError(f"--again {text!r} matches {count}. {advice}\n{listed}")


def shortest_name(names: Sequence[Sequence[str]], place: int) -> str:
    """The shortest beginning of a name that no other name contains."""
    own = names[place]
    lines = [", ".join(parts) for parts in names]
    for count in range(1, len(own)):
        text = ", ".join(own[:count])
        if sum(f", {text}, " in f", {line}, " for line in lines) == 1:
            return text
    return ", ".join(own)


def usage(command: str, rows: Sequence[Mapping[str, Any]], extras: str) -> str:
    """How to recompute the cheapest row, and at what cost, for a page.

    Args:
        command: Command of the experiment.
        rows: All stored rows.
        extras: Extras that the experiment needs, separated by commas.
    """
    known, line = known_costs(rows), command_line(command, rows)
    parts = [f"`{line}` recomputes one stored row and prints both"]
    if known:
        place = min(known, key=known.__getitem__)
        unit = "core minutes" if any(name in rows[place] for name in COSTS[:-1]) else "minutes"
        one, total = (f"{s / 60:,.1f} {unit}" for s in (known[place], sum(known.values())))
        which = f"the {len(known)} rows of {MIN_COST:g} s or more"
        if len(known) == len(rows):
            which = f"all {len(known)} rows"
        others = f", {which} took {total}" if len(known) > 1 else ""
        parts.append(f"this row took {one}{others}")
    elif (seconds := _measured_costs().get(line)) is not None:
        parts.append(f"it takes {seconds / 60:,.1f} core minutes")
    return "; ".join([*parts, *([f"install `.[{extras}]`"] if extras else [])])


def command_line(command: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """The command that recomputes the cheapest row; of unknown costs, the first trained one."""
    known = known_costs(rows)
    trained = (n for n, row in enumerate(rows) if "runs" in row)  # not only baselines
    place = min(known, key=known.__getitem__) if known else next(trained, 0)
    return f"{command} --again '{shortest_name([name_parts(row) for row in rows], place)}'"


def known_costs(rows: Sequence[Mapping[str, Any]]) -> dict[int, float]:
    """The seconds of each row that has a cost above ``MIN_COST``, by its index."""
    costs = [next((row[name] for name in COSTS if name in row), None) for row in rows]
    return {
        n: cost
        for n, cost in enumerate(costs)
        if isinstance(cost, (int, float)) and cost >= MIN_COST
    }


@functools.cache
def _measured_costs() -> dict[str, float]:
    """Core seconds of printed commands, as ``experiments.costs`` measured them."""
    if not MEASURED_COSTS.is_file():
        return {}
    rows = json.loads(MEASURED_COSTS.read_text())["rows"]
    return {row["command"]: row["core_seconds"] for row in rows if "core_seconds" in row}


def leaves(values: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every string and number of a row, with its path in the row."""
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
        stored: The stored row.
        again: The recomputed row.
        max_lines: Maximum number of lines of the table.
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
    parts += [f"{len(alone)} values are in only one of the two rows"] * bool(alone)
    parts += [f"{len(order) - max_lines} more lines are left out"] * (len(order) > max_lines)
    ending = f"{'; '.join(parts)}. Times ({len(times)}) are not compared. Nothing was stored."
    return f"{markdown(['value', 'stored', 'again'], lines)}\n\n{ending}\n"


def _is_time(name: str) -> bool:
    """Whether a value is a time or a ratio of times, by its path.

    ``runs`` next to ``milliseconds`` are times, and ``quartiles`` are of ratios of times.
    """
    is_run = re.search(r"results\..*\.runs\[", name)
    parts = re.sub(r"\[\d+\]", "", name).split(".")
    return bool(is_run) or "quartiles" in parts or any(map(TIME.search, parts))
