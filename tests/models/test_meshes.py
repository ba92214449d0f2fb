"""Layers, models and streams on meshes as ``jax.make_mesh`` makes them, with explicit axes."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from flax_linattn import inference, models, nn
from flax_linattn.nn.meshes import automatic
from tests.contract.tolerances import assert_close
from tests.meshes import make_mesh
from tests.models.contract.heads import FIRST, HEADS
from tests.nn.cases import CAUSAL, normal

BATCH, LENGTH, CHANNELS, TOKENS = 2, 4, 8, 7
slow = pytest.mark.slow

TINY = models.Layers(features=8, num_layers=1, num_heads=2, hidden_features=12)
ATTENTION = {
    f"attention-{case.id}": partial(nn.Attention, CHANNELS, 2, mechanism=case.values[0])
    for case in CAUSAL
}
LAYERS = {
    "rotary": partial(nn.Attention, CHANNELS, 2, position=nn.RotaryPosition()),
    "block": partial(nn.TransformerBlock, CHANNELS, 2, mechanism="aaren"),
    "decoder": partial(nn.DecoderBlock, CHANNELS, 2, mechanism="aaren"),
    "values": partial(nn.ValueEmbedding, CHANNELS, 5),
}
FIRST_OF = {mark.id: mark.values[1] for mark in FIRST.args[1]}
MODELS: dict[str, Any] = {
    name: partial(case.make, mechanism=FIRST_OF[name]) for name, case in HEADS.items()
} | {
    "learned": partial(
        models.SequenceClassifier, CHANNELS, 3, layers=TINY, position="learned", max_length=LENGTH,
        remat="blocks",
    ),
    "encoder_decoder": partial(
        models.EncoderDecoder, CHANNELS, 3, layers=TINY, label_length=2,
        embedding_padding="causal",
    ),
    "images": partial(
        models.ImageClassifier, (4, 8), 4, 3, layers=TINY, embedding="conv", layer_scale=0.1,
        in_channels=CHANNELS,
    ),
}  # fmt: skip
WHOLE = ("images", *(name for name, case in HEADS.items() if not case.streams))
"""Without steps."""
TRACED = tuple(name for name in MODELS if name not in ("classifier flatten", "language", "learned"))
"""What they compute on such meshes is slow tests: the fast one sees that they trace there."""
# The classifier runs the block, and the encoder-decoder, traced, both blocks.
SLOW = {"learned", "block", "decoder", *TRACED, *ATTENTION} - {
    "attention-softmax",
    "attention-aaren",
}
MODULES = ATTENTION | LAYERS | MODELS
ALL: dict[str, Any] = MODULES | {"feed_forward": partial(nn.FeedForward, CHANNELS, 12)}
KINDS = [pytest.param(kind, marks=slow if kind in SLOW else ()) for kind in MODULES]


def split(mesh: Any, tree: Any) -> Any:
    return jax.device_put(tree, NamedSharding(mesh, PartitionSpec("data")))


def observations(kind: str) -> Any:
    if kind in HEADS:
        return HEADS[kind].observations(0, BATCH, LENGTH)
    return (
        normal(0, BATCH, 4, 8, CHANNELS) if kind == "images" else normal(0, BATCH, LENGTH, CHANNELS)
    )


def make(kind: str, **parameters: Any) -> Any:
    return ALL[kind](rngs=nnx.Rngs(0), **parameters)


def call(kind: str, module: Any, x: Any, mask: Any) -> Any:
    """Whole sequences."""
    if kind == "decoder":
        return module(x, x, memory_mask=mask)
    if kind in ("encoder_decoder", "feed_forward", "images"):
        return module(x)
    causal = kind.startswith("attention") or kind in ("rotary", "block")
    return module(x, mask=mask, **({"is_causal": True} if causal else {}))


@partial(jax.jit, static_argnums=(0, 1))
def outputs_and_gradients(kind: str, graph: Any, params: Any, x: Any, mask: Any) -> Any:
    def loss(params: Any) -> Any:
        y = call(kind, nnx.merge(graph, params), x, mask)
        return jnp.mean(jnp.square(y)), y

    gradients, y = jax.grad(loss, has_aux=True)(params)
    return y, gradients


@partial(jax.jit, static_argnums=(0, 1))
def steps(kind: str, graph: Any, params: Any, x: Any) -> Any:
    """One after another, in a loop that carries the state."""
    model = nnx.merge(graph, params)
    if kind in ("decoder", "encoder_decoder"):
        state = model.init_state(x)
    elif kind == "values":
        state = model.init_state(BATCH)
    else:
        state = model.init_state(BATCH, LENGTH)

    def body(carry: Any, x: Any) -> Any:
        state, t = carry
        options = {"positions": jnp.full(BATCH, t)} if kind == "rotary" else {}
        y, state = model.step(None if kind == "encoder_decoder" else x, state, **options)
        return (state, t + 1), y

    return jax.lax.scan(body, (state, jnp.zeros((), jnp.int32)), jnp.moveaxis(x, 1, 0))[1]


@pytest.mark.parametrize("kind", KINDS)
def test_modules_on_explicit_axes(kind: str) -> None:
    """Outputs with padding, gradients, and steps."""
    x, mask = observations(kind), np.arange(LENGTH) < np.array([[LENGTH], [LENGTH - 1]])
    graph, params = nnx.split(make(kind))
    whole = kind in WHOLE
    want = outputs_and_gradients(kind, graph, params, x, mask)
    want = want, None if whole else steps(kind, graph, params, x)
    mesh = make_mesh(AxisType.Explicit, data=2)
    with jax.set_mesh(mesh):
        placed = split(mesh, (x, mask))
        got = outputs_and_gradients(kind, graph, params, *placed)
        assert jax.typeof(got[0]).sharding.spec[0] == "data"
        got = got, None if whole else steps(kind, graph, params, placed[0])
    assert_close(jax.tree.map(np.asarray, got), want, np.float32)


@pytest.mark.slow
@pytest.mark.parametrize("kind", TRACED)
def test_models_trace_on_explicit_axes(kind: str) -> None:
    """Where an operation cannot tell how its output is split, it fails before it is compiled."""
    mesh = make_mesh(AxisType.Explicit, data=2)
    graph, params = nnx.split(nnx.eval_shape(lambda: make(kind)))
    with jax.set_mesh(mesh):
        x, mask = split(mesh, (observations(kind), np.ones((BATCH, LENGTH), bool)))
        y, _ = outputs_and_gradients.eval_shape(kind, graph, params, x, mask)
        assert y.sharding.spec[0] == "data"
        if kind not in WHOLE:
            steps.eval_shape(kind, graph, params, x)


@pytest.mark.parametrize(
    "kind",
    [
        "block",
        *(
            pytest.param(kind, marks=slow)
            for kind in ("attention-aaren", "feed_forward", "decoder")
        ),
    ],
)
def test_kernels_split_over_a_tensor_axis(kind: str) -> None:
    """``nnx.with_partitioning`` under ``jax.set_mesh``; the models pass it on to these layers."""
    init = nnx.initializers.lecun_normal()
    mesh = make_mesh(AxisType.Explicit, data=2, model=2)
    x, mask = observations(kind), np.ones((BATCH, LENGTH), bool)
    with jax.set_mesh(mesh):
        module = make(
            kind,
            kernel_init=nnx.with_partitioning(init, (None, "model")),
            out_kernel_init=nnx.with_partitioning(init, ("model", None)),
        )
        graph, params = nnx.split(module, nnx.Param)
        got = outputs_and_gradients(kind, graph, params, *split(mesh, (x, mask)))
        kernels = jax.tree.map(lambda x: jax.typeof(x).sharding.spec, (params, got[1]))
        assert kernels[0] == kernels[1]
        assert PartitionSpec("model", None) in jax.tree.leaves(kernels[0])
    params, got = jax.tree.map(np.asarray, (params, got))
    want = outputs_and_gradients(kind, graph, params, x, mask)
    assert_close(jax.tree.leaves(got), jax.tree.leaves(want), np.float32)


def test_dropout_draws_from_the_stream_of_a_model() -> None:
    """What a call changes in its module is kept: a second call draws other numbers."""
    x, mesh = observations("block"), make_mesh(AxisType.Explicit, data=2)
    outputs = []
    for placed in (False, True):
        block = nn.TransformerBlock(CHANNELS, 2, mechanism="aaren", dropout_rate=0.5,
                                    rngs=nnx.Rngs(params=0, dropout=1))  # fmt: skip
        block.train()
        with jax.set_mesh(mesh):
            x = split(mesh, x) if placed else x
            run = nn.TransformerBlock.__call__ if placed else nnx.jit(nn.TransformerBlock.__call__)
            outputs.append([np.asarray(run(block, x)) for _ in range(2)])
    assert_close(outputs[1], outputs[0], np.float32)
    assert not np.array_equal(*outputs[0])


@pytest.mark.parametrize(
    "how", ["jit", pytest.param("grad", marks=slow), "scan", "checkpoint", "step"]
)
def test_models_may_be_closed_over(how: str) -> None:
    """In eval mode no stream is drawn from, so that a call changes nothing in its module."""
    block = nn.TransformerBlock(CHANNELS, 2, mechanism="aaren", dropout_rate=0.5,
                                rngs=nnx.Rngs(params=0, dropout=1))  # fmt: skip
    block.eval()
    state = block.init_state(BATCH)
    run = jax.jit(
        {
            "jit": lambda x: block(x),
            "grad": jax.grad(lambda x: block(x).sum()),
            "scan": lambda x: jax.lax.scan(lambda x, _: (block(x), None), x, length=2)[0],
            "checkpoint": jax.grad(lambda x: jax.checkpoint(lambda x: block(x))(x).sum()),
            "step": lambda x: block.step(x[:, 0], state),
        }[how]
    )
    x, mesh = observations("block"), make_mesh(AxisType.Explicit, data=2)
    want = run(x)
    with jax.set_mesh(mesh):
        got = run(split(mesh, x))
    assert_close(jax.tree.map(np.asarray, got), jax.tree.map(np.asarray, want), np.float32)


class Running(nnx.Module):
    """Adds what it remembers, and counts."""

    def __init__(self) -> None:
        self.memory = nnx.Cache(jnp.ones((BATCH, CHANNELS)))
        self.sum = nnx.Cache(jnp.zeros((BATCH, CHANNELS)))

    @automatic(1)
    def __call__(self, x: Any) -> Any:
        self.sum.set_value(self.sum.get_value() + x)
        return x + self.memory.get_value()

    @automatic(1)
    def ask(self, question: str) -> Any:
        return self.memory.get_value()


def test_variables_stay_split_and_are_set_where_they_change() -> None:
    mesh, module = make_mesh(AxisType.Explicit, data=2), Running()
    with jax.set_mesh(mesh):
        for variable in (module.memory, module.sum):
            variable.set_value(split(mesh, variable.get_value()))
        before = module.memory.get_value()
        module(split(mesh, np.ones((BATCH, CHANNELS), np.float32)))
        assert module.memory.get_value() is before
        assert jax.typeof(module.sum.get_value()).sharding.spec[0] == "data"
        assert (module.sum.get_value() == 1).all()
        with pytest.raises(TypeError, match=r"Running.ask is split .* got no array"):
            module.ask("what?")


@pytest.mark.slow
def test_streams_and_prompts() -> None:
    """The functions of ``inference``, with a prompt and a state that are split over the batch."""
    model = models.LanguageModel(TOKENS, layers=TINY, rngs=nnx.Rngs(0))
    mesh = make_mesh(AxisType.Explicit, data=2)

    def run(x: Any, place: Any) -> Any:
        stream = inference.Stream(model, batch_size=BATCH)
        outputs = [stream.prefill(x[:, :2])]
        stream.state = place(stream.state)
        outputs.append(stream.step(x[:, 2]))
        stream.reset(np.array([True, False]))
        stream.gather([1, 0])
        outputs.append(stream.step(x[:, 3]))
        y, state = inference.prefill(model, x, chunk_size=2)
        outputs.extend(inference.generate_tokens(model, x, 3))
        out = inference.speculate(model, model, x, 4, num_draft_tokens=2)
        tokens = inference.generate(model, x, 3, key=jax.random.key(0), top_p=0.9).tokens
        return outputs, y, state, inference.unroll(model, x), tokens, out

    x = observations("language")
    want = run(jnp.asarray(x), lambda state: state)
    with jax.set_mesh(mesh):
        got = run(split(mesh, x), partial(split, mesh))
    assert_close(jax.tree.map(np.asarray, got), want, np.float32)


def test_channels_of_moments_on_explicit_axes() -> None:
    mixing, h = models.ChannelMixing(3, TINY, "softmax", rngs=nnx.Rngs(0)), normal(0, 3, 2, 3, 8)
    mesh = make_mesh(AxisType.Explicit, data=2)
    placed = jax.device_put(h, NamedSharding(mesh, PartitionSpec(None, "data")))
    y = jax.jit(mixing)(placed)
    assert y.sharding.spec[1] == "data"
    assert_close(y, mixing(h), "float32")
