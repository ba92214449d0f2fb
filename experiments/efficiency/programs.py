"""Models as functions of their parameters and input, to compile and time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from flax_linattn.bench import Journal, compile_program, run_in_turns, spread
from flax_linattn.bench.comparison import FORWARD, TRAINING

Program = tuple[Callable[..., Any], Any]
"""A function of parameters and input, and the parameters."""


def forward(model: nnx.Module, form: str = "auto") -> Program:
    """``apply(params, x)``, the model's output, and its parameters."""
    graph, params, rest = nnx.split(model, nnx.Param, ...)

    def apply(params: Any, x: jax.Array) -> jax.Array:
        return nnx.merge(graph, params, rest, copy=True)(x, form=form)

    return apply, params


def training_step(model: nnx.Module, form: str = "auto") -> Program:
    """``step(params, x)``, loss and gradients of the mean square output, and the parameters."""
    apply, params = forward(model, form)

    def loss(params: Any, x: jax.Array) -> jax.Array:
        return jnp.mean(jnp.square(apply(params, x)))

    return jax.value_and_grad(loss), params


def observations(*shape: int) -> jax.Array:
    """Normal numbers of a fixed seed."""
    return jnp.asarray(np.random.default_rng(0).normal(size=shape), jnp.float32)


def num_parameters(model: nnx.Module) -> int:
    """How many numbers a model learns."""
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))


def in_turns(
    calls: Mapping[str, Callable[[], Any]], rounds: int, seconds: float | None = None
) -> dict[str, list[float]]:
    """Milliseconds of this process alone, whoever else is on its core."""
    return run_in_turns(calls, (), rounds, seconds, clock=time.process_time)


def each_pass(size: Any, journal: Journal, costs: Callable[..., Any]) -> None:
    """A row for each of the mechanisms, shapes [B, T] and passes, forward and training.

    Each is ``costs(size, mechanism, batch_size, length, pass)``.
    """
    for name in size.mechanisms:
        for batch_size, length in size.shapes:
            for which in (FORWARD, TRAINING):
                key = {"mechanism": name, "batch_size": batch_size, "tokens": length, "pass": which}
                journal.row(key, partial(costs, size, name, batch_size, length, which))


def compare_programs(
    programs: Iterable[tuple[str, Program]],
    x: jax.Array,
    rounds: int,
    seconds: float,
    memory_limit: float = math.inf,
) -> dict[str, dict[str, Any]]:
    """Costs of programs on one input, timed in turns where their temporary memory allows it."""
    calls, results = {}, {}
    for name, (program, params) in programs:
        compiled, results[name] = compile_program(program, (params, x))
        if results[name]["temporary_bytes"] > memory_limit:
            results[name]["not_run"] = "memory"
        else:
            calls[name] = partial(compiled, params, x)
    for name, times in run_in_turns(calls, (), rounds, seconds).items():
        results[name]["milliseconds"] = spread(times)
    return results
