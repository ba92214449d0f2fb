"""Cost of saving checkpoints and of making batches in a training run.

    python -m experiments.efficiency.overheads

Checkpoints: a classifier of Japanese Vowels, trained in turns without checkpoints and with one
every N steps. A checkpoint blocks training while its arrays are copied. A thread writes it on the
same cores, which may slow the steps. Batches: the same run without checkpoints, with a source that
waits before each batch, as for a disk.
"""

from __future__ import annotations

import dataclasses
import statistics
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import optax
from flax import nnx

from experiments.measured import Measured, Rows
from experiments.options import task_config
from flax_linattn import data, training
from flax_linattn.bench import Journal
from flax_linattn.bench.report import markdown, number
from flax_linattn.tasks.classify import ClassifySpec, ClassifyTask
from flax_linattn.tasks.classify.metrics import make_label_loss

NEVER = 10**9
BATCH_SIZE = 16
Times = dict[str, float]

LOSS = make_label_loss(ClassifyTask.compute_logits)


@dataclasses.dataclass(frozen=True)
class Size:
    """Settings of the measurement at one scale."""

    features: tuple[int, ...] = (128, 256)
    save_every: tuple[int, ...] = (17, 100)
    waits: tuple[float, ...] = (0.5, 1.0, 2.0)
    """How long a batch takes to make, in steps."""
    epochs: int = 14
    rounds: int = 3


def measure(size: Size, journal: Journal) -> None:
    for features in size.features:
        training_run = partial(train, features, size.epochs)
        for every in size.save_every:
            ways = {"without": partial(training_run, NEVER), "with": partial(training_run, every)}
            key = {"what": "checkpoints", "features": features, "every": every}
            journal.row(key, partial(in_turns, ways, size.rounds))
        for wait in size.waits if features == min(size.features) else ():
            key = {"what": "batches", "features": features, "wait": wait}
            journal.row(key, partial(batches, training_run, wait, size.rounds))


def batches(train: Any, wait: float, rounds: int) -> dict[str, Any]:
    """Times with a source that needs ``wait`` steps' time for a batch."""
    seconds = wait * train(NEVER)["step"]
    ways = {"without": partial(train, NEVER), "with": partial(train, NEVER, seconds)}
    return {"wait_seconds": seconds} | in_turns(ways, rounds)


def in_turns(ways: dict[str, Any], rounds: int) -> dict[str, Any]:
    """Every way's times, medians over the rounds."""
    times: dict[str, list[Times]] = {name: [] for name in ways}
    for index in range(rounds):
        for name in list(ways)[:: 1 if index % 2 else -1]:
            times[name].append(ways[name]())
    overheads = [b["step"] / a["step"] - 1 for a, b in zip(*times.values(), strict=True)]
    medians = {
        name: {key: statistics.median(t[key] for t in of_way) for key in of_way[0]}
        for name, of_way in times.items()
    }
    return medians | {"overheads": overheads}


class SlowBatches:
    """Batches that take their time."""

    def __init__(self, source: data.Batches, seconds: float) -> None:
        self._source, self._seconds = source, seconds

    def __len__(self) -> int:
        return len(self._source)

    def batch(self, step: int, rows: slice = slice(None)) -> Mapping[str, Any]:
        time.sleep(self._seconds)
        return self._source.batch(step, rows)


OPTIMIZER = optax.chain(optax.clip_by_global_norm(4.0), optax.radam(1e-3))


def train(features: int, epochs: int, every: int, wait: float = 0.0) -> Times:
    """Seconds of a step after two epochs, and the seconds in which saving delayed it."""
    dataset, _ = data.japanese_vowels()
    standardizer = data.Standardizer.fit(dataset.series)
    values, mask = data.pad(standardizer.apply(dataset.series))
    arrays = {"values": values, "mask": mask, "labels": dataset.labels}
    config = task_config("classify", features=features, hidden_features=2 * features)
    data_spec = ClassifySpec(
        dataset.name, dataset.channels, dataset.classes, values.shape[1:2], standardizer, {}
    )
    model = ClassifyTask().model(config, data_spec)
    source = data.Batches(arrays, BATCH_SIZE, seed=0)
    with tempfile.TemporaryDirectory() as folder:
        result = training.fit(
            model,
            # Of falling losses only the first is the highest: no new best epoch is saved.
            training.Objective(LOSS, OPTIMIZER, mode="max"),
            training.Splits(
                SlowBatches(source, wait) if wait else source,
                data.Batches({k: x[:BATCH_SIZE] for k, x in arrays.items()}, BATCH_SIZE, seed=None),
            ),
            config=training.FitConfig(epochs=epochs, checkpoint_every_steps=every),
            session=training.Session(folder, progress=False, parallel=training.Parallel("none")),
        )
    lines = result.history[2:]  # the first epoch is a best one, whose save counts to the second
    saving = sum(line["saving_seconds"] for line in lines)
    steps = len(source) * len(lines)
    size = sum(x.nbytes for x in jax.tree.leaves(nnx.state(model, nnx.Param)))
    return {
        "step": (sum(line["seconds"] for line in lines) + saving) / steps,
        "saving": saving / steps,
        "megabytes": 3 * size / 1e6,  # parameters and the optimizer's two moments
    }


def table(rows: Rows, size: Size) -> str:
    def spread(overheads: list[float]) -> str:
        low, median, high = min(overheads), statistics.median(overheads), max(overheads)
        return f"{100 * median:.1f} % ({100 * low:.1f} to {100 * high:.1f})"

    heads = ["state, MB", "saved every", "ms per step without", "with", "overhead", "paused"]
    saved = [
        [
            number(row["with"]["megabytes"]),
            f"{row['every']} steps",
            number(1e3 * row["without"]["step"]),
            number(1e3 * row["with"]["step"]),
            spread(row["overheads"]),
            f"{100 * row['with']['saving'] / row['with']['step']:.1f} %",
        ]
        for row in rows
        if row["what"] == "checkpoints"
    ]
    made = [
        [
            number(1e3 * row["wait_seconds"]),
            number(1e3 * row["without"]["step"]),
            number(1e3 * row["with"]["step"]),
            number(1e3 * (row["wait_seconds"] + row["without"]["step"])),
        ]
        for row in rows
        if row["what"] == "batches"
    ]
    batch_heads = ["ms to make a batch", "ms per step without", "with", "sequential"]
    return markdown(heads, saved) + "\n\n" + markdown(batch_heads, made)


EXPERIMENT = Measured(
    module="experiments.efficiency.overheads",
    sizes={"cpu": Size()},
    measure=measure,
    table=table,
    left_out={"cpu": "an accelerator, where saving and computing do not share cores"},
)

if __name__ == "__main__":
    EXPERIMENT.main()
