"""Options of the attention layer: their equations, in parallel, by steps, padded and packed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_linattn import nn, ops
from flax_linattn.checks import OptionError
from flax_linattn.nn.call import Call
from tests.contract.tolerances import assert_close
from tests.nn import checks
from tests.nn.cases import (
    CAUSAL,
    LAYOUTS,
    WIDTH,
    call,
    make_attention,
    normal,
    padded,
    positions,
    run_steps,
)
from tests.nn.equations import attended

REFORMER = "reformer:bucket_size=2,num_hashes=2"
SCALED = nn.RotaryPosition(
    fraction=0.7, scaling=nn.RotaryScaling("yarn", 4.0, original_max_position_embeddings=16)
)
"""Of the three channels of a head, it rotates two."""

OPTIONS = {
    "rotary": {"position": SCALED},
    "rms": {"normalize_qk": "rms", "position": SCALED},
    "l2": {"normalize_qk": "l2"},
    "layer": {"normalize_qk": "layer"},
    "sigmoid": {"output_gate": "sigmoid"},
    "norm-silu": {"output_gate": "silu", "output_norm": "rms"},
    "norm-sigmoid": {"output_gate": "sigmoid", "output_norm": "rms"},
    "conv": {"short_conv": 3, "normalize_qk": "l2", "position": SCALED},
}


def make(mechanism, **options):
    """A layer whose norms, too, are away from their initial values."""
    layer = make_attention(mechanism, **options)
    for i, norm in enumerate((layer.query_norm, layer.key_norm, layer.output_norm)):
        if norm is not None:
            norm.scale[...] = norm.scale[...] + 0.3 * normal(i, WIDTH // 2)
    return layer


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_the_layer_is_its_equations(options):
    layer, x = make("softmax", **options), normal(1, 2, 5, WIDTH)
    want = attended(layer, x, causal=True)
    assert_close(call(layer, x, is_causal=True), want, "float32")
    assert np.abs(want - attended(make_attention("softmax"), x, causal=True)).max() > 1e-3
    half = make("softmax", dtype=jnp.bfloat16, **options)
    y = call(half, x, is_causal=True)
    assert y.dtype == jnp.bfloat16
    assert_close(y, want, "bfloat16")
    start = half.init_state(2, 5)
    steps, state = run_steps(half, x, start)
    assert_close(steps, y, "bfloat16")
    assert jax.tree.map(lambda a: a.dtype, state) == jax.tree.map(lambda a: a.dtype, start)


@pytest.mark.parametrize(
    ("mechanism", "name"),
    [("softmax", "rms"), ("aaren", "two-taps")],
)
def test_layers_with_options_stream_and_pack(mechanism, name):
    options = {"short_conv": 2} if name == "two-taps" else OPTIONS[name]
    checks.streams_and_packs(make(mechanism, **options))


# -- all options together ------------------------------------------------------------

BIASED, SINKS = "softmax:window=4,soft_cap=2", "softmax:window=3,sinks=1,soft_cap=2"


def streaming(*fast):
    names = BIASED, SINKS, *(case.values[0] for case in CAUSAL)
    marks = {name: () if name in fast else pytest.mark.slow for name in names}
    cases = [pytest.param(name, id=name, marks=mark) for name, mark in marks.items()]
    return pytest.mark.parametrize("mechanism", cases)


def with_all_options(mechanism, **options):
    """A layer with every option that the mechanism takes."""
    mechanism = ops.get_mechanism(mechanism)
    can = mechanism.capabilities
    taken = {
        "num_kv_heads": 1 if can.grouped_queries else None,
        "position": None if can.learned_query else SCALED,
        "position_bias": nn.AlibiBias(2) if can.bias and not mechanism.sinks else None,
    }
    every = {"normalize_qk": "rms", "output_norm": "rms", "output_gate": "silu", "short_conv": 3}
    return make(mechanism, **every, **taken, **options)


@streaming(BIASED, "gated_delta")
def test_layers_with_all_options_stream_and_pack(mechanism):
    checks.streams_and_packs(with_all_options(mechanism))


@streaming(BIASED)
def test_layers_with_all_options_in_half_precision(mechanism):
    """Padded, packed if possible, and after a prefill by steps: as in float32."""
    exact, half = (with_all_options(mechanism, dtype=dtype) for dtype in (None, jnp.bfloat16))
    x = padded(normal(1, 4, 4, WIDTH), 0.0)
    ids = [None] + [np.array([[0, 0, 1, 1, 1, 1]] * 4)] * half.mechanism.capabilities.packed
    for each in ids:
        how = {"is_causal": True, "mask": LAYOUTS, "segment_ids": each}
        how |= positions(half, LAYOUTS, each)
        y = call(half, x, **how)
        assert y.dtype == jnp.bfloat16
        assert_close(y[LAYOUTS], call(exact, x, **how)[LAYOUTS], "bfloat16")
    whole = call(half, x, is_causal=True, mask=LAYOUTS, **positions(half, LAYOUTS))
    first, rest = LAYOUTS[:, :3], LAYOUTS[:, 3:]
    how = {"is_causal": True, "return_state": True, "mask": first} | positions(half, first)
    head, state = call(half, x[:, :3], state=half.init_state(4, 6), **how)
    tail, _ = run_steps(half, x[:, 3:], state, rest, start=first.sum(axis=1))
    assert_close(np.concatenate([head, tail], axis=1)[LAYOUTS], whole[LAYOUTS], "bfloat16")


# -- normalized queries and keys -----------------------------------------------------


@pytest.mark.parametrize("normalize_qk", ["rms", "l2"])
def test_a_learned_query_is_normalized_like_the_keys(normalize_qk):
    layer, x = make("aaren", normalize_qk=normalize_qk), normal(1, 2, 5, WIDTH)
    assert_close(call(layer, x, is_causal=True), attended(layer, x, causal=True), "float32")


def test_one_norm_for_queries_that_are_keys():
    layer = make(REFORMER, normalize_qk="rms")
    assert layer.query_norm is None and layer.key_norm is not None
    assert np.isfinite(call(layer, normal(1, 2, 4, WIDTH))).all()


def test_cross_attention_and_latents_have_the_options():
    layer = make("softmax", normalize_qk="rms", output_norm="rms", output_gate="sigmoid")
    x, context = normal(1, 2, 3, WIDTH), normal(2, 2, 5, WIDTH)
    assert_close(call(layer, x, context), attended(layer, x, context), "float32")
    assert_close(layer.attend_to(x, layer.project(context)), call(layer, x, context), "float32")
    rngs = nnx.Rngs(0)
    read = nn.LatentAttention(
        WIDTH, 2, num_latents=2, normalize_qk="rms", output_norm="rms", rngs=rngs
    )
    steps, _ = run_steps(read, x, read.init_state(2))
    assert_close(steps[:, -1], call(read, x), "float32")
    assert read.query_norm.scale.shape == (3,)


def test_a_causal_layer_attends_to_all_of_a_context():
    layer = make("softmax", is_causal=True)
    x, context = normal(1, 2, 3, WIDTH), normal(2, 2, 3, WIDTH)
    want = attended(layer, x, context)
    assert_close(layer(x, context), want, "float32")
    assert_close(layer.attend_to(x, layer.project(context)), want, "float32")
    assert np.asarray(layer.weights(x, context)).all()


def test_weights_of_half_precision_are_those_that_a_call_applies():
    """Decays of retention near 1 are 1 in bfloat16, but a call computes them in float32."""
    wide = make("retention")
    half = make("retention", dtype=jnp.bfloat16)
    x = normal(1, 1, 6, WIDTH)
    w = np.asarray(half.weights(jnp.asarray(x, jnp.bfloat16)), np.float32)
    assert_close(w, wide.weights(x), "bfloat16")
    score = np.asarray(half.weights(jnp.ones((1, 6, WIDTH), jnp.bfloat16)), np.float32)[0, 1, -1]
    assert (np.diff(score / score[-1]) > 0).all()


def test_a_context_of_another_width():
    """Keys and values come from it; also projected once, grouped and padded."""
    options = {"normalize_qk": "rms", "output_norm": "rms", "output_gate": "sigmoid"}
    layer = make("softmax", context_features=4, **options)
    x, context = normal(1, 2, 3, WIDTH), normal(2, 2, 5, 4)
    assert_close(call(layer, x, context), attended(layer, x, context), "float32")
    assert_close(layer.attend_to(x, layer.project(context)), call(layer, x, context), "float32")
    layer = make("taylorshift", context_features=4, num_kv_heads=1)
    mask = np.arange(5) < np.array([[5], [3]])
    y = call(layer, x, context, context_mask=mask)
    assert_close(y[1:], call(layer, x[1:], context[1:, :3]), "float32")
    assert not layer.streams
    for refused in (lambda: layer(x), lambda: layer.weights(x)):
        with pytest.raises(ValueError, match=r"from 4 features .* queries from 6; pass context"):
            refused()
    for refused in (lambda: layer.init_state(2), lambda: layer.step(x[:, 0], None)):
        with pytest.raises(ValueError, match="no state and no step; use project and attend_to"):
            refused()
    with pytest.raises(ValueError, match=r"expected context as \[B, S, 4\], got shape \(2, 3, 6\)"):
        layer(x, x)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mechanism": "aaren"}, "'aaren' does not support cross-attention"),
        ({"position": SCALED}, "position cannot be used with a context"),
        ({"position_bias": nn.AlibiBias(2)}, "position_bias cannot be used with a context"),
        ({"short_conv": 4}, "short_conv cannot be used with a context"),
        ({"context_features": 0}, "context_features must be at least 1"),
    ],
)
def test_what_a_context_refuses(options, message):
    with pytest.raises(ValueError, match=message):
        make_attention(**{"mechanism": "softmax", "context_features": 4} | options)
    if "context_features" not in options:
        layer, x = make_attention(**{"mechanism": "softmax"} | options), normal(1, 2, 3, WIDTH)
        for refused in (lambda: layer(x, x), lambda: layer.project(x)):
            with pytest.raises(ValueError, match=message):
                refused()


def test_dropout_of_the_weights_of_a_projected_context():
    rngs = nnx.Rngs(params=0, dropout=1)
    layer = nn.Attention(WIDTH, 2, weight_dropout_rate=0.5, rngs=rngs)
    x, context = normal(1, 2, 3, WIDTH), normal(2, 2, 5, WIDTH)
    projected, key = layer.project(context), jax.random.key(3)
    dropped = layer.attend_to(x, projected, dropout_key=key)
    np.testing.assert_array_equal(dropped, layer(x, context, dropout_key=key))
    assert np.abs(dropped - layer.attend_to(x, projected)).max() > 1e-3
    layer.train()
    assert np.abs(layer.attend_to(x, projected) - layer.attend_to(x, projected)).max() > 1e-3


# -- attention weights ---------------------------------------------------------------

MASK = np.array([[True] * 5, [False, True, True, False, True]])


@pytest.mark.parametrize(
    ("mechanism", "options"),
    [
        ("softmax:soft_cap=2,window=3", {"position_bias": nn.AlibiBias(2)}),
        ("softmax:window=2,sinks=1", OPTIONS["conv"] | {"output_gate": "silu"}),
        ("taylorshift", {"output_norm": "rms", "output_gate": "silu"}),
        ("gated_delta", {"short_conv": 2}),
        ("aaren", {}),
    ],
)
def test_outputs_are_weights_of_the_values(mechanism, options):
    """Of each head; the values of all tokens are read off the layer's own projections."""
    grouped = {} if mechanism == "aaren" else {"num_kv_heads": 1}
    layer, x = make(mechanism, **options, **grouped), normal(1, 2, 5, WIDTH)
    for how in ({"mask": MASK}, {"segment_ids": np.array([[0, 0, 1, 1, 1]] * 2)}):
        w = layer.weights(x, is_causal=True, **how)
        assert w.shape == (2, 2, 5, 5) and not np.triu(w, 1).any()
        clean = np.where(how.get("mask", MASK | True)[..., None], x, 0)
        inputs, _ = layer._self_projections(clean, layer._check_call(clean, Call(**how)))
        v = np.repeat(inputs.v, 2 // inputs.v.shape[2], axis=2)
        y = layer._project_out(jnp.einsum("bhts,bshv->bthv", w, v), clean)
        assert_close(layer(x, is_causal=True, **how), y, "float32")


def test_weights_of_a_context_and_of_pairs():
    layer, x, context = make("softmax"), normal(1, 2, 3, WIDTH), normal(2, 2, 5, WIDTH)
    pair_mask = np.random.default_rng(0).random((2, 1, 3, 5)) < 0.7
    w = layer.weights(x, context, context_mask=MASK, pair_mask=pair_mask)
    visible = pair_mask & MASK[:, None, None]
    assert not w[~np.broadcast_to(visible, w.shape)].any()
    assert_close(w.sum(-1), np.broadcast_to(visible.any(-1), (2, 2, 3)), "float32")
    with pytest.raises(ValueError, match="'linear' does not support pair_mask"):
        make("linear").weights(x, context, pair_mask=pair_mask)


@pytest.mark.parametrize("option", ["normalize_qk", "output_norm", "output_gate"])
def test_unknown_choices_are_refused(option):
    with pytest.raises(OptionError, match=f"{option} must be one of .*, got 'batch'"):
        make_attention("softmax", **{option: "batch"})


def test_padding_is_the_bias_behind_norm_and_gate():
    layer = make("aaren", output_norm="rms", output_gate="silu")
    y = call(layer, padded(normal(1, 4, 4, WIDTH)), mask=LAYOUTS)
    bias = np.asarray(layer.out_projection.bias[...])
    np.testing.assert_array_equal(y[~LAYOUTS], np.tile(bias, (8, 1)))


def test_options_keep_the_initial_values_of_other_parameters():
    plain, gated = nn.Attention(6, 2, rngs=nnx.Rngs(0)), make_block_attention()
    for name in ("query_projection", "key_projection", "value_projection", "out_projection"):
        np.testing.assert_array_equal(getattr(plain, name).kernel, getattr(gated, name).kernel)


def make_block_attention():
    """Of a block, which passes its options on."""
    options = {"normalize_qk": "rms", "output_norm": "rms", "output_gate": "silu"}
    block = nn.TransformerBlock(6, 2, rngs=nnx.Rngs(0), **options)
    assert block.attention.normalize_qk == "rms" and block.attention.output_gate == "silu"
    assert None not in (block.attention.output_norm, block.attention.gate_projection)
    return block.attention


# -- short convolutions --------------------------------------------------------------


def test_what_a_short_convolution_convolves():
    """All that is projected from tokens: not a learned query, and keys once that are queries."""
    for mechanism, width in (("softmax", 18), ("aaren", 12), (REFORMER, 12)):
        layer = make(mechanism, short_conv=4)
        assert layer.short_convolution.kernel.shape == (4, width)
    layer, x = make("aaren", short_conv=4), normal(1, 2, 6, WIDTH)
    assert_close(call(layer, x, is_causal=True), attended(layer, x, causal=True), "float32")
    layer = make("softmax", short_conv=4)
    assert_close(call(layer, x), attended(layer, x), "float32")  # of all tokens, too
    assert layer.init_state(2, 5).window.shape == (2, 3, 18)


def test_a_call_without_tokens_keeps_the_window():
    layer = make("softmax", short_conv=3)
    x, how = normal(1, 2, 4, WIDTH), {"is_causal": True, "return_state": True}
    _, state = layer(x[:, :3], **how)
    _, again = layer(x[:, :0], state=state, **how)
    assert_close(again.window, state.window, "float32")
    y, _ = layer(x[:, 3:], state=again, **how)
    assert_close(y, layer(x, is_causal=True)[:, 3:], "float32")


def test_what_a_short_convolution_refuses():
    for taps, error in ((1, "short_conv must be at least 2"), (2.0, "must be an integer")):
        with pytest.raises((OptionError, TypeError), match=error):
            make_attention("softmax", short_conv=taps)
    layer, x = make_attention("softmax", short_conv=2), normal(1, 2, 3, WIDTH)
    with pytest.raises(ValueError, match="needs a ShortConvState, got KVCache"):
        layer.step(x[:, 0], make_attention("softmax").init_state(2, 4))


# -- rotary positions ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "options"),
    [
        ("rope_type must be one of linear, ntk", {"rope_type": "dynamic"}),
        ("factor must be at least 1", {"factor": 0.5}),
        ("has no beta_fast; remove it", {"beta_fast": 32.0}),
        ("needs original_max_position_embeddings", {"rope_type": "yarn"}),
        ("low_freq_factor must be positive", {"low_freq_factor": -1.0, "rope_type": "llama3"}),
        ("the slower of which must be fewer", {"rope_type": "yarn", "beta_slow": 40.0}),
    ],
)
def test_what_scaling_refuses(message, options):
    if "beta_slow" in options or "low_freq_factor" in options:
        options = options | {"original_max_position_embeddings": 8}
    with pytest.raises(OptionError, match=message):
        nn.RotaryScaling(**{"rope_type": "linear", "factor": 2.0, **options})


def test_what_rotary_positions_refuse():
    for options in ({"base": 1.0}, {"fraction": 0.0}, {"fraction": 1.1}):
        with pytest.raises(OptionError, match=f"{next(iter(options))} must be"):
            nn.RotaryPosition(**options)
    x, at = jnp.ones((1, 1, 4)), jnp.zeros(1, jnp.int32)
    with pytest.raises(ValueError, match=r"got 0 of 4 \(fraction=0.2\)"):
        nn.RotaryPosition(fraction=0.2)(x, at)
