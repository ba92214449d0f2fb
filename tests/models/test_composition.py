"""Models put together: embeddings, hybrid stacks, rotary positions, tied heads, made alike."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import AxisType, PartitionSpec

from flax_linattn import inference, models, nn
from flax_linattn.checks import OptionError
from tests.contract.tolerances import assert_close, assert_same_bits
from tests.models.cases import symbols
from tests.nn.cases import call, moved, normal, run_steps

TOKENS = 7
TINY = models.Layers(features=8, num_layers=2, num_heads=2, hidden_features=12, norm="pre")
HYBRID = dataclasses.replace(
    TINY, num_layers=3, mechanism=("aaren", "elementwise_series", "softmax")
)
STACKS = {"plain": TINY, "hybrid": HYBRID}


@functools.cache
def language(stack, **options):
    model = models.LanguageModel(
        TOKENS, layers=STACKS[stack], max_length=8, rngs=nnx.Rngs(0), **options
    )
    return moved(model)


@pytest.mark.parametrize("mechanism", ["softmax", "linear", "expressive"])
def test_rotary_layers_know_how_far_apart_tokens_are(mechanism):
    """The same tokens everywhere later give the same outputs, and another order others."""
    layer = nn.Attention(8, 2, mechanism=mechanism, position=nn.RotaryPosition(), rngs=nnx.Rngs(0))
    x = normal(5, 1, 4, 8)
    positions = np.arange(4, dtype=np.int32)[None]
    y = call(layer, x, is_causal=True)
    assert_close(call(layer, x, is_causal=True, positions=positions), y, "float32")
    far = call(layer, x, is_causal=True, positions=positions + 1000)
    assert np.allclose(far, y, atol=2e-3) == (mechanism != "linear")  # its map is not of angles
    spread = call(layer, x, is_causal=True, positions=positions * 3)
    assert not np.allclose(spread[:, 1:], y[:, 1:], atol=1e-3)


def test_what_rotary_layers_refuse():
    with pytest.raises(ValueError, match="one learned query for all tokens"):
        models.Backbone(3, TINY, rotary=True, rngs=nnx.Rngs(0))
    layer = nn.Attention(8, 2, position=nn.RotaryPosition(), rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="pass positions"):
        layer.step(jnp.ones((1, 8)), layer.init_state(1, 4))
    with pytest.raises(ValueError, match="pass positions"):
        layer(jnp.ones((1, 2, 8)), is_causal=True, state=layer.init_state(1, 4))
    with pytest.raises(ValueError, match="for cross-attention"):
        layer(jnp.ones((1, 2, 8)), jnp.ones((1, 3, 8)))
    with pytest.raises(ValueError, match="even number of rotated channels, got 3 of 3"):
        nn.RotaryPosition()(jnp.ones((1, 1, 3)), jnp.zeros(1, jnp.int32))


@pytest.mark.parametrize("tied", [True, False])
def test_a_language_model_generates_what_it_computes(tied):
    model, prompt = language("hybrid", tied=tied), symbols(6, 2, 3)
    generated = inference.generate(model, jnp.asarray(prompt), 4).tokens
    x = np.pad(prompt, ((0, 0), (0, 4)))  # what is yet to come changes nothing before it
    for t in range(3, 7):
        x[:, t] = call(model, x)[:, t - 1].argmax(-1)
    np.testing.assert_array_equal(generated, x[:, 3:])


def test_a_tied_head_is_the_table():
    model = language("plain")
    assert model.head is None
    h = normal(7, 1, 2, TINY.features)
    table = model.backbone.input_embedding.table[...]
    np.testing.assert_allclose(model.backbone.input_embedding.attend(h), h @ table.T, rtol=1e-6)


@pytest.mark.parametrize("tied", [True, False])
def test_logits_of_float64_parameters_are_float64(tied):
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        model = models.LanguageModel(
            5, features=8, num_layers=1, num_heads=2, tied=tied, param_dtype=jnp.float64,
            rngs=nnx.Rngs(0),
        )  # fmt: skip
        assert jax.eval_shape(model, jnp.array([[1, 2]])).dtype == jnp.float64


def test_tokens_that_the_table_does_not_have():
    model = language("plain")
    for token in (TOKENS, -1):
        tokens = jnp.array([[0, token]])
        assert np.isnan(call(model, tokens)[0, 1]).all()
        with pytest.raises(
            ValueError, match=f"expected tokens from 0 to {TOKENS - 1}, got {token}"
        ):
            model(tokens)
    with pytest.raises(TypeError, match="tokens must have an integer dtype"):
        model(jnp.ones((1, 2)))


def test_heads_take_a_backbone():
    backbone = models.Backbone(3, TINY, max_length=5, rngs=nnx.Rngs(0))
    classifier = models.SequenceClassifier(backbone, 4, pooling="flatten", rngs=nnx.Rngs(1))
    assert call(classifier, normal(8, 2, 5, 3)).shape == (2, 4)
    forecaster = models.Forecaster(backbone, 6, num_covariates=1, rngs=nnx.Rngs(1))
    assert call(forecaster, normal(9, 2, 5, 3)).shape == (2, 6, 2)


def test_short_constructors_are_the_long_ones():
    short = models.Backbone(3, 8, num_layers=2, num_heads=2, hidden_features=12, norm="pre",
                            kernel_size=5, rngs=nnx.Rngs(0))  # fmt: skip
    rngs = nnx.Rngs(0)
    embedding = models.ObservationEmbedding(3, 8, kernel_size=5, rngs=rngs)
    assert_same_bits(nnx.state(short), nnx.state(models.Backbone(embedding, TINY, rngs=rngs)))
    assert models.Backbone(3, 4, num_heads=2, rngs=rngs).layers.features == 4


def test_what_does_not_fit_is_refused():
    rngs = nnx.Rngs(0)
    embedding = models.TokenEmbedding(TOKENS, 4, rngs=rngs)
    with pytest.raises(ValueError, match="the embedding has 4 features, but the layers have 8"):
        models.Backbone(embedding, TINY, rngs=rngs)
    with pytest.raises(ValueError, match="kernel_size: options of the embedding"):
        models.Backbone(embedding, TINY, features=4, kernel_size=3, rngs=rngs)
    with pytest.raises(ValueError, match="got 'num_head'; did you mean 'num_heads'"):
        models.Backbone(3, 8, num_head=2, rngs=rngs)
    backbone = models.Backbone(3, TINY, rngs=rngs)
    for options in ({"norm": "pre"}, {"layers": TINY}):
        message = f"{next(iter(options))}: options of the backbone, which was already made"
        with pytest.raises(ValueError, match=message):
            models.SequenceClassifier(backbone, 4, rngs=rngs, **options)
    with pytest.raises(ValueError, match="a language model predicts the next token"):
        models.LanguageModel(backbone, rngs=rngs)
    with pytest.raises(ValueError, match="one for each of 2 layers, got 3"):
        dataclasses.replace(TINY, mechanism=("aaren",) * 3)
    looking = models.Backbone(3, TINY, is_causal=False, rngs=rngs)
    with pytest.raises(ValueError, match="make the backbone with is_causal=True"):
        models.Forecaster(looking, 4, rngs=rngs)


def test_a_hybrid_stack_keeps_what_each_layer_keeps():
    stack = dataclasses.replace(HYBRID, mechanism=("aaren", "linformer:max_length=8", "aaren"))
    with pytest.raises(ValueError, match="'linformer' does not support is_causal=True"):
        models.Backbone(3, stack, rngs=nnx.Rngs(0))
    mixed = models.Backbone(3, HYBRID, max_length=4, rngs=nnx.Rngs(0))
    assert mixed.streams
    assert not mixed.constant_memory
    h, state = run_steps(mixed, normal(3, 2, 4, 3), mixed.init_state(2))
    assert_close(h, call(mixed, normal(3, 2, 4, 3)), "float32")
    assert len(state.layers) == 3


def test_dtypes_by_name_and_by_value_are_one():
    assert models.Layers(dtype=jnp.bfloat16) == models.Layers(dtype="bfloat16")
    assert type(models.Layers(dtype=np.dtype("float32")).dtype) is str
    assert models.Layers().compute_dtype is None
    with pytest.raises(ValueError, match="dtype must be one of"):
        models.Layers(dtype="int8")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["classifier", "forecaster", "decoder", "language"])
def test_partitioned_initializers_reach_every_kernel(name):
    """``nnx.with_partitioning`` on a layer's kernels, as in Flax."""
    init = nnx.with_partitioning(nnx.initializers.lecun_normal(), ("rows", "columns"))
    parameters = {"kernel_init": init, "param_dtype": jnp.bfloat16}
    axes = (AxisType.Auto,) * 2
    with jax.set_mesh(jax.make_mesh((1, 4), ("rows", "columns"), axis_types=axes)):
        rngs = nnx.Rngs(0)
        if name == "decoder":
            module = nn.DecoderBlock(8, 2, rngs=rngs, **parameters)
        elif name == "language":
            module = models.LanguageModel(TOKENS, layers=TINY, rngs=rngs, **parameters).backbone
        else:
            heads = {"classifier": models.SequenceClassifier, "forecaster": models.Forecaster}
            module = heads[name](3, 4, layers=TINY, rngs=rngs, **parameters).backbone
    variables = nnx.to_flat_state(nnx.state(module, nnx.Param))
    kernels = [variable[...] for path, variable in variables if path[-1] == "kernel"]
    assert len(kernels) >= 6
    assert {kernel.sharding.spec for kernel in kernels} == {PartitionSpec("rows", "columns")}
    assert {variable[...].dtype for _, variable in variables} == {jnp.dtype(jnp.bfloat16)}


def test_out_initializers_are_of_the_way_back():
    zeros = nnx.initializers.zeros
    block = nn.TransformerBlock(8, 2, out_kernel_init=zeros, out_bias_init=zeros, norm="pre",
                                rngs=nnx.Rngs(0))  # fmt: skip
    x = normal(1, 2, 3, 8)
    assert_close(call(block, x), x, "float32")  # each sublayer adds nothing at first


def test_train_and_eval_as_flax_has_them():
    """``train()`` without a key is refused unless the model has a stream for dropout."""
    x = normal(2, 2, 4, 3)
    options = {"layers": dataclasses.replace(TINY, num_layers=1, dropout_rate=0.5)}
    run = nnx.jit(lambda model, x, **options: model(x, **options))
    plain = models.SequenceClassifier(3, 4, rngs=nnx.Rngs(0), **options)
    quiet, first = call(plain, x), call(plain, x[:, :1])
    plain.train()
    with pytest.raises(ValueError, match=r"nnx.Rngs\(params=0, dropout=1\)"):
        plain(x)
    keyed = run(plain, x, dropout_key=jax.random.key(0))
    stepped, _ = run_steps(plain, x[:, :1], plain.init_state(2))
    assert_close(stepped[:, 0], first, "float32")  # never drops
    model = models.SequenceClassifier(3, 4, rngs=nnx.Rngs(params=0, dropout=1), **options)
    model.train()
    first, second = run(model, x), run(model, x)
    assert not np.allclose(first, second, atol=1e-3)
    assert not np.allclose(first, quiet, atol=1e-3)
    model.eval()
    assert_close(run(model, x), quiet, "float32")
    assert_same_bits(run(model, x, dropout_key=jax.random.key(0)), keyed)


@pytest.mark.slow
@pytest.mark.parametrize("tied", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_language_model_learns_what_follows_what(tied):
    """By its defaults: of 32 tokens each has one that follows it; 60 steps come near 0 nats."""
    follows = np.random.default_rng(0).permutation(32)
    rows = [np.random.default_rng(1).integers(0, 32, 16)]
    for _ in range(16):
        rows.append(follows[rows[-1]])
    x = jnp.asarray(np.stack(rows, axis=1), jnp.int32)
    layers = dataclasses.replace(TINY, features=64, hidden_features=64, mechanism="linear")
    model = models.LanguageModel(32, layers=layers, tied=tied, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(3e-3), wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer):
        def loss(model):
            logits = model(x[:, :-1])
            return optax.softmax_cross_entropy_with_integer_labels(logits, x[:, 1:]).mean()

        nats, grads = nnx.value_and_grad(loss)(model)
        optimizer.update(model, grads)
        return nats

    with jax.numpy_dtype_promotion("standard"):  # as optax has it
        nats = [float(step(model, optimizer)) for _ in range(60)]
    assert nats[0] > 2.5
    assert nats[-1] < 0.5


def test_a_forecaster_distinguishes_channels_from_covariates():
    rngs = nnx.Rngs(0)
    embedding = models.ObservationEmbedding(3, 8, num_covariates=2, rngs=rngs)
    backbone = models.Backbone(embedding, TINY, rngs=rngs)
    assert models.Forecaster(backbone, 4, num_covariates=2, rngs=rngs).targets == (0, 1, 2)
    with pytest.raises(ValueError, match="embedding has 2 covariates, got num_covariates=0"):
        models.Forecaster(backbone, 4, rngs=rngs)
    plain = models.Backbone(3, TINY, rngs=rngs)
    with pytest.raises(ValueError, match="expected at least one channel before the covariates"):
        models.Forecaster(plain, 4, num_covariates=3, rngs=rngs)
    token_classifier = models.Backbone(models.TokenEmbedding(TOKENS, 8, rngs=rngs), TINY, rngs=rngs)
    with pytest.raises(
        ValueError, match=r"expected a backbone for observations of shape \(channels,\)"
    ):
        models.Forecaster(token_classifier, 4, rngs=rngs)


def test_layers_refuse_at_once_what_no_model_can_have():
    for options, message in (
        ({"mechanism": "aren"}, "unknown mechanism 'aren'"),
        ({"mechanism": "aaren:foo=2"}, "has no hyperparameter 'foo'"),
        ({"num_heads": 3}, "must be a multiple of num_heads"),
        ({"rotary": True}, "has one learned query for all tokens"),
    ):
        with pytest.raises(OptionError, match=message):
            dataclasses.replace(TINY, **options)
    assert dataclasses.replace(TINY, mechanism=("aaren", "aaren")) == TINY
    with pytest.raises(
        TypeError, match="expected a number of channels, or an embedding with features"
    ):
        models.Backbone(nnx.Linear(3, 8, rngs=nnx.Rngs(0)), TINY, rngs=nnx.Rngs(0))
    assert models.Backbone(np.int64(3), TINY, rngs=nnx.Rngs(0)).observation_shape == (3,)


@pytest.mark.parametrize("mechanism", ["aft", "linear"])
def test_an_encoder_decoder_sizes_its_mechanisms(mechanism):
    model = models.EncoderDecoder(
        2, 3, label_length=2, max_length=6, layers=dataclasses.replace(TINY, mechanism=mechanism),
        rngs=nnx.Rngs(0),
    )  # fmt: skip
    assert call(model, normal(1, 2, 6, 2)).shape == (2, 3, 2)
