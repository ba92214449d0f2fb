"""Measurements as Markdown tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from flax_linattn.bench.ratios import Bar, Fall, Ratio, Rows, ratios


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table.

    Args:
        heads: of the columns.
        rows: their cells.

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
    """Three significant digits, thousands apart.

    Example:
        >>> number(1234567), number(12.345), number(0.01234)
        ('1,234,567', '12.3', '0.0123')
    """
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def interval(values: Sequence[float]) -> str:
    """A median, with the least and the most where there are several values.

    Example:
        >>> interval([2.0, 3.0, 2.5]), interval([4.0]), interval([])
        ('2.5 (2 - 3)', '4', '-')
    """
    if not values:
        return "-"
    low, middle, high = map(number, (min(values), statistics.median(values), max(values)))
    return middle if low == high else f"{middle} ({low} - {high})"


def bars_table(rows: Rows, bars: Iterable[Bar]) -> str:
    """The bars of which something was measured: required, measured, met or missed.

    Args:
        rows: of ratios.json.
        bars: what is demanded.

    Returns:
        Markdown; nothing if none was measured.
    """
    heads = ["ours", "T", "pass", "what", "required", "measured", ""]
    lines = []
    for bar in bars:
        if not any(r["comparison"] == bar.comparison and r["length"] in bar.lengths for r in rows):
            continue
        values = bar.measured(rows)
        what = {
            "time": f"times faster than {' and '.join(bar.peers)}",
            "memory": f"times less temporary memory than {' and '.join(bar.peers)}",
            "temporary_bytes": "temporary memory, MB",
            "compile_seconds": "compile time, s",
        }[bar.quantity]
        verdict = "met" if values and bar.met(values) else "**missed**"
        verdict = verdict if values else "not run"
        scale = 1e-6 if bar.quantity == "temporary_bytes" else 1
        span = f"{bar.lengths[0]:,}"
        if len(bar.lengths) > 1:
            span, what = f"{span} to {bar.lengths[-1]:,}", f"{what}, at the worst T"
        lines.append(
            [
                bar.comparison,
                span,
                bar.which,
                what,
                f"{'>=' if bar.at_least else '<='} {number(scale * bar.limit)}",
                interval([scale * value for value in values]),
                verdict,
            ]
        )
    return markdown(heads, lines) if lines else ""


def ratios_table(ratios: Iterable[Ratio]) -> str:
    """A line for each ratio."""
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
    """A line for each program: what ratios are made of."""
    heads = ["comparison", "T", "pass", "program", "ms, median (least - most)", "tokens/s"]
    heads += ["temporary MB", "compiling, s"]
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
            least, most = min(t["least"] for t in times), max(t["most"] for t in times)
            time = f"{number(median)} ({number(least)} - {number(most)})"
            speed = number(1e3 * length / median)
        else:
            time, speed = results[0].get("not_run", "compiled only"), "-"
        lines.append(
            [
                comparison,
                f"{length:,}",
                which,
                name,
                time,
                speed,
                *_compiled(results),
            ]
        )
    return markdown(heads, lines)


def _compiled(results: list[dict[str, Any]]) -> tuple[str, str]:
    if "temporary_bytes" not in results[0]:
        return "-", "-"
    seconds = interval([r["compile_seconds"] for r in results])
    return number(results[0]["temporary_bytes"] / 1e6), seconds


def falls_table(falls: Iterable[Fall]) -> str:
    """A line for each ratio that fell."""
    heads = ["ours", "T", "pass", "peer", "ratio of", "stored", "now"]
    return markdown(
        heads,
        (
            [
                *(fall.key[0], f"{fall.key[1]:,}", *fall.key[2:], fall.quantity),
                *(number(fall.before), number(fall.now)),
            ]
            for fall in falls
        ),
    )


def source_line(head: dict[str, Any]) -> str:
    """One sentence on where results came from.

    Args:
        head: of ``provenance``.
    """
    cores = f", {head['cores']} cores" if head["platform"] == "cpu" else ""
    at = f", commit {head['commit']}" if head["commit"] else f", version {head['version']}"
    return (
        f"`{head['command']}`{at}, {head['date']}: {head['device']}{cores}, jax {head['jax']}, "
        f"Python {head['python']}."
    )


def page(results: dict[str, Any], bars: Iterable[Bar] = ()) -> str:
    """All tables, for people.

    Args:
        results: what ratios.json holds.
        bars: what is demanded.
    """
    rows = [row for row in results["rows"] if not row.get("curve")]
    tables = [
        bars_table(rows, bars),
        ratios_table(ratios(rows)),
        times_table(results["rows"]),
    ]
    return "\n\n".join([source_line(results), *filter(None, tables)])
