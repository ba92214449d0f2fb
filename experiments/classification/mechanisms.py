"""JapaneseVowels: every mechanism, causal and not, under one protocol and one budget.

    python -m experiments.classification.mechanisms

The honest protocol (selected on held-out training data) and the sizes of
Time-Series-Library's scripts; nothing is tuned for any mechanism. Runs that are done are skipped,
an interrupted one goes on. The table is written beside this file, as mechanisms.json and
mechanisms.md.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
from pathlib import Path
from typing import Any

from flax_linattn import ops, tasks
from flax_linattn.bench.provenance import commit

HERE = Path(__file__).parent
COMMAND = "python -m experiments.classification.mechanisms"
SPECS = [
    spec
    for name in ops.list_mechanisms()
    for spec in (
        ["elementwise_series:order=2", "elementwise_series:order=6"]
        if name == "elementwise_series"
        else [name]
    )
]


def directions(spec: str) -> list[bool]:
    """The values of ``causal`` that a mechanism offers."""
    can = ops.get_mechanism(spec).capabilities
    return [True] * can.causal + [False] * can.noncausal


def run_cell(spec: str, causal: bool, seed: int, folder: Path, epochs: int) -> dict[str, Any]:
    """One training run, or its stored result."""
    name = re.sub(r"[^\w.]+", "-", spec)
    run_dir = folder / f"{name}-{'causal' if causal else 'noncausal'}-{seed}"
    if not (run_dir / "test.json").exists():
        config = tasks.ClassifyConfig(mechanism=spec, causal=causal, seed=seed, epochs=epochs)
        resume = any((run_dir / "checkpoints").glob("step_*"))
        tasks.train_classifier(config, run_dir, resume=resume, progress=False)
    report = json.loads((run_dir / "test.json").read_text())
    if "checked" not in report:
        report |= {**tasks.evaluate_run(run_dir), "checked": True}
        (run_dir / "test.json").write_text(json.dumps(report, indent=2) + "\n")
    return report


def summarise(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean and spread of one cell of the table."""
    accuracies = [100 * report["test_accuracy"] for report in reports]
    errors = [report["stream_max_error"] for report in reports if "stream_max_error" in report]
    return {
        "accuracies": accuracies,
        "mean": statistics.mean(accuracies),
        "std": statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0,
        "best_epochs": [report["best_epoch"] for report in reports],
        **({"stream_max_error": max(errors)} if errors else {}),
    }


def table(cells: dict[str, Any]) -> str:
    """The results as a Markdown table."""
    rows = [
        "| mechanism | causal | not causal | seeds | streamed = parallel to |",
        "|---|---|---|---|---|",
    ]

    def shown(spec: str, direction: str) -> str:
        cell = cells.get(f"{spec}/{direction}")
        return "not offered" if cell is None else f"{cell['mean']:.2f} +- {cell['std']:.2f}"

    for spec in SPECS:
        causal = cells.get(f"{spec}/causal", {})
        seeds = len(cells.get(f"{spec}/noncausal", causal)["accuracies"])
        error = f"{causal['stream_max_error']:.1e}" if "stream_max_error" in causal else "-"
        rows.append(
            f"| {spec} | {shown(spec, 'causal')} | {shown(spec, 'noncausal')} | {seeds} | {error} |"
        )
    return "\n".join(rows)


def main() -> None:
    """Runs what is missing and writes the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--runs", type=Path, default=Path("runs/mechanisms"))
    parser.add_argument("--output", type=Path, default=HERE)
    options = parser.parse_args()
    reports: dict[str, list[dict[str, Any]]] = {}
    for seed in range(options.seeds):
        for spec in SPECS:
            for causal in directions(spec):
                key = f"{spec}/{'causal' if causal else 'noncausal'}"
                report = run_cell(spec, causal, seed, options.runs, options.epochs)
                reports.setdefault(key, []).append(report)
                print(f"{key} seed {seed}: {100 * report['test_accuracy']:.2f} %", flush=True)
    cells = {key: summarise(of_key) for key, of_key in reports.items()}
    results = {"command": COMMAND, "commit": commit(), "epochs": options.epochs, "cells": cells}
    (options.output / "mechanisms.json").write_text(json.dumps(results, indent=2) + "\n")
    (options.output / "mechanisms.md").write_text(table(cells) + "\n")
    print(table(cells))


if __name__ == "__main__":
    main()
