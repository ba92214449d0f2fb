"""Linformer: Wang et al., "Linformer: Self-Attention with Linear Complexity", 2020.

softmax(scale Q (E^T K)^T) F^T V: keys and values of N positions are projected to P mixtures.
``key_projection`` is E and ``value_projection`` F, both [N, P], shared by the heads. N is fixed: a
shorter sequence uses the first rows of E and F, a longer one is an error. A mixture of keys
contains the future, so there is no causal form, no state and no packing. Departure: positions count
valid tokens, so padding anywhere changes nothing.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from flax_linattn.checks import MAX_SEED, check_integers
from flax_linattn.ops.contract.capabilities import LearnedParameter
from flax_linattn.ops.contract.masks import static_max_length
from flax_linattn.ops.contract.numerics import ScoreScale, einsum, scores
from flax_linattn.ops.engine.random_features import uniform
from flax_linattn.ops.engine.stateless import Sequences, StatelessMechanism
from flax_linattn.typing import Array, Keys, Outputs, Parameters, Values, Visible


@dataclasses.dataclass(frozen=True)
class Linformer(ScoreScale, StatelessMechanism):
    """Linformer attention (module docstring: symbols, departures).

    Attributes:
        max_length: Number of positions N, which a layer needs to learn E and F. None means the
            length of the sequences of each call, for fixed random projections only.
        num_projections: Number of mixtures P.
        scale: Factor of the scores if a call passes none; None means K**-0.5.
        seed: Seed of the projections if a call passes none.

    Example:
        >>> import jax
        >>> from flax_linattn import ops
        >>> linformer = ops.get_mechanism("linformer", max_length=16, num_projections=4)
        >>> q, k, v = jax.random.normal(jax.random.key(0), (3, 2, 10, 4, 8))
        >>> linformer.attend(q, k, v).shape
        (2, 10, 4, 8)
        >>> linformer.attend(q, k, v, is_causal=True)
        Traceback (most recent call last):
        ...
        ValueError: 'linformer' has no causal form; use is_causal=False.
    """

    name: ClassVar[str] = "linformer"
    about: ClassVar[str] = (
        "softmax attention to learned projections of the sequence, for whole sequences only "
        "(Wang et al., 2020)"
    )
    parameters: ClassVar[tuple[str, ...]] = ("scale", "key_projection", "value_projection")

    max_length: int | None = None
    num_projections: int = 256
    scale: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_integers(1, max_length=self.max_length, num_projections=self.num_projections)
        check_integers(0, MAX_SEED, seed=self.seed)

    def learned_parameters(self, num_heads: int, key_dim: int) -> dict[str, LearnedParameter]:
        if self.max_length is None:
            raise ValueError(
                "a 'linformer' layer learns a projection of each position and needs their number: "
                "get_mechanism('linformer', max_length=...), or the max_length of the model."
            )
        limit = self.num_projections**-0.5
        projection = LearnedParameter(
            (self.max_length, self.num_projections),
            lambda key, shape, dtype: jax.random.uniform(key, shape, dtype, -limit, limit),
        )
        return {"key_projection": projection, "value_projection": projection}

    def mix(self, whole: Sequences) -> Outputs:
        q, k, v, mask, parameters = whole.q, whole.k, whole.v, whole.mask, whole.parameters
        # Valid tokens move to the front; padding is zero and adds nothing where it lands.
        position = jnp.maximum(jnp.cumsum(mask, axis=1, dtype=jnp.int32) - 1, 0)
        rows = jnp.arange(k.shape[0], dtype=jnp.int32)[:, None]

        def mixed(table: Array, x: Array) -> Array:
            front = jnp.zeros_like(x).at[rows, position].add(x)
            return einsum("sp,bshk->bphk", table[: x.shape[1]], front[:, : table.shape[0]])

        e, f = self._tables(k, parameters)
        fits = jnp.sum(mask, axis=1) <= e.shape[0]
        keys, values = mixed(e, k), mixed(f, v)
        score = scores(q * self._scale(q, parameters), keys)
        y = einsum("bhtp,bphv->bthv", jax.nn.softmax(score, axis=-1), values)
        # A padded sequence may be longer than N; under jit NaN reports too many valid tokens.
        return jnp.where(fits[:, None, None, None], y, jnp.nan)

    def _check_parameters(self, parameters: Parameters) -> None:
        shapes = {name: table.shape for name, table in parameters.items() if name != "scale"}
        e, f = shapes.get("key_projection"), shapes.get("value_projection")
        if shapes and (e != f or len(e or ()) != 2):
            raise ValueError(
                "key_projection and value_projection must be given together and have one shape "
                f"[N, P], got {e} and {f}."
            )

    def _check_length(self, length: int, mask: Array | None, parameters: Parameters) -> None:
        table = parameters.get("key_projection")
        rows = self.max_length if table is None else table.shape[0]
        if rows is not None and static_max_length(length, mask) > rows:
            raise ValueError(
                f"'linformer' was made for sequences of {rows} positions, got "
                f"{static_max_length(length, mask)}; make it with a larger max_length."
            )

    def _reference(
        self, q: Array, k: Keys, v: Values, visible: Visible, parameters: Parameters
    ) -> Outputs:
        real = jnp.broadcast_to(jnp.any(visible, axis=1), k.shape[:2])
        e, f = self._tables(k, parameters)
        scale = self._scale(q, parameters)

        def one_example(q: Array, k: Array, v: Array, real: Array) -> Array:
            order = jnp.argsort(~real, stable=True)  # valid tokens first, in their order
            k, v, real = k[order], v[order], real[order]
            keys = einsum("sp,shk->hpk", jnp.where(real[:, None], e[: len(k)], 0), k)
            values = einsum("sp,shv->hpv", jnp.where(real[:, None], f[: len(k)], 0), v)
            score = einsum("thk,hpk->htp", q * scale, keys)
            weight = jnp.exp(score - jnp.max(score, axis=-1, keepdims=True))
            weight = weight / jnp.sum(weight, axis=-1, keepdims=True)
            return einsum("htp,hpv->thv", weight, values)

        return jax.vmap(one_example)(q, k, v, real)

    def _tables(self, k: Array, parameters: Parameters) -> tuple[Array, Array]:
        """Returns the projections E and F, [N, P]."""

        def table(name: str, seed: int) -> Array:
            given = parameters.get(name)
            if given is None:
                rows, columns = self.max_length or k.shape[1], self.num_projections
                given = jnp.asarray(uniform(rows, columns, columns**-0.5, seed))
            return given.astype(k.dtype)

        return table("key_projection", 2 * self.seed), table("value_projection", 2 * self.seed + 1)
