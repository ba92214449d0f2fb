"""What the TaylorShift paper says: its two forms, its normalization, its switching points."""

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_linattn import ops
from tests.compilation import compile_as_users

TAYLORSHIFT = ops.get_mechanism("taylorshift", chunk_size=16)


def qkv(length: int, dim: int, dtype: Any = np.float64, source: int | None = None) -> Any:
    rng = np.random.default_rng(0)
    lengths = (length, source or length, source or length)
    return [jnp.asarray(rng.normal(size=(2, n, 2, dim)), dtype) for n in lengths]


def algorithm_1(q: Any, k: Any, v: Any, temperature: float) -> np.ndarray:
    """The paper's efficient form for one head, with all d^2 products and its scalings."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    n, d = k.shape
    alpha = d**0.25
    q = alpha * temperature * q / np.linalg.norm(q, axis=1, keepdims=True)
    k = alpha * k / np.linalg.norm(k, axis=1, keepdims=True)
    v = np.concatenate([np.full((n, 1), np.sqrt(d / n)), v], axis=1) / n

    def products(x: np.ndarray) -> np.ndarray:
        return np.einsum("ni,nj->nij", x, x).reshape(len(x), d * d)

    y = products(q) @ (products(k).T @ v) / 2 + alpha**2 * q @ (k.T @ v)
    y = y + alpha**4 * v.sum(axis=0)
    return y[:, 1:] / y[:, :1]


@pytest.mark.parametrize(("length", "dim", "temperature"), [(50, 8, 1.0), (300, 16, 10.0)])
def test_direct_efficient_and_algorithm_1_agree(length: int, dim: int, temperature: float) -> None:
    with jax.enable_x64(True):
        q, k, v = qkv(length, dim)
        tau = jnp.full(2, temperature)
        direct, efficient = (
            jax.jit(partial(TAYLORSHIFT.attend, form=form))(q, k, v, temperature=tau)
            for form in ("direct", "efficient")
        )
    np.testing.assert_allclose(direct, efficient, atol=1e-13)
    for row, head in ((0, 0), (1, 1)):
        want = algorithm_1(q[row, :, head], k[row, :, head], v[row, :, head], temperature)
        np.testing.assert_allclose(efficient[row, :, head], want, atol=1e-13)


@cache
def final_state(form: str) -> Any:
    attend = ops.get_mechanism("taylorshift", chunk_size=4).attend
    run = jax.jit(partial(attend, is_causal=True, form=form, return_state=True))
    return run(*qkv(6, 4, np.float32))[1]


@pytest.mark.parametrize("form", TAYLORSHIFT.capabilities.forms)
def test_the_state_counts_tokens_and_nothing_else(form: str) -> None:
    """A last chunk that is not full holds no tokens beyond those given."""
    state, want = final_state(form), final_state("recurrent")
    np.testing.assert_allclose(TAYLORSHIFT.count(state), 6.0)
    jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, atol=1e-5), state, want)


def test_cross_attention_counts_keys() -> None:
    q, k, v = qkv(5, 4, np.float32, source=9)
    plain = ops.get_mechanism("taylorshift", normalize_output=False)
    ratio = jax.jit(lambda *x: TAYLORSHIFT.attend(*x) / plain.attend(*x))(q, k, v)
    np.testing.assert_allclose(ratio, 1.5, rtol=1e-5)


def test_the_scale_of_queries_and_keys_cancels() -> None:
    q, k, v = qkv(30, 8, np.float32)
    attend = jax.jit(TAYLORSHIFT.attend)
    np.testing.assert_allclose(attend(1e25 * q, 1e-25 * k, v), attend(q, k, v), atol=1e-5)


def test_zero_vectors_are_no_nan() -> None:
    q, k, v = qkv(6, 4, np.float32)
    q, k = q.at[:, 2].set(0), k.at[:, 3].set(0)

    @jax.jit
    def run(*tokens: Any) -> Any:
        y, pull = jax.vjp(partial(TAYLORSHIFT.attend, is_causal=True), *tokens)
        return y, pull(jnp.ones_like(y))

    y, gradient = run(q, k, v)
    assert np.isfinite(y).all() and all(np.isfinite(g).all() for g in gradient)
    assert not np.asarray(gradient[0])[:, 2].any()


@pytest.mark.parametrize("normalize", [True, False])
def test_coefficients(normalize: bool) -> None:
    coefficients = (0.3, 0.5, 2.0)
    mechanism = ops.get_mechanism(
        "taylorshift", coefficients=coefficients, normalize=normalize, chunk_size=8
    )
    with jax.enable_x64(True):
        q, k, v = qkv(20, 5)
        want = jax.jit(partial(mechanism.reference, is_causal=True))(q, k, v)
        for form in mechanism.capabilities.forms:
            y = jax.jit(partial(mechanism.attend, is_causal=True, form=form))(q, k, v)
            np.testing.assert_allclose(y, want, atol=1e-12)
        default = ops.get_mechanism("taylorshift", normalize=normalize)
        other = jax.jit(partial(default.reference, is_causal=True))(q, k, v)
        assert np.abs(np.asarray(other) - want).max() > 1e-2


def test_table_2() -> None:
    dims = (8, 16, 32, 64, 128)
    assert [ops.taylorshift_n0(d) for d in dims] == [73, 273, 1057, 4161, 16513]
    assert [ops.taylorshift_n1(d) for d in dims] == [47, 159, 574, 2174, 8446]
    for points in (ops.taylorshift_n0, ops.taylorshift_n1):
        with pytest.raises(ValueError, match="key_dim must be at least 1, got 0"):
            points(0)


def test_the_switching_points_are_where_the_costs_cross() -> None:
    """Equations 5, 6 and 8: operations and entries of both forms."""
    for d in range(2, 130):
        n = np.array([-1, 0]) + ops.taylorshift_n0(d)
        direct, efficient = 4 * n**2 * d + 6 * n**2, n * (4 * d**3 + 10 * d**2 + 9 * d + 4)
        assert (direct >= efficient).tolist() == [False, True]
        n = np.array([-1, 0]) + ops.taylorshift_n1(d)
        direct = d * n + 2 * n**2
        efficient = d**2 * (d + 1) + 2 * d * n + (d + 1) * n + d**2 * n
        assert (direct >= efficient).tolist() == [False, True]


def test_direct_weights_of_any_size() -> None:
    """Beyond float32's largest square, and of queries whose products would overflow."""
    mechanism = ops.get_mechanism("taylorshift", normalize=False)
    q, k, v = qkv(7, 3, np.float32)
    for size in (1e-30, 1.0, 1e15, 1e30, 1e36):
        got = mechanism.attend(q * np.float32(size), k, v, form="direct")
        with jax.enable_x64(True):
            exact = [jnp.asarray(np.float64(x)) for x in (q * np.float32(size), k, v)]
            want = mechanism.reference(*exact)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("switch", "is_causal", "last_direct"),
    [("speed", False, 151), ("speed", True, 273), ("memory", True, 46), ("paper", False, 72)],
)
def test_auto_switches(
    switch: str, is_causal: bool, last_direct: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``form="auto"``: 3 F (d + 1) / d = 151.9 tokens, with F = 45; 1.8 times that; N1; N0."""
    mechanism = ops.get_mechanism("taylorshift", switch=switch, chunk_size=512)
    taken = []
    direct = ops.TaylorShift._direct
    monkeypatch.setattr(ops.TaylorShift, "_direct", lambda *a: (taken.append(True), direct(*a))[1])
    for length in (last_direct, last_direct + 1):
        taken.clear()
        x = jax.ShapeDtypeStruct((1, length, 1, 8), jnp.float32)
        jax.eval_shape(lambda q, k, v: mechanism.attend(q, k, v, is_causal=is_causal), x, x, x)
        assert bool(taken) is (length == last_direct)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"coefficients": (0.5, 2.0, 1.0)}, r"c >= b\^2 / \(4 a\)"),
        ({"coefficients": (-1.0, 1.0, 1.0)}, "must have a > 0"),
        ({"coefficients": (0.5, 1.0)}, r"three numbers \(a, b, c\), got \(0.5, 1.0\)"),
        ({"switch": "size"}, r"switch must be one of \('speed', 'memory', 'paper'\), got 'size'"),
    ],
)
def test_bad_hyperparameters(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ops.get_mechanism("taylorshift", **options)


def test_bad_temperature() -> None:
    q, k, v = qkv(3, 4, np.float32)
    with pytest.raises(ValueError, match=r"one number a head, \[H\] = \(2,\), got shape \(3,\)"):
        TAYLORSHIFT.attend(q, k, v, temperature=jnp.ones(3))


@pytest.mark.parametrize("is_causal", [True, False])
def test_features_are_never_whole(is_causal: bool) -> None:
    """Temporary memory is a few T x K arrays at a fixed chunk, not T x F features."""
    length, dim = 4096, 16
    mechanism = ops.get_mechanism("taylorshift", chunk_size=64)
    x = jax.ShapeDtypeStruct((1, length, 1, dim), jnp.float32)

    def run(q: Any, k: Any, v: Any) -> Any:
        return mechanism.attend(q, k, v, is_causal=is_causal, form="efficient")

    compiled = compile_as_users(run, x, x, x)
    features = dim * (dim + 1) // 2 + dim + 1
    assert compiled.memory_analysis().temp_size_in_bytes < length * features * 4 / 2


def test_the_optimal_dimension_of_heads():
    """By searching what each costs; 9 d^3, which the paper prints, has its root elsewhere."""
    d = np.linspace(0.01, 2, 200_001)
    h = 1 / d  # of one feature
    operations = 4 / h**2 + 10 / h + 9 + 4 * h
    assert ops.taylorshift_optimal_dim() == pytest.approx(d[operations.argmin()], abs=1e-4)
    assert max(r.real for r in np.roots((9, 10, 0, -4))) == pytest.approx(0.522, abs=1e-3)
    for n in (1, 16, 1024):
        numbers = 1 / h**2 + (n + 1) / h + 3 * n + n * h
        found = ops.taylorshift_optimal_dim(n)
        assert found == pytest.approx(d[numbers.argmin()], abs=1e-3) and found < 1
    with pytest.raises(ValueError, match="num_tokens must be at least 1"):
        ops.taylorshift_optimal_dim(0)
