"""Nystromformer: Xiong et al., "Nystromformer: A Nystrom-Based Algorithm", 2021.

softmax(Q Kl^T) pinv(softmax(Ql Kl^T)) softmax(Ql K^T) V with Q times ``scale``: Ql and Kl are the
means of L segments of the queries and the keys (landmarks), and pinv is the iterated pseudo-inverse
of their equation 11. Segment means contain the future, so there is no causal form, no state and no
packing. In a sequence of at most L tokens each token is its own landmark.

Departures: segments divide the valid tokens evenly, so padding anywhere changes nothing; the
initial inverse is scaled by each matrix's own maximum column sum, not by the maximum of the batch,
by which sequences would affect each other; the depthwise convolution of the paper, and the values
that the code of the TaylorShift experiments adds, belong to the layer and are omitted.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from flax_linattn.checks import check_integers
from flax_linattn.ops.contract.numerics import (
    ScoreScale,
    einsum,
    exp_difference,
    safe_divide,
    scores,
)
from flax_linattn.ops.engine.stateless import Sequences, StatelessMechanism
from flax_linattn.typing import Array, Keys, Outputs, Parameters, Values, Visible


@dataclasses.dataclass(frozen=True)
class Nystrom(ScoreScale, StatelessMechanism):
    """Nystromformer attention (module docstring: symbols, departures).

    Attributes:
        num_landmarks: Number of landmarks L.
        iterations: Iterations of the pseudo-inverse.
        scale: Factor of the scores if a call passes none; None means K**-0.5.

    Example:
        >>> import jax
        >>> from flax_linattn import ops
        >>> nystrom = ops.get_mechanism("nystrom", num_landmarks=4)
        >>> q, k, v = jax.random.normal(jax.random.key(0), (3, 2, 10, 4, 8))
        >>> nystrom.attend(q, k, v).shape
        (2, 10, 4, 8)
    """

    name: ClassVar[str] = "nystrom"
    about: ClassVar[str] = (
        "Nystrom approximation of softmax with landmarks, for whole sequences only "
        "(Xiong et al., 2021)"
    )
    parameters: ClassVar[tuple[str, ...]] = ("scale",)

    num_landmarks: int = 64
    iterations: int = 6
    scale: float | None = None

    def __post_init__(self) -> None:
        check_integers(1, num_landmarks=self.num_landmarks, iterations=self.iterations)

    def mix(self, whole: Sequences) -> Outputs:
        k, v, mask = whole.k, whole.v, whole.mask
        q = whole.q * self._scale(whole.q, whole.parameters)
        q_landmarks, q_used = self._landmarks(q, whole.query_mask)
        k_landmarks, k_used = self._landmarks(k, mask)

        def softmax(q: Array, k: Array, there: Array) -> Array:
            score = scores(q, k)
            score = jnp.where(there[:, None, None], score, jnp.asarray(-jnp.inf, score.dtype))
            weight = exp_difference(score, jnp.max(score, axis=-1, keepdims=True))
            return safe_divide(weight, jnp.sum(weight, axis=-1, keepdims=True))

        middle = softmax(q_landmarks, k_landmarks, k_used)
        middle = jnp.where(q_used[:, None, :, None], middle, jnp.zeros_like(middle))
        context = einsum("bhls,bshv->bhlv", softmax(q_landmarks, k, mask), v)
        context = jnp.where(q_used[:, None, :, None], context, jnp.zeros_like(context))
        context = _matmul(self._inverse(middle), context)
        return jnp.moveaxis(_matmul(softmax(q, k_landmarks, k_used), context), 1, 2)

    def _landmarks(self, x: Array, real: Array) -> tuple[Array, Array]:
        """Returns the means of segments of valid tokens [B, L, H, K], and which exist, [B, L]."""
        count = jnp.sum(real, axis=1, keepdims=True, dtype=jnp.int32)
        used = jnp.minimum(count, self.num_landmarks)
        rank = jnp.cumsum(real, axis=1, dtype=jnp.int32) - 1
        segment = rank * used // jnp.maximum(count, 1)
        landmark = jnp.arange(self.num_landmarks, dtype=jnp.int32)
        in_segment = (segment[:, None] == landmark[:, None]) & real[:, None]  # [B, L, T]
        in_segment = in_segment.astype(x.dtype)
        sums = einsum("bls,bshk->blhk", in_segment, x)
        size = jnp.sum(in_segment, axis=2)[:, :, None, None]
        return safe_divide(sums, size), landmark < used

    def _inverse(self, a: Array) -> Array:
        """Approximates the pseudo-inverse by the iteration of equation 11."""
        # Z <- Z / 4 (13 I - A Z (15 I - A Z (7 I - A Z)))
        eye = jnp.eye(a.shape[-1], dtype=a.dtype)
        columns = jnp.max(jnp.sum(a, axis=-2), axis=-1)[..., None, None]
        z = safe_divide(jnp.swapaxes(a, -1, -2), columns)
        for _ in range(self.iterations):
            az = _matmul(a, z)
            inner = 15 * eye - _matmul(az, 7 * eye - az)
            z = _matmul(z, 13 * eye - _matmul(az, inner)) / 4
        return z

    def _reference(
        self, q: Array, k: Keys, v: Values, visible: Visible, parameters: Parameters
    ) -> Outputs:
        q = q * self._scale(q, parameters)
        real_q = jnp.broadcast_to(jnp.any(visible, axis=2), q.shape[:2])
        real_k = jnp.broadcast_to(jnp.any(visible, axis=1), k.shape[:2])
        landmark = jnp.arange(self.num_landmarks)[:, None]

        def one_head(q: Array, k: Array, v: Array, real_q: Array, real_k: Array) -> Array:
            def averages(real: Array) -> tuple[Array, Array]:
                """Makes one row per landmark: token r belongs to l where l n <= r L < (l + 1) n."""
                n = jnp.sum(real)
                used = jnp.minimum(n, self.num_landmarks)
                rank = jnp.cumsum(real) - 1
                inside = (landmark * n <= rank * used) & (rank * used < (landmark + 1) * n) & real
                size = jnp.maximum(jnp.sum(inside, axis=1, keepdims=True), 1)
                return inside.astype(q.dtype) / size.astype(q.dtype), landmark[:, 0] < used

            def softmax(score: Array, there: Array) -> Array:
                return jax.nn.softmax(jnp.where(there, score, -1e30), axis=1)

            (to_q, used_q), (to_k, used_k) = averages(real_q), averages(real_k)
            ql, kl = to_q @ q, to_k @ k
            used = used_q[:, None].astype(q.dtype)
            a, b = softmax(ql @ kl.T, used_k) * used, softmax(ql @ k.T, real_k) * used
            z = a.T / jnp.max(jnp.sum(a, axis=0), initial=1e-30)
            one = jnp.eye(self.num_landmarks, dtype=a.dtype)
            for _ in range(self.iterations):  # equation 11
                p = a @ z
                z = 0.25 * z @ (13 * one - p @ (15 * one - p @ (7 * one - p)))
            return softmax(q @ kl.T, used_k) @ z @ (b @ v)

        over_heads = jax.vmap(one_head, in_axes=(1, 1, 1, None, None), out_axes=1)
        y = jax.vmap(over_heads)(q, k, v, real_q, real_k)
        return jnp.where(jnp.any(real_k, axis=1)[:, None, None, None], y, jnp.zeros_like(y))


def _matmul(a: Array, b: Array) -> Array:
    return einsum("bhij,bhjk->bhik", a, b)
