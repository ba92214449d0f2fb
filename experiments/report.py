"""Writes the page of every table anew from its stored runs.

python -m experiments.report
"""

from __future__ import annotations

import argparse
import importlib

from experiments.forecasting import streaming
from experiments.store import Store
from experiments.tables import Table

MODULES = (
    "experiments.classification.aaren",
    "experiments.classification.elementwise",
    "experiments.classification.mechanisms",
    "experiments.forecasting.aaren",
    "experiments.forecasting.elementwise",
)


def tables() -> list[Table]:
    """All tables of trained runs."""
    return [importlib.import_module(module).TABLE for module in MODULES]


def main() -> None:
    """Writes what has stored runs, and says what has none."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.parse_args()
    for table in tables():
        for size in table.sizes:
            stored = table.path.parent / f"{table.path.name}-{size}.json"
            if not stored.is_file():
                print(f"{table.module}, size {size}: not run")
                continue
            page = stored.with_suffix(".md")
            table.write(Store(stored, table.options(size)), size, page)
            print(page)
    print(streaming.write(streaming.RESULT))


if __name__ == "__main__":
    main()
