"""Optimizers made from options, LAMB, Muon, and the parameters that weight decay and Muon cover."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from flax_linattn.checks import OptionError, check_positive
from flax_linattn.training.optimizer_options import OptimizerOptions
from flax_linattn.training.schedules import (
    five_epoch_decay,
    halving,
    linear_warmup,
    reciprocal_sqrt,
    step_decay,
    warmup_cosine,
)
from flax_linattn.typing import Array


# Cached like the optimizer, so that training steps with equal options are compiled once.
@functools.lru_cache(maxsize=8)
def make_schedule(
    options: OptimizerOptions, total_steps: int, steps_per_epoch: int
) -> float | optax.Schedule:
    """The learning rate, or a schedule: int [] -> float32 [].

    Args:
        options: Options of the optimizer.
        total_steps: Number of training steps.
        steps_per_epoch: Number of training steps in an epoch.

    Raises:
        OptionError: If the warmup leaves no steps for the schedule "cosine".

    Example:
        >>> make_schedule(OptimizerOptions(learning_rate=0.1), 100, 10)
        0.1
    """
    peak, warmup_steps = options.learning_rate, options.warmup_steps(total_steps)
    epochs = -(-total_steps // steps_per_epoch)
    match options.schedule:
        case "cosine":
            last = peak / 100 if options.last_rate is None else options.last_rate
            return warmup_cosine(peak, total_steps, warmup_steps=warmup_steps, last=last)
        case "reciprocal_sqrt":
            return reciprocal_sqrt(peak, max(1, warmup_steps))
        case "linear_warmup":
            return linear_warmup(peak, warmup_steps)
        case "halving":
            return halving(peak, steps_per_epoch, epochs)
        case "steps":
            return five_epoch_decay(peak, steps_per_epoch, epochs)
    if options.lower_at:
        return step_decay(peak, options.lower_at * steps_per_epoch)
    return optax.linear_schedule(0.0, peak, warmup_steps) if warmup_steps else peak


def make_optimizer(
    options: OptimizerOptions,
    total_steps: int,
    steps_per_epoch: int,
    *,
    inject_hyperparams: bool = False,
) -> optax.GradientTransformation:
    """The optimizer of a run: clipping, the update rule and the learning rate at each step.

    Args:
        options: Options of the optimizer and its learning rate schedule.
        total_steps: Number of training steps; the schedule "cosine" ends there.
        steps_per_epoch: Number of training steps in an epoch, for the schedules "halving" and
            "steps" and for ``lower_at``.
        inject_hyperparams: Whether the optimizer's state holds a constant learning rate, see
            ``optax.inject_hyperparams``, so that several runs of ``fit`` may differ in it. A
            learning rate that follows a schedule is computed from the step nevertheless.

    Raises:
        OptionError: If the warmup leaves no steps for the schedule "cosine".

    Example:
        >>> optimizer = make_optimizer(OptimizerOptions("sgd", 0.1, momentum=0.0), 100, 10)
        >>> updates, _ = optimizer.update(jnp.ones(2), optimizer.init(jnp.ones(2)))
        >>> updates
        Array([-0.1, -0.1], dtype=float32)
    """
    schedule = make_schedule(options, total_steps, steps_per_epoch)
    return _make_optimizer(options, schedule, inject_hyperparams)


@functools.lru_cache(maxsize=8)
def _make_optimizer(
    options: OptimizerOptions, schedule: float | optax.Schedule, inject_hyperparams: bool
) -> optax.GradientTransformation:
    mask = weight_decay_mask if options.decay_mask == "matrices" else None
    decay: dict[str, Any] = {"b2": options.beta2, "weight_decay": options.weight_decay}
    make: Callable[..., optax.GradientTransformation]
    arguments: dict[str, Any]
    match options.optimizer:
        case "sgd":
            make, arguments = optax.sgd, {"momentum": options.momentum}
        case "adam":
            make, arguments = optax.adam, {"b2": options.beta2}
        case "radam":
            make, arguments = optax.radam, {"b2": options.beta2}
        case "adamw":
            make, arguments = optax.adamw, decay | {"mask": mask}
        case "lion":
            make = optax.lion
            arguments = {"weight_decay": options.weight_decay, "mask": mask}
        case "muon":
            make, arguments = muon, decay | {"decay_mask": mask}
        case name:
            fused: dict[str, Any] = {"max_weight_norm": None, "always_adapt": False, "eps": 1e-7}
            max_grad_norm = 1.0 if options.clip_norm is None else options.clip_norm
            make, arguments = lamb, decay | {"max_grad_norm": max_grad_norm}
            arguments |= {"decay_mask": _all_true if mask is None else mask}
            arguments |= fused if name == "fused_lamb" else {}
    if inject_hyperparams:
        # All but the learning rate is static: a mask is no schedule, and bounds are checked as
        # Python numbers.
        with_mask = make in (optax.adamw, optax.lion, lamb, muon)
        names = inspect.signature(make).parameters if with_mask else ()
        static = [name for name in names if name != "learning_rate"]
        make = optax.inject_hyperparams(make, static, hyperparam_dtype=jnp.float32)
    inner = make(learning_rate=schedule, **arguments)
    if options.clip_norm is None or options.optimizer in ("lamb", "fused_lamb"):
        return inner
    return optax.chain(optax.clip_by_global_norm(options.clip_norm), inner)


NEVER_DECAY = ("class_token", "position", "positions", "times")
"""Names of parameters without weight decay though they have two axes: class tokens, positions."""


def weight_decay_mask(params: Any) -> Any:
    """Mask of the parameters with weight decay: matrices and tables, as in timm.

    Parameters of at most one axis (biases, factors of norms) have none, nor do class tokens and
    tables of positions, which are recognized by their names.

    Args:
        params: A pytree of arrays, such as ``nnx.state(model, nnx.Param)``.

    Returns:
        A pytree of the same structure with a bool for each array.

    Example:
        >>> kernel, bias = jnp.zeros((3, 2)), jnp.zeros(2)
        >>> weight_decay_mask({"kernel": kernel, "bias": bias, "positions": {"table": kernel}})
        {'bias': False, 'kernel': True, 'positions': {'table': False}}
    """
    return jax.tree_util.tree_map_with_path(
        lambda path, x: x.ndim >= 2 and not any(_name(key) in NEVER_DECAY for key in path), params
    )


NOT_HIDDEN = re.compile(r"embed|conv|(^|_)(head|logits|times|marks|map|added)$")
"""Names of modules whose kernels Muon leaves to AdamW: first and last layers, and convolutions."""


def muon_dimension_numbers(params: Any) -> Any:
    """Axes of the parameters that Muon updates, the matrices of hidden layers.

    These are kernels, parameters named "kernel" with at least two axes, except in first and last
    layers and in convolutions, which are recognized by names: a module whose name contains "embed"
    or "conv", or ends in "head", "logits", "times", "marks", "map" or "added", and a kernel of the
    model itself.
    Tables, biases, factors of norms and a mechanism's own parameters have other names.

    The last two axes of a kernel are its inputs and outputs. A kernel with more axes is a stack of
    matrices (layers made by ``nnx.vmap``, or one layer for each position), except in the "query",
    "key", "value" and "out" of ``nnx.MultiHeadAttention``: there the heads are an axis of the
    outputs (of the inputs of "out"), and all heads form one matrix.

    Args:
        params: A pytree of arrays, such as ``nnx.state(model, nnx.Param)``.

    Returns:
        A pytree of the same structure with ``optax.contrib.MuonDimensionNumbers`` for the
        parameters of Muon and None for the others; the argument
        ``muon_weight_dimension_numbers`` of ``optax.contrib.muon``.

    Example:
        >>> kernel = jnp.zeros((3, 2, 4))
        >>> muon_dimension_numbers({"query": {"kernel": kernel, "bias": kernel[0]}})["query"]
        {'bias': None, 'kernel': MuonDimensionNumbers(reduction_axis=(-3,), output_axis=(-2, -1))}
        >>> muon_dimension_numbers({"head": {"kernel": kernel[0]}})
        {'head': {'kernel': None}}
    """
    return jax.tree_util.tree_map_with_path(_dimension_numbers, params)


def _dimension_numbers(path: Any, x: Array) -> optax.contrib.MuonDimensionNumbers | None:
    names = [_name(key) for key in path]
    if names[-1] != "kernel":  # the path of an nnx.Param ends in its value
        names = names[:-1]
    *modules, name = names or [None]
    if name != "kernel" or not modules or x.ndim < 2:
        return None
    if any(NOT_HIDDEN.search(module) for module in modules if isinstance(module, str)):
        return None
    inputs: tuple[int, ...] = (-2,)
    outputs: tuple[int, ...] = (-1,)
    if x.ndim > 2 and modules[-1] in ("query", "key", "value"):
        inputs, outputs = (-3,), (-2, -1)
    elif x.ndim > 2 and modules[-1] == "out":
        inputs = (-3, -2)
    return optax.contrib.MuonDimensionNumbers(inputs, outputs)


def muon(
    learning_rate: optax.ScalarOrSchedule,
    *,
    beta: float = 0.95,
    b2: float = 0.999,
    weight_decay: float = 0.0,
    decay_mask: Callable[[Any], Any] | None = weight_decay_mask,
) -> optax.GradientTransformation:
    """Muon for the matrices of hidden layers, and AdamW for all other parameters.

    It is ``optax.contrib.muon`` with the matrices of ``muon_dimension_numbers``. An update of Muon
    is scaled to a root mean square of about 0.2, as in Moonlight (Liu et al., "Muon is Scalable for
    LLM Training", 2025), which is that of AdamW: both share the learning rate and weight decay. As
    in ``optax.contrib.muon``, both have Nesterov momentum.

    Args:
        learning_rate: A number, or a schedule of the step, which counts from 0.
        beta: Decay rate of Muon's momentum.
        b2: Decay rate of the second-moment estimate of AdamW.
        weight_decay: Decoupled weight decay.
        decay_mask: Function from the parameters to a mask, such as ``weight_decay_mask``; None lets
            all parameters decay.

    Example:
        >>> optimizer = muon(0.1)
        >>> params = {"layer": {"kernel": jnp.eye(4), "bias": jnp.ones(4)}}
        >>> with jax.numpy_dtype_promotion("standard"):  # as the training step has it, for optax
        ...     updates, _ = optimizer.update(params, optimizer.init(params), params)
        >>> size = jnp.sqrt(jnp.mean(updates["layer"]["kernel"] ** 2))  # about 0.2 * 0.1
        >>> f"{size:.3f}, {updates['layer']['bias'][0]:.3f}"
        '0.015, -0.147'
    """
    return optax.chain(
        # A rate of -1 keeps the sign and size of the direction. Weight decay and the learning rate
        # follow for both groups, because the weight decay of optax's AdamW group has no mask.
        optax.contrib.muon(
            -1.0,
            beta=beta,
            adam_b2=b2,
            consistent_rms=0.2,
            muon_weight_dimension_numbers=muon_dimension_numbers,
        ),
        optax.add_decayed_weights(weight_decay, mask=decay_mask),
        optax.scale_by_learning_rate(learning_rate),
    )


def lamb(
    learning_rate: optax.ScalarOrSchedule,
    *,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-6,
    weight_decay: float = 0.0,
    max_grad_norm: float | None = 1.0,
    max_weight_norm: float | None = 10.0,
    decay_mask: Callable[[Any], Any] = weight_decay_mask,
    always_adapt: bool = True,
) -> optax.GradientTransformation:
    """LAMB (You et al., 2020, Algorithm 2) on clipped gradients.

    A parameter w moves by ``-learning_rate * phi(|w|) / |u| * u``, with u = Adam's step with both
    bias corrections, plus ``weight_decay * w`` where it decays; a norm is that of one array, and
    the factor, the trust ratio, is 1 where a norm is 0.

    The paper leaves phi open: any function between two positive bounds, such as
    ``min(max(z, low), high)``, without values. Here ``phi(z) = min(z, max_weight_norm)``. The bound
    of 10 goes back to the paper's first version, which bounded the ratio; public code such as
    pytorch-lamb and GluonNLP bounds the norm. TensorFlow Addons' LAMB, ``optax.lamb``, timm's Lamb
    and apex's FusedLAMB have no bound: ``max_weight_norm=None``. A layer of 256 x 256 starts with a
    norm of about 16, so the default bound has an effect. ``optax.lamb`` does not clip gradients;
    FusedLAMB and timm's Lamb clip their global norm to 1, and use a trust ratio of 1 for parameters
    without weight decay: ``always_adapt=False``, with a ``weight_decay`` above 0.

    Args:
        learning_rate: A number, or a schedule of the step, which counts from 0.
        b1: Decay rate of the first-moment estimate.
        b2: Decay rate of the second-moment estimate.
        eps: Added to the root of the second-moment estimate.
        weight_decay: Decoupled weight decay, lambda of the paper.
        max_grad_norm: Maximum global norm of the gradients; None disables clipping.
        max_weight_norm: The bound of phi; None for no bound.
        decay_mask: Function from the parameters to a mask, such as ``weight_decay_mask``.
        always_adapt: Whether the trust ratio also scales the updates of parameters without weight
            decay.

    Raises:
        OptionError: If a number is out of range.

    Example:
        >>> optimizer = lamb(0.1)
        >>> params = {"kernel": jnp.eye(2), "bias": jnp.zeros(2)}
        >>> grads = {"kernel": jnp.eye(2), "bias": jnp.ones(2)}
        >>> with jax.numpy_dtype_promotion("standard"):  # as the training step has it, for optax
        ...     updates, _ = optimizer.update(grads, optimizer.init(params), params)
        >>> f"{updates['kernel'][0, 0]:.3f}, {updates['bias'][0]:.3f}"  # |w| / |u| = 1; |w| = 0
        '-0.100, -0.100'
    """
    for name, value in (("b1", b1), ("b2", b2)):
        if not 0 <= value < 1:
            raise OptionError(f"{name} must be in [0, 1), got {value}.", name)
    if not weight_decay >= 0:
        raise OptionError(f"weight_decay must be at least 0, got {weight_decay}.", "weight_decay")
    check_positive(
        eps=eps,
        **({} if max_grad_norm is None else {"max_grad_norm": max_grad_norm}),
        **({} if max_weight_norm is None else {"max_weight_norm": max_weight_norm}),
    )

    def adapt(updates: Any, params: Any) -> Any:
        # optax.scale_by_trust_ratio has no bound of phi, no mask that leaves the optimizer's state
        # as it is, and takes norms in the parameter's dtype, which overflow in float16.
        is_adapted = _all_true(params) if always_adapt else decay_mask(params)
        return jax.tree.map(
            lambda u, w, adapts: u * _trust_ratio(w, u, max_weight_norm) if adapts else u,
            updates,
            params,
            is_adapted,
        )

    return optax.chain(
        optax.identity() if max_grad_norm is None else optax.clip_by_global_norm(max_grad_norm),
        optax.scale_by_adam(b1=b1, b2=b2, eps=eps),
        optax.add_decayed_weights(weight_decay, mask=decay_mask),
        optax.stateless(adapt),
        optax.scale_by_learning_rate(learning_rate),
    )


def _trust_ratio(param: Array, update: Array, max_weight_norm: float | None) -> Array:
    """phi(|w|) / |u|, float32 [], 1 where either norm is 0."""
    weight, step = _norm(param), _norm(update)
    both = (weight > 0) & (step > 0)
    bounded = weight if max_weight_norm is None else jnp.minimum(weight, max_weight_norm)
    return jnp.where(both, bounded / jnp.where(both, step, 1), 1).astype(update.dtype)


def _norm(x: Array) -> Array:
    return jnp.linalg.norm(jnp.ravel(x).astype(jnp.promote_types(x.dtype, jnp.float32)))


def _all_true(params: Any) -> Any:
    return jax.tree.map(lambda x: True, params)


def _name(key: Any) -> Any:
    """The name, or the index, of an entry of a path."""
    return getattr(key, "key", getattr(key, "name", None))
