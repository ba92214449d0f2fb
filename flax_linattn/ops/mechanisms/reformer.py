"""Reformer: Kitaev, Kaiser, Levskaya, "Reformer: The Efficient Transformer", 2020.

Softmax attention of each token to the tokens near it in a random hash. One vector is query and key:
``k``; ``q`` is ignored. Symbols against the paper's (section 2, appendix A):

===================  ===============================================================
here                 paper
===================  ===============================================================
x_i, x_j / |x_j|     q_i and k_j, shared: section 2, "Shared-QK attention"
bucket               h(x) = argmax([x R; -x R]), R [K, b / 2] Gaussian
``num_hashes``       n_rounds
chunk                m consecutive tokens in the order of (bucket, position)
N_ij                 rounds in which i attends to j, which divide their weight
===================  ===============================================================

In a round a token attends to the tokens of its bucket in its own chunk and in the previous one. Its
output is one softmax over the tokens of all rounds (equation 3, and the count N of appendix A),
itself excluded unless there is no other. No gradient passes through the hash.

The published chunks follow each other through all buckets, so a later token may move the border
between two earlier ones, and the number of buckets grows with the sequence: that has no causal
form. With ``num_buckets`` chunks restart in each bucket, so the slot of a token depends only on
earlier tokens of its bucket, and there is a causal form.

Departures: chunks are as long as an average bucket, as in the code that the TaylorShift experiments
ran (reformer-pytorch 1.4.4), not twice as long; that code also attends to other buckets of the
chunks, and counts a pair in every round. Only valid tokens have slots, so padding anywhere changes
nothing and any length works. The random sample is fixed by ``seed`` and shared by heads and layers
(pass ``rotations`` to renew it).
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from flax_linattn.checks import MAX_SEED, check_integers
from flax_linattn.ops.contract.capabilities import Capabilities
from flax_linattn.ops.contract.numerics import ScoreScale, einsum, exp_difference, safe_divide
from flax_linattn.ops.engine.buckets import Layout, SlotAssignment
from flax_linattn.ops.engine.features import l2_normalize
from flax_linattn.ops.engine.random_features import gaussian
from flax_linattn.ops.engine.stateless import Sequences, StatelessMechanism
from flax_linattn.typing import Array, Keys, Outputs, Parameters, Values, Visible


@dataclasses.dataclass(frozen=True)
class Reformer(ScoreScale, StatelessMechanism):
    """LSH attention, in hash buckets (module docstring: symbols, departures).

    Attributes:
        bucket_size: Tokens per chunk m, and per bucket on average if the length sets the number of
            buckets.
        num_hashes: Number of hash rounds.
        num_buckets: Even number of buckets b, which permits a causal form. None means 2 ceil(n / 2
            m) for n valid tokens, as in that code.
        scale: Factor of the scores if a call passes none; None means K**-0.5.
        seed: Seed of the random rotations if ``attend`` receives no ``rotations`` of shape
            [num_hashes, K, b / 2 or more], whose first columns are used.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from flax_linattn import ops
        >>> x, v = jax.random.normal(jax.random.key(0), (2, 2, 100, 4, 8))
        >>> reformer = ops.get_mechanism("reformer", bucket_size=16)
        >>> reformer.attend(x, x, v).shape
        (2, 100, 4, 8)
        >>> reformer.attend(x, x, v, is_causal=True)
        Traceback (most recent call last):
        ...
        ValueError: 'reformer' has no causal form; use is_causal=False, or \
get_mechanism('reformer', num_buckets=...), which has one.
        >>> causal = ops.get_mechanism("reformer", bucket_size=16, num_buckets=8)
        >>> y = causal.attend(x, x, v, is_causal=True)
        >>> bool(jnp.array_equal(y[:, 0], v[:, 0]))           # only itself is visible
        True
    """

    name: ClassVar[str] = "reformer"
    about: ClassVar[str] = (
        "softmax attention within buckets of locality-sensitive hashing, for whole sequences "
        "only (Kitaev et al., 2020)"
    )
    parameters: ClassVar[tuple[str, ...]] = ("scale", "rotations")

    bucket_size: int = 64
    num_hashes: int = 8
    num_buckets: int | None = None
    scale: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_integers(1, bucket_size=self.bucket_size, num_hashes=self.num_hashes)
        check_integers(2, num_buckets=self.num_buckets)
        check_integers(0, MAX_SEED, seed=self.seed)
        if self.num_buckets is not None and self.num_buckets % 2:
            raise ValueError(
                "num_buckets must be even, since a direction and its opposite are two buckets; "
                f"got {self.num_buckets}."
            )

    @property
    def capabilities(self) -> Capabilities:  # type: ignore[override]  # of an instance
        return Capabilities(
            constant_memory=False,
            causal=self.num_buckets is not None,
            cross=False,
            packed=False,
            recurrent=False,
            shared_query_key=True,
            forms=("parallel",),
        )

    def mix(self, whole: Sequences) -> Outputs:
        x, v, mask = whole.k, whole.v, whole.mask
        rotations = self._rotations(x, whole.parameters)
        scale = self._scale(x, whole.parameters)
        length, half = x.shape[1], rotations.shape[2]
        per_bucket = self.num_buckets is not None
        size = min(self.bucket_size, length)
        # Chunks that restart in each bucket leave up to size - 1 slots of each free.
        free = min(2 * half, length) * (size - 1) if per_bucket else size - 1
        layout = Layout(size, (length + free) // size, per_bucket)

        def one_head(x: Array, v: Array, real: Array, columns: Array) -> Array:
            def assign_slots(rotation: Array) -> SlotAssignment:
                bucket = _bucket(jax.lax.stop_gradient(x), rotation, columns)
                return layout.assign_slots(bucket, real, 2 * half)

            assignments = jax.lax.map(assign_slots, rotations)

            @jax.checkpoint
            def one_round(own: SlotAssignment) -> tuple[Array, Array, Array]:
                return layout.attend(x, v, scale, own, assignments.label, whole.is_causal)

            level, total, value = jax.lax.map(one_round, assignments)
            top = jnp.max(level, axis=0)
            relative = exp_difference(level, top)
            y = safe_divide(
                jnp.sum(relative[..., None] * value, axis=0),
                jnp.sum(relative * total, axis=0)[:, None],
            )
            return jnp.where(jnp.isneginf(top)[:, None], v, y)

        over_heads = jax.vmap(one_head, in_axes=(1, 1, None, None), out_axes=1)
        return jax.vmap(over_heads)(x, v, mask, self._columns(mask))

    def _causal_alternative(self) -> str:
        return "use is_causal=False, or get_mechanism('reformer', num_buckets=...), which has one"

    def _reference(
        self, q: Array, k: Keys, v: Values, visible: Visible, parameters: Parameters
    ) -> Outputs:
        length = k.shape[1]
        visible = jnp.broadcast_to(visible, (k.shape[0], length, length))
        real = jnp.any(visible, axis=1)
        rotations, scale = self._rotations(k, parameters), self._scale(k, parameters)
        earlier = jnp.tri(length, k=-1, dtype=bool)  # [T, S]

        def one_head(x: Array, v: Array, real: Array, visible: Array, columns: Array) -> Array:
            shares_chunk = jnp.zeros_like(visible)
            for rotation in rotations:
                bucket = _bucket(jax.lax.stop_gradient(x), rotation, columns)
                same = bucket[:, None] == bucket
                before = same & earlier
                if self.num_buckets is None:
                    before |= bucket[:, None] > bucket
                chunk = jnp.sum(before & real, axis=1) // self.bucket_size
                back = chunk[:, None] - chunk
                shares_chunk |= same & (back >= 0) & (back <= 1)
            eye = jnp.eye(length, dtype=bool)
            attended = visible & shares_chunk & ~eye
            attended |= visible & eye & ~jnp.any(attended, axis=1, keepdims=True)
            score = jnp.where(attended, scale * (x @ l2_normalize(x).T), -jnp.inf)
            weight = exp_difference(score, jnp.max(score, axis=1, keepdims=True))
            return safe_divide(weight @ v, jnp.sum(weight, axis=1, keepdims=True))

        over_heads = jax.vmap(one_head, in_axes=(1, 1, None, None, None), out_axes=1)
        return jax.vmap(over_heads)(k, v, real, visible, self._columns(real))

    def _columns(self, real: Array) -> Array:
        """Returns b / 2 for each sequence, int32 [B]."""
        if self.num_buckets is not None:
            return jnp.full(real.shape[0], self.num_buckets // 2, jnp.int32)
        tokens = jnp.sum(real, axis=1, dtype=jnp.int32)
        return jnp.maximum(-(-tokens // (2 * self.bucket_size)), 1)

    def _rotations(self, x: Array, parameters: Parameters) -> Array:
        """Returns R of each round for the maximum number of buckets, [num_hashes, K, b / 2]."""
        length, key_dim = x.shape[1], x.shape[-1]
        half = (self.num_buckets or 2 * max(1, -(-length // (2 * self.bucket_size)))) // 2
        rotations = parameters.get("rotations")
        if rotations is None:
            # Each row is a column of R, so longer sequences add columns and change none.
            rows = gaussian(half, self.num_hashes * key_dim, self.seed)
            rotations = jnp.asarray(rows.reshape(half, self.num_hashes, key_dim).transpose(1, 2, 0))
        wanted = (self.num_hashes, key_dim)
        if rotations.ndim != 3 or rotations.shape[:2] != wanted or rotations.shape[2] < half:
            raise ValueError(
                f"rotations must have shape [num_hashes, K, b / 2] = {(*wanted, half)} here, or "
                f"more columns, got {rotations.shape}."
            )
        return jax.lax.stop_gradient(rotations[..., :half]).astype(x.dtype)


def _bucket(x: Array, rotation: Array, columns: Array) -> Array:
    """Computes argmax([x R; -x R]) over the first columns of R [K, b / 2], int32 [T]."""
    turned = einsum("tk,kc->tc", x, rotation)
    used = jnp.arange(rotation.shape[1], dtype=jnp.int32) < columns
    column = jax.lax.argmax(jnp.where(used, jnp.abs(turned), -1), 1, jnp.int32)
    opposite = jnp.take_along_axis(turned, column[:, None], axis=1)[:, 0] < 0
    return jnp.where(opposite, column + rotation.shape[1], column)
