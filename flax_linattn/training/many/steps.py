"""The compiled steps of many runs."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from flax_linattn.training.batches import Batch
from flax_linattn.training.evaluation import EvaluationStep, evaluation_of
from flax_linattn.training.many.groups import over_runs
from flax_linattn.training.many.placed import RunsPlacement, seeds_of
from flax_linattn.training.many.state import ManyState, chosen
from flax_linattn.training.objective import LossFn
from flax_linattn.training.placement import ONE_DEVICE, Placement
from flax_linattn.training.train_step import TrainStep, update_of


@functools.lru_cache(maxsize=8)
def make_many_step(
    graphdef: nnx.GraphDef[Any],
    loss_fn: LossFn,
    optimizer: optax.GradientTransformation,
    seed: int,
    num_runs: int,
    placement: RunsPlacement,
    alone: Placement = ONE_DEVICE,
    max_skipped: int = 0,
) -> TrainStep:
    """Returns the compiled ``(state, batches) -> state``; arguments as ``make_train_step``'s.

    Run r draws as a single run with the seed ``seed + r`` does. The runs go through each device in
    groups, see ``over_runs``.
    """
    update = over_runs(update_of(graphdef, loss_fn, optimizer, alone, max_skipped), placement)
    seeds = seeds_of(seed, num_runs)

    def step(state: ManyState, batches: Batch) -> ManyState:
        before = state.runs
        after = chosen(state.active, update(before, batches, seeds), before)
        state = dataclasses.replace(state.with_runs(after), done=state.done + 1)
        return placement.keep(state)

    compiled: TrainStep = placement.compile(step, 2, donate=0)
    return compiled


@functools.lru_cache(maxsize=8)
def make_many_evaluation(
    graphdef: nnx.GraphDef[Any], loss_fn: LossFn, placement: RunsPlacement
) -> EvaluationStep:
    """As ``make_evaluation_step``, with R in front of every array."""
    evaluate = over_runs(evaluation_of(graphdef, loss_fn, ONE_DEVICE), placement)
    return placement.compile(evaluate, 4, donate=2)


@functools.partial(jax.jit, static_argnums=3)
def closed(
    state: ManyState, improved: jax.Array, active: jax.Array, placement: Placement
) -> ManyState:
    """The state at the beginning of a period.

    Args:
        state: At the end of the one before.
        improved: bool [R], the runs that are now at their best.
        active: bool [R], the runs that go on.
        placement: Where they are.
    """
    best = chosen(improved, (state.params, state.model_state), state.best)
    metrics = jax.tree.map(jnp.zeros_like, state.metrics)
    return placement.keep(dataclasses.replace(state, best=best, metrics=metrics, active=active))
