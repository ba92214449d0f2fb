"""The ``flax-linattn bench`` command."""

from __future__ import annotations

import inspect
import json
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import Any

import jax

from flax_linattn.bench import plots, report
from flax_linattn.bench.comparisons import Comparison, comparisons
from flax_linattn.bench.journal import Journal
from flax_linattn.bench.provenance import provenance
from flax_linattn.bench.ratios import check_factor, falls, ratios
from flax_linattn.bench.timing import Prepared

MEMORY_LIMIT = {"cpu": 4e9}
"""Temporary bytes beyond which a program is compiled and not run, by platform; else 40 GB."""


def run_bench(
    output: Path = Path("runs/bench"),
    only: str = "",
    rounds: int = 7,
    repeats: int = 3,
    seconds: float = 5.0,
    lengths: tuple[int, ...] = (),
    curves: bool = True,
    curve_lengths: tuple[int, ...] = (256, 1024, 4096, 16384),
    against: Path | None = None,
    factor: float = 1.5,
    progress: bool = True,
) -> int:
    """Speed and memory of the mechanisms against named peers, in one process and in turns.

    Each program is compiled, then all of a comparison run in turns. A ratio is a peer's median
    time, or temporary memory, over ours; all are measured several times, and the tables give
    the range. An interrupted run goes on where it stopped.

    Args:
        output: folder of ratios.json, ratios.md, time.png and memory.png.
        only: comparisons whose name contains this.
        rounds: how often each program is timed in a repeat.
        repeats: how often everything is timed.
        seconds: no further round of a comparison begins after so long, once there are three.
        lengths: tokens instead of those of each comparison.
        curves: also measure over many lengths, once, and draw the figures (needs matplotlib).
        curve_lengths: their lengths.
        against: an earlier ratios.json; the exit status is 1 if a ratio fell.
        factor: by how much a ratio may fall; 1.5 is the noise of a shared machine.
        progress: print a line for each comparison on standard error.

    Returns:
        0, or 1 if a ratio fell by more than ``factor``.

    Raises:
        ValueError: no such comparison, a number out of range, ``against`` was measured on
            another platform, or matplotlib is not installed.
        OSError: ``against`` cannot be read.
    """
    chosen = [c for c in comparisons() if only in c.name]
    if not chosen:
        names = ", ".join(repr(c.name) for c in comparisons())
        raise ValueError(f"no comparison's name contains {only!r}; they are: {names}.")
    if rounds < 1 or repeats < 1 or min((*lengths, *curve_lengths), default=1) < 1:
        raise ValueError("rounds, repeats and lengths must be at least 1.")
    check_factor(factor)
    if against is not None and against.resolve() == (output / "ratios.json").resolve():
        raise ValueError(f"{against} would be overwritten; give another folder as --output.")
    stored = None if against is None else read_results(against)
    if stored is not None:
        known = {row["comparison"] for row in _kept(stored)}
        if known.isdisjoint(c.name for c in chosen):
            raise ValueError(f"{against} holds none of {', '.join(repr(c.name) for c in chosen)}.")
    curves = curves and any(c.curve for c in chosen)
    if curves:
        plots.import_figure()  # now, rather than after minutes of measuring

    command = _command(
        only=only,
        rounds=rounds,
        repeats=repeats,
        seconds=seconds,
        lengths=lengths,
        curves=curves,
        curve_lengths=curve_lengths,
    )
    precision = {"matmul_precision": "highest"}
    head = provenance(command) | {"rounds": rounds, "seconds": seconds} | precision
    journal = Journal(output / "ratios.json", head, progress=progress)
    suite = _Suite(journal, rounds, seconds)
    if progress:
        print(f"measuring {', '.join(c.name for c in chosen)}", file=sys.stderr, flush=True)
    # Ours multiplies in full precision; so must the peers, on accelerators too.
    with jax.default_matmul_precision("highest"):
        for repeat in range(repeats):
            for comparison in chosen:
                suite.measure(comparison, lengths or comparison.lengths, repeat)
                if not lengths:
                    suite.compile_only(comparison, repeat)
        if curves:
            for comparison in chosen:
                if comparison.curve:
                    suite.measure(comparison, curve_lengths, 0, curve=True)
    results = journal.finish()
    (output / "ratios.md").write_text(report.page(results) + "\n")
    if curves:
        rows = [row for row in results["rows"] if row.get("curve")]
        plots.save(plots.draw_curves(rows, "milliseconds"), output / "time.png")
        plots.save(plots.draw_curves(rows, "temporary_bytes"), output / "memory.png")
    _show(results)
    print(f"\nall tables and figures: {output}")
    return 0 if stored is None else _gate(results, stored, factor)


def read_results(path: Path) -> dict[str, Any]:
    """An earlier ratios.json.

    Args:
        path: the file.

    Raises:
        ValueError: it is something else, or was measured on another platform.
        OSError: it cannot be read.
    """
    try:
        results = json.loads(path.read_text())
        found, finished = results["platform"], results["finished"]
        ratios(_kept(results))
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{path} is not a ratios.json of 'flax-linattn bench'.") from None
    if not finished:
        raise ValueError(f"{path} is of a run that was interrupted; finish it first.")
    if found != jax.default_backend():
        raise ValueError(
            f"{path} was measured on {found!r} and this is {jax.default_backend()!r}: ratios of "
            "different platforms do not compare. Give a file measured on this platform."
        )
    return results


def _kept(results: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for row in results["rows"] if not row.get("curve")]


class _Suite:
    """Rows of comparisons. What was compiled for one repeat serves the others."""

    def __init__(self, journal: Journal, rounds: int, seconds: float) -> None:
        self._journal, self._rounds, self._seconds = journal, rounds, seconds
        self._limit = _memory_limit()
        self._prepared: dict[tuple[str, int, str], Prepared] = {}

    def measure(
        self, comparison: Comparison, lengths: tuple[int, ...], repeat: int, *, curve: bool = False
    ) -> None:
        for length in lengths:
            for which in comparison.passes:
                key = self._key(comparison, length, which, repeat) | {"curve": curve}
                self._journal.row(key, partial(self._row, comparison, length, which))

    def compile_only(self, comparison: Comparison, repeat: int) -> None:
        for length in sorted({*comparison.compiled} - {*comparison.lengths}):
            for which in comparison.passes:
                key = self._key(comparison, length, which, repeat) | {"curve": False}

                def compiled(length: int = length, which: str = which) -> dict[str, Any]:
                    return {"results": comparison.prepare_ours(length, which).facts}

                self._journal.row(key, compiled)

    @staticmethod
    def _key(comparison: Comparison, length: int, which: str, repeat: int) -> dict[str, Any]:
        return {
            "comparison": comparison.name,
            "length": length,
            "pass": which,
            "repeat": repeat,
        }

    def _row(self, comparison: Comparison, length: int, which: str) -> dict[str, Any]:
        key = (comparison.name, length, which)
        if key not in self._prepared:
            self._prepared[key] = comparison.prepare(length, which, self._limit)
        return comparison.measure(self._prepared[key], length, self._rounds, self._seconds)


def _memory_limit() -> float:
    """Temporary bytes that a program may need: of a GPU's memory a fifth is left for the rest."""
    statistics: Any = jax.devices()[0].memory_stats() or {}
    usual = MEMORY_LIMIT.get(jax.default_backend(), 40e9)
    return float(min(usual, 0.8 * statistics.get("bytes_limit", usual / 0.8)))


def _command(**options: Any) -> str:
    """The command line that measures it again: options that are not the usual ones."""
    usual = inspect.signature(run_bench).parameters
    words = ["flax-linattn bench"]
    for name, value in options.items():
        if value == usual[name].default:
            continue
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            words.append(flag if value else flag.replace("--", "--no-", 1))
        else:
            values = value if isinstance(value, tuple) else (value,)
            words += [flag, *(shlex.quote(str(v)) for v in values)]
    return " ".join(words)


def _show(results: dict[str, Any]) -> None:
    rows = _kept(results)
    bars = report.bars_table(rows) if results["platform"] == "cpu" else ""
    print("\n\n".join(filter(None, [bars, report.ratios_table(ratios(rows))])))


def _gate(results: dict[str, Any], stored: dict[str, Any], factor: float) -> int:
    found = falls(ratios(_kept(results)), ratios(_kept(stored)), factor)
    if not found:
        keys, known = ({r.key for r in ratios(_kept(x))} for x in (results, stored))
        print(f"of {len(keys & known)} ratios none fell by more than {factor:g} times.")
        return 0
    print(f"{len(found)} ratios fell by more than {factor:g} times:", file=sys.stderr)
    print(report.falls_table(found), file=sys.stderr)
    return 1
