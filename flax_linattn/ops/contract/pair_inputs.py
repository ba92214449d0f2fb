"""Inputs per pair of a query and a key: a mask, a bias of the scores, dropout of the weights.

Only mechanisms that form the weights of single pairs take them (``Capabilities.pair_inputs``). They
are keyword arguments of ``attend``, ``step`` and ``reference``:

pair_mask
    Boolean array of shape [B or 1, H or 1, T, S]; False hides a key from a query, in addition to
    ``mask``, ``is_causal``, ``segment_ids`` and a window. An output that attends to no key is 0.
bias
    Array of shape [B or 1, H or 1, T, S] added to the scaled scores; -inf hides the key. NaN and
    inf give NaN, where the key is visible.
dropout_rate, dropout_key
    Fraction of the weights that are dropped after they are normalized, and the random key that
    enables it. The others are divided by 1 - rate.

S counts the slots of the cache of an initial state first, in the order of time, and then the tokens
of the call. In ``step`` the shape is [B or 1, H or 1, L], over the slots of the returned cache.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from flax_linattn.ops.contract.numerics import overwrite
from flax_linattn.typing import Array, Parameters, Visible

PAIRWISE = ("pair_mask", "bias")
"""Names of the inputs that are arrays over pairs."""


class PairInputs(NamedTuple):
    """Checked inputs per pair of a block of queries.

    Attributes:
        mask: Boolean array of shape [B or 1, H or 1, T, S]; None means True.
        bias: Array of shape [B or 1, H or 1, T, S]; None means 0.
        rows: Positions [T] of the queries in the call, which choose their random bits.
        dropout_rate: Fraction of the weights that are dropped.
        dropout_key: Random key; None means no dropout.
    """

    mask: Array | None = None
    bias: Array | None = None
    rows: Array | None = None
    dropout_rate: Array | None = None
    dropout_key: Array | None = None

    @classmethod
    def check(cls, parameters: Parameters, *shape: Any, cached: int = 0) -> PairInputs:
        """Returns the inputs per pair among a mechanism's own arguments.

        Args:
            parameters: The mechanism's own arguments, by name.
            *shape: Sizes B, H, T, S of ``attend``, or B, H, L of ``step``.
            cached: Number of keys among S that are slots of the cache of an initial state.

        Raises:
            ValueError: If a shape does not fit, or dropout has a rate without a key or vice versa.
            TypeError: If a dtype is wrong.
        """
        mask, bias = map(parameters.get, PAIRWISE)
        axes = "[B or 1, H or 1, T, S]" if len(shape) == 4 else "[B or 1, H or 1, L]"
        for name, x in zip(PAIRWISE, (mask, bias), strict=True):
            if x is None:
                continue
            wants_bool = name == "pair_mask"
            if (x.dtype == jnp.bool_) != wants_bool or not (
                wants_bool or jnp.issubdtype(x.dtype, jnp.floating)
            ):
                want = "Boolean, with True for visible pairs" if wants_bool else "floating"
                raise TypeError(f"{name} must be {want}, got {x.dtype}.")
            allowed = ((shape[0], 1), (shape[1], 1), *((size,) for size in shape[2:]))
            if x.ndim != len(shape) or any(map(lambda n, sizes: n not in sizes, x.shape, allowed)):
                slots = f", where S counts the {cached} slots of initial_state first" * bool(cached)
                raise ValueError(
                    f"{name} must have shape {axes} = {_describe(shape)}{slots}, got {x.shape}."
                )
        rate, key = parameters.get("dropout_rate"), parameters.get("dropout_key")
        if (rate is None) != (key is None):
            raise ValueError("dropout needs both dropout_rate and dropout_key; pass both or none.")
        if len(shape) == 3:  # one query
            mask, bias = (None if x is None else x[:, :, None] for x in (mask, bias))
        rows = jnp.arange(1 if len(shape) == 3 else shape[2], dtype=jnp.int32)
        return cls(mask, bias, rows, rate, key)

    @property
    def is_given(self) -> bool:
        """Whether any input was given."""
        return any(x is not None for x in (self.mask, self.bias, self.dropout_key))

    def take_rows(self, index: Array) -> PairInputs:
        """Returns the inputs of the queries at some positions [T']."""
        mask, bias = (
            None if x is None else jnp.take(x, index, axis=2, mode="clip")
            for x in (self.mask, self.bias)
        )
        return self._replace(mask=mask, bias=bias, rows=index)

    def visible_pairs(self, visible: Visible) -> Array:
        """Returns which pairs are visible, [B or 1, H or 1, T, S], of those in ``visible``."""
        pairs = visible[:, None]
        if self.mask is not None:
            pairs = pairs & self.mask
        return pairs if self.bias is None else pairs & ~jnp.isneginf(self.bias)

    def visible_by_key(self, visible: Visible) -> Array:
        """Returns the visible pairs as [B or 1, S, T], or [B or 1, S, T, H or 1] with a mask."""
        if self.mask is None:
            return jnp.swapaxes(visible, 1, 2)
        return jnp.transpose(self.visible_pairs(visible), (0, 3, 2, 1))

    def add_bias(self, score: Array, pairs: Array) -> Array:
        """Adds the bias of visible pairs to scores [B, H, T, S], NaN and inf replaced by 0."""
        if self.bias is None:
            return score
        finite = pairs & jnp.isfinite(self.bias)
        return score + jnp.where(finite, self.bias, jnp.zeros_like(self.bias)).astype(score.dtype)

    def poison(self, y: Array, pairs: Array) -> Array:
        """Overwrites with NaN the outputs [B, T, H, V] of visible pairs whose bias is NaN or inf.

        Replaced scores give finite outputs, so these would hide the error. Other outputs and their
        gradients remain what they are.
        """
        if self.bias is None:
            return y
        marked = jnp.any(pairs & ~jnp.isfinite(self.bias), axis=-1)
        return overwrite(y, jnp.swapaxes(marked, 1, 2)[..., None], jnp.nan)

    def drop(self, weight: Array) -> Array:
        """Applies dropout to normalized weights [B, H, T, S]."""
        key = self.dropout_key
        if key is None or self.dropout_rate is None or self.rows is None:
            return weight
        keep_rate = 1 - self.dropout_rate.astype(weight.dtype)
        # Each query has bits of its own, so blocks of any size drop the same weights.
        batch, heads, _, keys = weight.shape
        keep = jax.vmap(
            lambda row: jax.random.bernoulli(
                jax.random.fold_in(key, row), keep_rate, (batch, heads, keys)
            ),
            out_axes=2,
        )(self.rows)
        return jnp.where(keep, weight / keep_rate, jnp.zeros_like(weight))


def weight_shape(q: Array, k: Array) -> tuple[int, int, int, int]:
    """Returns the shape [B, H, T, S] of the weights of queries and keys [B, T, H, K]."""
    return k.shape[0], k.shape[2], q.shape[1], k.shape[1]


def split_groups(
    parameters: Parameters, heads: int, key_heads: int
) -> tuple[dict[str, Array], dict[str, int | None]]:
    """Splits inputs per pair of H query heads into groups that share G key heads.

    Returns:
        The parameters: inputs per query head have shape [B or 1, G, H / G, ...], and each of the
        H / G heads in a group has its own dropout key. The axis of the H / G heads in each
        parameter; None for a parameter without such an axis.

    Raises:
        ValueError: If an input has neither one head nor H.
    """
    size = heads // key_heads
    split, axes = dict(parameters), dict.fromkeys(parameters)
    for name in {*PAIRWISE} & {*parameters}:
        x = parameters[name]
        if x.ndim > 1 and x.shape[1] not in (1, heads):
            raise ValueError(
                f"axis 1 of {name} must have size 1 or {heads}, one for each head of q, got "
                f"{x.shape}."
            )
        if x.ndim > 1 and x.shape[1] == heads:
            split[name] = x.reshape(x.shape[0], key_heads, size, *x.shape[2:])
            axes[name] = 2
    if "dropout_key" in parameters:
        keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))
        split["dropout_key"] = keys(parameters["dropout_key"], jnp.arange(size))
        axes["dropout_key"] = 0
    return split, axes


def permute_tokens(parameters: Parameters, order: Array) -> Parameters:
    """Reorders the queries and keys of inputs per pair by ``order`` [B, T].

    Keys before the last T, which are cached, keep their places.
    """

    def permute(x: Array) -> Array:
        batch, length = order.shape
        x = jnp.broadcast_to(x, (batch, *x.shape[1:]))
        x = jnp.take_along_axis(x, order[:, None, :, None], axis=2)
        cached, new = jnp.split(x, [x.shape[3] - length], axis=3)
        new = jnp.take_along_axis(new, order[:, None, None], axis=3)
        return jnp.concatenate([cached, new], axis=3)

    return {name: permute(x) if name in PAIRWISE else x for name, x in parameters.items()}


def _describe(shape: tuple[Any, ...]) -> str:
    sizes = (*(f"{size} or 1" for size in shape[:2]), *map(str, shape[2:]))
    return f"[{', '.join(sizes)}]"
