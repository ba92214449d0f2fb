"""What the baselines are and are not: limits they approximate, equalities, refusals."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_linattn import ops
from flax_linattn.ops.baselines import draws
from flax_linattn.ops.features import unit_length


def qkv(length: int, dim: int = 8, size: float = 1.0) -> Any:
    rng = np.random.default_rng(0)
    return [jnp.asarray(size * rng.normal(size=(2, length, 2, dim)), np.float32) for _ in range(3)]


def test_performer_converges_to_softmax() -> None:
    """The kernel is unbiased: ten times the features, a third of the error."""
    q, k, v = qkv(12, size=0.5)
    want = ops.get_mechanism("softmax").attend(q, k, v)

    def error(num_features: int) -> float:
        errors = [
            ops.get_mechanism("performer", num_features=num_features, seed=seed).attend(q, k, v)
            - want
            for seed in range(4)
        ]
        return float(np.sqrt(np.mean(np.square(errors))))

    few, many = error(256), error(4096)
    assert many < few / 2 and many < 0.01


def test_rfa_converges_to_the_gaussian_kernel() -> None:
    q, k, v = qkv(12)
    difference = jnp.sum(
        jnp.square(unit_length(q)[:, :, None] - unit_length(k)[:, None]),
        axis=-1,
    )
    weight = jnp.exp(-difference / 2)
    want = jnp.einsum("btsh,bshv->bthv", weight / weight.sum(axis=2, keepdims=True), v)
    got = ops.get_mechanism("rfa", num_features=16384).attend(q, k, v)
    np.testing.assert_allclose(got, want, atol=0.05)


def test_draws_are_those_of_the_seed() -> None:
    rows = draws.orthogonal_gaussian(5, 3, seed=1)
    np.testing.assert_allclose(rows[0] @ rows[1:3].T, 0, atol=1e-12)
    assert (rows == draws.orthogonal_gaussian(5, 3, seed=1)).all()
    assert (rows != draws.orthogonal_gaussian(5, 3, seed=2)).all()
    many = draws.orthogonal_gaussian(3000, 3, seed=0)
    np.testing.assert_allclose(many.mean(axis=0), 0, atol=0.1)
    np.testing.assert_allclose(many.T @ many / len(many), np.eye(3), atol=0.1)


def test_hedgehog_is_taylorshift_without_its_normalisation() -> None:
    q, k, v = qkv(20)
    taylorshift = ops.get_mechanism("taylorshift", normalize=False)
    hedgehog = ops.get_mechanism("hedgehog", scale=1.0)
    for is_causal in (True, False):
        want = taylorshift.attend(q, k, v, is_causal=is_causal)
        got = hedgehog.attend(q, k, v, is_causal=is_causal)
        np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("gate", [True, False])
def test_aft_without_biases_is_aft_simple(is_causal: bool, gate: bool) -> None:
    q, k, v = qkv(20)
    full, simple = (ops.get_mechanism(name, gate=gate) for name in ("aft", "aft_simple"))
    want = simple.attend(q, k, v, is_causal=is_causal)
    np.testing.assert_allclose(full.attend(q, k, v, is_causal=is_causal), want, atol=1e-6)
    zero = jnp.zeros((20, 20))
    got = full.attend(q, k, v, is_causal=is_causal, position_bias=zero)
    np.testing.assert_allclose(got, want, atol=1e-6)


def test_aft_is_its_equation() -> None:
    """Equation 19 of the element-wise attention paper, written in numpy."""
    q, k, v = qkv(9)
    bias = np.random.default_rng(1).normal(size=(9, 9)).astype(np.float32)
    weight = np.exp(np.asarray(k)[:, None] + bias[None, :, :, None, None])
    want = (weight * np.asarray(v)[:, None]).sum(axis=2) / weight.sum(axis=2)
    aft = ops.get_mechanism("aft", gate=False)
    got = aft.attend(q, k, v, position_bias=jnp.asarray(bias))
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
    _, state = aft.attend(
        q[:, first],
        k[:, first],
        v[:, first],
        initial_state=state,
        return_state=True,
        position_bias=bias,
    )
    with pytest.raises(ValueError, match="holds 4 positions, got token number 5"):
        aft.step(q[:, 4], k[:, 4], v[:, 4], state, position_bias=bias)
    with pytest.raises(ValueError, match=r"must have shape \[N, N\], got \(4,\)"):
        aft.step(q[:, 4], k[:, 4], v[:, 4], state, position_bias=bias[0])


@pytest.mark.parametrize("is_causal", [True, False])
def test_aft_counts_real_tokens(is_causal: bool) -> None:
    q, k, v = qkv(9)
    bias = jnp.asarray(np.random.default_rng(1).normal(size=(9, 9)), np.float32)
    options = {"is_causal": is_causal, "position_bias": bias}
    padded = options | {"mask": jnp.arange(9) >= jnp.array([[0], [3]])}
    aft = ops.get_mechanism("aft")
    for attend in (aft.attend, aft.reference):
        want = attend(q[:, 3:], k[:, 3:], v[:, 3:], **options)[1]
        np.testing.assert_allclose(attend(q, k, v, **padded)[1, 3:], want, atol=1e-6)


def test_aft_where_an_output_is_not_wanted() -> None:
    q, k, v = qkv(5)
    bias = jnp.asarray(np.random.default_rng(1).normal(size=(5, 5)), np.float32)
    wanted = jnp.array([[True, False, True, True, True]] * 2)
    options = {"is_causal": True, "query_mask": wanted, "position_bias": bias}
    aft = ops.get_mechanism("aft")
    got, want = aft.attend(q, k, v, **options), aft.reference(q, k, v, **options)
    np.testing.assert_allclose(got, want, atol=1e-6)


@pytest.mark.parametrize("below", [0, 5, 200])
def test_linear_attention_far_below_zero(below: float) -> None:
    """elu + 1 of such queries underflows; its size cancels, in the gradients too."""
    q, k, v = qkv(6)
    q, linear = (q - below).at[0, 0].set(0), ops.get_mechanism("linear")

    def run(attend: Any, *tokens: Any) -> Any:
        y, pull = jax.vjp(attend, *tokens)
        return y, pull(jnp.sin(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape))

    got = run(linear.attend, q, k, v)
    with jax.enable_x64(True):
        want = run(linear.reference, *(x.astype(np.float64) for x in (q, k, v)))
    jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, atol=1e-5), got, want)


def test_nystrom_with_a_landmark_a_token_is_softmax() -> None:
    """The pseudo-inverse is then the inverse, as far as its iterations go."""
    with jax.enable_x64(True):
        q, k, v = (x.astype(np.float64) for x in qkv(10, size=2.0))
        got = ops.get_mechanism("nystrom", num_landmarks=16, iterations=40).attend(q, k, v)
        want = ops.get_mechanism("softmax").attend(q, k, v)
    np.testing.assert_allclose(got, want, atol=1e-6)


def test_linformer_with_a_projection_a_token_is_softmax() -> None:
    q, k, v = qkv(10)
    eye = jnp.eye(10)
    linformer = ops.get_mechanism("linformer")
    got = linformer.attend(q, k, v, key_projection=eye, value_projection=eye)
    np.testing.assert_allclose(got, ops.get_mechanism("softmax").attend(q, k, v), atol=1e-6)


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
    mechanism = ops.get_mechanism(name, **{"linformer": {"max_length": 12}}.get(name, {}))
    q, k, v = qkv(9)
    places = jnp.array([0, 2, 3, 5, 6, 7, 9, 10, 11])
    mask = jnp.zeros((2, 12), bool).at[:, places].set(True)
    spread = [jnp.full((2, 12, 2, 8), jnp.nan).at[:, places].set(x) for x in (q, k, v)]
    got = mechanism.attend(*spread, mask=mask)
    np.testing.assert_allclose(got[:, places], mechanism.attend(q, k, v), atol=1e-5)


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
    want = linformer.attend(q[:, :8], k[:, :8], v[:, :8])[0]
    # Relative to the largest output: small ones are sums that cancel.
    np.testing.assert_allclose(y[0, :8], want, rtol=0, atol=1e-6 * float(jnp.max(jnp.abs(want))))
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
