"""Rewrites the page of every experiment from its stored results.

python -m experiments.report
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
from collections.abc import Iterator

import experiments
from experiments import claims, findings, stale
from experiments.efficiency import ratios
from experiments.experiment import Experiment
from experiments.forecasting import streaming
from experiments.tables import Table


def all_experiments() -> Iterator[Experiment]:
    """The ``EXPERIMENT`` of each module that has one."""
    for module in pkgutil.walk_packages(experiments.__path__, "experiments."):
        experiment = getattr(importlib.import_module(module.name), "EXPERIMENT", None)
        if experiment is not None:
            yield experiment


def tables() -> list[Table]:
    """All tables of trained runs."""
    return [experiment for experiment in all_experiments() if isinstance(experiment, Table)]


def main() -> None:
    """Writes what has stored results, and says what has none."""
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    stale.update()
    stale.render()
    for experiment in all_experiments():
        for scale in experiment.sizes:
            stored = experiment.stored(scale)
            if not stored.is_file():
                print(f"not run: {experiment.command(scale)}")
                continue
            if isinstance(experiment, Table):
                experiment.store(scale).keep_defaults()
            experiment.render(scale, experiment.folder)
            print(stored.with_suffix(".md"))
    claims.render(all_experiments())
    findings.render(tables())
    ratios.render()
    streaming.render()


if __name__ == "__main__":
    main()
