"""TaylorShift, table 8: three convolutions instead of the linear layer that embeds tokens.

FLAX_LINATTN_DATA=FOLDER python -m experiments.sequences.table8
"""

from __future__ import annotations

import dataclasses
import statistics
from functools import partial

from experiments.experiment import data_folder
from experiments.intervals import interval, mean_text, paired_differences, text
from experiments.measured import Measured, Rows
from experiments.sequences import runs
from experiments.sequences.data_sets import DATA_SETS, make_config
from experiments.sequences.rules import ahead
from experiments.statements import Judge, Statement
from experiments.verdicts import NotMeasuredError, Verdict
from flax_linattn.bench import Journal
from flax_linattn.bench.report import markdown

EMBEDDINGS = ("linear", "conv")


@dataclasses.dataclass(frozen=True)
class Size:
    """Settings of the training at one scale."""

    mechanisms: tuple[str, ...] = ("taylorshift",)
    seeds: int = 3


def measure(size: Size, journal: Journal) -> None:
    for seed in range(size.seeds):
        for mechanism in size.mechanisms:
            for name, data_set in DATA_SETS.items():
                for embedding in EMBEDDINGS:
                    option = "patches" if data_set.task == "image" else "embedding"
                    config = make_config(
                        name,
                        data_folder(),
                        mechanism=mechanism,
                        seed=seed,
                        **{option: embedding},
                    )
                    if config is None:
                        continue
                    key = {"data": name, "mechanism": mechanism, "embedding": embedding}
                    journal.row(
                        {**key, "seed": seed}, partial(runs.train_and_test, data_set.task, config)
                    )


def accuracies(rows: Rows, data: str, mechanism: str, embedding: str) -> dict[int, float]:
    """Accuracies in percent, by seed.

    Raises:
        NotMeasuredError: nothing of it was trained.
    """
    what = f"{mechanism} on {data} with {embedding}"
    wanted = {"data": data, "mechanism": mechanism, "embedding": embedding}
    return runs.accuracies(rows, what, **wanted)


def gains(rows: Rows, data: str, mechanism: str) -> list[float]:
    """Of the convolutions, by seed."""
    linear, conv = (accuracies(rows, data, mechanism, name) for name in EMBEDDINGS)
    return paired_differences(conv, linear)


def judge_gain(data: str, mechanism: str) -> Judge:
    """The verdict on one data set."""

    def judge(rows: Rows) -> Verdict:
        difference = interval(gains(rows, data, mechanism))
        conv, linear = DATA_SETS[data].paper_conv
        paper = f" (paper {conv - linear:+.1f})" if mechanism == "taylorshift" else ""
        word = ahead(difference, conv - linear if paper else None)
        return Verdict(word, f"{text(difference, 1)} points{paper}")

    return judge


def table(rows: Rows, size: Size) -> str:
    """One line per data set and mechanism."""
    header = ["data", "mechanism", "paper: linear", "conv", "ours: linear", "conv", "gain"]
    lines = []
    for data, data_set in DATA_SETS.items():
        for mechanism in size.mechanisms:
            try:
                values = [list(accuracies(rows, data, mechanism, e).values()) for e in EMBEDDINGS]
                mean = statistics.mean(gains(rows, data, mechanism))
            except (NotMeasuredError, statistics.StatisticsError):
                continue
            of_paper = mechanism == "taylorshift"
            printed = [f"{number:.1f}" for number in data_set.paper_conv[::-1]]
            lines.append(
                [data, f"`{mechanism}`", *(printed if of_paper else ["-", "-"]),
                 *(mean_text(each, 1) for each in values), f"{mean:+.1f}"]
            )  # fmt: skip
    sizes = "\n".join(f"- {data}: {data_set.sizes}" for data, data_set in DATA_SETS.items())
    return f"Accuracy, percent:\n\n{markdown(header, lines)}\n\n{sizes}"


EXPERIMENT = Measured(
    module="experiments.sequences.table8",
    needs_data=True,
    extras="plots,images",
    about="TaylorShift, table 8: accuracy with a linear and with a convolutional embedding",
    sizes={"": Size()},
    smaller_scales=("",),
    measure=measure,
    table=table,
    statements=tuple(
        Statement(
            "TaylorShift, table 8",
            f"convolutions gain accuracy on {data}",
            judge_gain(data, "taylorshift"),
        )
        for data in DATA_SETS
    ),
    left_out={
        "": "the paper's sizes, and ImageNet at size S, which take a GPU; the code's encoder of "
        "images with convolutions leaves out the output's scale, which ours keeps"
    },
)

if __name__ == "__main__":
    EXPERIMENT.main()
