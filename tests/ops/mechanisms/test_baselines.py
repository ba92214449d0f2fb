"""What the baselines are and are not: limits they approximate, equalities, refusals."""

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_linattn import ops
from flax_linattn.ops.engine import draws
from flax_linattn.ops.engine.features import unit_length


def qkv(length: int, dim: int = 8, size: float = 1.0) -> Any:
    rng = np.random.default_rng(0)
    return [(size * rng.normal(size=(2, length, 2, dim))).astype(np.float32) for _ in range(3)]


def jitted(spec: str, which: str = "attend", **how: Any) -> Any:
    """``attend`` or ``reference`` of a mechanism, compiled."""
    return jax.jit(partial(getattr(ops.get_mechanism(spec), which), **how))


def test_performer_converges_to_softmax() -> None:
    """The kernel is unbiased: ten times the features, a third of the error."""
    q, k, v = qkv(12, size=0.5)
    want = jitted("softmax")(q, k, v)

    def error(num_features: int) -> float:
        performer = jitted(f"performer:num_features={num_features}")
        rows = [draws.orthogonal_gaussian(num_features, 8, seed) for seed in range(4)]
        errors = [performer(q, k, v, projection=np.float32(drawn)) - want for drawn in rows]
        return float(np.sqrt(np.mean(np.square(errors))))

    few, many = error(256), error(4096)
    assert many < few / 2 and many < 0.01
    drawn = np.float32(draws.orthogonal_gaussian(256, 8, seed=3))
    want = jitted("performer:num_features=256")(q, k, v, projection=drawn)
    got = jitted("performer:num_features=256,seed=3")(q, k, v)
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_rfa_converges_to_the_gaussian_kernel() -> None:
    q, k, v = qkv(12)

    @jax.jit
    def kernel(q: Any, k: Any, v: Any) -> Any:
        difference = unit_length(q)[:, :, None] - unit_length(k)[:, None]
        weight = jnp.exp(-jnp.sum(jnp.square(difference), axis=-1) / 2)
        return jnp.einsum("btsh,bshv->bthv", weight / weight.sum(axis=2, keepdims=True), v)

    want = kernel(q, k, v)
    got = jitted("rfa:num_features=16384")(q, k, v)
    np.testing.assert_allclose(got, want, atol=0.05)


def test_draws_are_those_of_the_seed() -> None:
    rows = draws.orthogonal_gaussian(5, 3, seed=1)
    np.testing.assert_allclose(rows[0] @ rows[1:3].T, 0, atol=1e-12)
    assert (rows == draws.orthogonal_gaussian(5, 3, seed=1)).all()
    assert (rows != draws.orthogonal_gaussian(5, 3, seed=2)).all()
    many = draws.orthogonal_gaussian(3000, 3, seed=0)
    np.testing.assert_allclose(many.mean(axis=0), 0, atol=0.1)
    np.testing.assert_allclose(many.T @ many / len(many), np.eye(3), atol=0.1)


def test_taylor_features_are_taylorshift_without_its_normalisation() -> None:
    q, k, v = qkv(20)
    for is_causal in (True, False):
        want = jitted("taylorshift:normalize=False", is_causal=is_causal)(q, k, v)
        got = jitted("taylor_features:scale=1.0", is_causal=is_causal)(q, k, v)
        np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("gate", [True, False])
def test_aft_without_biases_is_aft_simple(is_causal: bool, gate: bool) -> None:
    q, k, v = qkv(20)
    full, simple = (
        jitted(f"{name}:gate={gate}", is_causal=is_causal) for name in ("aft", "aft_simple")
    )
    want = simple(q, k, v)
    np.testing.assert_allclose(full(q, k, v), want, atol=1e-6)
    got = full(q, k, v, position_bias=np.zeros((20, 20), np.float32))
    np.testing.assert_allclose(got, want, atol=1e-6)


def test_aft_is_its_equation() -> None:
    """Equation 19 of the element-wise attention paper, written in numpy."""
    q, k, v = qkv(9)
    bias = np.random.default_rng(1).normal(size=(9, 9)).astype(np.float32)
    weight = np.exp(np.asarray(k)[:, None] + bias[None, :, :, None, None])
    want = (weight * np.asarray(v)[:, None]).sum(axis=2) / weight.sum(axis=2)
    got = jitted("aft:gate=False")(q, k, v, position_bias=bias)
    np.testing.assert_allclose(got, want, atol=1e-5)


def test_aft_beyond_its_positions() -> None:
    """An error where lengths tell; NaN under jit, where only the state knows."""
    q, k, v = qkv(9)
    aft, bias = ops.get_mechanism("aft"), jnp.zeros((4, 4))
    with pytest.raises(ValueError, match="holds 4 positions, got sequences of 9"):
        aft.attend(q, k, v, position_bias=bias)
    with pytest.raises(ValueError, match=r"must have shape \[N, N\], got \(4, 3\)"):
        aft.attend(q, k, v, position_bias=bias[:, :3])
    mask = jnp.arange(9) < jnp.array([[4], [5]])
    with pytest.raises(ValueError, match="holds 4 positions, got sequences of 5"):
        aft.attend(q, k, v, is_causal=True, mask=mask, position_bias=bias)
    y = jax.jit(lambda mask: aft.attend(q, k, v, is_causal=True, mask=mask, position_bias=bias))(
        mask
    )
    assert np.isfinite(y[0]).all() and np.isnan(y[1, 4]).all()
    with pytest.raises(ValueError, match="has biases for 4 positions, and its cache cannot have 9"):
        ops.get_mechanism("aft", max_length=4).init_state(2, 2, 8, 8, max_length=9)
    state = aft.init_state(2, 2, 8, 8, max_length=9)
    first = slice(0, 4)
    attend = jitted("aft", return_state=True)
    tokens = (x[:, first] for x in (q, k, v))
    _, state = attend(*tokens, initial_state=state, position_bias=bias)
    with pytest.raises(ValueError, match="holds 4 positions, got token number 5"):
        aft.step(q[:, 4], k[:, 4], v[:, 4], state, position_bias=bias)
    with pytest.raises(ValueError, match=r"must have shape \[N, N\], got \(4,\)"):
        aft.step(q[:, 4], k[:, 4], v[:, 4], state, position_bias=bias[0])


@pytest.mark.parametrize("is_causal", [True, False])
def test_aft_counts_real_tokens(is_causal: bool) -> None:
    q, k, v = qkv(9)
    bias = np.random.default_rng(1).normal(size=(9, 9)).astype(np.float32)
    mask = np.arange(9) >= np.array([[0], [3]])
    for which in ("attend", "reference"):
        attend = partial(jitted("aft", which, is_causal=is_causal), position_bias=bias)
        want = attend(q[:, 3:], k[:, 3:], v[:, 3:])[1]
        np.testing.assert_allclose(attend(q, k, v, mask=mask)[1, 3:], want, atol=1e-6)


def test_aft_where_an_output_is_not_wanted() -> None:
    q, k, v = qkv(5)
    bias = np.random.default_rng(1).normal(size=(5, 5)).astype(np.float32)
    wanted = np.array([[True, False, True, True, True]] * 2)
    got, want = (
        jitted("aft", which, is_causal=True)(q, k, v, query_mask=wanted, position_bias=bias)
        for which in ("attend", "reference")
    )
    np.testing.assert_allclose(got, want, atol=1e-6)


@cache
def linear_gradients(which: str) -> Any:
    """(q, k, v) -> outputs of ``linear`` and gradients of a sum of them."""
    attend = getattr(ops.get_mechanism("linear"), which)

    def run(*tokens: Any) -> Any:
        y, pull = jax.vjp(attend, *tokens)
        return y, pull(jnp.sin(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape))

    return jax.jit(run)


@pytest.mark.parametrize("below", [0, 5, 200])
def test_linear_attention_far_below_zero(below: float) -> None:
    """elu + 1 of such queries underflows; its size cancels, in the gradients too."""
    q, k, v = qkv(6)
    q = q - np.float32(below)
    q[0, 0] = 0
    got = linear_gradients("attend")(q, k, v)
    with jax.enable_x64(True):
        want = linear_gradients("reference")(*(x.astype(np.float64) for x in (q, k, v)))
    jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, atol=1e-5), got, want)


def test_nystrom_with_a_landmark_a_token_is_softmax() -> None:
    """The pseudo-inverse is then the inverse, as far as its iterations go."""
    with jax.enable_x64(True):
        q, k, v = (x.astype(np.float64) for x in qkv(10, size=2.0))
        got = jitted("nystrom:num_landmarks=16,iterations=40")(q, k, v)
        want = jitted("softmax")(q, k, v)
    np.testing.assert_allclose(got, want, atol=1e-6)


def test_linformer_with_a_projection_a_token_is_softmax() -> None:
    q, k, v = qkv(10)
    eye = np.eye(10, dtype=np.float32)
    got = jitted("linformer")(q, k, v, key_projection=eye, value_projection=eye)
    np.testing.assert_allclose(got, jitted("softmax")(q, k, v), atol=1e-6)


@pytest.mark.parametrize("name", ["linformer", "nystrom"])
def test_whole_sequence_mechanisms_refuse_what_they_cannot(name: str) -> None:
    mechanism = ops.get_mechanism(name)
    q, k, v = qkv(6)
    with pytest.raises(ValueError, match=f"'{name}' has no causal form; use is_causal=False"):
        mechanism.attend(q, k, v, is_causal=True)
    with pytest.raises(ValueError, match=f"'{name}' does not offer segment_ids"):
        mechanism.attend(q, k, v, segment_ids=jnp.zeros((2, 6), jnp.int32))
    no_state = f"'{name}' needs the whole sequence at once: it has no state and no step"
    with pytest.raises(ValueError, match=no_state):
        mechanism.attend(q, k, v, return_state=True)
    with pytest.raises(ValueError, match=no_state):
        mechanism.init_state(2, 2, 8, 8)
    with pytest.raises(ValueError, match=no_state):
        mechanism.step(q[:, 0], k[:, 0], v[:, 0], None)
    with pytest.raises(ValueError, match="cannot merge states"):
        mechanism.merge(None, None)


@pytest.mark.parametrize("name", ["linformer", "nystrom"])
def test_padding_may_stand_anywhere(name: str) -> None:
    """Positions and segments count real tokens: the same outputs as without padding."""
    attend = jitted({"linformer": "linformer:max_length=12"}.get(name, name))
    tokens = np.stack(qkv(9))
    mask = np.array([True, False, True, True, False, True, True, True, False, True, True, True])
    spread = np.full((3, 2, 12, 2, 8), np.nan, np.float32)
    spread[:, :, mask] = tokens
    got = attend(*spread, mask=np.stack([mask, mask]))
    np.testing.assert_allclose(got[:, mask], attend(*tokens), atol=1e-5)


def test_linformer_is_made_for_a_length() -> None:
    q, k, v = qkv(9)
    linformer = ops.get_mechanism("linformer", max_length=8)
    with pytest.raises(ValueError, match="made for sequences of 8 positions, got 9; make it with"):
        linformer.attend(q, k, v)
    mask = jnp.arange(9) < jnp.array([[8], [9]])
    with pytest.raises(ValueError, match="made for sequences of 8 positions, got 9"):
        linformer.attend(q, k, v, mask=mask)
    with pytest.raises(ValueError, match="made for sequences of 8 positions, got 9"):
        jax.jit(lambda q: linformer.attend(q, k, v, mask=mask))(q)  # the mask is known
    y = jax.jit(lambda mask: linformer.attend(q, k, v, mask=mask))(mask)
    want = np.asarray(jax.jit(linformer.attend)(q[:, :8], k[:, :8], v[:, :8]))[0]
    # Relative to the largest output: small ones are sums that cancel.
    np.testing.assert_allclose(y[0, :8], want, rtol=0, atol=1e-6 * np.max(np.abs(want)))
    assert np.isnan(y[1]).all()
    table = jnp.ones((12, 4))
    with pytest.raises(ValueError, match=r"given together .* got \(12, 4\) and None"):
        linformer.attend(q, k, v, key_projection=table)
    for name in ("linformer", "aft"):
        with pytest.raises(ValueError, match=rf"get_mechanism\('{name}', max_length=...\)"):
            ops.get_mechanism(name).learned_parameters(2, 8)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("performer:num_features=0", "num_features must be at least 1, got 0"),
        ("rfa:num_features=0", "num_features must be at least 1, got 0"),
        ("linformer:num_projections=0", "num_projections must be at least 1, got 0"),
        ("linformer:max_length=0", "max_length must be at least 1, got 0"),
        ("aft:max_length=0", "max_length must be at least 1, got 0"),
        ("linformer:seed=-1", "seed must be at least 0, got -1"),
        ("performer:seed=-1", "seed must be at least 0, got -1"),
        ("rfa:seed=-1", "seed must be at least 0, got -1"),
        ("rfa:seed=1,seed=2", "name=value,name=value after the colon, each once"),
        ("rfa:**x", "name=value,name=value after the colon, each once"),
        ("nystrom:num_landmarks=0", "num_landmarks must be at least 1, got 0"),
        ("nystrom:iterations=0", "iterations must be at least 1, got 0"),
    ],
)
def test_bad_hyperparameters(spec: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ops.get_mechanism(spec)


def test_bad_arguments() -> None:
    q, k, v = qkv(3)
    with pytest.raises(ValueError, match=r"scale must be positive.* got -1\.0"):
        ops.get_mechanism("performer", scale=-1.0).attend(q, k, v)
    with pytest.raises(ValueError, match=r"\[num_features, K\] = \(16, 8\), got \(3, 8\)"):
        ops.get_mechanism("performer").attend(q, k, v, projection=jnp.ones((3, 8)))
    with pytest.raises(ValueError, match=r"\[H, K\] = \(2, 8\), got \(8,\)"):
        ops.get_mechanism("rfa").attend(q, k, v, feature_scale=jnp.ones(8))
    with pytest.raises(ValueError, match=r"have one shape \[N, P\], got \(8,\) and None"):
        ops.get_mechanism("linformer").attend(q, k, v, key_projection=jnp.ones(8))
