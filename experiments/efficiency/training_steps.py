"""Tables of the training steps of whole models; see ``trials``."""

from __future__ import annotations

import functools
from functools import partial
from typing import Any

from experiments.efficiency.pytorch import import_torch
from experiments.efficiency.trials import TRANSFORMER, LearningTask, Size, Trial
from experiments.measured import Rows
from flax_linattn.bench import Journal
from flax_linattn.bench.report import markdown, number

EPOCH = 1000
"""Sequences of what the table calls an epoch."""


def measure(learned: LearningTask, size: Size, journal: Journal) -> None:
    """A row for every model and length."""
    torch = import_torch()
    for length, batch_size in size.lengths:
        trial = Trial(learned, size, length, batch_size)
        # At once, since models of a length run in turns; not at all if the journal has their rows.
        results = functools.cache(trial.results)

        def result(name: str, results: Any = results) -> dict[str, Any]:
            return {"torch": torch.__version__} | results()[name]

        for name in trial.models():
            key = {"length": length, "batch_size": batch_size, "model": name}
            journal.row(key, partial(result, name))


def table(rows: Rows, size: Size) -> str:
    """Every model's costs, and how it stands to PyTorch's transformer."""
    heads = ["T", "batch", "model", "parameters", "ms per step", "min to max", "repeat"]
    heads += [f"s an epoch of {EPOCH:,}", "speedup over PyTorch's transformer"]
    heads += ["compile, s", "memory, MB"]
    peers = {row["length"]: row["milliseconds"] for row in rows if row["model"] == TRANSFORMER}
    lines = []
    for row in rows:
        cells = [f"{row['length']:,}", str(row["batch_size"]), row["model"]]
        cells.append(f"{row['parameters']:,}")
        if "milliseconds" not in row:
            cells += [f"not run: {row['not_run']}", *[""] * 4]
        else:
            ms = row["milliseconds"]
            cells += [
                number(ms["median"]),
                f"{number(ms['min'])} to {number(ms['max'])}",
                number(row["again"]["median"]) if "again" in row else "",
                number(ms["median"] / 1e3 * EPOCH / row["batch_size"]),
                number(peers[row["length"]]["median"] / ms["median"]),
            ]
        cells += [
            number(row["compile_seconds"]) if "compile_seconds" in row else "",
            number(row["temporary_bytes"] / 1e6) if "temporary_bytes" in row else "",
        ]
        lines.append(cells)
    return f"{markdown(heads, lines)}\n\nPyTorch {rows[0]['torch']}."
