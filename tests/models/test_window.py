"""The window model: the paper's equations in NumPy, windows that slide, parameters in a batch."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_linattn import inference, models, nn, ops
from tests.contract.tolerances import assert_close, assert_same_bits
from tests.nn.cases import call, moved, run_steps
from tests.nn.equations import affine, array, normed

SYMBOLS, CONTEXT, ROWS = 6, 4, 3
PAPER = ("softmax:scale=1", "expressive")
readouts = pytest.mark.parametrize("readout", models.READOUTS)
kinds = pytest.mark.parametrize(
    ("readout", "projections"),
    [("flatten", "position"), ("last", "position"), ("flatten", "shared"), ("last", "shared")],
)


@functools.cache
def window_model(mechanism="expressive", readout="flatten", projections="position", **options):
    model = models.WindowModel(
        SYMBOLS,
        CONTEXT,
        readout=readout,
        projections=projections,
        mechanism=mechanism,
        rngs=nnx.Rngs(0),
        **options,
    )
    return moved(model)


def symbols(seed, *shape):
    return np.random.default_rng(seed).integers(0, SYMBOLS, shape).astype(np.int32)


def equations(model, tokens):
    """The paper's model of one window in float64, which may lack its first tokens.

    A bilayer with layer norms on entry and skip connections; rows of attention sum to 1.
    """
    block, readout = model.backbone.blocks[0], array(model.head.kernel)

    def linear(layer, x):
        if isinstance(layer, nn.PositionLinear):  # whose first ones are of tokens that lack
            return np.einsum("ti,tio->to", x, array(layer.kernel)[-len(x) :])
        return affine(layer, x)

    x = np.eye(SYMBOLS)[tokens]  # token dimension d = N, no positions
    layer, entry = block.attention, normed(block.attention_norm, x)
    q, k, v = (
        linear(getattr(layer, f"{name}_projection"), entry) for name in ("query", "key", "value")
    )
    z = q @ k.T
    softmax = model.backbone.mechanisms[0].name == "softmax"
    weights = np.tril(np.exp(z) if softmax else z**2 / (1 + z**2))
    attended = weights / weights.sum(axis=1, keepdims=True) @ v
    shared = model.projections == "shared"
    assert (layer.out_projection is not None) == shared
    x = x + (affine(layer.out_projection, attended) if shared else attended)
    layer, entry = block.feed_forward, normed(block.feed_forward_norm, x)
    assert layer.expand.kernel.shape == (SYMBOLS, 4 * SYMBOLS)
    x = x + affine(layer.contract, np.tanh(affine(layer.expand, entry)))
    if model.readout == "last":
        return x[-1] @ readout
    return x.ravel() @ readout[-x.size :]


@kinds
@pytest.mark.parametrize("mechanism", PAPER)
def test_it_is_the_papers_equations(mechanism, readout, projections):
    model, x = window_model(mechanism, readout, projections), symbols(0, ROWS, CONTEXT)
    assert model.head.bias is None
    scores = call(model, x)
    assert scores.shape == (ROWS, SYMBOLS)
    assert scores.dtype == np.float32
    assert_close(scores, np.stack([equations(model, row) for row in x]), "float32")


@kinds
@pytest.mark.parametrize("mechanism", PAPER)
def test_steps_are_the_equations_of_the_last_tokens(mechanism, readout, projections):
    """Before the window is full, while it slides, and where a step is masked."""
    model, x = window_model(mechanism, readout, projections), symbols(1, ROWS, 3 * CONTEXT)
    mask = np.random.default_rng(2).random(x.shape) < 0.8
    by_steps, state = run_steps(model, x, model.init_state(ROWS), mask)
    for row in range(ROWS):
        for t in np.flatnonzero(mask[row]):
            seen = x[row, : t + 1][mask[row, : t + 1]][-CONTEXT:]
            assert_close(by_steps[row, t], equations(model, seen), "float32")
        assert state.tokens[row].tolist() == x[row][mask[row]][-CONTEXT:].tolist()
    assert state.num_tokens.tolist() == [CONTEXT] * ROWS


@readouts
def test_a_call_takes_the_last_tokens(readout):
    """Of rows of any length, and after others."""
    model, x = window_model(readout=readout), symbols(3, ROWS, 2 * CONTEXT)
    by_steps, state = run_steps(model, x, model.init_state(ROWS))
    assert_close(by_steps[:, 1], call(model, x[:, :2]), "float32")
    assert_close(by_steps[:, -1], call(model, x[:, -CONTEXT:]), "float32")
    whole, after = call(model, x, return_state=True)
    assert_close(whole, by_steps[:, -1], "float32")
    assert_same_bits(after, jax.tree.map(np.asarray, state))
    _, first = call(model, x[:, :3], return_state=True)
    assert_close(call(model, x[:, 3:], state=first), whole, "float32")


def test_it_streams_without_end_in_constant_memory():
    model = window_model("softmax:scale=1")
    assert model.streams and model.constant_memory and model.num_positions is None
    assert model.observation_shape == ()
    x = symbols(8, 2, 10 * CONTEXT)
    stream = inference.Stream(model, batch_size=2)
    for t in range(x.shape[1]):
        scores = stream.step(x[:, t])
    assert stream.num_compilations == 1
    assert_close(scores, call(model, x[:, -CONTEXT:]), "float32")
    assert_close(inference.Stream(model, batch_size=2).prefill(x, chunk_size=7), scores, "float32")
    sizes = inference.summarize(model, jax.ShapeDtypeStruct((1,), "int32"))
    assert sizes.state_bytes == 4 * (CONTEXT + 1)


def test_it_generates_the_most_likely_symbols():
    model, x = window_model(), symbols(9, 2, CONTEXT)
    generated = np.asarray(inference.generate(model, jnp.asarray(x), 5).tokens)
    for t in range(5):
        seen = np.concatenate([x, generated[:, :t]], axis=1)[:, -CONTEXT:]
        np.testing.assert_array_equal(generated[:, t], call(model, seen).argmax(axis=-1))


def test_a_mechanism_that_learns_places_has_as_many_as_the_window():
    model = window_model("aft")
    assert model.backbone.mechanisms[0].max_length == CONTEXT
    with pytest.raises(ValueError, match="'aft' has max_length=2, but the model needs 4 positions"):
        window_model("aft:max_length=2")


def test_layers_may_be_others():
    layers = models.window_layers(SYMBOLS, num_heads=2, activation="relu", hidden_features=5)
    model = models.WindowModel(SYMBOLS, 2, layers=layers, num_layers=2, rngs=nnx.Rngs(0))
    assert model.backbone.layers == models.window_layers(
        SYMBOLS, num_heads=2, activation="relu", hidden_features=5, num_layers=2
    )
    assert call(model, symbols(10, 1, 2)).shape == (1, SYMBOLS)


def test_a_learned_query_is_projected_once_for_all_positions():
    attention = window_model("aaren").backbone.blocks[0].attention
    assert attention.query_projection.kernel.shape == (SYMBOLS, SYMBOLS)
    assert attention.key_projection.kernel.shape == (CONTEXT, SYMBOLS, SYMBOLS)


def test_layers_with_weights_of_each_position_do_not_step_alone():
    """The window model steps by whole windows; its layers would take rows for positions."""
    backbone = window_model().backbone
    assert not backbone.streams
    assert window_model(projections="shared").backbone.streams
    attention = backbone.blocks[0].attention
    state = attention.init_state(CONTEXT, CONTEXT)
    with pytest.raises(ValueError, match="this layer has separate weights for each position"):
        attention.step(jnp.ones((CONTEXT, SYMBOLS)), state)
    with pytest.raises(ValueError, match="so they cannot stream"):
        backbone.init_state(2)


def test_initializers_reach_the_projections_of_positions():
    init = nnx.initializers.variance_scaling(0.01, "fan_in", "normal")
    model = models.WindowModel(16, 64, kernel_init=init, rngs=nnx.Rngs(0))
    attention = model.backbone.blocks[0].attention
    for layer in (attention.query_projection, attention.key_projection, attention.value_projection):
        kernel = np.asarray(layer.kernel[...])
        np.testing.assert_allclose(kernel.std(), 0.1 / 4, rtol=0.03)
        assert not np.allclose(kernel[0], kernel[1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_symbols": 1}, "num_symbols must be at least 2, got 1"),
        ({"context": 0}, "context must be at least 1, got 0"),
        ({"readout": "mean"}, "readout must be one of flatten, last, got 'mean'"),
        ({"projections": "own"}, "projections must be one of position, shared, got 'own'"),
        ({"mechanism": "nystrom"}, "'nystrom' has no causal form, which this model needs; choose"),
        ({"mechanism": ops.get_mechanism("linformer")}, "'linformer' has no causal form"),
        (
            {"layers": models.Layers(8)},
            "the embedding has 6 features, but the layers have 8; make them",
        ),
        ({"mechanisn": "aaren"}, "got 'mechanisn'; did you mean 'mechanism'"),
        ({"is_causal": False}, "option must be one of features, .*got 'is_causal'"),
    ],
)
def test_wrong_options(options, message):
    sizes = {"num_symbols": SYMBOLS, "context": CONTEXT} | options
    with pytest.raises(ValueError, match=message):
        models.WindowModel(**sizes, rngs=nnx.Rngs(0))


def test_symbols_that_are_none():
    model, x = window_model(), jnp.ones((2, 4), int)
    with pytest.raises(TypeError, match="tokens must have an integer dtype, got float32"):
        model(jnp.ones((2, 4)))
    assert np.isnan(call(model, x.at[0, 1].set(SYMBOLS)))[0].all()
    with pytest.raises(ValueError, match=f"expected tokens from 0 to {SYMBOLS - 1}, got {SYMBOLS}"):
        model(x.at[0, 1].set(SYMBOLS))


def test_one_hot_tokens():
    embedding = models.OneHotEmbedding(300)
    assert isinstance(embedding, models.Embedding) and embedding.features == 300
    assert embedding.max_length is None and embedding.observation_shape == ()
    assert jax.tree.leaves(nnx.state(embedding)) == []
    x = jnp.array([[0, 299, 7]])
    h, state = embedding(x, positions=x, mask=jnp.array([[True, True, False]]))
    assert h.dtype == jnp.float32
    np.testing.assert_array_equal(h[0, :2], np.eye(300)[[0, 299]])
    step, _ = embedding.step(x[:, 1].astype(jnp.int16), state, positions=x[:, 1])
    np.testing.assert_array_equal(step, h[:, 1])
    assert embedding(x.astype(jnp.uint8), positions=x)[0].shape == (1, 3, 300)
    for token in (-1, 300):
        with pytest.raises(ValueError, match=f"expected tokens from 0 to 299, got {token}"):
            embedding.step(jnp.array([token]), state, positions=x[:, 0])
        step = jax.jit(embedding.step)(jnp.array([token]), state, positions=x[:, 0])[0]
        assert np.isnan(step).all()
    with pytest.raises(TypeError, match="tokens must have an integer dtype, got float32"):
        embedding(jnp.ones((1, 2)), positions=x)
    with pytest.raises(ValueError, match="num_tokens must be at least 1, got 0"):
        models.OneHotEmbedding(0)
