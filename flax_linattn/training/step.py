"""The compiled steps of a training: of one model, or of several runs of it.

:func:`make_train_step` compiles :func:`update_of`: the gradient of a batch
(:func:`batch_gradients`), the optimizer's update, and what becomes of it where a number is not
finite (:func:`step_outcome`). Several runs are the same computation over an axis of runs
(:func:`over_runs`).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.extend.core import Jaxpr, jaxprs_in_params
from jax.sharding import PartitionSpec
from jax.typing import ArrayLike

from flax_linattn.checks import OptionError
from flax_linattn.ops.contract.numerics import accumulation_dtype
from flax_linattn.training.batches import Batch
from flax_linattn.training.metrics import Metrics, add_metrics, batch_metrics
from flax_linattn.training.objective import LossFn
from flax_linattn.training.placement import DATA, ONE_DEVICE, Placement
from flax_linattn.training.state import (
    NO_BAD_STEP,
    LossScale,
    TrainState,
    select_runs,
    split_model,
)

TrainStep = Callable[[TrainState, Batch], TrainState]
EvaluationStep = Callable[[nnx.State, nnx.State, Metrics, Batch], Metrics]


# Cached by its arguments, so that a second training in a process compiles nothing again.
@functools.lru_cache(maxsize=8)
def make_train_step(
    graphdef: nnx.GraphDef[Any],
    loss_fn: LossFn,
    optimizer: optax.GradientTransformation,
    seed: int,
    placement: Placement = ONE_DEVICE,
    max_skipped: int = 0,
) -> TrainStep:
    """Returns the compiled ``(state, batch) -> state``; the state passed in is donated.

    A step whose loss, gradient or new parameters are not finite changes nothing but
    ``first_bad_step``, and neither does any step after it: the host can look at that number as
    seldom as it likes. The first ``max_skipped`` such updates are skipped instead, and counted.

    Of several runs, run r draws as a single run with the seed ``seed + r`` does, and a run that is
    not active keeps its state.

    Args:
        graphdef: The model's structure, from ``split_model(model)``.
        loss_fn: ``(model, batch, dropout_key) -> (loss, metrics)``.
        optimizer: An optax gradient transformation.
        seed: Step n draws from ``fold_in(key(seed), n)``, so that a resumed run draws the same.
        placement: The devices, from ``Parallel.place``; the batches have to be placed there. With
            ``num_runs``, states and batches have an axis of runs.
        max_skipped: Number of updates that may be skipped because they are not finite.

    Raises:
        OptionError: If a run would have a seed of more than 32 bits.

    Example:
        >>> def loss_fn(model, batch, dropout_key):
        ...     return jnp.mean(model(batch["x"]) ** 2), {}
        >>> from flax_linattn.training.state import split_model
        >>> graphdef, params, rest = split_model(nnx.Linear(2, 1, rngs=nnx.Rngs(0)))
        >>> step = make_train_step(graphdef, loss_fn, optax.sgd(0.1), seed=0)
        >>> state = TrainState.create(params, rest, optax.sgd(0.1), ["loss"])
        >>> int(step(state, {"x": jnp.ones((3, 2))}).step)
        1
    """
    update = update_of(graphdef, loss_fn, optimizer, placement.run_placement, max_skipped)

    def train_one(state: TrainState, batch: Batch) -> TrainState:
        return placement.keep(update(state, batch, seed))

    if placement.num_runs is None:
        return placement.compile(train_one, 2, donate=0)
    seeds = run_seeds(seed, placement.num_runs)

    def train_runs(state: TrainState, batches: Batch) -> TrainState:
        assert state.active is not None and state.done is not None
        before = state.runs
        after = over_runs(update, placement)(before, batches, seeds)
        after = select_runs(state.active, after, before)
        after = dataclasses.replace(
            after, best=state.best, active=state.active, done=state.done + 1
        )
        return placement.keep(after)

    return placement.compile(train_runs, 2, donate=0)


def run_seeds(seed: int, num_runs: int) -> np.ndarray:
    """The seed of each run, uint32 [R]: one after another."""
    if seed + num_runs > 2**32:
        raise OptionError(f"seed {seed} is too large for {num_runs} runs.", "seed")
    return np.arange(seed, seed + num_runs, dtype=np.int64).astype(np.uint32)


def update_of(
    graphdef: nnx.GraphDef[Any],
    loss_fn: LossFn,
    optimizer: optax.GradientTransformation,
    placement: Placement,
    max_skipped: int,
) -> Callable[[TrainState, Batch, ArrayLike], TrainState]:
    """Returns the update of one model, ``(state, batch, seed) -> state``, not compiled."""

    def update(state: TrainState, batch: Batch, seed: ArrayLike) -> TrainState:
        dropout_key = jax.random.fold_in(jax.random.key(seed), state.step)
        loss, grads, metrics, model_state = batch_gradients(
            graphdef,
            loss_fn,
            state.params,
            state.model_state,
            batch,
            dropout_key,
            placement,
            state.loss_scale,
        )
        # optax mixes dtypes (Adam: float ** int32), which strict promotion would refuse.
        with jax.numpy_dtype_promotion("standard"):
            updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
            params = optax.apply_updates(state.params, updates)
        finite = _all_finite((loss, grads, params))
        scale = state.loss_scale
        outcome = step_outcome(
            max_skipped, finite, loss, state.step, state.skipped, state.first_bad_step, scale
        )
        new = dataclasses.replace(
            state,
            params=params,
            model_state=model_state,
            opt_state=opt_state,
            metrics=add_metrics(state.metrics, metrics),
        )
        selected = jax.tree.map(lambda a, b: jnp.where(outcome.good, a, b), new, state)
        if scale is not None:
            changed = scale.after(finite)
            scale = jax.tree.map(lambda a, b: jnp.where(outcome.counts, a, b), changed, scale)
        return dataclasses.replace(
            selected,
            step=state.step + outcome.counts.astype(jnp.int32),
            skipped=outcome.skipped,
            first_bad_step=outcome.first_bad_step,
            loss_scale=scale,
        )

    return update


def _all_finite(tree: Any) -> jax.Array:
    # Not the norm of the tree: its squares can overflow where every entry is finite (float16).
    leaves = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.inexact)]
    # A search for the first that is not, since XLA repeats what jnp.all would be, an `and` of all
    # leaves, in the kernel of every updated array: compiling took half as long again on a CPU.
    flags = [jnp.all(jnp.isfinite(x)) for x in leaves]
    return jnp.argmin(jnp.stack([*flags, jnp.array(False)])) == len(leaves)


class StepOutcome(NamedTuple):
    """What a step does to the state, in scalars.

    An update is made if ``good``; the run continues with the next step if the step ``counts``.
    """

    good: jax.Array
    counts: jax.Array
    skipped: jax.Array
    first_bad_step: jax.Array


def step_outcome(
    max_skipped: int,
    finite: jax.Array,
    loss: jax.Array,
    step: jax.Array,
    skipped: jax.Array,
    first_bad_step: jax.Array,
    loss_scale: LossScale | None,
) -> StepOutcome:
    """Decides whether a step updates the state, is skipped, or ends the run.

    ``finite`` is about loss, gradients and new parameters. A loss scale above 1 may be what the
    gradient of a finite loss overflows by: that update is skipped, too, and a smaller scale tried.
    """
    open_ = first_bad_step == NO_BAD_STEP
    overflow = jnp.zeros((), bool)
    if loss_scale is not None:
        overflow = ~finite & jnp.isfinite(loss) & (loss_scale.value > 1)
    is_skipped = ~finite & ~overflow & (skipped < max_skipped)
    ends = open_ & ~finite & ~overflow & ~is_skipped
    return StepOutcome(
        good=open_ & finite,
        counts=open_ & (finite | overflow | is_skipped),
        skipped=skipped + (open_ & is_skipped).astype(jnp.int32),
        first_bad_step=jnp.where(ends, step, first_bad_step),
    )


def batch_gradients(
    graphdef: nnx.GraphDef[Any],
    loss_fn: LossFn,
    params: nnx.State,
    model_state: nnx.State,
    batch: Batch,
    dropout_key: jax.Array,
    placement: Placement,
    loss_scale: LossScale | None = None,
) -> tuple[jax.Array, nnx.State, Metrics, nnx.State]:
    """Loss, gradients, metrics and other variables of all parts of a batch, on all devices."""
    axis, parts = placement.axis_name, placement.accumulate

    def part(model_state: nnx.State, batch: Batch, key: jax.Array) -> tuple[nnx.State, _Part]:
        def loss_of(params: nnx.State) -> tuple[jax.Array, tuple[jax.Array, Metrics, nnx.State]]:
            # A copy, since the forward pass may change variables, and those outside belong to
            # another trace.
            model = nnx.merge(graphdef, params, model_state, copy=True)
            loss, metrics = loss_fn(model, batch, key)
            _, _, after = split_model(model)
            sums = batch_metrics(loss, metrics, batch)
            if loss_scale is None:
                return loss, (loss, sums, after)
            scaled = loss.astype(accumulation_dtype(loss.dtype)) * loss_scale.value
            return scaled, (loss, sums, after)

        (_, (loss, metrics, after)), grads = jax.value_and_grad(loss_of, has_aux=True)(params)
        if loss_scale is not None:
            grads = jax.tree.map(partial(_unscale, loss_scale.value), grads)
        return after, _Part(metrics["loss"][1], loss, grads, metrics)

    if axis is None and parts == 1:
        model_state, whole = part(model_state, batch, dropout_key)
        return whole.loss, whole.grads, whole.metrics, model_state

    def weighted_part(
        model_state: nnx.State, now: tuple[Batch, jax.Array]
    ) -> tuple[nnx.State, _Part]:
        batch, real = with_examples(now[0])
        model_state, one = part(model_state, batch, now[1])
        return model_state, one.weighted(real)

    def add(carry: tuple[nnx.State, _Part], now: Any) -> tuple[tuple[nnx.State, _Part], None]:
        model_state, one = weighted_part(carry[0], now)
        return (model_state, jax.tree.map(jnp.add, carry[1], one)), None

    if axis is not None:
        dropout_key = jax.random.fold_in(dropout_key, jax.lax.axis_index(axis))
    turns = (
        jax.tree.map(partial(_in_turns, parts=parts), batch),
        jax.random.split(dropout_key, parts),
    )
    first = jax.tree.map(lambda x: x[0], turns)
    nothing = jax.eval_shape(weighted_part, model_state, first)[1]
    nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), nothing)
    (model_state, sums), _ = jax.lax.scan(add, (model_state, nothing), turns)
    if axis is not None:
        sums = jax.lax.psum(sums, axis)
        model_state = jax.tree.map(partial(_device_mean, axis=axis), model_state)
    loss = sums.loss / sums.weight
    grads = jax.tree.map(lambda g, p: (g / sums.weight).astype(p.dtype), sums.grads, params)
    return loss, grads, sums.metrics, model_state


def with_examples(batch: Mapping[str, Any]) -> tuple[Batch, jax.Array]:
    """Gives weights to a part that has only filler rows, whose mean would be 0 / 0.

    Returns the batch, and whether it has real examples.
    """
    if "weight" not in batch:
        return batch, jnp.ones((), bool)
    weight = batch["weight"]
    real = jnp.any(weight != 0)
    return {**batch, "weight": jnp.where(real, weight, jnp.ones_like(weight))}, real


class _Part(NamedTuple):
    """Of a part of a batch: its weight, and its loss and gradients, or these times its weight."""

    weight: jax.Array
    loss: jax.Array
    grads: nnx.State
    metrics: Metrics

    def weighted(self, real: jax.Array) -> _Part:
        """What adds up: a loss is a weighted mean, and so is that of all parts together."""

        def add_up(x: jax.Array) -> jax.Array:
            return x.astype(accumulation_dtype(x.dtype)) * self.weight

        loss, grads = jax.tree.map(add_up, (self.loss, self.grads))
        part = self._replace(loss=loss, grads=grads)
        return jax.tree.map(lambda x: jnp.where(real, x, jnp.zeros_like(x)), part)


def _unscale(scale: jax.Array, x: jax.Array) -> jax.Array:
    """Divides a gradient by the loss scale."""
    return (x.astype(accumulation_dtype(x.dtype)) / scale).astype(x.dtype)


def _in_turns(x: jax.Array, parts: int) -> jax.Array:
    """[B, ...] -> [parts, B / parts, ...]: every part has the same share of each device's rows."""
    return jnp.moveaxis(x.reshape(x.shape[0] // parts, parts, *x.shape[1:]), 1, 0)


def _device_mean(x: jax.Array, axis: str) -> jax.Array:
    return jax.lax.pmean(x, axis) if jnp.issubdtype(x.dtype, jnp.inexact) else x


# Cached by its arguments, so that a second evaluation in a process compiles nothing again.
@functools.lru_cache(maxsize=8)
def make_evaluation_step(
    graphdef: nnx.GraphDef[Any], loss_fn: LossFn, placement: Placement = ONE_DEVICE
) -> EvaluationStep:
    """Returns the compiled ``(params, model_state, sums, batch) -> sums`` of one batch's metrics.

    The loss function is called with ``dropout_key=None``. What it changes in the model is dropped.
    With ``placement.num_runs`` every array has an axis of runs in front.
    """
    axis = placement.axis_name

    def evaluate_one(
        params: nnx.State, model_state: nnx.State, total: Metrics, batch: Batch
    ) -> Metrics:
        model = nnx.merge(graphdef, params, model_state, copy=True)
        if axis is None:
            return add_metrics(total, batch_metrics(*loss_fn(model, batch, None), batch))
        batch, real = with_examples(batch)
        sums = batch_metrics(*loss_fn(model, batch, None), batch)
        sums = jax.tree.map(lambda x: jnp.where(real, x, jnp.zeros_like(x)), sums)
        return add_metrics(total, jax.lax.psum(sums, axis))

    one = placement.num_runs is None
    step = evaluate_one if one else over_runs(evaluate_one, placement)
    return placement.compile(step, 4, donate=2)


def begin_period(
    state: TrainState, improved: np.ndarray, active: np.ndarray, placement: Placement
) -> TrainState:
    """The state after a validation: metrics are 0, and several runs store their best.

    ``improved`` and ``active``, bool [R], are as in ``Selection``.
    """
    if state.is_stacked:
        return _begin_period_of_runs(state, jnp.asarray(improved), jnp.asarray(active), placement)
    return dataclasses.replace(state, metrics=jax.tree.map(jnp.zeros_like, state.metrics))


@functools.partial(jax.jit, static_argnums=3)
def _begin_period_of_runs(
    state: TrainState, improved: jax.Array, active: jax.Array, placement: Placement
) -> TrainState:
    best = select_runs(improved, (state.params, state.model_state), state.best)
    metrics = jax.tree.map(jnp.zeros_like, state.metrics)
    return placement.keep(dataclasses.replace(state, best=best, metrics=metrics, active=active))


CACHE = 2**20
"""Bytes of the second-level cache of a CPU's core, about."""

OfRuns = Callable[..., Any]
"""A function of arrays with R in front, all of them, that returns such."""


def over_runs(of_one: Callable[..., Any], placement: Placement) -> OfRuns:
    """Returns a function over R runs, to be compiled, from a function of arrays of one run.

    Each device takes its own runs in groups of ``placement.runs_at_once``; the last group may be
    smaller, which costs the compilation of a second program. By default all runs go at once, except
    on CPUs: there the arrays of several runs push each other out of the cache, so that a group is
    as large as keeps its largest arrays in the cache (``fitting_at_once``).
    """

    def of_runs(*arrays: Any) -> Any:
        runs = jax.tree.leaves(arrays)[0].shape[0] // placement.num_shards
        size = placement.runs_at_once
        if size is None:
            size = fitting_at_once(of_one, arrays, runs) if placement.platform == "cpu" else runs
        if size >= runs:
            return jax.vmap(of_one)(*arrays)
        groups = _in_groups(of_one, size)
        if placement.num_shards == 1:
            return groups(*arrays)
        # A loop over an axis that is split would fetch each run from its device; so each loops
        # over its own. What mechanisms carry through their scans is not marked as split: no check.
        own = PartitionSpec(DATA)
        split = jax.shard_map(
            groups, mesh=placement.mesh, in_specs=own, out_specs=own, check_vma=False
        )
        return split(*arrays)

    return of_runs


def _in_groups(of_one: Callable[..., Any], size: int) -> OfRuns:
    def one_after_another(*arrays: Any) -> Any:
        # A group of one is no vmap of one: its operations are those of a single run.
        batch_size = None if size == 1 else size
        return jax.lax.map(lambda own: of_one(*own), arrays, batch_size=batch_size)

    return one_after_another


def fitting_at_once(of_one: Callable[..., Any], arrays: Any, runs: int) -> int:
    """How many runs at once keep their largest arrays in ``CACHE``.

    It divides the number of runs, so that all groups are of one size; ``arrays`` have R in front.
    """
    one = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), arrays)
    largest = _largest(jax.make_jaxpr(of_one)(*one).jaxpr)
    most = CACHE // max(largest, 1)
    return max(size for size in range(1, runs + 1) if runs % size == 0 and size <= max(most, 1))


def _largest(jaxpr: Jaxpr) -> int:
    """Bytes of the largest array that a program computes."""
    sizes = [0]
    for equation in jaxpr.eqns:
        sizes += [_largest(inner) for inner in jaxprs_in_params(equation.params)]
        arrays: list[Any] = [variable.aval for variable in equation.outvars]
        sizes += [array.size * array.dtype.itemsize for array in arrays]
    return max(sizes)
