"""Figures of the expressive-attention paper: accuracy by epoch, for 16 runs of each attention."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from experiments.measured import Rows
from experiments.statements import Judge
from experiments.synthetic.rules import (
    LEARNED,
    RIGHT,
    SuccessRate,
    about,
    count_learned,
    finished,
    majority,
    near,
)
from experiments.synthetic.runs import Cell, train_cells
from experiments.synthetic.search import Setting, load_setting
from experiments.verdicts import HOLDS, Verdict, opposite, rows_with
from flax_linattn.bench import Journal
from flax_linattn.bench.plots import import_figure
from flax_linattn.bench.report import markdown
from flax_linattn.tasks.synthetic import SyntheticConfig

EXPRESSIVE, DOT_PRODUCT, DEFAULT = "expressive", "softmax:scale=1", "softmax"
"""The paper's two attentions, both with a factor of 1, and ours with the customary K**-0.5."""


STANDARD = "standard"


@dataclasses.dataclass(frozen=True)
class Place:
    """A task, and what is trained on it."""

    rules: str
    base: int
    delay: int
    context: int
    mechanisms: tuple[str, ...] = (EXPRESSIVE, DOT_PRODUCT)
    runs: int = 16
    setting: str = STANDARD
    """The search's standard, or the attention whose best setting it is."""

    def __str__(self) -> str:
        return f"N{self.base}T{self.delay} {self.rules}, context {self.context}"


@dataclasses.dataclass(frozen=True)
class Size:
    """Settings of the training at one scale."""

    places: tuple[Place, ...]
    epochs: int = 2500
    batch: int = 40
    every: int = 50
    """Epochs from one validation to the next."""
    validation: int = 16
    """Series of 100 symbols."""
    test: int = 256
    lower_at: int = 0
    """The epoch after which the learning rate is a tenth."""


def measure(size: Size, journal: Journal) -> None:
    for place in size.places:
        for mechanism in place.mechanisms:
            setting = load_setting(None if place.setting == STANDARD else place.setting)
            key = {**dataclasses.asdict(place), "mechanism": mechanism, **setting._asdict()}
            del key["mechanisms"], key["runs"]  # the results hold all runs
            journal.row(key, partial(train_place, size, place, mechanism, setting))


def train_place(size: Size, place: Place, mechanism: str, setting: Setting) -> dict[str, Any]:
    """All runs of an attention, which differ in their seeds."""
    config = make_config(size, place, mechanism, setting)
    cells = [Cell(setting.learning_rate, setting.momentum, r) for r in range(place.runs)]
    return train_cells(config, cells, place.rules.split("+") if "+" in place.rules else ())


def make_config(size: Size, place: Place, mechanism: str, setting: Setting) -> SyntheticConfig:
    """What the runs of an attention share."""
    return SyntheticConfig.of(
        rules=place.rules,
        base=place.base,
        features=place.base,
        delay=place.delay,
        context=place.context,
        readout=setting.readout,
        projections=setting.projections,
        init_scale=setting.init_scale,
        mechanism=mechanism,
        batch_size=size.batch,
        epochs=size.epochs,
        validate_every=size.every,
        validation_series=size.validation,
        test_series=size.test,
        learning_rate=setting.learning_rate,
        lower_at=size.lower_at,
    )


def find_row(rows: Rows, mechanism: str, context: int, setting: str = STANDARD) -> dict[str, Any]:
    """The runs of an attention at a context.

    Raises:
        NotMeasuredError: there are none.
    """
    wanted = f"{mechanism} at a context of {context}"
    return rows_with(rows, wanted, mechanism=mechanism, context=context, setting=setting)[0]


def accuracies(row: Mapping[str, Any]) -> list[float | None]:
    """Of the tests of a row's runs."""
    return [run["test_accuracy"] for run in row["runs"]]


def success_rate(row: Mapping[str, Any]) -> SuccessRate:
    """How many of a row's runs reached 100 %."""
    return count_learned(accuracies(row))


def median(row: Mapping[str, Any]) -> float:
    """Of the test accuracies; a run that failed untested counts 0."""
    return float(np.median([accuracy or 0.0 for accuracy in accuracies(row)]))


def first_epochs(row: Mapping[str, Any], accuracy: float) -> list[float]:
    """The epoch in which each run first validated so well; infinite where it never did."""
    epochs = row["epochs"]
    return [
        next(
            (e for e, a in zip(epochs, run["accuracies"], strict=True) if (a or 0) >= accuracy),
            np.inf,
        )
        for run in row["runs"]
    ]


def table(rows: Rows, size: Size) -> str:
    """One line per task and attention."""
    lines = []
    for row in rows:
        tested = [a for a in accuracies(row) if a is not None]
        failed = sum(run["failed"] is not None for run in row["runs"])
        first = np.median(first_epochs(row, RIGHT))
        lines.append(
            [
                f"N{row['base']}T{row['delay']} {row['rules']}",
                str(row["context"]),
                f"`{row['mechanism']}`",
                _set(row),
                str(success_rate(row)),
                f"{median(row):.3f}",
                f"{min(tested):.3f} to {max(tested):.3f}" if tested else "-",
                f"{first:,.0f}" if np.isfinite(first) else "never",
                str(failed),
            ]
        )
    header = [
        "task",
        "context",
        "attention",
        "setting",
        "reach 100 % (95 % interval)",
        "accuracy, median",
        "min to max",
        "median epoch of 100 %",
        "NaN",
    ]
    settings = {_set(row): Setting._make(row[name] for name in Setting._fields) for row in rows}
    settings_text = "; ".join(f"{name}: {setting}" for name, setting in settings.items())
    note = (
        f"{size.epochs:,} epochs; tested on {100 * size.test:,} predictions with the parameters "
        "of the best validation accuracy. Settings found by the search (readout, projections, "
        f"scale): {settings_text}. Only `softmax` scales by K**-0.5; the paper's attention does "
        "not."
    )
    return f"{markdown(header, lines)}\n\n{note}"


def plot(rows: Rows) -> Any:
    """Accuracy against epochs by the standard setting.

    The mean of each attention is thick; each run, where attentions are few, thin.
    """
    figure_class = import_figure()
    places = list(dict.fromkeys((row["rules"], row["context"]) for row in rows))
    first = [EXPRESSIVE, DOT_PRODUCT, DEFAULT]
    others = dict.fromkeys(row["mechanism"] for row in rows if row["mechanism"] not in first)
    width = 3.6 * len(places) + (2.6 if others else 0)  # a legend right of the panels
    figure = figure_class(figsize=(width, 3.2), layout="constrained")
    looks = {
        name: (f"C{n % 10}", "-" if n < 10 else "--") for n, name in enumerate([*first, *others])
    }
    axes = figure.subplots(1, len(places), squeeze=False, sharey=True)[0]
    for axis, (rules, context) in zip(axes, places, strict=True):
        for row in rows:
            if (row["rules"], row["context"], row["setting"]) != (rules, context, STANDARD):
                continue
            curves = np.array([run["accuracies"] for run in row["runs"]], float)
            color, line = looks[row["mechanism"]]
            if not others:
                axis.plot(row["epochs"], curves.T, color=color, linewidth=0.4, alpha=0.5)
            mean = np.nanmean(curves, axis=0)
            axis.plot(row["epochs"], mean, line, color=color, lw=1.8, label=row["mechanism"])
        axis.set(xlabel="epoch", title=f"N{row['base']}T{row['delay']} {rules}, context {context}")
        axis.set_ylim(0, 1.02)
    axes[0].set_ylabel("accuracy")
    every = max(axes, key=lambda axis: len(axis.get_legend_handles_labels()[1]))
    if others:
        figure.legend(*every.get_legend_handles_labels(), loc="outside right", frameon=False)
    else:
        every.legend(frameon=False, fontsize=8)
    return figure


def _set(row: Mapping[str, Any]) -> str:
    """The setting's name, for people."""
    return STANDARD if row["setting"] == STANDARD else f"tuned for `{row['setting']}`"


def results_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Text of the numbers that decide."""
    return "; ".join(
        f"{row['mechanism']} {success_rate(row)} reach 100 %, median {median(row):.2f}"
        for row in rows
    )


def judge_learned(mechanism: str, context: int, setting: str = STANDARD) -> Judge:
    """Whether most runs of an attention reach 100 %."""

    def judge(rows: Rows) -> Verdict:
        row = find_row(rows, mechanism, context, setting)
        word = majority(success_rate(row), LEARNED)
        if word != HOLDS:
            word = finished(word, [run["accuracies"] for run in row["runs"]])
        return Verdict(word, results_text([row]))

    return judge


def judge_not_learned(mechanism: str, context: int, setting: str = STANDARD) -> Judge:
    """Whether most runs of an attention do not reach 100 %."""

    def judge(rows: Rows) -> Verdict:
        verdict = judge_learned(mechanism, context, setting)(rows)
        return Verdict(opposite(verdict.word), verdict.ours)

    return judge


def judge_median(mechanism: str, context: int, printed: float) -> Judge:
    """Whether the median run comes to what the paper prints."""

    def judge(rows: Rows) -> Verdict:
        row = find_row(rows, mechanism, context)
        middle = median(row)
        word = (near if printed > 0.98 else about)(middle, printed)
        curves = [run["accuracies"] for run in row["runs"]]
        return Verdict(finished(word, curves), f"median of {len(curves)} runs {middle:.3f}")

    return judge
