"""Reformer: the paper's rounds written out, its leak from the future, and what ours has instead."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_linattn import ops
from tests.compilation import compile_as_users
from tests.contract import (
    cases,
    test_causality,
    test_padding,
    test_precision,
    test_reference,
)
from tests.contract.tolerances import assert_same_bits
from tests.ops.mechanisms import peers
from tests.ops.mechanisms.make_peers import REFORMER, rotations

LENGTH, KEY_DIM, SIZE, ROUNDS = 42, 5, 4, 3
PUBLISHED = ops.get_mechanism("reformer", bucket_size=SIZE, num_hashes=ROUNDS)
CAUSAL = ops.get_mechanism("reformer", bucket_size=2, num_hashes=2, num_buckets=4)


def published(x: Any, v: Any, draws: Any, *, is_causal: bool = False) -> Any:
    """Section 2 and appendix A as printed, for x [T, K], v [T, V]: rounds weighed by exp(z)."""
    length = len(x)
    half = -(-length // (2 * SIZE))
    position = np.arange(length)
    keys = x / np.linalg.norm(x, axis=1, keepdims=True)
    score = x @ keys.T * x.shape[1] ** -0.5
    sees = []
    for rotation in draws[..., :half]:
        bucket = np.argmax(np.hstack([x @ rotation, -x @ rotation]), axis=1)
        place = np.argsort(np.lexsort((position, bucket)))
        chunk = place // SIZE
        back = chunk[:, None] - chunk
        seen = (bucket[:, None] == bucket) & (back >= 0) & (back <= 1)
        sees.append(seen & (position <= position[:, None]) if is_causal else seen)
    count = np.sum(sees, axis=0)
    outputs, logs = [], []
    for seen in sees:
        penalty = np.where(np.eye(length, dtype=bool), 1e5, np.log(np.maximum(count, 1)))
        level = np.where(seen, score - penalty, -np.inf)
        top = level.max(axis=1, keepdims=True)
        z = top + np.log(np.exp(level - top).sum(axis=1, keepdims=True))
        outputs.append(np.exp(level - z) @ v)
        logs.append(z)
    z = np.stack(logs)
    share = np.exp(z - z.max(axis=0))
    return np.sum(share * np.stack(outputs), axis=0) / share.sum(axis=0)


def draw(length: int = LENGTH, columns: int = 8) -> tuple[Any, Any, Any]:
    """x [1, T, 2, K], v [1, T, 2, 3], rotations."""
    rng = np.random.default_rng(0)
    x, v = rng.normal(size=(1, length, 2, KEY_DIM)), rng.normal(size=(1, length, 2, 3))
    return x, v, rng.normal(size=(ROUNDS, KEY_DIM, columns))


def attend(mechanism: ops.Mechanism, x: Any, v: Any, **how: Any) -> Any:
    """In float64."""
    with jax.enable_x64(True):
        how = {name: jnp.asarray(value) for name, value in how.items()}
        return np.asarray(jax.jit(mechanism.attend)(*map(jnp.asarray, (x, x, v)), **how))


def test_it_is_the_paper() -> None:
    """A length that no chunk divides; numbers of rounds that share a pair from 1 to all."""
    x, v, draws = draw()
    y = attend(PUBLISHED, x, v, rotations=draws)
    for head in range(2):
        want = published(x[0, :, head], v[0, :, head], draws)
        np.testing.assert_allclose(y[0, :, head], want, atol=1e-12)


def test_it_is_the_code_of_others() -> None:
    """reformer-pytorch, told to mask other buckets and to count a pair once."""
    size, rounds = REFORMER
    mechanism = ops.get_mechanism("reformer", bucket_size=size, num_hashes=rounds)

    def run(x: Any, v: Any) -> dict[str, Any]:
        return {"y": mechanism.attend(x, x, v, rotations=jnp.asarray(rotations(), x.dtype))}

    peers.check("reformer", run, np.float64)
    peers.check("reformer", run, np.float32)


def test_the_published_form_is_not_causal() -> None:
    """One later token moves the border of a chunk between two earlier ones."""
    x, v, draws = (each[0] if each.ndim == 4 else each for each in draw())
    other = x.copy()
    other[-1] = -x[-1]
    before, after = (published(a[:, 0], v[:, 0], draws, is_causal=True) for a in (x, other))
    assert np.abs(after - before)[:-1].max() > 0.1
    longer = np.concatenate([x, x])[:, 0], np.concatenate([v, v])[:, 0]  # more buckets
    assert np.abs(published(*longer, draws, is_causal=True)[:LENGTH] - before).max() > 0.1
    assert not PUBLISHED.capabilities.causal


def test_with_its_own_number_of_buckets_it_is_causal() -> None:
    """The contract of causal forms, whose cases have the mechanism as it comes."""
    assert CAUSAL.capabilities.causal
    test_causality.test_the_future_cannot_change_the_past(CAUSAL, "parallel")
    test_causality.test_the_past_has_no_gradient_into_the_future(CAUSAL, "parallel")
    test_padding.test_poisoned_padding_changes_nothing(CAUSAL, True, "parallel")


def test_the_causal_reference_is_the_equation() -> None:
    for is_causal in (True, False):
        test_reference.test_the_reference_is_the_equation(CAUSAL, is_causal)
    cases.FORMS_OF[CAUSAL] = ["parallel"]
    try:
        test_precision.check_large(CAUSAL, True, "parallel", np.float32)
    finally:
        del cases.FORMS_OF[CAUSAL]


@pytest.mark.slow
def test_no_bit_of_the_past_changes_as_users_compile_it() -> None:
    """At sizes where sums run in several lanes; a longer sequence, too."""
    mechanism = dataclasses.replace(CAUSAL, bucket_size=16, num_hashes=4, num_buckets=8)
    rng = np.random.default_rng(1)
    x, v = rng.normal(size=(2, 1, 100, 2, 16)).astype(np.float32)
    run = compile_as_users(lambda x, v: mechanism.attend(x, x, v, is_causal=True), x, v)
    want = np.asarray(run(x, v))
    for cut in (1, 37, 64, 99):
        late = np.arange(100)[None, :, None, None] >= cut
        got = np.asarray(run(np.where(late, -3 * x, x), np.where(late, 100 * v, v)))
        assert_same_bits(got[:, :cut], want[:, :cut])
    short = compile_as_users(
        lambda x, v: mechanism.attend(x, x, v, is_causal=True), x[:, :70], v[:, :70]
    )
    np.testing.assert_allclose(short(x[:, :70], v[:, :70]), want[:, :70], atol=1e-5)


def test_one_bucket_is_softmax_over_all_others() -> None:
    """Of what every token has in common, and of no token itself but where it is alone."""
    x, v, _ = draw(SIZE + 1)
    x[..., 0] = 9.0
    draws = np.zeros((ROUNDS, KEY_DIM, 1))
    draws[:, 0] = 1.0
    mechanism = dataclasses.replace(PUBLISHED, bucket_size=SIZE + 1)
    y = attend(mechanism, x, v, rotations=draws)
    for head in range(2):
        a = x[0, :, head]
        score = a @ (a / np.linalg.norm(a, axis=1, keepdims=True)).T * KEY_DIM**-0.5
        weight = np.where(np.eye(len(a)), 0.0, np.exp(score))
        want = weight @ v[0, :, head] / weight.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(y[0, :, head], want, atol=1e-12)
    np.testing.assert_array_equal(attend(mechanism, x[:, :1], v[:, :1]), v[:, :1])


def test_the_query_is_not_looked_at() -> None:
    x, v, draws = draw()
    q = np.full_like(x, np.nan)

    @jax.jit
    def gradients(q: Any, x: Any, v: Any, draws: Any) -> Any:
        y, pull = jax.vjp(lambda *a: PUBLISHED.attend(*a[:3], rotations=a[3]), q, x, v, draws)
        return y, pull(y)

    y, (dq, dx, dv, ddraws) = gradients(*(jnp.float32(a) for a in (q, x, v, draws)))
    assert np.isfinite(y).all() and np.isfinite(dx).all() and np.isfinite(dv).all()
    assert not dq.any() and not ddraws.any()


def test_draws() -> None:
    """Fixed by the seed; longer sequences and padding have more columns, the first ones alike."""
    x, v, draws = draw()
    once, other = (attend(dataclasses.replace(PUBLISHED, seed=s), x, v) for s in (0, 1))
    assert np.abs(once - other).max() > 0.1
    padded = [np.concatenate([a, np.full_like(a, np.nan)], axis=1) for a in (x, v)]
    mask = np.arange(2 * LENGTH)[None] < LENGTH
    got = attend(PUBLISHED, *padded, mask=mask)
    np.testing.assert_allclose(got[:, :LENGTH], once, atol=1e-12)
    few = draws[..., :6]  # of 12 buckets for 42 tokens
    assert_same_bits(*(attend(PUBLISHED, x, v, rotations=r) for r in (few, draws)))
    with pytest.raises(
        ValueError, match=r"num_hashes, K, b / 2\] = \(3, 5, 6\) .* got \(3, 5, 5\)"
    ):
        attend(PUBLISHED, x, v, rotations=few[..., :5])


def test_bad_options() -> None:
    for options, message in (
        ({"bucket_size": 0}, "bucket_size must be at least 1, got 0"),
        ({"num_hashes": 0}, "num_hashes must be at least 1, got 0"),
        ({"num_buckets": 0}, "num_buckets must be at least 2, got 0"),
        ({"num_buckets": 5}, "num_buckets must be even, .* got 5"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
    ):
        with pytest.raises(ValueError, match=message):
            ops.get_mechanism("reformer", **options)
