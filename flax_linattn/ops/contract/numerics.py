"""Accumulation dtypes and guarded arithmetic shared by all mechanisms."""

from __future__ import annotations

import math
from functools import partial
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from flax_linattn.typing import Array, Parameters

Tree = TypeVar("Tree")


def accumulation_dtype(dtype: DTypeLike) -> jnp.dtype:
    """Returns the dtype of sums and states for inputs of ``dtype``.

    float32 for float32 and narrower, float64 for float64.

    Example:
        >>> import jax.numpy as jnp
        >>> accumulation_dtype(jnp.bfloat16)
        dtype('float32')
    """
    # Not jnp.promote_types, which refuses mixed dtypes where promotion is strict.
    return jnp.dtype(jnp.float64 if jnp.dtype(dtype) == jnp.float64 else jnp.float32)


def einsum(subscripts: str, *operands: Array) -> Array:
    """Computes ``jnp.einsum`` in the full precision of its operands, on accelerators too.

    By default accelerators round float32 operands to 10 or 7 bits, and the forms of a mechanism
    would differ. ``jax.default_matmul_precision`` overrides this function.

    Example:
        >>> import jax.numpy as jnp
        >>> einsum("i,i->", jnp.array([1.0, 2.0]), jnp.array([3.0, 4.0])).item()
        11.0
    """
    chosen = getattr(jax.config, "jax_default_matmul_precision", None)
    precision = jax.lax.Precision.HIGHEST if chosen is None else None
    return jnp.einsum(subscripts, *operands, precision=precision)


def dot(a: Array, b: Array) -> Array:
    """Sums the products over the last axis, in full precision whatever the default is.

    XLA computes ``jnp.sum(a * b, axis=-1)`` of many vectors up to 9 times as slowly on a CPU.

    Example:
        >>> import jax.numpy as jnp
        >>> dot(jnp.array([[1.0, 2.0]]), jnp.array([[3.0, 4.0]])).tolist()
        [11.0]
    """
    return jnp.einsum("...i,...i->...", a, b, precision=jax.lax.Precision.HIGHEST)


def match_varying_axes(tree: Tree) -> Tree:
    """Makes all leaves vary over the same mesh axes inside ``jax.shard_map``.

    A loop carry must have one type throughout, but a state made of zeros is initially the same on
    every device. Outside ``jax.shard_map`` nothing changes.
    """

    def axes(x: Array) -> frozenset[str]:
        return getattr(getattr(jax.typeof(x), "manual_axis_type", None), "varying", frozenset())

    every = frozenset().union(*map(axes, jax.tree.leaves(tree)))

    def vary(x: Array) -> Array:
        missing = tuple(sorted(every - axes(x)))
        return jax.lax.pcast(x, missing, to="varying") if missing else x

    varied: Tree = jax.tree.map(vary, tree)
    return varied


# Jitted, since jax.checkpoint alone takes 0.1 ms or more for each call outside ``jit``.
@partial(jax.jit, inline=True)
@partial(jax.checkpoint, prevent_cse=False)
def overwrite(x: Array, marked: Array, value: float | Array) -> Array:
    """Computes ``jnp.where(marked, value, x)``, holding only ``marked`` for the backward pass.

    ``jnp.where`` holds the mask and zeros in the shape of x, in every layer of a scanned model.

    Example:
        >>> import jax.numpy as jnp
        >>> overwrite(jnp.array([[1.0, 2.0], [3.0, 4.0]]), jnp.array([[True], [False]]), 0).tolist()
        [[0.0, 0.0], [3.0, 4.0]]
    """
    return jnp.where(marked, value, x)


def safe_divide(numerator: Array, denominator: Array) -> Array:
    """Divides, returning 0 with zero gradient where the denominator is 0.

    Subnormal denominators count as 0, as on most hardware. The gradient is finite even for small
    denominators whose squares underflow.

    Example:
        >>> import jax.numpy as jnp
        >>> safe_divide(jnp.array([1.0, 3.0]), jnp.array([0.0, 2.0])).tolist()
        [0.0, 1.5]
    """
    empty = jnp.abs(denominator) < jnp.finfo(denominator.dtype).tiny
    quotient = _divide(numerator, jnp.where(empty, jnp.ones_like(denominator), denominator))
    return overwrite(quotient, empty, 0)


@jax.custom_jvp
def _divide(numerator: Array, denominator: Array) -> Array:
    return numerator / denominator


@_divide.defjvp
def _divide_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    """Derivative without the square of the denominator in JAX's rule, which under- or overflows."""
    numerator, denominator = primals
    quotient = _divide(numerator, denominator)
    return quotient, _divide(tangents[0], denominator) - quotient * _divide(
        tangents[1], denominator
    )


def scores(q: Array, k: Array, subscripts: str = "bthk,bshk->bhts") -> Array:
    """Computes the products q . k such that every use in a program has the same rounding.

    With one channel the product is a plain multiplication, which compilers fuse with the
    subtraction of a maximum into one rounding: a large score minus itself is then not 0. A second
    channel of zeros makes it a sum, which they do not fuse.

    Args:
        q: Vectors of shape [..., K].
        k: Vectors of shape [..., K].
        subscripts: Subscripts of :func:`einsum`, with the channels last in both operands.

    Example:
        >>> import jax.numpy as jnp
        >>> scores(jnp.full((1, 1, 1, 1), 3.0), jnp.full((1, 1, 1, 1), 2.0)).item()
        6.0
    """
    if k.shape[-1] == 1:
        q, k = (jnp.pad(x, ((0, 0),) * (x.ndim - 1) + ((0, 1),)) for x in (q, k))
    return einsum(subscripts, q, k)


def score_scale(scale: float | Array | None, default: float | None, key_dim: int) -> float | Array:
    """Returns the factor of the scores: the argument, else the hyperparameter, else K**-0.5.

    Raises:
        ValueError: If the factor is not a scalar.

    Example:
        >>> score_scale(None, None, 16), score_scale(None, 0.5, 16), score_scale(2.0, 0.5, 16)
        (0.25, 0.5, 2.0)
    """
    if scale is None:
        scale = default
    if scale is None:
        scale = key_dim**-0.5
    if jnp.ndim(scale):
        raise ValueError(
            f"scale must be one number for all heads, got shape {jnp.shape(scale)}; "
            "multiply q by your own factors instead."
        )
    return scale


class ScoreScale:
    """Mixin for mechanisms whose scores have a factor ``scale``."""

    @property
    def scale(self) -> float | None:
        """Factor of the scores if a call passes none; None means K**-0.5."""
        return None

    def _scale(self, q: Array, parameters: Parameters) -> Array:
        """Returns the factor of the scores, in the dtype of the queries."""
        scale = score_scale(parameters.get("scale"), self.scale, q.shape[-1])
        return jnp.asarray(scale).astype(q.dtype)


def multiply_by_scalar(x: Array, factor: float | Array) -> Array:
    """Multiplies ``x`` [..., H, K] by one number, whose gradient is summed pairwise over tokens.

    The number is broadcast by doubling, so its gradient is summed in a binary tree. The gradient of
    a plain product may be summed sequentially: over 500 tokens of outputs without a denominator
    that had a 60 times larger rounding error.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> x = jnp.arange(6, dtype=jnp.float32).reshape(1, 3, 1, 2)
        >>> jax.grad(lambda factor: multiply_by_scalar(x, factor).sum())(jnp.float32(2)).item()
        15.0
    """
    tokens = x.shape[:-2]
    symbolic = not all(isinstance(size, int) for size in tokens)  # in an export
    if symbolic or not isinstance(factor, jax.Array):
        return x * jnp.asarray(factor).astype(x.dtype)
    size, spread = math.prod(tokens), factor.astype(x.dtype).reshape(1)
    while spread.size < size:
        spread = jnp.concatenate([spread, spread])
    return x * spread[:size].reshape(*tokens, 1, 1)


def exp_difference(score: Array, maximum: Array) -> Array:
    """Computes ``exp(score - maximum)`` where either may be -inf, without NaN.

    A maximum of -inf stands for "no token yet": all weights are 0 then.
    """
    finite = jnp.where(jnp.isneginf(maximum), jnp.zeros_like(maximum), maximum)
    return jnp.exp(score - finite)
