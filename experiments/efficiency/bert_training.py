"""End-to-end training of a model with the shape of BERT-base: tokens per second and peak memory.

    python -m experiments.efficiency.bert_training

A whole training step: loss, gradients and AdamW, with bfloat16 computation and float32 parameters
on an accelerator. All mechanisms process the same number of tokens per step if these fit in memory,
and run in turns.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from experiments.measured import Measured, Rows
from experiments.rules import Range, more, span
from experiments.statements import Statement
from experiments.verdicts import Verdict
from flax_linattn import models
from flax_linattn.bench import Journal, compile_program, run_in_turns, spread
from flax_linattn.bench.report import markdown, number
from flax_linattn.training.state import TrainState, split_model
from flax_linattn.training.step import make_train_step

MECHANISMS = ("elementwise_series:order=6", "aaren", "softmax")
OPTIMIZER = optax.adamw(1e-4)


@dataclasses.dataclass(frozen=True)
class Size:
    """Settings of the measurement at one scale."""

    num_layers: int = 12
    features: int = 768
    num_heads: int = 12
    dtype: str = "bfloat16"
    lengths: tuple[int, ...] = (512, 2048, 8192, 32768)
    tokens: int = 32768
    """Tokens a step."""
    rounds: int = 5


def measure(size: Size, journal: Journal) -> None:
    for length in size.lengths:
        journal.row({"length": length}, partial(measure_length, size, length))


def measure_length(size: Size, length: int) -> dict[str, Any]:
    """All mechanisms at one length."""
    batch = max(1, size.tokens // length)
    calls, facts = {}, {}
    for mechanism in MECHANISMS:
        step, state, x = training_step(size, mechanism, batch, length)
        try:
            compiled, costs = compile_program(step, (state, x), donate_argnums=0)
            steps = Steps(compiled, state, x)
            jax.block_until_ready(steps())
        except jax.errors.JaxRuntimeError as error:  # it does not fit
            facts[mechanism] = {"not_run": str(error).splitlines()[0][:120]}
            continue
        facts[mechanism] = {
            "total_bytes": costs["total_bytes"],
            "compile_seconds": costs["compile_seconds"],
        }
        calls[mechanism] = steps
    for name, times in run_in_turns(calls, (), size.rounds).items():
        seconds = 1e-3 * spread(times)["median"]
        facts[name] |= {
            "milliseconds": spread(times),
            "tokens_per_second": batch * length / seconds,
        }
    return {"batch": batch, "mechanisms": facts}


class Steps:
    """A training run that takes one more step with each call."""

    def __init__(self, step: Any, state: Any, batch: Any) -> None:
        self._step, self._state, self._batch = step, state, batch

    def __call__(self) -> Any:
        self._state = self._step(self._state, self._batch)
        return self._state


def training_step(size: Size, mechanism: str, batch: int, length: int) -> tuple[Any, Any, Any]:
    """The step, its state and a batch: the model puts out its input again."""
    layers = dataclasses.replace(
        models.get_size("bert-base"),
        num_layers=size.num_layers,
        features=size.features,
        num_heads=size.num_heads,
        hidden_features=4 * size.features,
    )
    model = models.Backbone(16, layers, mechanism=mechanism, dtype=size.dtype, rngs=nnx.Rngs(0))
    graphdef, params, rest = split_model(model)
    state = TrainState.create(params, rest, OPTIMIZER, ["loss"])
    step = make_train_step(graphdef, reconstruction, OPTIMIZER, 0)
    x = np.random.default_rng(0).normal(size=(batch, length, 16)).astype(np.float32)
    return step, state, {"values": jax.device_put(x)}


def reconstruction(model: Any, batch: Mapping[str, Any], key: Any) -> Any:
    """Mean square error of the first features."""
    x = batch["values"]
    y = model(x)[..., : x.shape[-1]].astype(jnp.float32)
    return jnp.mean(jnp.square(y - x)), {}


def more_efficient(rows: Rows) -> Verdict:
    """A training step takes less time, at every length where both fit."""
    pairs = [(row["mechanisms"]["softmax"], row["mechanisms"]["aaren"]) for row in rows]
    key = "milliseconds"
    ratios = [
        Range.of(theirs[key]).over(Range.of(ours[key]))
        for theirs, ours in pairs
        if key in ours and key in theirs
    ]
    return Verdict(more(ratios), f"{span(ratios)} times the tokens/s of softmax in blocks")


STATEMENTS = (
    Statement(
        "Aaren, section 3.3",
        "Aaren is more efficient than causal self-attention",
        more_efficient,
    ),
)


def table(rows: Rows, size: Size) -> str:
    heads = ["tokens per sequence", "batch", "mechanism", "tokens/s", "ms per step (min - max)"]
    heads += ["peak memory, GB", "compile time, s"]
    lines = []
    for row in rows:
        for name, facts in row["mechanisms"].items():
            first = [f"{row['length']:,}", str(row["batch"]), name]
            if "not_run" in facts:
                lines.append([*first, facts["not_run"], "-", "-", "-"])
                continue
            times = facts["milliseconds"]
            middle = f"{number(times['median'])} ({number(times['min'])} - "
            lines.append(
                [
                    *first,
                    number(facts["tokens_per_second"]),
                    f"{middle}{number(times['max'])})",
                    number(facts["total_bytes"] / 1e9),
                    number(facts["compile_seconds"]),
                ]
            )
    return markdown(heads, lines)


EXPERIMENT = Measured(
    module="experiments.efficiency.bert_training",
    about="element-wise attention, figure 4, is of this shape, without an optimizer",
    sizes={
        "paper": Size(),
        "cpu": Size(num_layers=2, dtype="float32", lengths=(512, 2048), tokens=2048, rounds=3),
    },
    measure=measure,
    table=table,
    statements=STATEMENTS,
    left_out={
        "paper": "nothing",
        "cpu": "ten of twelve layers, bfloat16, T = 8k and 32k: for a GPU",
    },
)

if __name__ == "__main__":
    EXPERIMENT.main()
