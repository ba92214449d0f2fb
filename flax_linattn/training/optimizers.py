"""LAMB, the optimizer of large batches, and which parameters decay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from flax_linattn.checks import OptionError, positive
from flax_linattn.typing import Array

NEVER_DECAY = ("class_token", "position", "positions", "times")
"""Names of what is learned for a class token and for positions, whose tables have two axes."""


def decays(params: Any) -> Any:
    """Which parameters weight decay shrinks: matrices and tables, as in timm.

    Not those of at most one axis, such as biases and factors of norms, and not class tokens and
    tables of positions, which are known by their names.

    Args:
        params: A tree of arrays, such as ``nnx.state(model, nnx.Param)``.

    Returns:
        A tree of the same structure, of bools.

    Example:
        >>> kernel, bias = jnp.zeros((3, 2)), jnp.zeros(2)
        >>> decays({"kernel": kernel, "bias": bias, "positions": {"table": kernel}})
        {'bias': False, 'kernel': True, 'positions': {'table': False}}
    """
    return jax.tree_util.tree_map_with_path(
        lambda path, x: x.ndim >= 2 and not any(_name(key) in NEVER_DECAY for key in path), params
    )


def lamb(
    learning_rate: optax.ScalarOrSchedule,
    *,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-6,
    weight_decay: float = 0.0,
    max_norm: float | None = 1.0,
    largest_norm: float | None = 10.0,
    decay_mask: Callable[[Any], Any] = decays,
    always_adapt: bool = True,
) -> optax.GradientTransformation:
    """LAMB (You et al., 2020, Algorithm 2) on clipped gradients.

    A parameter w moves by ``-learning_rate * phi(|w|) / |u| * u``, with u = Adam's step with both
    bias corrections, plus ``weight_decay * w`` where it decays; a norm is that of one array, and
    the factor, the trust ratio, is 1 where a norm is 0.

    What phi is, the paper leaves open: any function between two positive bounds, such as
    ``min(max(z, low), high)``, without values. Here ``phi(z) = min(z, largest_norm)``. The bound of
    10 goes back to the paper's first version, which put it on the ratio; public code such as
    pytorch-lamb and GluonNLP has it on the norm. TensorFlow Addons' LAMB, ``optax.lamb``, timm's
    Lamb and apex's FusedLAMB have no bound: ``largest_norm=None``. A layer of 256 x 256 begins with
    a norm of about 16, so that this one acts. Further, ``optax.lamb`` does not clip gradients;
    FusedLAMB and timm's clip their global norm to 1, and give what does not decay the ratio 1:
    ``always_adapt=False``, with a ``weight_decay`` above 0.

    Args:
        learning_rate: A number, or a schedule of the step, which counts from 0.
        b1: Decay rate of the first moment.
        b2: Decay rate of the second moment.
        eps: Added to the root of the second moment.
        weight_decay: lambda of the paper.
        max_norm: Largest global norm of the gradients; None leaves them as they are.
        largest_norm: The bound of phi, or None.
        decay_mask: Says of a tree of parameters which of them decay, as ``decays`` does.
        always_adapt: Whether the trust ratio acts on those too that do not decay.

    Raises:
        OptionError: A number is out of range.

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
    positive(
        eps=eps,
        **{
            name: value
            for name, value in (("max_norm", max_norm), ("largest_norm", largest_norm))
            if value is not None
        },
    )

    def adapted(updates: Any, params: Any) -> Any:
        acts = jax.tree.map(lambda x: True, params) if always_adapt else decay_mask(params)
        return jax.tree.map(
            lambda u, w, act: u * _trust_ratio(w, u, largest_norm) if act else u,
            updates,
            params,
            acts,
        )

    return optax.chain(
        optax.identity() if max_norm is None else optax.clip_by_global_norm(max_norm),
        optax.scale_by_adam(b1=b1, b2=b2, eps=eps),
        optax.add_decayed_weights(weight_decay, mask=decay_mask),
        optax.stateless(adapted),
        optax.scale_by_learning_rate(learning_rate),
    )


def _trust_ratio(param: Array, update: Array, largest_norm: float | None) -> Array:
    """phi(|w|) / |u|, float32 [], 1 where either norm is 0."""
    weight, step = _norm(param), _norm(update)
    both = (weight > 0) & (step > 0)
    bounded = weight if largest_norm is None else jnp.minimum(weight, largest_norm)
    return jnp.where(both, bounded / jnp.where(both, step, 1), 1).astype(update.dtype)


def _norm(x: Array) -> Array:
    return jnp.linalg.norm(jnp.ravel(x).astype(jnp.promote_types(x.dtype, jnp.float32)))


def _name(key: Any) -> Any:
    """Of an entry of a path: a name, or a number."""
    return getattr(key, "key", getattr(key, "name", None))
