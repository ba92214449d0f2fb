"""TaylorShift: the exponential of softmax replaced by its Taylor polynomial, of order 2 or more.

Nauen et al., "TaylorShift: Shifting the Complexity of Self-Attention from Squared to Linear
(and Back) using Taylor-Softmax", 2024. Symbols against the paper's:

=============  ==============================================================
here           paper
=============  ==============================================================
q, k, v        Q, K, V of one head; the key dimension K is its d
x              tau q . k, q and k of length 1 (section 3.3)
order          k of T-SM^(k) (section 3.1): 1 + x + ... + x^k / k!, k even
a x^2 + b x +  1 + x + x^2 / 2 (equation 1; ``coefficients`` (a, b, c), after
c              the authors' code)
direct         direct-TaylorShift, equation 1
chunked,       efficient-TaylorShift, equations 2-4 and algorithm 1
efficient
temperature    tau, one per head (section 3.3)
count          N, the number of tokens that the row attends to
features       [1, k, k (x) k]; the paper's boxtimes keeps all d^2 products
               of coordinates, here the d (d + 1) / 2 different ones, and
               C(d + k, k) at order k (``engine/monomials.py``)
=============  ==============================================================

Departures: the paper has no causal form with a state, no masks, packing or cross-attention; N
counts the tokens to which a row attends. It defines every order k, but the efficient form only for
order 2. Causal and without normalization, order 2 is the linear attention of Based (Arora et al.,
2024; ``taylor_features``), to which it adds unit lengths, the temperature and sqrt(N / d). Without
normalization, keys are clipped to 7e10, so that their squares fit float32 (to 2^(72 / k) at order
k). The factors 1/N and d**0.25 of algorithm 1 keep intermediate results small in half precision,
and cancel; sums here are float32 and need no such factors. A zero vector stays zero when
normalized, with zero gradient.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np

from flax_linattn.checks import check_integers
from flax_linattn.ops.contract.averages import average_by_head
from flax_linattn.ops.contract.call import Call
from flax_linattn.ops.contract.capabilities import Capabilities, LearnedParameter
from flax_linattn.ops.contract.numerics import einsum, safe_divide
from flax_linattn.ops.contract.state import StateSizes
from flax_linattn.ops.engine.features import (
    clip_key,
    clip_query,
    l2_normalize,
    quadratic_features,
)
from flax_linattn.ops.engine.kernel import KernelState
from flax_linattn.ops.engine.monomials import monomials, num_monomials
from flax_linattn.ops.engine.polynomial_kernel import PolynomialMechanism, visibility_of_call
from flax_linattn.ops.engine.polynomials import homogeneous_polynomial
from flax_linattn.typing import Array, Keys, Outputs, Parameters, State, Values, Visible


def taylorshift_n0(key_dim: int) -> int:
    """Sequence length from which the efficient form takes fewer operations (equation 7).

    Args:
        key_dim: Channels of a key d, at least 1.

    Returns:
        N0 rounded up, as in table 2.

    Raises:
        ValueError: If ``key_dim`` is below 1.

    Example:
        >>> [taylorshift_n0(d) for d in (8, 16, 32, 64, 128)]
        [73, 273, 1057, 4161, 16513]
    """
    check_integers(1, key_dim=key_dim)
    d = key_dim
    return -(-(4 * d**3 + 10 * d**2 + 9 * d + 4) // (4 * d + 6))


def taylorshift_n1(key_dim: int) -> int:
    """Sequence length from which the efficient form takes less memory (equation 9).

    Args:
        key_dim: Channels of a key d, at least 1.

    Returns:
        N1 rounded up, as in table 2.

    Raises:
        ValueError: If ``key_dim`` is below 1.

    Example:
        >>> [taylorshift_n1(d) for d in (8, 16, 32, 64, 128)]
        [47, 159, 574, 2174, 8446]
    """
    check_integers(1, key_dim=key_dim)
    d = key_dim
    root = math.sqrt(d**4 + 12 * d**3 + 14 * d**2 + 4 * d + 1)
    return math.ceil((d**2 + 2 * d + 1 + root) / 4)


def taylorshift_optimal_dim(num_tokens: int | None = None) -> float:
    """Head dimension at which the efficient form has the lowest cost in operations or memory.

    E / d heads of dimension d take N (4 E^3 / h^2 + 10 E^2 / h + 9 E + 4 h) operations, fewest
    where 8 d^3 + 10 d^2 = 4 (equations 10 and 12 print 9 d^3, the derivative of another cost), and
    E^3 / h^2 + (N + 1) E^2 / h + 3 N E + N h numbers at once, fewest where 2 d^3 + (N + 1) d^2 = N
    (equations 11 and 13). Both are below 1: of whole dimensions the smallest one is best.

    Args:
        num_tokens: Number of tokens N, for memory; None for operations.

    Returns:
        d, a real number above 0.

    Raises:
        ValueError: If ``num_tokens`` is below 1.

    Example:
        >>> round(taylorshift_optimal_dim(), 3), round(taylorshift_optimal_dim(1024), 3)
        (0.53, 0.999)
    """
    check_integers(1, num_tokens=num_tokens)
    cubic = (8, 10, 0, -4) if num_tokens is None else (2, num_tokens + 1, 0, -num_tokens)
    (root,) = (r.real for r in np.roots(cubic) if abs(r.imag) < 1e-9 and r.real > 0)
    return float(root)


def taylorshift_crossover(key_dim: int, order: int = 2) -> int:
    """Sequence length from which the efficient form takes fewer multiplications here.

    With F = C(d + order, order) features, 2 F (d + 1) a token against 2 N d.

    Args:
        key_dim: Channels of a key d, at least 1.
        order: Order of the polynomial, at least 1.

    Returns:
        F (d + 1) / d, rounded up.

    Raises:
        ValueError: If ``key_dim`` or ``order`` is below 1.

    Example:
        >>> [taylorshift_crossover(d) for d in (4, 8, 16, 32)]
        [19, 51, 163, 579]
        >>> [taylorshift_crossover(d, order=4) for d in (4, 8, 16, 32)]
        [88, 557, 5148, 60746]
    """
    check_integers(1, key_dim=key_dim, order=order)
    return -(-num_monomials(key_dim, order) * (key_dim + 1) // key_dim)


_SWITCH_LENGTHS = {"memory": taylorshift_n1, "paper": taylorshift_n0}
_SWITCHES = ("speed", *_SWITCH_LENGTHS)


@dataclasses.dataclass(frozen=True)
class TaylorShift(PolynomialMechanism):
    """Taylor-softmax attention (module docstring: symbols, departures).

    Attributes:
        chunk_size: Tokens per chunk in the chunked form, and the maximum per block in the direct
            form.
        normalize: Whether to normalize as in section 3.3: q and k to length 1, q times
            ``temperature``, and the output times sqrt(N / K).
        normalize_output: Whether the output is scaled; None means the value of ``normalize``. False
            is the row "impl. + norm" of the paper's table 4.
        order: Even order of the polynomial; an odd one is negative far below 0. In float32 scores
            beyond about 2^(112 / order) are clipped: 2^28 at order 4, 2^10 at order 10.
        max_features: Maximum number of features per head, C(K + order, order), at orders above 2.
            Larger heads have no state and only the direct form (all weights at once with
            form="parallel").
        coefficients: Coefficients (a, b, c) of a x^2 + b x + c, at order 2; a > 0 and c >= b^2 / (4
            a), so that no weight is negative.
        switch: Criterion by which ``form="auto"`` changes from direct to efficient: "speed"
            where the efficient form was measured to be faster
            (``polynomial_kernel.speed_crossover``); at order 2 also "paper", from
            ``taylorshift_n0`` tokens on, and "memory", from ``taylorshift_n1``.

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
        >>> ops.get_mechanism("taylorshift", order=4).init_state(2, 4, 8, 8).value.shape
        (2, 4, 495, 8)
        >>> ops.get_mechanism("taylorshift", order=4).init_state(2, 4, 64, 64)
        Traceback (most recent call last):
        ...
        ValueError: order 4 makes 814,385 features of 64 channels, more than max_features=16,384; \
a state of float32 [4, 814385, 64] would take 834 MB a row. Take heads of at most 22 channels, \
order=2, form='direct', which needs no state, or a larger max_features.
    """

    name: ClassVar[str] = "taylorshift"
    about: ClassVar[str] = (
        "Taylor softmax of order 2 or higher, in quadratic or linear time (Nauen et al., 2024)"
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
    order: int = 2
    max_features: int = 1 << 14

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integers(2, order=self.order)
        check_integers(1, max_features=self.max_features)
        if self.order % 2:
            raise ValueError(
                f"order {self.order} is odd: its polynomial is negative far below 0, and so are "
                f"weights; take {self.order - 1} or {self.order + 1}."
            )
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
            raise ValueError(f"switch must be one of {_SWITCHES}, got {self.switch!r}.")
        if self.order > 2:
            self._check_order_2_options()

    def _check_order_2_options(self) -> None:
        """Rejects options that only order 2 has."""
        if self.coefficients != type(self).coefficients:
            raise ValueError(
                f"coefficients (a, b, c) define a polynomial of order 2, got "
                f"{self.coefficients} with order={self.order}; omit one of them."
            )
        if self.switch != "speed":
            raise ValueError(
                f"switch={self.switch!r} is the paper's count for order 2, got order={self.order}; "
                "take switch='speed'."
            )

    def learned_parameters(self, num_heads: int, key_dim: int) -> dict[str, LearnedParameter]:
        return {"temperature": LearnedParameter((num_heads,), jax.nn.initializers.ones)}

    def has_state(self, key_dim: int) -> bool:
        return self.order == 2 or num_monomials(key_dim, self.order) <= self.max_features

    def prepare(
        self, q: Array, k: Array, v: Array, parameters: Parameters
    ) -> tuple[Array, Array, Array]:
        if self.normalize:
            q, k = l2_normalize(q), l2_normalize(k)
        else:
            k = clip_key(k, self.order)
        return self._apply_temperature(q, parameters), k, v

    def query_features(self, q: Array) -> Array:
        q, unit = clip_query(q, self.order)
        if self.order == 2:
            return quadratic_features(q, self.coefficients, unit)
        return monomials(q, self.order, unit, over_factorials=True)

    def key_features(self, k: Array) -> Array:
        return quadratic_features(k) if self.order == 2 else monomials(k, self.order)

    def count(self, state: KernelState) -> Array:
        return state.normalizer[..., 0]  # the sum of the feature 1

    def finish(self, value: Array, normalizer: Array, count: Array, key_dim: int) -> Array:
        return self._scale_output(safe_divide(value, normalizer[..., None]), count, key_dim)

    def _attend(self, call: Call) -> tuple[Outputs, State]:
        stateless = call.state is None and not call.return_state
        if call.form == "parallel" and stateless and not self.has_state(call.k.shape[-1]):
            return self._attend_all_weights(call), None
        return super()._attend(call)

    def _attend_all_weights(self, call: Call) -> Outputs:
        """Computes all weights at once without features; JAX differentiates it in any mode."""
        q, tokens = self._prepare(call)
        return self.finish(
            *self._weighted_sums(q, tokens, visibility_of_call(call), []), q.shape[-1]
        )

    def _crossover(self, call: Call) -> float:
        key_dim = call.k.shape[-1]
        if not self.has_state(key_dim):
            return math.inf
        if self.switch != "speed":
            return _SWITCH_LENGTHS[self.switch](key_dim)
        return super()._crossover(call)

    def _init_state(self, sizes: StateSizes) -> KernelState:
        # Every form with a state makes one, so too many features are rejected here.
        if not self.has_state(sizes.key_dim):
            features = num_monomials(sizes.key_dim, self.order)
            shape = [sizes.num_heads, features, sizes.value_dim]
            megabytes = math.prod(shape) * sizes.dtype.itemsize / 1e6
            max_channels = sum(map(self.has_state, range(1, sizes.key_dim)))
            raise ValueError(
                f"order {self.order} makes {features:,} features of {sizes.key_dim} channels, more "
                f"than max_features={self.max_features:,}; a state of {sizes.dtype.name} {shape} "
                f"would take {megabytes:,.0f} MB a row. Take heads of at most {max_channels} "
                "channels, order=2, form='direct', which needs no state, or a larger max_features."
            )
        return super()._init_state(sizes)

    def _reference(
        self, q: Array, k: Keys, v: Values, visible: Visible, parameters: Parameters
    ) -> Outputs:
        def normalize(x: Array) -> Array:
            square = jnp.sum(x * x, axis=-1, keepdims=True)
            zero = square == 0  # such a token has no direction, and no gradient into it
            return jnp.where(zero, 0 * x, x / jnp.sqrt(jnp.where(zero, 1 + square, square)))

        if self.normalize:  # section 3.3
            q, k = normalize(q), normalize(k)
        x = einsum("bthk,bshk->bhts", self._apply_temperature(q, parameters), k)
        weight = homogeneous_polynomial(self.polynomial, x, 1.0)
        weight = jnp.where(visible[:, None], weight, jnp.zeros_like(x))
        count = jnp.sum(visible, axis=2, dtype=v.dtype)[:, :, None]
        return self._scale_output(average_by_head(weight, v), count, k.shape[-1])  # equation 1

    def _apply_temperature(self, q: Array, parameters: Parameters) -> Array:
        temperature = parameters.get("temperature")
        if temperature is None:
            return q
        if temperature.shape != q.shape[-2:-1]:
            raise ValueError(
                f"temperature must be one number a head, [H] = {q.shape[-2:-1]}, "
                f"got shape {temperature.shape}."
            )
        return q * temperature.astype(q.dtype)[:, None]

    @property
    def polynomial(self) -> tuple[float, ...]:
        if self.order == 2:
            return self.coefficients
        return tuple(1 / math.factorial(n) for n in range(self.order, -1, -1))

    def _scale_output(self, y: Array, count: Array, key_dim: int) -> Array:
        """Multiplies by sqrt(N / K): section 3.3 (algorithm 1 divides the denominator by it)."""
        scaled = self.normalize if self.normalize_output is None else self.normalize_output
        if not scaled:
            return y
        safe_count = jnp.where(count == 0, jnp.ones_like(count), count)
        return y * jnp.sqrt(safe_count / key_dim)[..., None]
