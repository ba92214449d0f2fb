"""Effect of the context length on the patch forecaster and the ridge.

    FLAX_LINATTN_DATA=FOLDER python -m experiments.forecasting.contexts

Forecasts from 96 rows come from ``experiments.forecasting.patch``. Its steps, learning rates and
size, which it chose on the validation rows of ETTh1 from 96 rows, are used for all contexts. The
forecast rows are the same.
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
from functools import partial
from typing import Any

from experiments.forecasting import patch
from experiments.intervals import mean_text, over_sets, text
from experiments.measured import Measured, Rows
from experiments.rules import ONE_SOURCE, below, source
from experiments.statements import Judge, Statement
from experiments.verdicts import NotMeasuredError, Rule, Verdict
from flax_linattn.bench import Journal
from flax_linattn.bench.report import markdown

CONTEXTS = (336, 512)
MODELS = ("ridge", patch.OURS)
STATED = "2026-11-25T18:35:00+00:00"
"""Before a model was trained from more than 96 rows of these series, but for the ridge on the
traffic, 96 rows ahead."""
BETTER = Rule(
    "A longer context is better if the 95 % confidence interval of the difference of mean "
    "squared errors, in percent of those with 96 rows, lies below 0, and not if it lies above: "
    "one mean over seeds per series, by Student's t over series.",
    STATED,
)


@dataclasses.dataclass(frozen=True)
class Size:
    """What is trained: the ridge on all series and horizons, ours on some."""

    series: tuple[str, ...] = patch.SERIES
    horizons: tuple[int, ...] = (96, 336)
    contexts: tuple[int, ...] = CONTEXTS
    trained_on: tuple[str, ...] = ("ETTh1", "Exchange", "ETTh2", "ETTm2")
    seeds: int = 1
    steps: int = 1000


def measure(size: Size, journal: Journal) -> None:
    of_patch = patch.Size(steps=size.steps, peers=False)
    for series in size.series:
        for horizon in size.horizons:
            for context in size.contexts:
                key = {"series": series, "horizon": horizon, "context": context}
                patch.write_row(
                    journal, {**key, "model": patch.SIMPLE}, of_patch, patch.evaluate_simple
                )
    train = partial(patch.train_model, options=patch.chosen_options())
    for seed in range(size.seeds):
        for series in size.trained_on:
            for context in size.contexts:
                key = {"series": series, "horizon": size.horizons[0], "context": context}
                key |= {"model": patch.OURS, "seed": seed}
                patch.write_row(journal, key, of_patch, train)


@functools.cache
def from_96_rows() -> list[dict[str, Any]]:
    """The rows of the patch forecaster's table."""
    return [{**row, "context": patch.LENGTH} for row in patch.stored_rows()]


def errors(rows: Rows, model: str, context: int) -> patch.Errors:
    """By series, horizon and seed; nothing where nothing was measured."""
    own = from_96_rows() if context == patch.LENGTH else rows
    try:
        return patch.errors([row for row in own if row["context"] == context], model)
    except NotMeasuredError:
        return {}


def compare(rows: Rows, model: str, context: int, horizon: int) -> dict[str, list[float]]:
    """How much larger errors from a longer context are, in percent, by series: of each seed."""
    longer, base = (errors(rows, model, length) for length in (context, patch.LENGTH))
    by_series = {}
    for series, cells in longer.items():
        of_each, before = cells.get(horizon, {}), base.get(series, {}).get(horizon, {})
        own = [100 * (of_each[seed] / before[seed] - 1) for seed in of_each if seed in before]
        if own:
            by_series[series] = own
    return by_series


def better(model: str, context: int, horizon: int) -> Judge:
    """The verdict on a context, against one of 96 rows."""

    def judge(rows: Rows) -> Verdict:
        by_series = compare(rows, model, context, horizon)
        if not by_series:
            raise NotMeasuredError(f"{model} from {context} rows, {horizon} ahead")
        over = over_sets(by_series, source)
        each = ", ".join(f"{name} {statistics.mean(own):+.1f}" for name, own in by_series.items())
        word = below(over, 0, BETTER, over="series").under(ONE_SOURCE)
        return Verdict(word, f"{text(over, 1)} %: {each}")

    return judge


def table(rows: Rows, size: Size) -> str:
    """Errors by series and horizon, from each context."""
    contexts = (patch.LENGTH, *size.contexts)
    titles = [f"{_named(model)}, {context}" for model in MODELS for context in contexts]
    lines = []
    for series in size.series:
        for horizon in size.horizons:
            cells = [
                mean_text(
                    [*errors(rows, model, context).get(series, {}).get(horizon, {}).values()], 3
                )
                for model in MODELS
                for context in contexts
            ]
            if set(cells) != {"-"}:
                lines.append([f"{series}, {horizon}", *cells])
    return markdown(["mean squared error", *titles], lines) + "\n\n" + _costs(rows, size)


def _costs(rows: Rows, size: Size) -> str:
    own = [row for row in rows if row["model"] == patch.OURS]
    lines = []
    for context in size.contexts:
        at_context = [row for row in own if row["context"] == context]
        if at_context:
            costs = [at_context[0][name] for name in ("parameters", "state_bytes")]
            lines.append([f"{context}", *(f"{value:,}" for value in costs)])
    return markdown(["context length of ours", "parameters", "state, bytes"], lines)


def _named(model: str) -> str:
    return f"`{model}`" if model == patch.OURS else model


EXPERIMENT = Measured(
    module="experiments.forecasting.contexts",
    needs_data=True,
    about="not of a paper: the patch forecaster and the ridge from longer windows",
    sizes={"": Size()},
    measure=measure,
    table=table,
    statements=tuple(
        Statement(
            "ours",
            f"from {context} rows the errors {'of the ridge' if model == 'ridge' else 'of ours'} "
            f"{horizon} rows ahead are below those from 96",
            better(model, context, horizon),
        )
        for model, horizons in (("ridge", (96, 336)), (patch.OURS, (96,)))
        for horizon in horizons
        for context in CONTEXTS
    ),
    left_out={
        "": "PatchTST and DLinear from longer contexts; ours on other series, 336 rows ahead and "
        "with further seeds than 0. Missing numbers are for lack of time or rows"
    },
)

if __name__ == "__main__":
    EXPERIMENT.main()
