"""TaylorShift as in its authors' code, without this library's protection against overflow.

Algorithm 1 at the three stages of table 4, in mixed float16 precision: products are float16; sums,
powers and norms are float32. The mechanism exists only in these experiments: options accept it as
an object, and no registry lists it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp

from flax_linattn import ops
from flax_linattn.checks import check_choice
from flax_linattn.ops.contract.capabilities import Capabilities, LearnedParameter
from flax_linattn.ops.engine.stateless import Sequences
from flax_linattn.typing import Array, Keys, Outputs, Parameters, Queries, Values, Visible

STAGES = ("plain", "input", "full")
"""Rows of table 4: no normalization, that of queries and keys, that of the output, too."""
FORMS = ("direct", "efficient")
MAX_FLOAT16 = 65504.0
"""The largest number of float16."""

Round = Callable[[Array], Array]


def exact(x: Array) -> Array:
    """Returns the array as it is."""
    return x


def half(x: Array) -> Array:
    """As float16 holds it, infinity beyond 65,504; its gradient likewise.

    Not by casting there and back, which XLA may leave out.

    Example:
        >>> half(jnp.array([1.0001, 65504.0, 70000.0])).tolist()
        [1.0, 65504.0, inf]
    """
    return jax.lax.reduce_precision(x, exponent_bits=5, mantissa_bits=10)


def prepare(
    q: Queries, k: Keys, stage: str, temperature: Array, rounded: Round
) -> tuple[Queries, Keys]:
    """Queries and keys as a stage multiplies them: section 3.3, the authors' code without it.

    Args:
        q: [B, T, H, K].
        k: [B, S, H, K].
        stage: one of ``STAGES``.
        temperature: [H], tau.
        rounded: what products are rounded by.
    """
    if stage == "plain":
        return rounded(q * k.shape[-1] ** 0.25), k
    return rounded(unit(q) * temperature[:, None]), rounded(unit(k))


def unit(x: Array) -> Array:
    """Vectors of length 1, or 0 where they are."""
    return x * jax.lax.rsqrt(jnp.maximum(jnp.sum(x * x, axis=-1, keepdims=True), 1e-24))


def direct(
    q: Queries, k: Keys, v: Values, ones: Array, stage: str, rounded: Round
) -> tuple[Outputs, dict[str, Array]]:
    """Equation 1 as coded: outputs [B, T, H, V], and what products come to.

    Args:
        q: [B, T, H, K], ``prepare``.
        k: [B, S, H, K], ``prepare``.
        v: [B, S, H, V].
        ones: float [B, S], 0 where a token is padding.
        stage: one of ``STAGES``.
        rounded: what products are rounded by.
    """
    x = rounded(jnp.einsum("bthk,bshk->bhts", q, k))
    weight = (0.5 * x * x + x + 1) * ones[:, None, None]
    weight = rounded(weight / jnp.sum(weight, axis=-1, keepdims=True))
    if stage == "full":
        count = jnp.sum(ones, axis=1)[:, None, None, None]
        v = rounded(v * jnp.sqrt(count / q.shape[-1]))
    return rounded(jnp.einsum("bhts,bshv->bthv", weight, v)), {"Q K^T": x}


def efficient(
    q: Queries, k: Keys, v: Values, ones: Array, stage: str, rounded: Round
) -> tuple[Outputs, dict[str, Array]]:
    """Algorithm 1 as coded; arguments and results are the same as of ``direct``.

    Plain it has neither its factors alpha nor 1 / N, which cancel.
    """
    dim, (rows, tokens) = q.shape[-1], ones.shape
    column = jnp.broadcast_to(ones[:, :, None, None], (rows, tokens, k.shape[2], 1))
    alpha = 1.0
    if stage != "plain":
        alpha = dim**0.25
        q, k = rounded(alpha * q), rounded(alpha * k)
        count = jnp.sum(ones, axis=1)[:, None, None, None]
        if stage == "full":
            column = column * jnp.sqrt(dim / count)
        column, v = column / count, v / count
    v = rounded(jnp.concatenate([column, v], axis=-1))
    a_mod = rounded(jnp.einsum("bshx,bshv->bhxv", pair_products(k, rounded), v))
    squared = rounded(jnp.einsum("bthx,bhxv->bthv", pair_products(q, rounded), a_mod))
    states = rounded(jnp.einsum("bshk,bshv->bhkv", k, v))
    linear = rounded(jnp.einsum("bthk,bhkv->bthv", q, states))
    total = jnp.sum(v, axis=1, keepdims=True)
    y = rounded(squared / 2 + alpha**2 * linear + alpha**4 * total)
    sizes = {
        "A_mod": a_mod,
        "(Q K^T)^2 V": squared,
        "Q K^T V": linear,
        "Y_denom": y[..., :1],
    }
    return rounded(y[..., 1:] / y[..., :1]), sizes


def pair_products(x: Array, rounded: Round) -> Array:
    """All products of two coordinates, [..., K] -> [..., K * K]."""
    pairs = rounded(x[..., :, None] * x[..., None, :])
    return pairs.reshape(*x.shape[:-1], x.shape[-1] ** 2)


_FORMS = {"direct": direct, "efficient": efficient}
_sizes: ContextVar[list[Mapping[str, Array]] | None] = ContextVar("sizes", default=None)


@contextmanager
def record_sizes() -> Iterator[list[Mapping[str, Array]]]:
    """Inside, each ``attend`` of the mechanism adds the largest absolute value of each product.

    Exact ones of its q, k and v, whatever the mechanism rounds by.
    """
    noted: list[Mapping[str, Array]] = []
    token = _sizes.set(noted)
    try:
        yield noted
    finally:
        _sizes.reset(token)


@dataclasses.dataclass(frozen=True)
class AsCoded(ops.StatelessMechanism):
    """TaylorShift at a stage of its normalization, in the precision of the authors' training.

    Attributes:
        stage: one of ``STAGES``.
        is_half: whether products come out in float16, whatever the dtype of the inputs.

    Example:
        >>> x = jax.random.normal(jax.random.key(0), (2, 10, 4, 8))
        >>> y = AsCoded(stage="full", is_half=False).attend(x, x, x, form="efficient")
        >>> bool(jnp.allclose(y, ops.get_mechanism("taylorshift").attend(x, x, x), atol=1e-5))
        True
    """

    name: ClassVar[str] = "taylorshift_as_coded"
    about: ClassVar[str] = "TaylorShift in the arithmetic of its authors' training"
    capabilities: ClassVar[Capabilities] = dataclasses.replace(
        ops.StatelessMechanism.capabilities, forms=("parallel", *FORMS)
    )
    parameters: ClassVar[tuple[str, ...]] = ("temperature",)

    stage: Literal["plain", "input", "full"] = "plain"
    is_half: bool = True

    def __post_init__(self) -> None:
        check_choice(STAGES, stage=self.stage)

    def learned_parameters(self, num_heads: int, key_dim: int) -> dict[str, LearnedParameter]:
        if self.stage == "plain":
            return {}
        return {"temperature": LearnedParameter((num_heads,), jax.nn.initializers.ones)}

    def attend(self, q: Array, k: Array, v: Array, **options: Any) -> Any:
        noted = _sizes.get()
        if noted is not None:  # not in mix, which is traced once for all calls
            mask = options.get("mask")
            ones = jnp.ones(k.shape[:2]) if mask is None else mask.astype(jnp.float32)
            x, y, z = q.astype(jnp.float32), k.astype(jnp.float32), v.astype(jnp.float32)
            products = self._computed(x, y, z, ones, options["form"], options, exact)
            noted.append({name: jnp.max(jnp.abs(x)) for name, x in products[1].items()})
        return super().attend(q, k, v, **options)

    def mix(self, whole: Sequences) -> Outputs:
        ones = whole.mask.astype(whole.v.dtype)
        rounded = half if self.is_half else exact
        arrays = (whole.q, whole.k, whole.v, ones)
        return self._computed(*arrays, whole.form, whole.parameters, rounded)[0]

    def _computed(
        self,
        q: Array,
        k: Array,
        v: Array,
        ones: Array,
        form: str,
        parameters: Parameters,
        rounded: Round,
    ) -> tuple[Outputs, dict[str, Array]]:
        tau = parameters.get("temperature")
        tau = jnp.ones(q.shape[-2], q.dtype) if tau is None else tau.astype(q.dtype)
        q, k = prepare(q, k, self.stage, tau, rounded)
        return _FORMS.get(form, direct)(q, k, v, ones, self.stage, rounded)

    def _reference(
        self, q: Array, k: Keys, v: Values, visible: Visible, parameters: Parameters
    ) -> Outputs:
        if self.stage == "plain":
            q = q * k.shape[-1] ** 0.25
        ours = ops.TaylorShift(
            normalize=self.stage != "plain", normalize_output=self.stage == "full"
        )
        return ours._reference(q, k, v, visible, parameters)
