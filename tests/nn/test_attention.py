"""The attention layer: both forms, padding, packing, cross-attention, and what it refuses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_linattn import nn, ops
from tests.contract.tolerances import assert_close, assert_same_bits
from tests.nn.cases import (
    AHEAD,
    CAUSAL,
    CROSS,
    HEADS,
    LAYOUTS,
    MECHANISMS,
    NOT_CROSS,
    PACKED_AHEAD,
    WHOLE,
    WIDTH,
    at_real,
    attention,
    call,
    make_attention,
    normal,
    padded,
    pulled,
    run_steps,
)
from tests.nn.equations import attended


@pytest.mark.parametrize("mechanism", CAUSAL)
def test_split_anywhere(mechanism):
    """A part may hold nothing; ``test_mechanisms.py`` has steps, and the splits of a mask."""
    layer = attention(mechanism, qkv_features=8, out_features=5)
    graph, params = nnx.split(layer)
    x = normal(2, 2, 5, WIDTH)

    @jax.jit
    def whole_and_splits(params, x):
        layer = nnx.merge(graph, params)
        whole = layer(x, is_causal=True)
        splits = []
        for n in (0, 2, 5):
            head, state = layer(x[:, :n], is_causal=True, return_state=True)
            tail = layer(x[:, n:], is_causal=True, state=state)
            splits.append(jnp.concatenate([head, tail], axis=1))
        return whole, splits

    whole, splits = whole_and_splits(params, x)
    assert whole.shape == (2, 5, 5)
    for split in splits:
        assert_close(split, whole, "float32")


@pytest.mark.parametrize("mechanism", AHEAD)
def test_padding_anywhere_changes_nothing(mechanism):
    """Outputs and gradients, looking ahead; ``test_mechanisms.py`` has the causal direction."""
    layer = attention(mechanism)
    real, weights = normal(3, 4, 4, WIDTH), normal(4, 4, 4, WIDTH)
    want = pulled(layer, real, weights, mask=np.ones((4, 4), bool))
    got = pulled(layer, padded(real), padded(weights, filler=0.0), mask=LAYOUTS)
    assert_close(at_real(got.y), want.y, "float32")
    assert_close(got.params, want.params, "float32")
    assert_close(at_real(got.x), want.x, "float32")
    assert not got.x[~LAYOUTS].any()
    bias = np.asarray(layer.out_projection.bias[...])
    np.testing.assert_array_equal(got.y[~LAYOUTS], np.tile(bias, (8, 1)))


@pytest.mark.parametrize("mechanism", PACKED_AHEAD)
def test_packed_is_separate(mechanism):
    """Looking ahead; ``test_mechanisms.py`` has the causal direction."""
    layer = attention(mechanism)
    x = normal(6, 2, 6, WIDTH)
    ids = np.array([[4, 4, 4, 1, 1, 1], [0, 0, 0, 7, 7, 7]])
    packed = call(layer, x, segment_ids=ids)
    separate = call(layer, x.reshape(4, 3, WIDTH))
    assert_close(packed, separate.reshape(2, 6, WIDTH), "float32")


@pytest.mark.parametrize("mechanism", CAUSAL)
def test_forms_agree(mechanism):
    layer = attention(mechanism)
    x = normal(7, 2, 5, WIDTH)
    want = call(layer, x, is_causal=True)
    for form in ops.get_mechanism(mechanism).capabilities.forms:
        assert_close(call(layer, x, is_causal=True, form=form), want, "float32")
    with pytest.raises(ValueError, match="has no form 'quick'; its forms are: auto"):
        layer(x, is_causal=True, form="quick")


def test_causality_is_chosen_at_construction():
    """A call may override it; a causal-only mechanism is causal by default."""
    causal, plain = (make_attention("softmax", is_causal=choice) for choice in (True, None))
    x = normal(8, 2, 5, WIDTH)
    assert_same_bits(call(causal, x), call(plain, x, is_causal=True))
    assert_same_bits(call(causal, x, is_causal=False), call(plain, x))
    assert_close(run_steps(causal, x, causal.init_state(2, 5))[0], call(causal, x), "float32")
    only = make_attention("gated_delta")
    assert_same_bits(call(only, x), call(only, x, is_causal=True))


def test_a_state_that_no_step_continues_is_refused():
    x = normal(9, 2, 5, WIDTH)
    layer = make_attention("softmax")
    for options in ({}, {"is_causal": False}, {"context": x}):
        with pytest.raises(ValueError, match="return_state=True needs is_causal=True"):
            layer(x, return_state=True, **options)
    both = make_attention("softmax", is_causal=False)
    assert not both.streams
    for refused in (lambda: both.init_state(2), lambda: both.step(x[:, 0], None)):
        with pytest.raises(ValueError, match=r"made with is_causal=False.* make it with"):
            refused()
    for mechanism, choice in (("gated_delta", False), ("nystrom", True)):
        with pytest.raises(ValueError, match=f"does not support is_causal={choice}"):
            make_attention(mechanism, is_causal=choice)


@pytest.mark.parametrize("mechanism", WHOLE)
def test_whole_sequences_refuse_what_needs_a_state(mechanism):
    layer = attention(mechanism)
    with pytest.raises(ValueError, match="needs the whole sequence at once"):
        layer.init_state(2)
    with pytest.raises(ValueError, match="no causal form"):
        layer(normal(3, 4, 4, WIDTH), is_causal=True)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_what_a_mechanism_learns_is_a_parameter(mechanism):
    """By name and shape; a change of it changes the output."""
    layer = make_attention(mechanism)
    learned = layer.mechanism.learned_parameters(HEADS, WIDTH // HEADS)
    assert set(layer.mechanism_parameters) == set(learned)
    x, causal = normal(4, 2, 5, WIDTH), layer.mechanism.capabilities.causal
    before = call(layer, x, is_causal=causal)
    for name, parameter in learned.items():
        param = layer.mechanism_parameters[name]
        assert isinstance(param, nnx.Param) and param.shape == parameter.shape
        param[...] = param[...] + normal(5, *param.shape)
        after = call(layer, x, is_causal=causal)
        assert np.abs(after - before).max() > 1e-3
        before = after


# -- the query ---------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_learned_query_where_the_mechanism_has_one(mechanism):
    layer = attention(mechanism, qkv_features=8, out_features=5)
    if ops.get_mechanism(mechanism).capabilities.learned_query:
        assert isinstance(layer.query, nnx.Param)
        assert layer.query.shape == (WIDTH,)
    else:
        assert layer.query is None
    if ops.get_mechanism(mechanism).capabilities.shared_query_key:
        assert layer.query_projection is None  # the keys are the queries
        return
    assert layer.query_projection.kernel.shape == (WIDTH, 8)
    assert layer.query_projection.bias.shape == (8,)


def test_aaren_projects_its_query_token():
    """q = W_q query + b_q, one for all positions, in the layer's plain equations in float64."""
    layer, x = attention("aaren"), normal(8, 2, 5, WIDTH)
    assert_close(call(layer, x, is_causal=True), attended(layer, x, causal=True), "float32")


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
    layer = attention("softmax")
    x, context = normal(10, 2, length, WIDTH), normal(11, 2, 5, WIDTH)
    assert_close(call(layer, x, context), attended(layer, x, context), "float32")


@pytest.mark.parametrize("length", [3, 6])
@pytest.mark.parametrize("mechanism", CROSS)
def test_context_padding_changes_nothing(mechanism, length):
    """Also where T = S, when the context's padding must not blank the queries."""
    layer = attention(mechanism)
    x, real = normal(12, 4, length, WIDTH), normal(13, 4, 4, WIDTH)
    how = {"context_mask": LAYOUTS}
    assert_close(call(layer, x, padded(real), **how), call(layer, x, real), "float32")
    counts = [1, 2, 3, 3]
    is_query = np.arange(length) < np.array(counts)[:, None]
    y = call(layer, x, padded(real), mask=is_query, **how)
    for row, count in enumerate(counts):
        want = call(layer, x[row : row + 1, :count], real[row : row + 1])[0]
        assert_close(y[row, :count], want, "float32")
    bias = np.asarray(layer.out_projection.bias[...])
    assert_close(y[~is_query], np.tile(bias, ((~is_query).sum(), 1)), "float32")


@pytest.mark.parametrize("mechanism", NOT_CROSS)
def test_no_cross_attention_says_so(mechanism):
    x = normal(14, 2, 4, WIDTH)
    name = ops.get_mechanism(mechanism).name
    with pytest.raises(
        ValueError, match=f"{name!r} does not support cross-attention; omit context"
    ):
        attention(mechanism)(x, x)


def test_a_context_mask_needs_a_context():
    x = normal(15, 2, 4, WIDTH)
    with pytest.raises(ValueError, match="pass context, or use mask"):
        attention("softmax")(x, context_mask=jnp.ones((2, 4), bool))


# -- dtypes and options ------------------------------------------------------------


@pytest.mark.parametrize("mechanism", CAUSAL)
def test_bfloat16_computation_keeps_float32_parameters(mechanism):
    layer, exact = attention(mechanism, dtype=jnp.bfloat16), attention(mechanism)
    assert {a.dtype for a in jax.tree.leaves(nnx.state(layer))} == {jnp.dtype("float32")}
    x = normal(16, 2, 5, WIDTH)
    y, want = (call(a, x, is_causal=True) for a in (layer, exact))
    assert y.dtype == jnp.bfloat16
    assert_close(y, want, "bfloat16")
    start = layer.init_state(2, 5)
    y_steps, state = run_steps(layer, x, start)
    assert_close(y_steps, y, "bfloat16")

    def dtypes(tree):
        return jax.tree.map(lambda a: a.dtype, tree)

    assert dtypes(state) == dtypes(start) == dtypes(exact.init_state(2, 5))


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_parameters_without_bias_and_in_half_precision(mechanism):
    layer = make_attention(mechanism, use_bias=False, param_dtype=jnp.float16)
    leaves = jax.tree.leaves(nnx.state(layer))
    assert {a.dtype for a in leaves} == {jnp.dtype("float16")}
    learned = (layer.query is not None) + len(layer.mechanism_parameters)
    projections = 3 + (layer.query_projection is not None)
    biased = 2 * len(layer.token_projections)  # theirs stay
    assert len(leaves) == projections + learned + biased


def test_mechanism_as_an_object():
    sharp = ops.Aaren(scale=3.0)
    by_object, by_name = attention(sharp), attention("aaren")
    x = normal(17, 2, 5, WIDTH)
    assert by_object.mechanism is sharp
    y = call(by_object, x, is_causal=True)
    want = call(by_name, x, is_causal=True)
    assert not np.allclose(y, want, atol=1e-3)
    assert_same_bits(call(make_attention(ops.Aaren()), x, is_causal=True), want)


@pytest.mark.parametrize("heads", [0, -1, 4])
def test_heads_must_divide_the_features(heads):
    with pytest.raises(ValueError, match=rf"\(6\) must be a multiple of num_heads, got .*{heads}"):
        nn.Attention(6, heads, rngs=nnx.Rngs(0))


def test_unknown_mechanism():
    with pytest.raises(ValueError, match=r"'sotfmax'[\s\S]*softmax"):
        nn.Attention(6, 2, mechanism="sotfmax", rngs=nnx.Rngs(0))
    with pytest.raises(TypeError, match=r"name or a result of ops\.get_mechanism, got int"):
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
        attention("aaren")(normal(18, 2, 4, WIDTH), mask=mask)
