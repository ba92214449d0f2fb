"""Encodings of the time step, and episodes beyond the trained length.

    FLAX_LINATTN_DATA=FOLDER python -m experiments.offline_rl.positions

The published code adds a learned embedding of the time step in the episode, from a table of 4,096
rows. This experiment adds two encodings: sinusoids of the time since the start of the context,
which is at most 20 in training, and no time at all. None of the implemented papers measures this.
"""

from __future__ import annotations

import dataclasses
import statistics
from functools import partial
from typing import Any

from experiments.measured import Measured, Rows
from experiments.offline_rl import table1
from experiments.offline_rl.runs import train_and_play
from experiments.statements import Statement
from experiments.verdicts import Verdict, rows_with
from flax_linattn.bench import Journal
from flax_linattn.bench.report import markdown
from flax_linattn.tasks.offline_rl.agent import INFERENCE_MODES

WAYS: dict[str, dict[str, str]] = {
    "table of the episode": {"position": "learned", "clock": "episode"},
    "waves of the context": {"position": "sinusoidal", "clock": "context"},
    "none": {"position": "none", "clock": "episode"},
}
"""Options by what they do."""


@dataclasses.dataclass(frozen=True)
class Size:
    """What is trained and played, all else as in table 1."""

    data: tuple[str, ...] = ("HalfCheetah medium", "Hopper medium", "Walker2d medium")
    mechanisms: tuple[str, ...] = ("aaren",)
    seeds: int = 1


def measure(size: Size, journal: Journal) -> None:
    for data in size.data:
        for mechanism in size.mechanisms:
            for way, options in WAYS.items():
                for seed in range(size.seeds):
                    config = table1.configuration(
                        data, table1.Size(), mechanism=mechanism, seed=seed, **options
                    )
                    if config is not None:
                        key = {"data": data, "mechanism": mechanism, "time": way, "seed": seed}
                        journal.row(key, partial(train_and_play, config))


def scores(rows: Rows, data: str, mechanism: str, way: str, mode: str) -> list[float]:
    """Scores of the runs, by seed.

    Raises:
        NotMeasuredError: it was not trained.
    """
    wanted = f"{mechanism} on {data} with {way}"
    matching = rows_with(rows, wanted, data=data, mechanism=mechanism, time=way)
    return [row[mode]["score"] for row in matching]


def streams(mechanism: str, way: str) -> Any:
    """The verdict on a stream against the window, with one way to encode the time."""

    def judge(rows: Rows) -> Verdict:
        differences = {
            data: [
                a - b
                for a, b in zip(
                    *(scores(rows, data, mechanism, way, mode) for mode in ("stream", "window")),
                    strict=True,
                )
            ]
            for data in table1.data_sets(rows)
        }
        return table1.same_score(differences)

    return judge


def table(rows: Rows, size: Size) -> str:
    """Scores, a line for each data set, mechanism and way to encode the time."""
    lines = []
    for data in table1.data_sets(rows):
        for mechanism in size.mechanisms:
            for way in WAYS:
                means = [
                    f"{statistics.mean(scores(rows, data, mechanism, way, mode)):.1f}"
                    for mode in INFERENCE_MODES
                ]
                lines.append([data, f"`{mechanism}`", way, *means])
    note = (
        "D4RL's normalized score over 10 episodes of up to 1,000 steps; training windows have "
        "20. Not D4RL: see table 1. Sinusoidal positions within the context grow without bound "
        "in a stream, far beyond training, and restart in a window and at a restart."
    )
    return markdown(["data", "attention", "time", *INFERENCE_MODES], lines) + f"\n\n{note}"


EXPERIMENT = Measured(
    module="experiments.offline_rl.positions",
    needs_data=True,
    extras="plots,rl",
    sizes={"": Size()},
    measure=measure,
    table=table,
    statements=tuple(
        Statement(
            "ours",
            f"with {mechanism} and time encoding = {way}, a stream of all steps scores the same "
            "as the window",
            streams(mechanism, way),
        )
        for mechanism in Size().mechanisms
        for way in WAYS
    ),
    left_out={
        "": "softmax attention and EA-series, Ant, the other kinds of data and further seeds, "
        "for lack of time"
    },
)


if __name__ == "__main__":
    EXPERIMENT.main()
