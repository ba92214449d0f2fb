"""The engine, run with a monoid that does not commute: any error of order shows.

The monoid is that of affine maps x -> a x + b with 2 x 2 matrices: a token applies its map
after those before it. Its engine results are compared with a Python loop in numpy.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flax_linattn.ops.engine import prefix

BATCH, LENGTH = 2, 8
CAUSAL, TOTAL, RUNS = "causal", "total", "runs"


class Affine(NamedTuple):
    a: Any  # [..., 2, 2]
    b: Any  # [..., 2]


def merge(first: Affine, then: Affine) -> Affine:
    return Affine(then.a @ first.a, jnp.einsum("...ij,...j->...i", then.a, first.b) + then.b)


def lift(tokens: Any) -> Affine:
    """k [B, T, 1, 4] holds the matrix, v [B, T, 1, 2] the shift."""
    k, v = tokens
    return Affine(k.reshape(*k.shape[:2], 2, 2), v[:, :, 0])


def read(q: Any, state: Affine) -> Any:
    """The image of the query (of (1, -1) without queries), [B, T, 1, 2]."""
    if q is None:
        return (state.a @ jnp.array([1.0, -1.0]) + state.b)[:, :, None]
    return ((state.a @ q[:, :, 0, :, None])[..., 0] + state.b)[:, :, None]


def identity(batch: int) -> Affine:
    return Affine(jnp.broadcast_to(jnp.eye(2), (batch, 2, 2)), jnp.zeros((batch, 2)))


MONOID = prefix.scan_monoid(lift, merge, read, identity(BATCH))


def make_inputs(length: int, queries: int | None = None, seed: int = 0) -> Any:
    """Rotations with a little noise: products of many stay of size 1 and do not commute."""
    rng = np.random.default_rng(seed)
    angle = rng.uniform(0, 6, (BATCH, length))
    turn = np.stack([np.cos(angle), -np.sin(angle), np.sin(angle), np.cos(angle)], axis=-1)
    k = turn + 0.1 * rng.normal(size=turn.shape)
    v = rng.normal(size=(BATCH, length, 1, 2))
    q = rng.normal(size=(BATCH, length if queries is None else queries, 1, 2))
    return tuple(a.astype(np.float32) for a in (q, k[:, :, None], v))


def make_initial(seed: int = 9) -> Affine:
    _, k, v = make_inputs(1, seed=seed)
    return jax.tree.map(lambda leaf: leaf[:, 0], lift((k, v)))


def by_hand(
    q: Any, k: Any, v: Any, mode: str, mask: Any, starts: Any, initial: Affine | None
) -> tuple[np.ndarray, Affine]:
    """The same by a Python loop over tokens, in float64."""
    q, k, v = (None if x is None else np.asarray(x, np.float64) for x in (q, k, v))
    batch, length = k.shape[:2]
    queries = length if q is None else q.shape[1]
    outputs, finals = np.zeros((batch, queries, 1, 2)), []
    for row in range(batch):
        nothing = (np.eye(2), np.zeros(2))
        first = initial and (
            np.asarray(initial.a[row], np.float64),
            np.asarray(initial.b[row], np.float64),
        )
        state, prefixes, run, segments = first or nothing, [], 0, []
        for t in range(length):
            if starts is not None and starts[row, t]:
                state, run = nothing, run + 1
            if mask is None or mask[row, t]:
                matrix = k[row, t, 0].reshape(2, 2)
                state = (matrix @ state[0], matrix @ state[1] + v[row, t, 0])
            prefixes.append(state)
            segments.append(run)
        finals.append(state)
        for t in range(queries):
            if mode == CAUSAL:
                seen = prefixes[t]
            elif mode == TOTAL:
                seen = state
            else:
                seen = prefixes[max(s for s in range(length) if segments[s] == segments[t])]
            x = np.array([1.0, -1.0]) if q is None else q[row, t, 0]
            outputs[row, t, 0] = seen[0] @ x + seen[1]
    return outputs, Affine(*(np.stack(leaf) for leaf in zip(*finals, strict=True)))


@functools.cache
def engine(mode: str, chunk_size: int | None) -> Any:
    @jax.jit
    def run(q: Any, k: Any, v: Any, mask: Any, starts: Any, initial: Any) -> Any:
        return prefix.attend(
            MONOID,
            q,
            (k, v),
            is_causal=mode == CAUSAL,
            mask=mask,
            starts=starts,
            initial=initial,
            chunk_size=chunk_size,
        )

    return run


def check(
    mode: str, inputs: Any, mask: Any, starts: Any, initial: Any, chunk_size: int | None
) -> None:
    y, state = engine(mode, chunk_size)(*inputs, mask, starts, initial)
    want, want_state = by_hand(*inputs, mode, mask, starts, initial)
    np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(state.a, want_state.a, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(state.b, want_state.b, rtol=1e-5, atol=1e-5)


def make_layout(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    mask = rng.random((BATCH, LENGTH)) < 0.7
    # A run starts at a real token.
    return mask, mask & (rng.random((BATCH, LENGTH)) < 0.3)


FEW = [None, 1, 3, LENGTH, LENGTH + 1]
"""No chunks, those of one token, with a rest, one chunk, and one that is not full."""


@pytest.mark.parametrize(
    "chunk_size",
    [
        pytest.param(size, marks=() if size in FEW else pytest.mark.slow)
        for size in (None, *range(1, LENGTH + 2))
    ],
)
@pytest.mark.parametrize("mode", [CAUSAL, TOTAL, RUNS])
def test_every_chunk_size(mode: str, chunk_size: int | None) -> None:
    mask, starts = make_layout(0)
    check(
        mode,
        make_inputs(LENGTH),
        mask,
        None if mode == TOTAL else starts,
        make_initial(),
        chunk_size,
    )


@pytest.mark.parametrize("chunk_size", [None, 3])
@pytest.mark.parametrize("mode", [CAUSAL, TOTAL])
@pytest.mark.parametrize("with_initial", [False, True])
def test_without_mask_and_starts(mode: str, with_initial: bool, chunk_size: int | None) -> None:
    initial = make_initial() if with_initial else None
    check(mode, make_inputs(LENGTH), None, None, initial, chunk_size)


@pytest.mark.parametrize("chunk_size", [None, 1, 3])
@pytest.mark.parametrize("mode", [CAUSAL, TOTAL, RUNS])
def test_without_queries(mode: str, chunk_size: int | None) -> None:
    _, k, v = make_inputs(LENGTH)
    mask, starts = make_layout(1)
    check(mode, (None, k, v), mask, None if mode == TOTAL else starts, None, chunk_size)


@pytest.mark.parametrize("queries", [1, 17])
def test_other_number_of_queries(queries: int) -> None:
    check(TOTAL, make_inputs(LENGTH, queries), None, None, make_initial(), 3)


@pytest.mark.parametrize("mode", [CAUSAL, RUNS])
@pytest.mark.parametrize("chunk_size", [None, 3])
@given(data=st.data())
def test_any_mask_and_runs(mode: str, chunk_size: int | None, data: Any) -> None:
    flags = st.lists(st.booleans(), min_size=BATCH * LENGTH, max_size=BATCH * LENGTH)
    mask, starts = (np.array(data.draw(flags)).reshape(BATCH, LENGTH) for _ in range(2))
    check(mode, make_inputs(LENGTH), mask, starts & mask, make_initial(), chunk_size)


@pytest.mark.parametrize("mode", [CAUSAL, TOTAL, RUNS])
def test_gradients_do_not_depend_on_the_chunk_size(mode: str) -> None:
    length = 5
    mask, starts = (x[:, :length] for x in make_layout(2))
    starts = None if mode == TOTAL else starts

    def loss(inputs: Any, initial: Any, chunk_size: int | None) -> Any:
        y, state = prefix.attend(
            MONOID,
            inputs[0],
            inputs[1:],
            is_causal=mode == CAUSAL,
            mask=mask,
            starts=starts,
            initial=initial,
            chunk_size=chunk_size,
        )
        return jnp.sum(y**2) + jnp.sum(state.a * jnp.arange(4.0).reshape(2, 2))

    @jax.jit
    def gradients(inputs: Any, initial: Any) -> Any:
        return [jax.grad(loss, argnums=(0, 1))(inputs, initial, c) for c in (1, None, 3)]

    want, *others = gradients(make_inputs(length), make_initial())
    for got in others:
        jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-4), got, want)


def test_no_tokens_read_the_initial_state() -> None:
    q, k, v = make_inputs(0, queries=3)
    initial = make_initial()
    y, state = prefix.attend(
        MONOID,
        q,
        (k, v),
        is_causal=False,
        mask=None,
        starts=None,
        initial=initial,
        chunk_size=None,
    )
    np.testing.assert_allclose(y, read(q, jax.tree.map(lambda s: s[:, None], initial)), rtol=1e-6)
    np.testing.assert_array_equal(state.a, initial.a)
