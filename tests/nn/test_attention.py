"""The attention layer: both forms, padding, packing, cross-attention, and what it refuses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_linattn import nn, ops
from tests.contract.tolerances import assert_close, assert_same_bits
from tests.nn.cases import (
    CAUSAL,
    CROSS,
    LAYOUTS,
    MECHANISMS,
    NOT_CROSS,
    PACKED,
    WHOLE,
    at_real,
    normal,
    padded,
    run_steps,
)

WIDTH, HEADS = 6, 2


def make(mechanism, **options):
    attention = nn.Attention(WIDTH, HEADS, mechanism=mechanism, rngs=nnx.Rngs(0), **options)
    for name in ("query_projection", "key_projection", "value_projection", "out_projection"):
        bias = getattr(attention, name).bias
        if bias is not None:  # they start at 0, which would hide that one is left out
            bias[...] = 0.3 * normal(len(name), *bias.shape).astype(bias.dtype)
    if attention.query is not None:  # its small start gives nearly uniform weights
        attention.query[...] = normal(9, WIDTH).astype(attention.query.dtype)
    return attention


def affine(linear, x):
    return np.asarray(x, np.float64) @ np.asarray(linear.kernel[...]) + np.asarray(linear.bias[...])


def softmax_rows(q, k, v):
    """Plain multi-head softmax attention [B, T, H, K] in float64."""
    score = np.einsum("bthk,bshk->bhts", q, k) / np.sqrt(q.shape[-1])
    weight = np.exp(score - score.max(-1, keepdims=True))
    return np.einsum("bhts,bshv->bthv", weight / weight.sum(-1, keepdims=True), v)


@pytest.mark.parametrize("mechanism", CAUSAL)
def test_parallel_is_the_loop_of_steps(mechanism):
    attention = make(mechanism, qkv_features=8, out_features=5)
    x, start = normal(1, 2, 5, WIDTH), attention.init_state(2, 5)
    y, state = jax.jit(lambda x, s: attention(x, is_causal=True, state=s, return_state=True))(
        x, attention.init_state(2, 5)
    )
    y_steps, state_steps = run_steps(attention, x, start)
    assert y.shape == (2, 5, 5)
    assert_close(y, y_steps, "float32")
    assert_close(state, state_steps, "float32")
    assert_close(y, jax.jit(lambda x: attention(x, is_causal=True))(x), "float32")


@pytest.mark.parametrize("mechanism", CAUSAL)
def test_split_anywhere(mechanism):
    attention = make(mechanism)
    x = normal(2, 2, 5, WIDTH)

    @jax.jit
    def whole_and_splits(x):
        whole = attention(x, is_causal=True)
        splits = []
        for n in range(6):
            head, state = attention(x[:, :n], is_causal=True, return_state=True)
            tail = attention(x[:, n:], is_causal=True, state=state)
            splits.append(jnp.concatenate([head, tail], axis=1))
        return whole, splits

    whole, splits = whole_and_splits(x)
    for split in splits:
        assert_close(split, whole, "float32")


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("mechanism", CAUSAL)
def test_padding_anywhere_changes_nothing(mechanism, is_causal):
    """Outputs and parameter gradients, with NaN as padding; the padding's own gradient is 0."""
    attention = make(mechanism)
    graph, params = nnx.split(attention)
    real = normal(3, 4, 4, WIDTH)
    weights = normal(4, 4, 4, WIDTH)
    mask = jnp.asarray(LAYOUTS)

    @jax.jit
    def run(params, x, mask, weights):
        def loss(params, x):
            y = nnx.merge(graph, params)(x, is_causal=is_causal, mask=mask)
            return jnp.sum(y * weights), y

        return jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(params, x)

    (_, y_real), (grad_real, dx_real) = run(params, real, jnp.ones((4, 4), bool), weights)
    (_, y), (grad, dx) = run(params, padded(real), mask, padded(weights, filler=0.0))
    assert_close(at_real(y), y_real, "float32")
    assert_close(grad, grad_real, "float32")
    assert_close(at_real(dx), dx_real, "float32")
    assert not np.asarray(dx)[~LAYOUTS].any()
    bias = np.asarray(attention.out_projection.bias[...])
    np.testing.assert_array_equal(np.asarray(y)[~LAYOUTS], np.tile(bias, (8, 1)))


@pytest.mark.parametrize("mechanism", CAUSAL)
def test_masked_steps_keep_the_state(mechanism):
    attention = make(mechanism)
    real = normal(5, 4, 4, WIDTH)
    y, state = run_steps(attention, padded(real), attention.init_state(4, 6), jnp.asarray(LAYOUTS))
    y_real, state_real = run_steps(attention, real, attention.init_state(4, 6))
    assert_close(at_real(y), y_real, "float32")
    assert_close(state, state_real, "float32")


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("mechanism", PACKED)
def test_packed_is_separate(mechanism, is_causal):
    attention = make(mechanism)
    x = normal(6, 2, 6, WIDTH)
    ids = jnp.array([[4, 4, 4, 1, 1, 1], [0, 0, 0, 7, 7, 7]])
    packed = jax.jit(lambda x: attention(x, is_causal=is_causal, segment_ids=ids))(x)
    separate = jax.jit(lambda x: attention(x, is_causal=is_causal))(x.reshape(4, 3, WIDTH))
    assert_close(packed, separate.reshape(2, 6, WIDTH), "float32")


@pytest.mark.parametrize("mechanism", CAUSAL)
def test_forms_agree(mechanism):
    attention = make(mechanism)
    x = normal(7, 2, 5, WIDTH)
    forms = ops.get_mechanism(mechanism).capabilities.forms
    auto, *others = jax.jit(
        lambda x: [attention(x, is_causal=True, form=form) for form in ("auto", *forms)]
    )(x)
    for y in others:
        assert_close(y, auto, "float32")
    with pytest.raises(ValueError, match="has no form 'quick'; it has: auto"):
        attention(x, is_causal=True, form="quick")


@pytest.mark.parametrize("mechanism", WHOLE)
def test_whole_sequences(mechanism):
    """Without a state: padding changes nothing, gradients reach all parameters, steps refuse."""
    attention, x = make(mechanism), normal(3, 4, 4, WIDTH)
    mask = jnp.asarray(LAYOUTS)
    want, got = attention(x), attention(padded(x), mask=mask)
    assert_close(at_real(got), want, "float32")
    graph, params = nnx.split(attention, nnx.Param)
    gradient = jax.grad(lambda p: jnp.sum(nnx.merge(graph, p)(x) ** 2))(params)
    assert all(np.asarray(g).any() for g in jax.tree.leaves(gradient))
    with pytest.raises(ValueError, match="needs the whole sequence at once"):
        attention.init_state(2)
    with pytest.raises(ValueError, match="no causal form"):
        attention(x, is_causal=True)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_what_a_mechanism_learns_is_a_parameter(mechanism):
    """By name and shape; a change of it changes the output."""
    attention = make(mechanism)
    learned = attention.mechanism.learned_parameters(HEADS, WIDTH // HEADS)
    assert set(attention.mechanism_parameters) == set(learned)
    x, causal = normal(4, 2, 5, WIDTH), attention.mechanism.capabilities.causal
    before = attention(x, is_causal=causal)
    for name, parameter in learned.items():
        param = attention.mechanism_parameters[name]
        assert isinstance(param, nnx.Param) and param.shape == parameter.shape
        param[...] = param[...] + normal(5, *param.shape)
        after = attention(x, is_causal=causal)
        assert np.abs(after - before).max() > 1e-3
        before = after


# -- the query ---------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_learned_query_where_the_mechanism_has_one(mechanism):
    attention = make(mechanism, qkv_features=8)
    if ops.get_mechanism(mechanism).capabilities.learned_query:
        assert isinstance(attention.query, nnx.Param)
        assert attention.query.shape == (WIDTH,)
    else:
        assert attention.query is None
    assert attention.query_projection.kernel.shape == (WIDTH, 8)
    assert attention.query_projection.bias.shape == (8,)


def test_aaren_projects_its_query_token():
    """q = W_q query + b_q, one for all positions, in the layer's plain equations in float64."""
    attention = make("aaren")
    x = normal(8, 2, 5, WIDTH)

    def heads(a):
        return a.reshape(*a.shape[:-1], HEADS, WIDTH // HEADS)

    q = heads(affine(attention.query_projection, attention.query[...]))
    k, v = (heads(affine(p, x)) for p in (attention.key_projection, attention.value_projection))
    y = np.stack(
        [
            softmax_rows(np.broadcast_to(q, (2, 1, *q.shape)), k[:, : t + 1], v[:, : t + 1])[:, 0]
            for t in range(5)
        ],
        axis=1,
    )
    want = affine(attention.out_projection, y.reshape(2, 5, WIDTH))
    assert_close(jax.jit(lambda x: attention(x, is_causal=True))(x), want, "float32")


def test_initial_values():
    """PyTorch's: uniform in +-1/sqrt(fan-in), the biases too; a small query; seeds differ."""
    attention = nn.Attention(64, 4, mechanism="aaren", qkv_features=256, rngs=nnx.Rngs(0))
    for linear, fan_in in ((attention.key_projection, 64), (attention.out_projection, 256)):
        for values in (linear.kernel[...], linear.bias[...]):
            bound = fan_in**-0.5
            assert 0.8 * bound < float(jnp.max(jnp.abs(values))) <= bound
            assert float(jnp.std(values)) == pytest.approx(bound / 3**0.5, rel=0.2)
    assert float(jnp.std(attention.query[...])) == pytest.approx(0.02, rel=0.3)
    other = nn.Attention(64, 4, mechanism="aaren", rngs=nnx.Rngs(1))
    assert not jnp.array_equal(attention.query[...], other.query[...])


# -- cross-attention ---------------------------------------------------------------


@pytest.mark.parametrize("length", [3, 5])
def test_softmax_cross_attention_is_the_formula(length):
    attention = make("softmax")
    x, context = normal(10, 2, length, WIDTH), normal(11, 2, 5, WIDTH)

    def heads(a):
        return a.reshape(*a.shape[:-1], HEADS, WIDTH // HEADS)

    y = softmax_rows(
        heads(affine(attention.query_projection, x)),
        heads(affine(attention.key_projection, context)),
        heads(affine(attention.value_projection, context)),
    )
    want = affine(attention.out_projection, y.reshape(2, length, WIDTH))
    assert_close(jax.jit(attention)(x, context), want, "float32")


@pytest.mark.parametrize("length", [3, 6])
@pytest.mark.parametrize("mechanism", CROSS)
def test_context_padding_changes_nothing(mechanism, length):
    """Also where T = S, when the context's padding must not blank the queries."""
    attention = make(mechanism)
    x, real = normal(12, 4, length, WIDTH), normal(13, 4, 4, WIDTH)
    context_mask = jnp.asarray(LAYOUTS)
    run = jax.jit(lambda mask: attention(x, padded(real), mask=mask, context_mask=context_mask))
    assert_close(run(None), jax.jit(attention)(x, real), "float32")
    counts = [1, 2, 3, 3]
    y = run(jnp.arange(length) < jnp.array(counts)[:, None])
    bias = attention.out_projection.bias[...]
    for row, count in enumerate(counts):
        want = attention(x[row : row + 1, :count], real[row : row + 1])[0]
        assert_close(y[row, :count], want, "float32")
        assert_close(y[row, count:], jnp.broadcast_to(bias, (length - count, WIDTH)), "float32")


@pytest.mark.parametrize("mechanism", NOT_CROSS)
def test_no_cross_attention_says_so(mechanism):
    x = normal(14, 2, 4, WIDTH)
    name = ops.get_mechanism(mechanism).name
    with pytest.raises(ValueError, match=f"{name!r} offers no cross-attention; leave context out"):
        make(mechanism)(x, x)


def test_a_context_mask_needs_a_context():
    x = normal(15, 2, 4, WIDTH)
    with pytest.raises(ValueError, match="pass context, or use mask"):
        make("softmax")(x, context_mask=jnp.ones((2, 4), bool))


# -- dtypes and options ------------------------------------------------------------


@pytest.mark.parametrize("mechanism", CAUSAL)
def test_bfloat16_computation_keeps_float32_parameters(mechanism):
    attention, exact = make(mechanism, dtype=jnp.bfloat16), make(mechanism)
    assert {a.dtype for a in jax.tree.leaves(nnx.state(attention))} == {jnp.dtype("float32")}
    x = normal(16, 2, 5, WIDTH)
    y, want = jax.jit(lambda x: (attention(x, is_causal=True), exact(x, is_causal=True)))(x)
    assert y.dtype == jnp.bfloat16
    assert_close(y, want, "bfloat16")
    start = attention.init_state(2, 5)
    y_steps, state = run_steps(attention, x, start)
    assert_close(y_steps, y, "bfloat16")

    def dtypes(tree):
        return jax.tree.map(lambda a: a.dtype, tree)

    assert dtypes(state) == dtypes(start) == dtypes(exact.init_state(2, 5))


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_parameters_without_bias_and_in_half_precision(mechanism):
    attention = make(mechanism, use_bias=False, param_dtype=jnp.float16)
    leaves = jax.tree.leaves(nnx.state(attention))
    assert {a.dtype for a in leaves} == {jnp.dtype("float16")}
    learned = (attention.query is not None) + len(attention.mechanism_parameters)
    assert len(leaves) == 4 + learned


def test_mechanism_as_an_object():
    sharp = ops.Aaren(scale=3.0)
    by_object, by_name = make(sharp), make("aaren")
    x = normal(17, 2, 4, WIDTH)
    assert by_object.mechanism is sharp
    y = by_object(x, is_causal=True)
    assert not jnp.allclose(y, by_name(x, is_causal=True), atol=1e-3)
    same = make(ops.Aaren())
    assert_same_bits(same(x, is_causal=True), by_name(x, is_causal=True))


@pytest.mark.parametrize("heads", [0, -1, 4])
def test_heads_must_divide_the_features(heads):
    with pytest.raises(ValueError, match=rf"\(6\) must be a multiple of num_heads, got .*{heads}"):
        nn.Attention(6, heads, rngs=nnx.Rngs(0))


def test_unknown_mechanism():
    with pytest.raises(ValueError, match=r"'sotfmax'[\s\S]*softmax"):
        nn.Attention(6, 2, mechanism="sotfmax", rngs=nnx.Rngs(0))
    with pytest.raises(TypeError, match=r"name or what ops\.get_mechanism returns, got int"):
        nn.Attention(6, 2, mechanism=3, rngs=nnx.Rngs(0))


@pytest.mark.parametrize(
    ("mask", "error"),
    [
        (jnp.ones((2, 4), jnp.int32), TypeError),
        (jnp.ones((4,), bool), ValueError),
        (jnp.ones((2, 5), bool), ValueError),
    ],
)
def test_wrong_masks_are_refused(mask, error):
    with pytest.raises(error, match="mask must"):
        make("aaren")(normal(18, 2, 4, WIDTH), mask=mask)
