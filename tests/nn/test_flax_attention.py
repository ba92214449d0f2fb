"""Weights to and from Flax's attention layers, and mechanisms as their ``attention_fn``.

The cases follow Flax's own tests of attention (google/flax, ``tests/nnx/nn/attention_test.py`` and
``tests/linen/linen_attention_test.py``): options and dtypes, keys and values of their own, causal
masks, the receptive field, decoding by steps.
"""

import contextlib
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

from flax_linattn import nn, ops
from tests.contract.tolerances import assert_close, assert_same_bits
from tests.nn.cases import WIDTH, attention, call, make_attention, moved, normal, run_steps

HEADS, LENGTH = 2, 5
TOLERANCES = {"float32": 1e-6, "float64": 1e-12}
KEY_MASK = np.array([[1, 1, 1, 0, 1], [1, 1, 1, 1, 1], [0, 1, 1, 1, 0]], bool)
SHAPES = {"qkv_features": 8, "out_features": 5}


def nnx_layer(param_dtype="float32", **options):
    """Flax's layer with all parameters away from 0.

    It has a dropout that is off: without, Flax computes the softmax of float64 in float32.
    """
    options = {"dropout_rate": 0.5, "deterministic": True, "decode": False, **SHAPES, **options}
    return moved(
        nnx.MultiHeadAttention(HEADS, WIDTH, **options, param_dtype=param_dtype, rngs=nnx.Rngs(0))
    )


def linen_params(dtype="float32", **options):
    layer = linen.MultiHeadDotProductAttention(HEADS, **SHAPES, **options, param_dtype=dtype)
    params = jax.jit(layer.init)(jax.random.key(0), jnp.ones((1, 1, WIDTH), dtype))["params"]
    return layer, jax.tree.map(lambda p: p + 0.1 * normal(p.size, *p.shape).astype(p.dtype), params)


def inputs(dtype, length=LENGTH):
    return normal(1, 3, length, WIDTH).astype(dtype)


@contextlib.contextmanager
def precise(dtype):
    """Flax promotes dtypes, which the tests forbid elsewhere."""
    with jax.enable_x64(dtype == "float64"), jax.numpy_dtype_promotion("standard"):
        yield


@nnx.jit
def decode(layer, x):
    return layer(x, decode=True)


def assert_equal(got, want, dtype):
    np.testing.assert_allclose(got, want, rtol=0, atol=TOLERANCES[dtype])


dtypes = pytest.mark.parametrize(("dtype", "use_bias"), [("float32", False), ("float64", True)])


@dtypes
def test_weights_of_nnx_to_ours_and_back(dtype, use_bias):
    """Self-attention, causal and with padding; cross-attention; decoding by Flax's cache."""
    with precise(dtype):
        theirs = nnx_layer(dtype, use_bias=use_bias)
        ours = nn.attention_from_flax(theirs)
        back = nn.attention_to_flax(ours, rngs=nnx.Rngs(0))
        assert ours.key_projection.param_dtype == back.param_dtype == dtype
        assert_same_bits(
            nnx.to_pure_dict(nnx.state(back, nnx.Param)),
            nnx.to_pure_dict(nnx.state(theirs, nnx.Param)),
        )
        x, context = inputs(dtype), inputs(dtype, 7)
        mask = KEY_MASK[:, None, None]
        causal = linen.combine_masks(mask, linen.make_causal_mask(x[..., 0]))
        pairs = [
            (call(theirs, x), call(ours, x), KEY_MASK | True),
            (call(theirs, x, mask=mask), call(ours, x, mask=KEY_MASK), KEY_MASK),
            (
                call(theirs, x, mask=causal),
                call(ours, x, is_causal=True, mask=KEY_MASK),
                KEY_MASK,
            ),
            (call(theirs, x, context), call(ours, x, context), KEY_MASK | True),
        ]
        for want, got, rows in pairs:
            assert got.dtype == want.dtype == dtype
            assert_equal(got[rows], want[rows], dtype)
        theirs.init_cache(x.shape, dtype=x.dtype)
        want = [decode(theirs, x[:, t : t + 1])[:, 0] for t in range(LENGTH)]
        got, _ = run_steps(ours, x, ours.init_state(3, LENGTH))
        assert_equal(got, np.stack(want, axis=1), dtype)


@dtypes
def test_weights_of_linen_to_ours_and_back(dtype, use_bias):
    with precise(dtype):
        layer, params = linen_params(dtype, use_bias=use_bias)
        ours = nn.attention_from_flax({"params": params}, is_causal=True)
        assert_same_bits(nn.attention_to_flax(ours, "linen"), params)
        x, context = inputs(dtype), inputs(dtype, 7)
        apply = jax.jit(functools.partial(layer.apply, {"params": params}))
        assert_equal(call(ours, x), apply(x, mask=linen.make_causal_mask(x[..., 0])), dtype)
        assert_equal(call(ours, x, context, is_causal=False), apply(x, context), dtype)
        cached = layer.clone(decode=True)
        state = {"cache": jax.jit(cached.init)(jax.random.key(0), x)["cache"]}
        step = jax.jit(functools.partial(cached.apply, mutable=["cache"]))
        steps = []
        for t in range(LENGTH):
            y, state = step({"params": params, **state}, x[:, t : t + 1])
            steps.append(y[:, 0])
        assert_equal(run_steps(ours, x, ours.init_state(3, LENGTH))[0], np.stack(steps, 1), dtype)


def test_parameters_with_metadata():
    """Linen's boxes of partitioned parameters, and the state of an ``nnx`` module."""
    init = linen.with_partitioning(linen.initializers.lecun_normal(), (None, "model", None))
    layer = linen.MultiHeadDotProductAttention(HEADS, kernel_init=init)
    params = layer.init(jax.random.key(0), jnp.ones((1, 1, WIDTH)))["params"]
    ours = nn.attention_from_flax(params)
    assert_same_bits(nn.attention_to_flax(ours, "linen"), linen.meta.unbox(params))
    theirs = nnx_layer()
    assert_same_bits(
        nnx.state(nn.attention_from_flax(nnx.state(theirs, nnx.Param))),
        nnx.state(nn.attention_from_flax(theirs)),
    )


@pytest.mark.parametrize(
    ("dtype", "param_dtype", "precision"),
    [
        ("bfloat16", "float32", None),
        ("float32", "bfloat16", "highest"),
        (None, "bfloat16", jax.lax.Precision.HIGH),
    ],
)  # fmt: skip
def test_dtypes_and_precision(dtype, param_dtype, precision):
    """Outputs have Flax's dtype; ours add up in float32, so half precision is only near."""
    theirs = nnx_layer(param_dtype, dtype=dtype, precision=precision)
    ours = nn.attention_from_flax(theirs)
    back = nn.attention_to_flax(ours, rngs=nnx.Rngs(0))
    assert (back.dtype, back.param_dtype, back.precision) == (dtype, param_dtype, precision)
    x = inputs(param_dtype)
    with jax.numpy_dtype_promotion("standard"):
        want, got, again = call(theirs, x), call(ours, x), call(back, x)
    assert got.dtype == want.dtype == again.dtype
    assert_close(got, want, want.dtype)


@dtypes
def test_grouped_queries_and_norms(dtype, use_bias):
    """Both ways, in parallel and by steps; in Linen norms only, as it has no grouped queries."""
    with precise(dtype):
        theirs = nnx_layer(dtype, use_bias=use_bias, num_kv_heads=1, normalize_qk=True)
        ours = nn.attention_from_flax(theirs, is_causal=True)
        assert (ours.num_kv_heads, ours.normalize_qk) == (1, "layer")
        back = nn.attention_to_flax(ours, rngs=nnx.Rngs(0))
        assert_same_bits(
            nnx.to_pure_dict(nnx.state(back, nnx.Param)),
            nnx.to_pure_dict(nnx.state(theirs, nnx.Param)),
        )
        x = inputs(dtype)
        want = call(theirs, x, is_causal=True)
        assert_equal(call(ours, x), want, dtype)
        assert_equal(call(back, x, is_causal=True), want, dtype)
        assert_equal(run_steps(ours, x, ours.init_state(3, LENGTH))[0], want, dtype)
        with pytest.raises(
            ValueError, match=r"linen\..* has no grouped queries, got num_kv_heads=1"
        ):
            nn.attention_to_flax(ours, "linen")
        layer, params = linen_params(dtype, use_bias=use_bias, normalize_qk=True)
        ours = nn.attention_from_flax(params)
        assert_same_bits(nn.attention_to_flax(ours, "linen"), params)
        assert_equal(call(ours, x), jax.jit(layer.apply)({"params": params}, x), dtype)


def test_dropout_of_the_weights():
    """The rate and the mode; which weights are dropped differs, since the bits do."""
    theirs = nnx_layer(deterministic=False)
    ours = nn.attention_from_flax(theirs, rngs=nnx.Rngs(params=0, dropout=1))
    assert (ours.weight_dropout.rate, ours.weight_dropout.deterministic) == (0.5, False)
    x = inputs("float32")
    first, second = ours(x), ours(x)
    assert not jnp.allclose(first, second)
    with pytest.raises(ValueError, match=r"weight_dropout_rate=0.5; pass rngs"):
        nn.attention_to_flax(ours)
    back = nn.attention_to_flax(ours, rngs=nnx.Rngs(0))
    assert (back.dropout_rate, back.deterministic, back.broadcast_dropout) == (0.5, False, False)
    theirs.eval()
    ours.eval()
    assert_equal(ours(x), theirs(x), "float32")
    assert nn.attention_from_flax(theirs, mechanism="linear").weight_dropout is None


def test_a_context_of_another_width():
    theirs = nnx_layer(in_kv_features=3)
    ours = nn.attention_from_flax(theirs)
    back = nn.attention_to_flax(ours, rngs=nnx.Rngs(0))
    x, context = inputs("float32"), normal(2, 3, 7, 3)
    want = call(theirs, x, context)
    assert_equal(call(ours, x, context), want, "float32")
    np.testing.assert_array_equal(call(back, x, context), want)


def test_receptive_field():
    """Each output has gradients into its own and earlier tokens, and into no later one."""
    ours = nn.attention_from_flax(nnx_layer(), is_causal=True)
    x = normal(2, 1, 8, WIDTH)
    field = jax.jacobian(lambda x: ours(x).sum(axis=(0, 2)))(x)[:, 0]
    np.testing.assert_array_equal(np.abs(field).max(-1) > 0, np.tri(8, dtype=bool))


def test_weights_as_initial_values_of_another_mechanism():
    """What the source lacks is initialized."""
    theirs = nnx_layer()
    ours = nn.attention_from_flax(theirs, mechanism="linear", is_causal=True)
    kernel = theirs.query.kernel[...]
    assert_same_bits(ours.query_projection.kernel[...].reshape(kernel.shape), kernel)
    with pytest.raises(ValueError, match="'aaren' learns query, too; pass rngs, which initialize"):
        nn.attention_from_flax(theirs, mechanism="aaren")
    ours = nn.attention_from_flax(theirs, mechanism="aaren", rngs=nnx.Rngs(3))
    assert np.asarray(ours.query[...]).any()
    with pytest.raises(ValueError, match="'reformer' has one projection for queries and keys"):
        nn.attention_from_flax(theirs, mechanism="reformer", rngs=nnx.Rngs(3))


def without(params, *names):
    return {name: each for name, each in params.items() if name not in names}


@functools.cache
def params():
    return linen_params()[1]


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: nnx_layer(attention_fn=lambda q, k, v, **_: v), "an attention_fn of its own"),
        (lambda: nnx_layer(qkv_dot_general=jax.lax.dot_general), "no option qkv_dot_general"),
        (lambda: without(linen_params(normalize_qk=True)[1], "key_ln"), "got key, out, query, q"),
        (lambda: {"encoder": params()}, "expected the parameters query, key, .*, got encoder"),
        (lambda: without(params(), "out"), "got key, query, value|got query, key, value"),
        (
            lambda: {**params(), "key": without(params()["key"], "bias")},
            "in all projections or in none, got a bias of",
        ),
        (
            lambda: {**params(), "key": {"kernel": jnp.ones((WIDTH, 1, 4)), "bias": jnp.ones(4)}},
            r"expected kernels \[C, H, K\] of query",
        ),
    ],
)  # fmt: skip
def test_what_ours_lacks_is_refused(make, error):
    with pytest.raises(ValueError, match=error):
        nn.attention_from_flax(make())


def test_a_linen_module_has_no_parameters():
    with pytest.raises(TypeError, match=r"or the parameters of a linen\..* as a dict, got Multi"):
        nn.attention_from_flax(linen.MultiHeadDotProductAttention(HEADS))


@pytest.mark.parametrize(
    ("layer", "error"),
    [
        (lambda: attention("aaren"), "'aaren' has one learned query"),
        (lambda: attention("gated_delta"), "'gated_delta' needs per-token inputs"),
        (lambda: attention("reformer:bucket_size=2,num_hashes=2"), "queries and keys by one"),
        (lambda: attention("taylorshift"), "the layer learns temperature, for which Flax"),
        (lambda: make_attention("softmax", output_gate="silu"), "the layer learns gate_projection"),
        (lambda: make_attention("softmax", normalize_qk="l2"), "by LayerNorm only, got .*'l2'"),
        (lambda: make_attention("softmax", position=nn.RotaryPosition()), "no position encoding"),
    ],
)  # fmt: skip
def test_what_flax_lacks_is_refused(layer, error):
    for api in ("nnx", "linen"):
        with pytest.raises(ValueError, match=error):
            nn.attention_to_flax(layer(), api)


@pytest.mark.parametrize("mechanism", ["linear", "softmax:scale=0.1", "retention"])
def test_mechanisms_go_to_flax_as_a_function_and_back(mechanism):
    ours = make_attention(mechanism, is_causal=True)
    theirs = nn.attention_to_flax(ours)
    x = inputs("float32")
    assert_close(theirs(x), ours(x), "float32")
    again = nn.attention_from_flax(theirs)
    assert nnx.graphdef(again) == nnx.graphdef(ours)
    with pytest.raises(ValueError, match="parameters for Linen do not hold the mechanism"):
        nn.attention_to_flax(ours, "linen")
    with pytest.raises(ValueError, match="api must be one of nnx, linen, got 'torch'"):
        nn.attention_to_flax(ours, "torch")


def test_softmax_with_its_own_scale_is_plain():
    """As is one that computes the same by another implementation or in other blocks."""
    scale = (WIDTH // HEADS) ** -0.5
    for mechanism in (
        f"softmax:scale={scale!r}",
        "softmax:chunk_size=8",
        "softmax:implementation=xla",
    ):
        theirs = nn.attention_to_flax(make_attention(mechanism))
        assert theirs.attention_fn is nnx.dot_product_attention


# -- mechanisms as attention_fn ---------------------------------------------------------------

FUNCTIONS = [
    "softmax", "elementwise", "elementwise_series", "taylorshift", "expressive",
    "expressive_quadratic", "linear", "aft_simple", "taylor_features", "performer",
]  # fmt: skip
"""Mechanisms with a query per token that need nothing else and look ahead, too."""
functions = pytest.mark.parametrize(
    "mechanism",
    [pytest.param(name, marks=() if name == "linear" else pytest.mark.slow) for name in FUNCTIONS],
)


def plain(mechanism, theirs, x, **options):
    """Flax's projections around ``Mechanism.attend``."""
    q, k, v = theirs.query(x), theirs.key(x), theirs.value(x)
    return theirs.out(ops.get_mechanism(mechanism).attend(q, k, v, **options))


@functions
def test_a_mechanism_inside_of_flax(mechanism):
    """Causal and not, padded, by nnx and Linen, and decoded by Flax's cache."""
    x, every = inputs("float32"), np.ones((3, LENGTH), bool)
    mask = KEY_MASK[:, None, None]
    for causal in (False, True):
        function = nn.attention_function(mechanism, is_causal=causal)
        theirs = nnx_layer(attention_fn=function)
        how = {"is_causal": causal}
        assert_close(call(theirs, x), plain(mechanism, theirs, x, **how), "float32")
        want = plain(mechanism, theirs, x, mask=KEY_MASK, query_mask=every, **how)
        assert_close(call(theirs, x, mask=mask), want, "float32")
        params = nnx.to_pure_dict(nnx.state(theirs, nnx.Param))
        layer = linen.MultiHeadDotProductAttention(
            HEADS, **SHAPES, attention_fn=function, dropout_rate=0.5, deterministic=True
        )
        assert_close(jax.jit(layer.apply)({"params": params}, x, mask=mask), want, "float32")
    theirs.init_cache(x.shape, dtype=x.dtype)
    y = [decode(theirs, x[:, t : t + 1]) for t in range(LENGTH)]
    assert_close(jnp.concatenate(y, axis=1), plain(mechanism, theirs, x, is_causal=True), "float32")


def test_softmax_inside_of_flax_is_flax():
    """At all positions, padded or not: the masks of Flax are of keys alone, or of pairs."""
    theirs, ours = nnx_layer(), nnx_layer(attention_fn=nn.attention_function("softmax"))
    x, context = inputs("float32"), inputs("float32", LENGTH)[::-1]
    mask, causal = KEY_MASK[:, None, None], linen.make_causal_mask(x[..., 0])
    more = jnp.stack([x, 2 * x])
    calls = [
        ((x, context), {}),
        ((x, context), {"mask": mask.astype(np.float32)}),
        ((x, context), {"mask": mask[0]}),
        ((x, context), {"mask": KEY_MASK[0]}),
        ((x,), {"is_causal": True}),
        ((x[0],), {}),
        ((more,), {"mask": np.stack([mask, mask])}),
        ((x,), {"mask": causal}),
        ((x[0],), {"mask": causal[0]}),
        ((more,), {"mask": np.stack([causal, causal[..., ::-1, ::-1]])}),
        ((x,), {"mask": np.stack([KEY_MASK, KEY_MASK[::-1]], axis=1)[:, :, None]}),  # of heads
    ]
    for arrays, options in calls:
        with jax.numpy_dtype_promotion("standard"):
            want = call(theirs, *arrays, **options)
        assert_equal(call(ours, *arrays, **options), want, "float32")


def test_biases_and_dropout_of_softmax():
    """As Flax's function; the random bits of dropout differ, and its mean is the output."""
    q, k, v = normal(1, 3, 2, LENGTH, HEADS, 4)
    ours = nn.attention_function("softmax")
    for shape in [(2, HEADS, LENGTH, LENGTH), (1, LENGTH, 1), (LENGTH,)]:
        bias = normal(5, *shape)
        want = nnx.dot_product_attention(q, k, v, bias.reshape((1,) * (4 - bias.ndim) + bias.shape))
        assert_equal(ours(q, k, v, bias), want, "float32")

    def dropped(key):
        return ours(q, k, v, dropout_rng=key, dropout_rate=0.4)

    keys = jax.random.split(jax.random.key(0), 4000)
    some = jax.jit(jax.vmap(dropped))(keys)
    assert (some[0] != some[1]).any()
    assert_same_bits(ours(q, k, v, dropout_rate=0.4, deterministic=True), ours(q, k, v))
    # The standard error of the mean is at most 0.03 of these 80 numbers.
    np.testing.assert_allclose(some.mean(0), ours(q, k, v), atol=0.12)


def test_training_then_streaming():
    """A Flax model trains with a mechanism, whose layer then runs as a recurrent network."""
    theirs = nnx_layer(attention_fn=nn.attention_function("linear", is_causal=True))
    x, target = inputs("float32"), normal(8, 3, LENGTH, 5)

    @nnx.jit
    def loss_and_grads(layer):
        return nnx.value_and_grad(lambda layer: jnp.mean((layer(x) - target) ** 2))(layer)

    before, grads = loss_and_grads(theirs)
    graph, params, others = nnx.split(theirs, nnx.Param, ...)
    theirs = nnx.merge(graph, jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), others)
    assert loss_and_grads(theirs)[0] < before
    ours = nn.attention_from_flax(theirs)
    assert ours.is_causal and ours.mechanism == ops.get_mechanism("linear")
    assert_close(run_steps(ours, x, ours.init_state(3))[0], theirs(x), "float32")


def test_functions_are_values():
    """Equal functions give equal graphs, which compile once."""
    first, second = (nn.attention_function("linear", is_causal=True) for _ in range(2))
    assert first == second and hash(first) == hash(second)
    assert first != nn.attention_function("linear")


@pytest.mark.parametrize(
    ("mechanism", "options", "error"),
    [
        ("aaren", {}, "'aaren' has one learned query instead of one query per token"),
        ("gated_linear", {}, "'gated_linear' needs per-token inputs that the layer projects"),
        ("nystrom", {"is_causal": True}, "'nystrom' does not support is_causal=True"),
    ],
)  # fmt: skip
def test_mechanisms_that_need_more_are_refused(mechanism, options, error):
    with pytest.raises(ValueError, match=error):
        nn.attention_function(mechanism, **options)


CAUSAL_MASK = np.tri(LENGTH, dtype=bool)[None, None]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"dropout_rate": 0.1}, "'linear' does not support dropout_rate: its state has a constant"),
        ({"bias": jnp.zeros((1, 1, LENGTH, LENGTH))}, "'linear' does not support bias: its state"),
        ({"mask": CAUSAL_MASK}, r"\[B, 1, 1, S\], got .* This mask is causal; make the function"),
        ({"mask": CAUSAL_MASK[..., ::-1]}, r"\[B, 1, 1, S\], got shape \(1, 1, 5, 5\)"),
        ({"mask": np.ones((1, 2, 1, LENGTH), bool)}, "heads or queries have masks of their own"),
        ({"module": nnx.Module()}, "does not sow attention weights"),
        ({"qk_attn_weights_einsum": jnp.einsum}, "does not call the layer's einsum classes"),
    ],
)  # fmt: skip
def test_nothing_is_ignored(arguments, error):
    x = normal(1, 2, LENGTH, HEADS, 4)
    with pytest.raises(ValueError, match=error):
        nn.attention_function("linear")(x, x, x, **arguments)


def test_masks_that_nothing_can_be_known_of():
    """Under jit the values of a mask are unknown; mechanisms that mix queries take no mask."""
    x = normal(1, 2, LENGTH, HEADS, 4)
    with pytest.raises(ValueError, match=r"and is_causal=True for causality\.(?! This)"):
        jax.jit(lambda mask: nn.attention_function("linear")(x, x, x, mask=mask))(CAUSAL_MASK)
    with pytest.raises(ValueError, match="'nystrom' mixes the queries of a sequence"):
        nn.attention_function("nystrom")(x, x, x, mask=np.ones((2, 1, 1, LENGTH), bool))
