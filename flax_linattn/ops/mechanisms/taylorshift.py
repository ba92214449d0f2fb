"""TaylorShift: the exponential of softmax replaced by its Taylor polynomial of order 2.

Nauen et al., "TaylorShift: Shifting the Complexity of Self-Attention from Squared to Linear
(and Back) using Taylor-Softmax", 2024. Symbols against the paper's:

=============  ==============================================================
here           paper
=============  ==============================================================
q, k, v        Q, K, V of one head; the key dimension K is its d
x              tau q . k, q and k of length 1 (section 3.3)
a x^2 + b x +  1 + x + x^2 / 2 (equation 1; ``coefficients`` (a, b, c), after
c              the authors' code)
direct         direct-TaylorShift, equation 1
chunked,       efficient-TaylorShift, equations 2-4 and algorithm 1
efficient
temperature    tau, one a head (section 3.3)
count          N, the number of tokens that the row sees
features       [1, k, k (x) k]; the paper's boxtimes keeps all d^2 products
               of coordinates, here the d (d + 1) / 2 different ones
=============  ==============================================================

Departures: the paper has neither a causal form with a state nor masks, packing or cross-attention;
N counts the tokens that a row sees. Causal and without normalisation it is the linear attention of
Based (Arora et al., 2024; ``taylor_features``), to which it adds unit lengths, the temperature and
sqrt(N / d). Without normalisation, keys beyond 7e10, whose squares would fill float32, count as of
that size. The factors 1/N and d**0.25 of algorithm 1 keep the intermediate
results of half precision small and cancel; the sums here are float32 and go without. A zero
vector stays zero when normalised, with zero gradient.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np

from flax_linattn.checks import at_least
from flax_linattn.ops.contract.averages import average_by_head
from flax_linattn.ops.contract.call import Call
from flax_linattn.ops.contract.capabilities import Capabilities, Learned
from flax_linattn.ops.contract.numerics import einsum, safe_divide
from flax_linattn.ops.engine.features import (
    bounded_key,
    bounded_query,
    quadratic_features,
    unit_length,
)
from flax_linattn.ops.engine.kernel import KernelMechanism, KernelState
from flax_linattn.typing import Array, Keys, Outputs, Parameters, State, Values, Visible


def taylorshift_n0(key_dim: int) -> int:
    """Sequence length from which the efficient form takes fewer operations (equation 7).

    Args:
        key_dim: d, at least 1.

    Returns:
        N0 rounded up, as in table 2.

    Raises:
        ValueError: ``key_dim`` below 1.

    Example:
        >>> [taylorshift_n0(d) for d in (8, 16, 32, 64, 128)]
        [73, 273, 1057, 4161, 16513]
    """
    at_least(1, key_dim=key_dim)
    d = key_dim
    return -(-(4 * d**3 + 10 * d**2 + 9 * d + 4) // (4 * d + 6))


def taylorshift_n1(key_dim: int) -> int:
    """Sequence length from which the efficient form takes less memory (equation 9).

    Args:
        key_dim: d, at least 1.

    Returns:
        N1 rounded up, as in table 2.

    Raises:
        ValueError: ``key_dim`` below 1.

    Example:
        >>> [taylorshift_n1(d) for d in (8, 16, 32, 64, 128)]
        [47, 159, 574, 2174, 8446]
    """
    at_least(1, key_dim=key_dim)
    d = key_dim
    root = math.sqrt(d**4 + 12 * d**3 + 14 * d**2 + 4 * d + 1)
    return math.ceil((d**2 + 2 * d + 1 + root) / 4)


def taylorshift_optimal_dim(num_tokens: int | None = None) -> float:
    """Head dimension at which the efficient form of E features takes fewest operations, or memory.

    E / d heads of dimension d take N (4 E^3 / h^2 + 10 E^2 / h + 9 E + 4 h) operations, fewest
    where 8 d^3 + 10 d^2 = 4 (equations 10 and 12 print 9 d^3, the derivative of another cost), and
    E^3 / h^2 + (N + 1) E^2 / h + 3 N E + N h numbers at once, fewest where 2 d^3 + (N + 1) d^2 = N
    (equations 11 and 13). Both are below 1: of whole dimensions the smallest one is best.

    Args:
        num_tokens: N, for memory; None for operations.

    Returns:
        d, a real number above 0.

    Raises:
        ValueError: ``num_tokens`` below 1.

    Example:
        >>> round(taylorshift_optimal_dim(), 3), round(taylorshift_optimal_dim(1024), 3)
        (0.53, 0.999)
    """
    at_least(1, num_tokens=num_tokens)
    cubic = (8, 10, 0, -4) if num_tokens is None else (2, num_tokens + 1, 0, -num_tokens)
    (root,) = (r.real for r in np.roots(cubic) if abs(r.imag) < 1e-9 and r.real > 0)
    return float(root)


def _fewer_operations(key_dim: int) -> int:
    """Sequence length from which the efficient form takes fewer multiplications here.

    With F = (d + 1) (d + 2) / 2 features, 2 F (d + 1) a token against 2 N d.
    """
    at_least(1, key_dim=key_dim)
    d = key_dim
    return -(-((d + 1) ** 2 * (d + 2)) // (2 * d))


_SWITCHES = {"speed": _fewer_operations, "memory": taylorshift_n1, "paper": taylorshift_n0}


@dataclasses.dataclass(frozen=True)
class TaylorShift(KernelMechanism):
    """Taylor-softmax attention (module docstring: symbols, departures).

    Attributes:
        chunk_size: tokens a block, in the chunked form and of rows in the direct one.
        normalize: section 3.3: q and k of length 1, q times ``temperature``, and the output
            times sqrt(N / K).
        normalize_output: whether the output is scaled; None = as ``normalize``. False is the
            row "impl. + norm" of the paper's table 4.
        coefficients: (a, b, c) of a x^2 + b x + c; a > 0 and c >= b^2 / (4 a), so that no
            weight is negative.
        switch: what ``form="auto"`` changes from direct to efficient for: "speed" where the
            efficient form of this library, which makes half of the paper's products, takes fewer
            operations (and was measured to be faster), a chunk later where it is causal; "paper"
            from ``taylorshift_n0`` tokens on, "memory" from ``taylorshift_n1``.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from flax_linattn import ops
        >>> taylorshift = ops.get_mechanism("taylorshift")
        >>> q, k, v = jax.random.normal(jax.random.key(0), (3, 2, 10, 4, 8))
        >>> direct = taylorshift.attend(q, k, v, form="direct")
        >>> efficient = taylorshift.attend(q, k, v, form="efficient")
        >>> bool(jnp.allclose(direct, efficient, atol=1e-5))
        True
        >>> y = taylorshift.attend(q, k, v, is_causal=True, temperature=jnp.full(4, 2.0))
        >>> y.shape, taylorshift.init_state(2, 4, 8, 8).value.shape
        ((2, 10, 4, 8), (2, 4, 45, 8))
    """

    name: ClassVar[str] = "taylorshift"
    about: ClassVar[str] = (
        "second-order Taylor softmax, direct or in linear time (Nauen et al., 2024)"
    )
    capabilities: ClassVar[Capabilities] = Capabilities(
        constant_memory=True,
        mergeable=True,
        forms=("parallel", "chunked", "recurrent", "direct", "efficient"),
    )
    parameters: ClassVar[tuple[str, ...]] = ("temperature",)

    chunk_size: int = 256
    normalize: bool = True
    normalize_output: bool | None = None
    coefficients: tuple[float, float, float] = (0.5, 1.0, 1.0)
    switch: Literal["speed", "memory", "paper"] = "speed"

    def __post_init__(self) -> None:
        super().__post_init__()
        if [isinstance(x, (int, float)) for x in self.coefficients] != [True] * 3:
            raise ValueError(
                f"coefficients must be three numbers (a, b, c), got {self.coefficients}."
            )
        a, b, c = self.coefficients
        if not (a > 0 and c >= b * b / (4 * a)):
            raise ValueError(
                "coefficients (a, b, c) of a x^2 + b x + c must have a > 0 and c >= b^2 / (4 a), "
                f"or weights could be negative; got {self.coefficients}."
            )
        if self.switch not in _SWITCHES:
            raise ValueError(f"switch must be one of {tuple(_SWITCHES)}, got {self.switch!r}.")

    def learned_parameters(self, num_heads: int, key_dim: int) -> dict[str, Learned]:
        return {"temperature": Learned((num_heads,), jax.nn.initializers.ones)}

    def prepare(
        self, q: Array, k: Array, v: Array, parameters: Parameters
    ) -> tuple[Array, Array, Array]:
        if self.normalize:
            q, k = unit_length(q), unit_length(k)
        else:
            k = bounded_key(k)
        return self._tempered(q, parameters), k, v

    def query_features(self, q: Array) -> Array:
        q, unit = bounded_query(q)
        return quadratic_features(q, self.coefficients, unit)

    def key_features(self, k: Array) -> Array:
        return quadratic_features(k)

    def kernel(self, q: Array, k: Array) -> Array:
        q, unit = bounded_query(q)
        return self._polynomial(einsum("bthk,bshk->bhts", q, k), jnp.swapaxes(unit, 1, 2))

    def count(self, state: KernelState) -> Array:
        return state.normalizer[..., 0]  # the sum of the feature 1

    def finish(self, value: Array, normalizer: Array, count: Array, key_dim: int) -> Array:
        return self._scaled(safe_divide(value, normalizer[..., None]), count, key_dim)

    def _attend(self, call: Call) -> tuple[Outputs, State]:
        form = call.form
        if form == "auto":
            crossing = _SWITCHES[self.switch](call.k.shape[-1])
            if call.is_causal and self.switch == "speed":
                crossing += self.chunk_size  # the efficient form makes the weights of a chunk, too
            form = "direct" if call.k.shape[1] < crossing else "efficient"
        if form == "direct":
            return self._direct(call)
        form = "chunked" if form == "efficient" else form
        return super()._attend(dataclasses.replace(call, form=form))

    def _reference(
        self, q: Array, k: Keys, v: Values, visible: Visible, parameters: Parameters
    ) -> Outputs:
        def of_length_one(x: Array) -> Array:
            square = jnp.sum(x * x, axis=-1, keepdims=True)
            zero = square == 0  # such a token has no direction, and no gradient into it
            return jnp.where(zero, 0 * x, x / jnp.sqrt(jnp.where(zero, 1 + square, square)))

        if self.normalize:  # section 3.3
            q, k = of_length_one(q), of_length_one(k)
        x = einsum("bthk,bshk->bhts", self._tempered(q, parameters), k)
        weight = jnp.where(visible[:, None], self._polynomial(x), jnp.zeros_like(x))
        count = jnp.sum(visible, axis=2, dtype=v.dtype)[:, :, None]
        return self._scaled(average_by_head(weight, v), count, k.shape[-1])  # equation 1

    def _tempered(self, q: Array, parameters: Parameters) -> Array:
        temperature = parameters.get("temperature")
        if temperature is None:
            return q
        if temperature.shape != q.shape[-2:-1]:
            raise ValueError(
                f"temperature must be one number a head, [H] = {q.shape[-2:-1]}, "
                f"got shape {temperature.shape}."
            )
        return q * temperature.astype(q.dtype)[:, None]

    def _polynomial(self, x: Array, unit: Array | float = 1.0) -> Array:
        a, b, c = self.coefficients
        return (a * x + b * unit) * x + c * unit * unit

    def _scaled(self, y: Array, count: Array, key_dim: int) -> Array:
        """Times sqrt(N / K), section 3.3 (its algorithm 1 has the inverse on the denominator)."""
        scaled = self.normalize if self.normalize_output is None else self.normalize_output
        if not scaled:
            return y
        seen = jnp.where(count == 0, jnp.ones_like(count), count)
        return y * jnp.sqrt(seen / key_dim)[..., None]
