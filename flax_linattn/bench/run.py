"""Measures a suite of comparisons and reports ratios."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax

from flax_linattn.bench import plots, report
from flax_linattn.bench.comparison import Comparison, comparisons, gated_comparisons
from flax_linattn.bench.journal import Journal
from flax_linattn.bench.options import BenchOptions
from flax_linattn.bench.origin import provenance
from flax_linattn.bench.ratio import Rows, find_regressions, ratios
from flax_linattn.checks import OptionError, format_count

MEMORY_LIMIT = {"cpu": 4e9}
"""Maximum temporary bytes of a program that is run, by platform; else 40 GB."""


def run_bench(
    *,
    suite: Sequence[Comparison] | None = None,
    summary: Callable[[Rows], str] = lambda rows: "",
    command: str = "run_bench",
    **options: Any,
) -> int:
    """Measures speed and memory of the mechanisms against peers, in one process and in turns.

    Each program is compiled, then all programs of a comparison run in turns. A ratio is the median
    time, or temporary memory, of a peer over that of ours. An interrupted run is continued.

    Args:
        suite: Comparisons; default ``comparisons()`` and ``gated_comparisons()``.
        summary: Function of the rows of the results that returns a further table for the page.
        command: Command line that repeats the measurement, for the page.
        **options: Fields of ``BenchOptions``.

    Returns:
        0, or 1 if a ratio fell by more than ``factor``.

    Raises:
        ValueError: If no comparison is selected, a number is out of range, ``against`` was measured
            on another platform, or Matplotlib is not installed.
        OSError: If ``against`` cannot be read.
    """
    how = BenchOptions(**options)
    how.check()
    suite = (*comparisons(), *gated_comparisons()) if suite is None else suite
    chosen = [comparison for comparison in suite if how.only in comparison.name]
    if not chosen:
        names = ", ".join(repr(comparison.name) for comparison in suite)
        message = f"no name of a comparison contains {how.only!r}; available: {names}."
        raise OptionError(message, "only")
    stored = None if how.against is None else read_results(how.against)
    if stored is not None:
        stored_names = {row["comparison"] for row in _ratio_rows(stored)}
        if stored_names.isdisjoint(c.name for c in chosen):
            names = ", ".join(repr(c.name) for c in chosen)
            raise OptionError(
                f"{how.against} has no results of {names}; select others, or pass another file.",
                "against",
                "only",
            )
    curves = how.curves and any(c.curve for c in chosen)
    if curves:
        plots.import_figure()  # before minutes of measurements

    settings = {"rounds": how.rounds, "seconds": how.seconds, "matmul_precision": "highest"}
    journal = Journal(how.results, provenance(command) | settings, progress=how.progress)
    if how.progress:
        print(f"measuring {', '.join(c.name for c in chosen)}", file=sys.stderr, flush=True)
    results = _measure(chosen, how, curves, journal)
    write_page(how.output, summary)
    rows = _ratio_rows(results)
    tables = (summary(rows), report.ratios_table(ratios(rows)))
    print("\n\n".join(filter(None, tables)))
    print(f"\ntables and figures are in {how.output}")
    return 0 if stored is None else _gate(results, stored, how.factor)


def _measure(
    chosen: Sequence[Comparison], how: BenchOptions, curves: bool, journal: Journal
) -> dict[str, Any]:
    limit, prepared = memory_limit(), {}

    def measured(comparison: Comparison, length: int, which: str) -> dict[str, Any]:
        key = (comparison.name, length, which)
        if key not in prepared:  # for all repeats
            prepared[key] = comparison.prepare(length, which, limit)
        return comparison.measure(prepared[key], length, how.rounds, how.seconds)

    def compiled(comparison: Comparison, length: int, which: str) -> dict[str, Any]:
        return {"results": dataclasses.replace(comparison, peers={}).prepare(length, which).facts}

    def add(
        measure: Callable[[Comparison, int, str], dict[str, Any]],
        comparison: Comparison,
        lengths: Iterable[int],
        repeat: int,
        curve: bool = False,
    ) -> None:
        for length in lengths:
            for which in comparison.passes:
                key = {"comparison": comparison.name, "length": length, "pass": which}
                key |= {"repeat": repeat, "curve": curve}
                journal.row(key, partial(measure, comparison, length, which))

    # Our mechanisms multiply in full precision, so the peers do too, also on accelerators.
    with jax.default_matmul_precision("highest"):
        for repeat in range(how.repeats):
            for comparison in chosen:
                add(measured, comparison, how.lengths or comparison.lengths, repeat)
                if not how.lengths:
                    others = sorted({*comparison.compiled} - {*comparison.lengths})
                    add(compiled, comparison, others, repeat)
        if curves:
            for comparison in chosen:
                if comparison.curve:
                    add(measured, comparison, how.curve_lengths, 0, curve=True)
    return journal.finish()


def write_page(folder: Path, summary: Callable[[Rows], str] = lambda rows: "") -> str:
    """Writes the page and the figures of a folder's ratios.json; returns the page."""
    results = json.loads((folder / "ratios.json").read_text())
    page = report.page(results, summary(_ratio_rows(results))) + "\n"
    (folder / "ratios.md").write_text(page)
    if curves := [row for row in results["rows"] if row.get("curve")]:
        plots.save(plots.plot_curves(curves, "milliseconds"), folder / "time.png")
        plots.save(plots.plot_curves(curves, "temporary_bytes"), folder / "memory.png")
    return page


def read_results(path: Path) -> dict[str, Any]:
    """Reads an earlier ``ratios.json`` of this platform.

    Raises:
        ValueError: If the file has no results, is unfinished, or was measured on another platform.
        OSError: If the file cannot be read.
    """
    try:
        results = json.loads(path.read_text())
        platform, finished = results["platform"], results["finished"]
        ratios(_ratio_rows(results))
    except (ValueError, KeyError, TypeError):
        raise OptionError(
            f"expected a ratios.json of flax-linattn bench, got {path}.", "against"
        ) from None
    if not finished:
        message = f"{path} is unfinished, because its run was interrupted; finish it first."
        raise OptionError(message, "against")
    if platform != jax.default_backend():
        raise OptionError(
            f"{path} was measured on {platform!r}, but this platform is {jax.default_backend()!r}; "
            "pass a file measured on this platform.",
            "against",
        )
    return results


def _ratio_rows(results: dict[str, Any]) -> Rows:
    """Rows of results for ratios, without the rows of curves."""
    return [row for row in results["rows"] if not row.get("curve")]


def memory_limit() -> float:
    """Maximum temporary bytes of a program: at most 80 % of a GPU's memory."""
    statistics: Any = jax.devices()[0].memory_stats() or {}
    usual = MEMORY_LIMIT.get(jax.default_backend(), 40e9)
    return float(min(usual, 0.8 * statistics.get("bytes_limit", usual / 0.8)))


def _gate(results: dict[str, Any], stored: dict[str, Any], factor: float) -> int:
    now, before = ratios(_ratio_rows(results)), ratios(_ratio_rows(stored))
    regressions = find_regressions(now, before, factor)
    if not regressions:
        shared = {ratio.key for ratio in now} & {ratio.key for ratio in before}
        print(f"none of {len(shared)} ratios fell by more than a factor of {factor:g}.")
        return 0
    fell = format_count(len(regressions), "ratio")
    print(f"{fell} fell by more than a factor of {factor:g}:", file=sys.stderr)
    print(report.regressions_table(regressions), file=sys.stderr)
    return 1
