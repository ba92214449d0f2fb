"""Measurements as Markdown tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from flax_linattn.bench.ratio import Ratio, Regression, Rows, ratios


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table of column heads and rows of cells.

    Example:
        >>> print(markdown(["T", "ms"], [["128", "0.5"]]))
        | T | ms |
        |---|---|
        | 128 | 0.5 |
    """
    lines = [heads, *rows]
    text = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([text[0], "|" + "---|" * len(heads), *text[1:]])


def number(value: float) -> str:
    """A number with three significant digits and separated thousands.

    Example:
        >>> number(1234567), number(12.345), number(0.01234)
        ('1,234,567', '12.3', '0.0123')
    """
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def interval(values: Sequence[float]) -> str:
    """A median, with minimum and maximum where there are several values.

    Example:
        >>> interval([2.0, 3.0, 2.5]), interval([4.0]), interval([])
        ('2.5 (2 - 3)', '4', '-')
    """
    if not values:
        return "-"
    low, middle, high = map(number, (min(values), statistics.median(values), max(values)))
    return middle if low == high else f"{middle} ({low} - {high})"


def ratios_table(ratios: Iterable[Ratio]) -> str:
    """Markdown table with a line for each ratio."""
    heads = ["ours", "T", "pass", "peer", "times faster", "times less memory"]
    lines = (
        [
            ratio.comparison,
            f"{ratio.length:,}",
            ratio.which,
            ratio.peer,
            interval(ratio.time) if ratio.time else "not run",
            number(ratio.memory),
        ]
        for ratio in ratios
    )
    return markdown(heads, lines)


def times_table(rows: Rows) -> str:
    """Markdown table of programs: times, memory and compile time."""
    heads = ["comparison", "T", "pass", "program", "ms, median (min - max)", "tokens/s"]
    heads += ["temporary MB", "compile time, s"]
    groups: dict[tuple[str, int, str, str], list[dict[str, Any]]] = {}
    for row in rows:
        for name, result in row["results"].items():
            key = (row["comparison"], row["length"], row["pass"], name)
            groups.setdefault(key, []).append(result)
    lines = []
    for (comparison, length, which, name), results in groups.items():
        times = [r["milliseconds"] for r in results if "milliseconds" in r]
        if times:
            median = statistics.median(t["median"] for t in times)
            low, high = min(t["min"] for t in times), max(t["max"] for t in times)
            time = f"{number(median)} ({number(low)} - {number(high)})"
            speed = number(1e3 * length / median)
        else:
            time, speed = results[0].get("not_run", "compiled only"), "-"
        size, seconds = "-", "-"
        if "temporary_bytes" in results[0]:
            size = number(results[0]["temporary_bytes"] / 1e6)
            seconds = interval([r["compile_seconds"] for r in results])
        lines.append([comparison, f"{length:,}", which, name, time, speed, size, seconds])
    return markdown(heads, lines)


def regressions_table(regressions: Iterable[Regression]) -> str:
    """Markdown table of the ratios that fell."""
    heads = ["ours", "T", "pass", "peer", "ratio of", "stored", "now"]
    lines = []
    for (name, length, which, peer), quantity, before, now in regressions:
        line = [name, f"{length:,}", which, peer, quantity, number(before), number(now)]
        lines.append(line)
    return markdown(heads, lines)


def source_line(head: dict[str, Any]) -> str:
    """One sentence on the command, commit, machine and versions of a head by ``provenance``."""
    cores = f", {head['cores']} cores" if head["platform"] == "cpu" else ""
    at = f", commit {head['commit']}" if head["commit"] else f", version {head['version']}"
    return (
        f"`{head['command']}`{at}, {head['date']}: {head['device']}{cores}, jax {head['jax']}, "
        f"Python {head['python']}."
    )


def page(results: dict[str, Any], summary: str = "") -> str:
    """The page of a ``ratios.json``: its source, a summary, and the tables."""
    rows = [row for row in results["rows"] if not row.get("curve")]
    tables = [summary, ratios_table(ratios(rows)), times_table(results["rows"])]
    return "\n\n".join([source_line(results), *filter(None, tables)])
