"""The hyperparameters that the expressive-attention paper's text has lost, searched for.

    python -m experiments.symbols.search

Learning rate, momentum, readout and context lengths of its section "Experimental settings" are not
known here. The search is the same for both attentions and shown whole: every cell of the grid, two
seeds each, trained on N16T2 for as many epochs as the paper's longest run. The paper has one
standard setting for all tasks, so each attention gets one: the readout with the better mean over
the contexts that have both, then the rate and the momentum with the best mean over all contexts
(validation accuracies; a run that became infinite counts 0; of equal cells the first).
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from experiments.measured import Measured, Rows
from experiments.symbols.trained import Cell, train_cells
from flax_linattn.bench import Journal
from flax_linattn.bench.report import markdown
from flax_linattn.tasks.symbols import SymbolsConfig

MECHANISMS = ("expressive", "softmax:scale=1")
"""The paper's two attentions; it sets the factor of both to 1."""


@dataclasses.dataclass(frozen=True)
class Size:
    """What is searched.

    Contexts: the cycles of N16T2 are 56 symbols long at most, so that a context of 64 has every
    symbol to be guessed a cycle before, one of 32 that half a cycle before, and 16 neither.
    """

    base: int = 16
    delay: int = 2
    places: tuple[tuple[int, str], ...] = (
        (16, "flatten"),
        (16, "last"),
        (32, "flatten"),
        (32, "last"),
        (64, "flatten"),
    )
    """Context and readout."""
    learning_rates: tuple[float, ...] = (0.002, 0.005, 0.01, 0.02)
    momenta: tuple[float, ...] = (0.5, 0.9)
    seeds: int = 2
    batch: int = 40
    """The paper's numbers of sequences and epochs give about 42."""
    epochs: int = 2500
    every: int = 50
    """Epochs from one validation to the next."""
    validation: int = 4
    """Series of 100 symbols to validate on."""
    test: int = 64


def config_of(
    size: Size, mechanism: str, context: int, readout: str, **options: Any
) -> SymbolsConfig:
    """What the runs of a cell share."""
    return SymbolsConfig.of(
        base=size.base,
        features=size.base,
        delay=size.delay,
        context=context,
        readout=readout,
        mechanism=mechanism,
        batch_size=size.batch,
        epochs=size.epochs,
        validate_every=size.every,
        validation_series=size.validation,
        test_series=size.test,
        **options,
    )


def measure(size: Size, journal: Journal) -> None:
    cells = list(
        map(Cell._make, itertools.product(size.learning_rates, size.momenta, range(size.seeds)))
    )
    for context, readout in size.places:
        for mechanism in MECHANISMS:
            key = {"context": context, "readout": readout, "mechanism": mechanism}
            config = config_of(size, mechanism, context, readout)
            journal.row(key, partial(train_cells, config, cells))


def score(run: Mapping[str, Any]) -> float:
    """What a run counts in the search."""
    return 0.0 if run["failed"] is not None else run["validation_accuracy"]


def of_cell(row: Mapping[str, Any], rate: float, momentum: float) -> list[dict[str, Any]]:
    """The runs of a cell of the grid."""
    return [r for r in row["runs"] if (r["learning_rate"], r["momentum"]) == (rate, momentum)]


def standard(rows: Rows, size: Size, mechanism: str) -> dict[str, Any]:
    """Readout, learning rate and momentum of an attention, by the rule of the module.

    Raises:
        ValueError: the search is not finished.
    """
    own = {(r["context"], r["readout"]): r for r in rows if r["mechanism"] == mechanism}
    if missing := [place for place in size.places if place not in own]:
        raise ValueError(f"the search has no rows of {mechanism} yet at {missing}.")
    grid = list(itertools.product(size.learning_rates, size.momenta))
    readouts = list(dict.fromkeys(readout for _, readout in size.places))
    contexts = dict.fromkeys(context for context, _ in size.places)
    shared = [c for c in contexts if all((c, readout) in own for readout in readouts)]

    def mean(contexts: Sequence[int], readout: str, cell: tuple[float, float]) -> float:
        return float(
            np.mean([score(run) for c in contexts for run in of_cell(own[c, readout], *cell)])
        )

    def best_mean(readout: str) -> float:
        return max(mean(shared, readout, cell) for cell in grid)

    readout = max(readouts, key=best_mean)
    every = [context for context, name in size.places if name == readout]
    rate, momentum = max(grid, key=lambda cell: mean(every, readout, cell))
    return {"readout": readout, "learning_rate": rate, "momentum": momentum}


def stored_standard(mechanism: str) -> dict[str, Any]:
    """That of the stored search; a mechanism that was not searched has expressive attention's."""
    rows = json.loads(EXPERIMENT.stored("").read_text())["rows"]
    searched = mechanism if mechanism in MECHANISMS else MECHANISMS[0]
    return standard(rows, EXPERIMENT.sizes[""], searched)


def table(rows: Rows, size: Size) -> str:
    """Every cell of the grid."""
    grid = list(itertools.product(size.learning_rates, size.momenta))
    lines = []
    for row in rows:
        cells = []
        for cell in grid:
            runs = of_cell(row, *cell)
            failed = sum(run["failed"] is not None for run in runs)
            mean = float(np.mean([run["validation_accuracy"] or 0 for run in runs]))
            cells.append(f"{mean:.3f}" + (f" ({failed} NaN)" if failed else ""))
        lines.append([str(row["context"]), row["readout"], row["mechanism"], *cells])
    header = ["context", "readout", "attention"]
    header += [f"rate {rate:g}, momentum {momentum:g}" for rate, momentum in grid]
    parts = [markdown(header, lines)]
    for mechanism in MECHANISMS:
        found = ", ".join(f"{k} {v}" for k, v in standard(rows, size, mechanism).items())
        parts.append(f"The standard setting of `{mechanism}`: {found.replace('_', ' ')}.")
    parts.append(
        "Means of the best validation accuracies of the seeds; (n NaN): so many of them became "
        "infinite, and stand with what they had reached."
    )
    return "\n\n".join(parts)


EXPERIMENT = Measured(
    module="experiments.symbols.search",
    about='expressive attention, "Experimental settings": hyperparameters',
    sizes={"": Size()},
    measure=measure,
    table=table,
    left_out={
        "": "batches of other sizes, more seeds, Adam, rates that fall, and a context of 64 read "
        "from its last symbol, for want of time"
    },
)


if __name__ == "__main__":
    EXPERIMENT.main()
