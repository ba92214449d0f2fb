"""JapaneseVowels: Aaren and causal softmax, five seeds, three protocols (Aaren, table 4).

    python -m experiments.classification.japanese_vowels

Runs that are done are skipped, an interrupted one goes on. The table is written beside this
file, as results.json and results.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from flax_linattn import tasks
from flax_linattn.bench.provenance import commit

HERE = Path(__file__).parent
COMMAND = "python -m experiments.classification.japanese_vowels"
MECHANISMS = ("aaren", "softmax")
PROTOCOLS: dict[str, dict[str, Any]] = {
    "tslib": {"protocol": "tslib"},
    # Later versions of Time-Series-Library keep the learning rate constant.
    "tslib-constant": {"protocol": "tslib", "schedule": "constant"},
    "honest": {"protocol": "honest"},
}


def run_cell(mechanism: str, protocol: str, seed: int, folder: Path) -> dict[str, Any]:
    """One training run, or its stored result."""
    run_dir = folder / f"{mechanism}-{protocol}-{seed}"
    if not (run_dir / "test.json").exists():
        config = tasks.ClassifyConfig(mechanism=mechanism, seed=seed, **PROTOCOLS[protocol])
        resume = (run_dir / "checkpoints").exists()
        tasks.train_classifier(config, run_dir, resume=resume)
    report = json.loads((run_dir / "test.json").read_text())
    if protocol == "honest" and "stream_max_error" not in report:
        report = {**report, **tasks.evaluate_run(run_dir)}
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


def table(results: dict[str, Any], expected: dict[str, Any]) -> str:
    """The results as a Markdown table with the paper's numbers."""
    rows = [
        "| mechanism | protocol | paper | ours | seeds | streamed = parallel to |",
        "|---|---|---|---|---|---|",
    ]
    for mechanism in MECHANISMS:
        for protocol in PROTOCOLS:
            cell = results["cells"][f"{mechanism}/{protocol}"]
            paper = expected["JapaneseVowels"][mechanism]
            published = (
                "not reported" if protocol == "honest" else f"{paper['mean']} +- {paper['std']}"
            )
            error = f"{cell['stream_max_error']:.1e}" if "stream_max_error" in cell else "-"
            rows.append(
                f"| {mechanism} | {protocol} | {published} | {cell['mean']:.2f} +- "
                f"{cell['std']:.2f} | {len(cell['accuracies'])} | {error} |"
            )
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--runs", type=Path, default=Path("runs/japanese-vowels"))
    parser.add_argument("--output", type=Path, default=HERE)
    options = parser.parse_args()
    expected = json.loads((HERE / "expected.json").read_text())
    cells = {
        f"{mechanism}/{protocol}": summarise(
            [run_cell(mechanism, protocol, seed, options.runs) for seed in range(options.seeds)]
        )
        for mechanism in MECHANISMS
        for protocol in PROTOCOLS
    }
    results = {"command": COMMAND, "commit": commit(), "source": expected["source"], "cells": cells}
    (options.output / "results.json").write_text(json.dumps(results, indent=2) + "\n")
    (options.output / "results.md").write_text(table(results, expected) + "\n")
    print(table(results, expected))


if __name__ == "__main__":
    main()
