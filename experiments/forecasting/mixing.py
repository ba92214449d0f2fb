"""The patch forecaster with cross-channel attention, against independent channels.

    FLAX_LINATTN_DATA=FOLDER python -m experiments.forecasting.mixing

Windows, steps and rates are as in ``experiments.forecasting.patch``, and so is the size, which
it chose on the validation rows of ETTh1 for independent channels.
"""

from __future__ import annotations

import dataclasses
import statistics
from functools import partial

from experiments.forecasting import patch
from experiments.intervals import interval, mean_text, over_sets, text
from experiments.measured import Measured, Rows
from experiments.rules import ONE_SOURCE, below, source
from experiments.statements import Judge, Statement
from experiments.verdicts import NotMeasuredError, Rule, Verdict
from flax_linattn.bench import Journal
from flax_linattn.bench.report import markdown

MIXING = "softmax"
STATED = "2026-11-25T17:55:00+00:00"
"""Before any model of mixed channels was trained on these series."""
BETTER = Rule(
    "Cross-channel attention is better on a series if the 95 % confidence interval of the "
    "difference of mean squared errors, in percent of that of independent channels, by Student's "
    "t over seeds, lies below 0, and not if it lies above; likewise over all series, with one "
    "mean over seeds per series.",
    STATED,
)


@dataclasses.dataclass(frozen=True)
class Size:
    """Settings of the training at one scale."""

    series: tuple[str, ...] = patch.SERIES
    seeds: int = 3
    steps: int = 1000
    horizon: int = 96


def measure(size: Size, journal: Journal) -> None:
    options = patch.chosen_options()
    of_patch = patch.Size(seeds=size.seeds, steps=size.steps, peers=False)
    for seed in range(size.seeds):
        for series in size.series:
            for mixing in ("", MIXING):
                key = {"series": series, "horizon": size.horizon, "model": patch.OURS}
                key |= {"seed": seed, "mixing": mixing}
                run = partial(patch.train_model, options={**options, "channel_mechanism": mixing})
                patch.write_row(journal, key, of_patch, run)


def errors(rows: Rows, series: str, mixing: str) -> dict[int, float]:
    """The mean squared errors on a series by seed."""
    return {
        row["seed"]: row["mse"]
        for row in rows
        if (row["series"], row["mixing"]) == (series, mixing) and "mse" in row
    }


def compare(rows: Rows, series: str) -> list[float]:
    """How much larger the error of mixed channels is, in percent, by seed."""
    alone, mixed = (errors(rows, series, mixing) for mixing in ("", MIXING))
    return [100 * (mixed[seed] / alone[seed] - 1) for seed in sorted(alone.keys() & mixed.keys())]


def better_on(series: str) -> Judge:
    """The verdict on one series."""

    def judge(rows: Rows) -> Verdict:
        own = compare(rows, series)
        if not own:
            raise NotMeasuredError(series)
        gap = interval(own)
        gap_text = text(gap, 1) if gap else f"{statistics.mean(own):+.1f}"
        return Verdict(below(gap, 0, BETTER), f"{gap_text} %")

    return judge


def better(rows: Rows) -> Verdict:
    """The verdict on mixed channels over all series."""
    by_series = {series: compare(rows, series) for series in {row["series"] for row in rows}}
    gap = over_sets(by_series, source)
    word = below(gap, 0, BETTER, over="series").under(ONE_SOURCE)
    return Verdict(word, f"{text(gap, 1)} %")


def table(rows: Rows, size: Size) -> str:
    """Errors by series, and costs of both models."""
    lines = []
    for series in size.series:
        cells = [mean_text([*errors(rows, series, mixing).values()], 3) for mixing in ("", MIXING)]
        if set(cells) != {"-"}:
            lines.append([series, *cells])
    costs = [
        [_own(rows, mixing, name) for mixing in ("", MIXING)] for name in ("parameters", "seconds")
    ]
    lines.append(["parameters", *(f"{value:,}" for value in costs[0])])
    lines.append(["training, s", *(f"{value}" for value in costs[1])])
    return markdown(["mean squared error", "independent", f"cross-channel {MIXING}"], lines)


def _own(rows: Rows, mixing: str, name: str) -> int:
    values = [row[name] for row in rows if row["mixing"] == mixing and name in row]
    return round(statistics.median(values))


EXPERIMENT = Measured(
    module="experiments.forecasting.mixing",
    needs_data=True,
    about="not of a paper: the patch forecaster with cross-channel attention",
    sizes={"": Size()},
    measure=measure,
    table=table,
    statements=(
        Statement("ours", "cross-channel attention forecasts better", better),
        *(
            Statement(
                "ours", f"cross-channel attention forecasts better on {series}", better_on(series)
            )
            for series in patch.SERIES
        ),
    ),
    left_out={
        "": "horizons of more than 96 rows, other mechanisms than softmax, sizes tuned for "
        "cross-channel attention, and more than 12 of the 207 sensors"
    },
)

if __name__ == "__main__":
    EXPERIMENT.main()
