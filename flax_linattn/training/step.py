"""The compiled training and evaluation steps, of one model or of several runs of it.

:func:`make_train_step` compiles :func:`make_update`: the gradient of a batch
(:func:`batch_gradients`), the optimizer's update, and the decision whether the update is made,
skipped or ends the run if a number is not finite (:func:`step_outcome`). Several runs are the same
computation over an axis of runs (:func:`map_runs`).
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

from flax_linattn.checks import OptionError, check_integers
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


def make_train_step(
    graphdef: nnx.GraphDef[Any],
    loss_fn: LossFn,
    optimizer: optax.GradientTransformation,
    seed: int,
    placement: Placement = ONE_DEVICE,
    max_skipped: int = 0,
) -> TrainStep:
    """Returns the compiled ``(state, batch) -> state``; the state passed in is donated.

    The first ``max_skipped`` steps whose loss, gradient or new parameters are not finite are
    skipped and counted. The next such step changes nothing but ``first_bad_step``, and later steps
    change nothing either, so that the host need not check after every step.

    With several runs, run r uses the random numbers of a single run with the seed ``seed + r``, and
    the state of an inactive run does not change.

    Args:
        graphdef: The model's structure, from ``split_model(model)``.
        loss_fn: ``(model, batch, dropout_key) -> (loss, metrics)``.
        optimizer: An optax gradient transformation.
        seed: Seed of the dropout keys: step n uses ``fold_in(key(seed), n)``, so that a resumed run
            has the same keys.
        placement: The devices, from ``Parallel.place``; batches have to be placed on them. With
            ``num_runs``, states and batches have an axis of runs.
        max_skipped: Maximum number of updates to skip because they are not finite.

    Raises:
        OptionError: If the seed of a run would have more than 32 bits.

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
    runs = placement.num_runs
    check_integers(0, 2**32 - 1, seed=seed)
    seeds = np.uint32(seed) if runs is None else run_seeds(seed, runs)
    return partial(_train_step(graphdef, loss_fn, optimizer, placement, max_skipped), seeds)


# Cached by its arguments, so that a second training in a process compiles nothing again.
@functools.lru_cache(maxsize=8)
def _train_step(
    graphdef: nnx.GraphDef[Any],
    loss_fn: LossFn,
    optimizer: optax.GradientTransformation,
    placement: Placement,
    max_skipped: int,
) -> Callable[..., TrainState]:
    """Returns the compiled ``(seeds, state, batch) -> state``, which works for any seeds."""
    update = make_update(graphdef, loss_fn, optimizer, placement.run_placement, max_skipped)

    def train_one(seed: ArrayLike, state: TrainState, batch: Batch) -> TrainState:
        return placement.keep(update(state, batch, seed))

    if placement.num_runs is None:
        return placement.compile(train_one, 3, donate=1)

    def train_runs(seeds: ArrayLike, state: TrainState, batches: Batch) -> TrainState:
        assert state.active is not None and state.done is not None
        before = state.runs
        after = map_runs(update, placement)(before, batches, seeds)
        after = select_runs(state.active, after, before)
        after = dataclasses.replace(
            after, best=state.best, active=state.active, done=state.done + 1
        )
        return placement.keep(after)

    return placement.compile(train_runs, 3, donate=1)


def run_seeds(seed: int, num_runs: int) -> np.ndarray:
    """The seeds of the runs, uint32 [R]: ``seed``, ``seed + 1``, and so on."""
    if seed + num_runs > 2**32:
        raise OptionError(
            f"the seeds of {num_runs} runs are seed, seed + 1, ... and must be below 2**32; seed "
            f"{seed} is too large for {num_runs} runs.",
            "seed",
        )
    return np.arange(seed, seed + num_runs, dtype=np.int64).astype(np.uint32)


def make_update(
    graphdef: nnx.GraphDef[Any],
    loss_fn: LossFn,
    optimizer: optax.GradientTransformation,
    placement: Placement,
    max_skipped: int,
) -> Callable[[TrainState, Batch, ArrayLike], TrainState]:
    """Returns the update function of one model, ``(state, batch, seed) -> state``, not compiled."""

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
            changed = scale.adjust(finite)
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
    # argmin searches for the first leaf that is not finite. With jnp.all, an `and` of all leaves,
    # XLA repeats the test in the kernel of every updated array: compiling took 1.5 times as long on
    # a CPU.
    flags = [jnp.all(jnp.isfinite(x)) for x in leaves]
    return jnp.argmin(jnp.stack([*flags, jnp.array(False)])) == len(leaves)


class StepOutcome(NamedTuple):
    """The effect of a step on the state, as scalars.

    Attributes:
        good: Whether the update is made.
        counts: Whether the step counter advances.
        skipped: Number of skipped updates after the step.
        first_bad_step: The step that ended the run, or -1.
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

    ``finite`` is whether loss, gradients and new parameters are finite. With a loss scale above 1,
    gradients of a finite loss may overflow because of the scale: that update is skipped as well,
    without counting as skipped, and the scale is halved.
    """
    has_no_bad_step = first_bad_step == NO_BAD_STEP
    overflow = jnp.zeros((), bool)
    if loss_scale is not None:
        overflow = ~finite & jnp.isfinite(loss) & (loss_scale.value > 1)
    is_skipped = ~finite & ~overflow & (skipped < max_skipped)
    ends = has_no_bad_step & ~finite & ~overflow & ~is_skipped
    return StepOutcome(
        good=has_no_bad_step & finite,
        counts=has_no_bad_step & (finite | overflow | is_skipped),
        skipped=skipped + (has_no_bad_step & is_skipped).astype(jnp.int32),
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
    """Loss, gradients, metrics and other variables of a batch, over all its parts and devices."""
    axis, parts = placement.axis_name, placement.accumulate

    def part(model_state: nnx.State, batch: Batch, key: jax.Array) -> tuple[nnx.State, _Part]:
        def loss_with_aux(
            params: nnx.State,
        ) -> tuple[jax.Array, tuple[jax.Array, Metrics, nnx.State]]:
            # A copy, since the forward pass may change variables, and the original variables belong
            # to another trace.
            model = nnx.merge(graphdef, params, model_state, copy=True)
            loss, metrics = loss_fn(model, batch, key)
            _, _, after = split_model(model)
            sums = batch_metrics(loss, metrics, batch)
            if loss_scale is None:
                return loss, (loss, sums, after)
            scaled = loss.astype(accumulation_dtype(loss.dtype)) * loss_scale.value
            return scaled, (loss, sums, after)

        (_, (loss, metrics, after)), grads = jax.value_and_grad(loss_with_aux, has_aux=True)(params)
        if loss_scale is not None:
            grads = jax.tree.map(partial(_unscale, loss_scale.value), grads)
        return after, _Part(metrics["loss"][1], loss, grads, metrics)

    if axis is None and parts == 1:
        model_state, whole = part(model_state, batch, dropout_key)
        return whole.loss, whole.grads, whole.metrics, model_state

    def weighted_part(
        model_state: nnx.State, now: tuple[Batch, jax.Array]
    ) -> tuple[nnx.State, _Part]:
        batch, real = replace_empty_weights(now[0])
        model_state, one = part(model_state, batch, now[1])
        return model_state, one.weighted(real)

    def add(carry: tuple[nnx.State, _Part], now: Any) -> tuple[tuple[nnx.State, _Part], None]:
        model_state, one = weighted_part(carry[0], now)
        return (model_state, jax.tree.map(jnp.add, carry[1], one)), None

    if axis is not None:
        dropout_key = jax.random.fold_in(dropout_key, jax.lax.axis_index(axis))
    all_parts = (
        jax.tree.map(partial(_split_parts, parts=parts), batch),
        jax.random.split(dropout_key, parts),
    )
    first = jax.tree.map(lambda x: x[0], all_parts)
    shapes = jax.eval_shape(weighted_part, model_state, first)[1]
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    (model_state, sums), _ = jax.lax.scan(add, (model_state, zeros), all_parts)
    if axis is not None:
        sums = jax.lax.psum(sums, axis)
        model_state = jax.tree.map(partial(_device_mean, axis=axis), model_state)
    loss = sums.loss / sums.weight
    grads = jax.tree.map(lambda g, p: (g / sums.weight).astype(p.dtype), sums.grads, params)
    return loss, grads, sums.metrics, model_state


def replace_empty_weights(batch: Mapping[str, Any]) -> tuple[Batch, jax.Array]:
    """Replaces the weights of a part that has only filler examples, whose mean would be 0 / 0.

    Returns the batch, and whether it has real examples.
    """
    if "weight" not in batch:
        return batch, jnp.ones((), bool)
    weight = batch["weight"]
    real = jnp.any(weight != 0)
    return {**batch, "weight": jnp.where(real, weight, jnp.ones_like(weight))}, real


class _Part(NamedTuple):
    """Weight, loss, gradients and metrics of a part of a batch; loss and gradients may be sums."""

    weight: jax.Array
    loss: jax.Array
    grads: nnx.State
    metrics: Metrics

    def weighted(self, real: jax.Array) -> _Part:
        """The part with its loss and gradients times its weight, so that parts can be added."""

        def add_up(x: jax.Array) -> jax.Array:
            return x.astype(accumulation_dtype(x.dtype)) * self.weight

        loss, grads = jax.tree.map(add_up, (self.loss, self.grads))
        part = self._replace(loss=loss, grads=grads)
        return jax.tree.map(lambda x: jnp.where(real, x, jnp.zeros_like(x)), part)


def _unscale(scale: jax.Array, x: jax.Array) -> jax.Array:
    """Divides a gradient by the loss scale."""
    return (x.astype(accumulation_dtype(x.dtype)) / scale).astype(x.dtype)


def _split_parts(x: jax.Array, parts: int) -> jax.Array:
    """[B, ...] -> [parts, B / parts, ...]; each part has as many examples of each device."""
    return jnp.moveaxis(x.reshape(x.shape[0] // parts, parts, *x.shape[1:]), 1, 0)


def _device_mean(x: jax.Array, axis: str) -> jax.Array:
    return jax.lax.pmean(x, axis) if jnp.issubdtype(x.dtype, jnp.inexact) else x


# Cached by its arguments, so that a second evaluation in a process compiles nothing again.
@functools.lru_cache(maxsize=8)
def make_evaluation_step(
    graphdef: nnx.GraphDef[Any], loss_fn: LossFn, placement: Placement = ONE_DEVICE
) -> EvaluationStep:
    """Returns the compiled step that adds a batch's metrics to their sums.

    It is ``(params, model_state, sums, batch) -> sums``. The loss function is called with
    ``dropout_key=None``, and its changes to the model are discarded. With ``placement.num_runs``
    every array has an axis of runs in front.
    """
    axis = placement.axis_name

    def evaluate_one(
        params: nnx.State, model_state: nnx.State, total: Metrics, batch: Batch
    ) -> Metrics:
        model = nnx.merge(graphdef, params, model_state, copy=True)
        if axis is None:
            return add_metrics(total, batch_metrics(*loss_fn(model, batch, None), batch))
        batch, real = replace_empty_weights(batch)
        sums = batch_metrics(*loss_fn(model, batch, None), batch)
        sums = jax.tree.map(lambda x: jnp.where(real, x, jnp.zeros_like(x)), sums)
        return add_metrics(total, jax.lax.psum(sums, axis))

    is_single = placement.num_runs is None
    step = evaluate_one if is_single else map_runs(evaluate_one, placement)
    return placement.compile(step, 4, donate=2)


def start_period(
    state: TrainState, improved: np.ndarray, active: np.ndarray, placement: Placement
) -> TrainState:
    """The state after a validation: metrics are 0, and several runs store their best parameters.

    ``improved`` and ``active``, bool [R], are as in ``Selection``.
    """
    if state.is_stacked:
        return _start_period_with_runs(state, jnp.asarray(improved), jnp.asarray(active), placement)
    return dataclasses.replace(state, metrics=jax.tree.map(jnp.zeros_like, state.metrics))


@functools.partial(jax.jit, static_argnums=3)
def _start_period_with_runs(
    state: TrainState, improved: jax.Array, active: jax.Array, placement: Placement
) -> TrainState:
    best = select_runs(improved, (state.params, state.model_state), state.best)
    metrics = jax.tree.map(jnp.zeros_like, state.metrics)
    return placement.keep(dataclasses.replace(state, best=best, metrics=metrics, active=active))


CPU_CACHE_BYTES = 2**20
"""Approximate size in bytes of the second-level cache of a CPU core."""

RunsFunction = Callable[..., Any]
"""A function from arrays to arrays that all have the axis of runs in front."""


def map_runs(function: Callable[..., Any], placement: Placement) -> RunsFunction:
    """Returns a function over R runs, to be compiled, from a function of arrays of one run.

    Each device computes its own runs in groups of ``placement.runs_at_once``; the last group may be
    smaller, which costs the compilation of a second program. By default all runs are one group,
    except on CPUs: there the arrays of several runs evict each other from the cache, so a group has
    only as many runs as fit in the cache with their largest arrays (``max_runs_in_cache``).
    """

    def map_function(*arrays: Any) -> Any:
        runs = jax.tree.leaves(arrays)[0].shape[0] // placement.num_shards
        size = placement.runs_at_once
        if size is None:
            is_cpu = placement.platform == "cpu"
            size = max_runs_in_cache(function, arrays, runs) if is_cpu else runs
        if size >= runs:
            return jax.vmap(function)(*arrays)
        groups = _map_in_groups(function, size)
        if placement.num_shards == 1:
            return groups(*arrays)
        # A loop over a sharded axis would fetch each run from its device, so each device loops over
        # its own runs. No check_vma: scans in mechanisms do not mark their carries as varying.
        own = PartitionSpec(DATA)
        split = jax.shard_map(
            groups, mesh=placement.mesh, in_specs=own, out_specs=own, check_vma=False
        )
        return split(*arrays)

    return map_function


def _map_in_groups(function: Callable[..., Any], size: int) -> RunsFunction:
    def map_groups(*arrays: Any) -> Any:
        # A group of one has no vmap, so that its operations equal a single run's.
        batch_size = None if size == 1 else size
        return jax.lax.map(lambda run: function(*run), arrays, batch_size=batch_size)

    return map_groups


def max_runs_in_cache(function: Callable[..., Any], arrays: Any, runs: int) -> int:
    """Maximum number of runs whose largest arrays fit in the cache together, at least 1.

    It divides the number of runs, so that all groups have the same size; the cache has
    ``CPU_CACHE_BYTES``. ``arrays`` have a leading axis of runs.
    """
    one = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), arrays)
    limit = max(
        CPU_CACHE_BYTES // max(_max_array_bytes(jax.make_jaxpr(function)(*one).jaxpr), 1), 1
    )
    return max(size for size in range(1, runs + 1) if runs % size == 0 and size <= limit)


def _max_array_bytes(jaxpr: Jaxpr) -> int:
    """Size in bytes of the largest array that a program computes."""
    sizes = [0]
    for equation in jaxpr.eqns:
        sizes += [_max_array_bytes(inner) for inner in jaxprs_in_params(equation.params)]
        arrays: list[Any] = [variable.aval for variable in equation.outvars]
        sizes += [array.size * array.dtype.itemsize for array in arrays]
    return max(sizes)
