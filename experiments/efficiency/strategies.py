"""Training on several devices: differences between results, and communication between devices.

    python -m experiments.efficiency.strategies

The classifier of Japanese Vowels without dropout, trained with each strategy and number of devices,
compared with one device. Communication is the bytes that the collective operations of the compiled
training step leave on each device, and memory the bytes that the step needs there. On a CPU the
devices are simulated: they share the same cores, so their times say nothing.
"""

from __future__ import annotations

import dataclasses
import functools
import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import nnx

from experiments.efficiency.overheads import OPTIMIZER
from experiments.measured import Measured, Rows
from experiments.options import task_config
from flax_linattn import data, training
from flax_linattn.bench import Journal, communication_bytes
from flax_linattn.bench.report import markdown, number
from flax_linattn.tasks.classify import ClassifySpec, ClassifyTask
from flax_linattn.tasks.classify.metrics import make_label_loss
from flax_linattn.training.state import TrainState, split_model
from flax_linattn.training.step import make_train_step
from flax_linattn.training.validation import metric_names

LOSS = make_label_loss(ClassifyTask.compute_logits)


@dataclasses.dataclass(frozen=True)
class Size:
    """Settings of the measurement at one scale."""

    mechanisms: tuple[str, ...] = ("aaren", "elementwise_series:order=6", "softmax")
    devices: tuple[int, ...] = (2, 4, 8)
    epochs: int = 3
    batch_size: int = 16


def strategies(devices: int) -> dict[str, training.Parallel]:
    """By name, what to compare with one device."""
    return {
        "jit": training.Parallel("jit", {"data": devices}),
        "jit, sharded parameters": training.Parallel(
            "jit", {"data": devices}, shard_parameters=True
        ),
        "jit, split sequences": training.Parallel("jit", {"seq": devices}),
        "jit, two parts a batch": training.Parallel("jit", {"data": devices}, accumulate=2),
        "pmap": training.Parallel("pmap", {"data": devices}),
    }


def measure(size: Size, journal: Journal) -> None:
    data_spec, batches = read(size)
    for mechanism in size.mechanisms:
        one = partial(train, size, data_spec, batches, mechanism)
        reference = functools.cache(partial(one, training.Parallel("none")))
        for devices in (1, *size.devices):
            ways = strategies(devices) if devices > 1 else {"none": training.Parallel("none")}
            for name, parallel in ways.items():
                if "split" in name and mechanism == "softmax":  # it is refused
                    continue
                key = {"mechanism": mechanism, "strategy": name, "devices": devices}
                outcome = reference if name == "none" else partial(one, parallel)
                journal.row(key, partial(compare, outcome, reference))


def compare(train: Callable[[], Outcome], reference: Callable[[], Outcome]) -> dict[str, Any]:
    """Largest differences between two runs, and facts of the first one's training step."""
    ours, one_device = train(), reference()
    scale = np.max(np.abs(one_device.parameters))
    return {
        **ours.facts,
        "curve_error": float(np.max(np.abs(ours.curve / one_device.curve - 1))),
        "parameter_error": float(np.max(np.abs(ours.parameters - one_device.parameters)) / scale),
    }


class Outcome(NamedTuple):
    """What a run came to: its losses and accuracies, its parameters, and facts of its step."""

    curve: np.ndarray
    parameters: np.ndarray
    facts: dict[str, Any]


def read(size: Size) -> tuple[ClassifySpec, tuple[data.Batches, data.Batches]]:
    """Japanese Vowels: what the model has to know, and batches whose time eight devices share."""
    train, test = data.japanese_vowels()
    standardizer = data.Standardizer.fit(train.series)
    data_spec = ClassifySpec(train.name, train.channels, train.classes, (32,), standardizer, {})

    def batches(dataset: data.TimeSeriesDataset, seed: int | None) -> data.Batches:
        values, mask = data.pad(standardizer.apply(dataset.series), data_spec.max_length)
        arrays = {"values": values, "mask": mask, "labels": dataset.labels}
        return data.Batches(arrays, size.batch_size, seed=seed)

    return data_spec, (batches(train, 0), batches(test, None))


def train(
    size: Size,
    data_spec: ClassifySpec,
    batches: tuple[data.Batches, data.Batches],
    mechanism: str,
    parallel: training.Parallel,
) -> Outcome:
    """Trains a model from the same first parameters."""
    config = task_config("classify", mechanism=mechanism, dropout_rate=0.0)
    placement = parallel.place(size.batch_size)
    model = ClassifyTask().model(config, data_spec, placement)
    facts = step_facts(model, batches[0].batch(0), placement)
    with tempfile.TemporaryDirectory() as folder:
        result = training.fit(
            model,
            training.Objective(LOSS, OPTIMIZER),
            training.Splits(*batches),
            config=training.FitConfig(epochs=size.epochs),
            session=training.Session(folder, progress=False, parallel=parallel),
        )
    names = ("train_loss", "validation_loss", "validation_accuracy")
    curve = np.asarray([[line[name] for name in names] for line in result.history])
    params = [np.ravel(x) for x in jax.tree.leaves(nnx.state(model, nnx.Param))]
    return Outcome(curve, np.concatenate(params), facts)


def step_facts(
    model: nnx.Module, batch: dict[str, np.ndarray], placement: training.Placement
) -> dict[str, Any]:
    """Memory and communication of the compiled training step."""
    graphdef, params, rest = split_model(model)
    names = metric_names(model, LOSS, batch)
    state = placement.state(TrainState.create(params, rest, OPTIMIZER, names))
    step: Any = make_train_step(graphdef, LOSS, OPTIMIZER, 0, placement)
    rows = len(batch["labels"])
    compiled = step.func.lower(*step.args, state, placement.batch(batch, rows)).compile()
    memory = compiled.memory_analysis()
    parts = placement.accumulate  # a loop, whose communication counts once
    return {
        "communication_bytes": {
            kind: parts * size for kind, size in communication_bytes(compiled).items()
        },
        "temporary_bytes": memory.temp_size_in_bytes,
        "argument_bytes": memory.argument_size_in_bytes,
    }


def table(rows: Rows, size: Size) -> str:
    heads = ["mechanism", "strategy", "devices", "difference of losses and accuracies"]
    heads += ["difference of parameters", "kB received per device and step"]
    heads += ["arguments, kB per device", "temporary kB per device"]
    lines = [
        [
            row["mechanism"],
            row["strategy"],
            str(row["devices"]),
            f"{row['curve_error']:.1e}" if row["devices"] > 1 else "-",
            f"{row['parameter_error']:.1e}" if row["devices"] > 1 else "-",
            number(sum(row["communication_bytes"].values()) / 1e3),
            number(row["argument_bytes"] / 1e3),
            number(row["temporary_bytes"] / 1e3),
        ]
        for row in rows
    ]
    return markdown(heads, lines)


EXPERIMENT = Measured(
    module="experiments.efficiency.strategies",
    about="none of the papers trains on several devices",
    sizes={"cpu": Size()},
    measure=measure,
    table=table,
    left_out={"cpu": "times: the eight devices are simulated on the same cores"},
)

if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)
    EXPERIMENT.main()
