"""Options of attention in whole models: reached by ``Layers``, streamed, saved and split."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from flax_linattn import inference, models, nn, ops
from flax_linattn.checks import OptionError
from tests.contract.tolerances import assert_close, assert_same_bits
from tests.meshes import make_mesh
from tests.nn.cases import call, moved, normal

TOKENS, ROWS, LENGTH = 7, 2, 6
GATED = models.Layers(
    features=8, num_layers=1, num_heads=2, hidden_features=12, norm="pre", dropout_rate=0.0,
    mechanism="gated_delta", num_kv_heads=1, rotary=True, normalize_qk="rms", output_norm="rms",
    output_gate="silu", short_conv=3,
)  # fmt: skip
SCORED = dataclasses.replace(
    GATED, mechanism="softmax:soft_cap=5", position_bias="relative", weight_dropout_rate=0.5
)
BOTH = pytest.mark.parametrize(
    "layers",
    [pytest.param(GATED, id="gated", marks=pytest.mark.slow), pytest.param(SCORED, id="scored")],
)


HYBRID = dataclasses.replace(
    GATED, num_layers=4, norm_type="rms", activation="swiglu", use_bias=False, remat="blocks",
    mechanism=3 * ("gated_delta:allow_neg_eigval=True",) + ("softmax:scale=0.3",),
    scan_layers=True,
)  # fmt: skip
"""Three layers of the delta rule for each of softmax, as in Qwen3-Next."""


@functools.cache
def language(layers: models.Layers) -> Any:
    return moved(
        models.LanguageModel(TOKENS, layers=layers, max_length=12, rngs=nnx.Rngs(0)), by=0.3
    )


def tokens() -> Any:
    return np.random.default_rng(0).integers(0, TOKENS, (ROWS, LENGTH)).astype(np.int32)


MASK = np.array([[True] * LENGTH, [False, True, True, False, True, True]])


@BOTH
def test_blocks_have_the_options(layers: models.Layers) -> None:
    (block,) = language(layers).backbone.blocks
    attention = block.attention
    assert attention.normalize_qk == "rms" and attention.output_gate == "silu"
    assert attention.output_norm is not None and attention.short_convolution is not None
    bias = attention.position_bias
    assert bias is None if layers is GATED else bias.is_causal and bias.num_heads == 2


@BOTH
def test_a_model_with_every_option_streams(layers: models.Layers, tmp_path: Any) -> None:
    """Prefill and steps, generated tokens, chosen and reset rows, saved and exported states."""
    model, x = language(layers), tokens()
    whole = call(model, x, mask=MASK)
    y, state = inference.prefill(model, x[:, :4], mask=MASK[:, :4], max_length=12)
    assert isinstance(state.layers[0], nn.ShortConvState)
    assert_close(y, whole[[0, 1], [3, 2]], "float32")  # of the last valid tokens
    step = jax.jit(lambda x, state: model.step(x, state))
    y, after = step(x[:, 4], state)
    assert_close(y, whole[:, 4], "float32")
    assert_close(step(x[:, 5], after)[0], whole[:, 5], "float32")

    chosen = inference.gather_rows(state, jnp.array([1, 1, 0]))  # as a beam search does
    assert_close(model.step(x[[1, 1, 0], 4], chosen)[0], whole[[1, 1, 0], 4], "float32")
    again = inference.reset_rows(after, jnp.array([False, True]), model.init_state(1, 12))
    assert_close(step(x[:, 0], again)[0][1], call(model, x[1:, :1])[0, 0], "float32")
    inference.save_state(tmp_path / "state.npz", state, {})
    assert_same_bits(inference.load_state(tmp_path / "state.npz", state)[0], state)
    exported = jax.export.deserialize(jax.export.export(step)(x[:, 4], state).serialize())
    assert_same_bits(exported.call(x[:, 4], state), (y, after))

    generated = inference.generate(model, x[:, :3], 3)
    longer = np.concatenate([x[:, :3], generated.tokens], axis=1)
    np.testing.assert_array_equal(np.argmax(call(model, longer), axis=-1)[:, 2:5], generated.tokens)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [AxisType.Auto, pytest.param(AxisType.Explicit, marks=pytest.mark.slow)]
)
def test_sequences_with_every_option_are_split_over_devices(kind: AxisType) -> None:
    """Each device needs tokens of the device before it for the convolution; gradients, too."""
    mesh = make_mesh(kind, data=2, seq=3)
    split = GATED.map_mechanisms(lambda mechanism: ops.sequence_parallel(mechanism, mesh, "seq"))

    @functools.partial(jax.jit, static_argnums=0)
    def run(layers: Any, params: Any, x: Any, mask: Any) -> Any:
        def loss(params: Any) -> Any:
            y = nnx.merge(layers, params)(x, mask=mask)
            return jnp.sum(jnp.where(mask[..., None], y, 0) ** 2), y

        return jax.value_and_grad(loss, has_aux=True)(params)

    def graph(layers: models.Layers) -> Any:
        return nnx.split(language(layers))

    x = tokens()
    (_, want), gradients = run(*graph(GATED), x, MASK)
    with jax.set_mesh(mesh):
        at = NamedSharding(mesh, PartitionSpec("data", "seq"))
        (_, got), gradients_split = run(
            graph(split)[0], graph(GATED)[1], jax.device_put(x, at), jax.device_put(MASK, at)
        )
    assert_close(np.asarray(got)[MASK], np.asarray(want)[MASK], "float32")
    assert_close(jax.device_get(gradients_split), jax.device_get(gradients), "float32")


@pytest.mark.parametrize(
    ("options", "message", "concerned"),
    [
        ({"position_bias": "alibi"}, "'aaren' does not support position_bias: its state", True),
        ({"weight_dropout_rate": 0.1}, "'aaren' does not support weight_dropout_rate", True),
        (
            {"position_bias": "alibi", "mechanism": "softmax:window=4,sinks=1"},
            "position_bias needs the distances of all visible tokens",
            True,
        ),
        ({"weight_dropout_rate": 1.0}, r"weight_dropout_rate must be in \[0, 1\)", False),
        ({"position_bias": "relativ"}, "alibi, relative, got .* did you mean 'relative'", False),
        ({"normalize_qk": "max"}, "normalize_qk must be one of layer, rms, l2, got 'max'", False),
        ({"output_norm": 5}, "output_norm must be one of rms, got 5", False),
        ({"output_gate": "relu"}, "output_gate must be one of sigmoid, silu", False),
        ({"short_conv": 1}, "short_conv must be at least 2", False),
    ],
)
def test_what_layers_refuse(options: Any, message: str, concerned: bool) -> None:
    with pytest.raises(OptionError, match=message) as caught:
        models.Layers(**options)
    names = {next(iter(options))} | ({"mechanism"} if concerned else set())
    assert set(caught.value.options) == names


def test_tokens_without_an_order_have_no_options_of_order() -> None:
    """Refused for latents and class tokens; attention between channels goes without."""
    ordered = {"short_conv": 2, "position_bias": "alibi"}
    rngs = nnx.Rngs(0)
    for name, value in ordered.items():
        options = {"features": 8, "num_heads": 2, "mechanism": "softmax", name: value}
        with pytest.raises(OptionError, match=f"latents have no positions; remove {name}"):
            models.PerceiverReader(3, 2, rngs=rngs, **options)
        with pytest.raises(OptionError, match=f"class token has no position, which {name} needs"):
            models.Backbone(3, class_token=True, is_causal=False, rngs=rngs, **options)
    mixing = models.channel_mixing.ChannelMixing(3, SCORED, "softmax", rngs=rngs)
    attention = mixing.block.attention
    assert attention.output_gate == "silu" and attention.weight_dropout is not None
    assert attention.short_convolution is attention.position_bias is attention.position is None
    with pytest.raises(
        OptionError, match="'linear' does not support weight_dropout_rate"
    ) as caught:
        models.channel_mixing.ChannelMixing(3, SCORED, "linear", rngs=rngs)
    assert caught.value.options == ("channel_mechanism",)


@pytest.mark.slow
def test_an_encoder_decoder_with_every_option() -> None:
    """Only cross-attention has neither a convolution nor a bias."""
    model = moved(
        models.EncoderDecoder(
            3, 3, label_length=2, layers=dataclasses.replace(SCORED, rotary=False),
            embedding_padding="causal", rngs=nnx.Rngs(params=0, dropout=1),
        )
    )  # fmt: skip
    (decoder,) = model.decoder
    assert decoder.attention.short_convolution is not None
    assert decoder.attention.position_bias is not None
    assert decoder.cross_attention.short_convolution is None
    assert decoder.cross_attention.position_bias is None
    assert decoder.cross_attention.output_gate == "silu"
    values = normal(1, 2, 5, 3)
    want = call(model, values)
    state, step = jax.jit(model.init_state)(values), jax.jit(model.step)
    for h in range(3):
        y, after = step(None, state)
        assert_close(y, want[:, h], "float32")
        state = after if h < 2 else state
    model.train()
    assert np.abs(model(values) - model(values)).max() > 1e-3
    assert_close(model.step(None, state)[0], y, "float32")  # steps drop nothing


def test_training_drops_weights_of_attention() -> None:
    layers = dataclasses.replace(SCORED, rotary=False, short_conv=None)
    model = models.Backbone(3, layers, rngs=nnx.Rngs(params=0, dropout=1))
    x, key = normal(1, 2, 5, 3), jax.random.key(0)
    sure = model(x)
    dropped = model(x, dropout_key=key)
    assert np.abs(dropped - sure).max() > 1e-3
    assert_same_bits(model(x, dropout_key=key), dropped)
    model.train()
    assert np.abs(model(x) - model(x)).max() > 1e-3
    remat = models.Backbone(3, layers, remat="blocks", rngs=nnx.Rngs(params=0, dropout=1))
    assert_close(remat(x, dropout_key=key), dropped, "float32")


@pytest.mark.parametrize("periods", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_hybrid_stack_trains_and_streams(periods: int) -> None:
    mechanism: Any = periods * HYBRID.mechanism
    layers = dataclasses.replace(HYBRID, num_layers=4 * periods, mechanism=mechanism)
    assert layers.scan_period == 4
    model, x = language(layers), tokens()
    graph, params, rest = nnx.split(model, nnx.Param, ...)

    @jax.jit
    def train(params: Any) -> Any:
        def loss(params: Any) -> Any:
            logits = nnx.merge(graph, params, rest)(x)
            right = jax.nn.one_hot(x[:, 1:], TOKENS)
            return -jnp.mean(jnp.sum(right * jax.nn.log_softmax(logits[:, :-1]), -1)), logits

        (value, logits), gradients = jax.value_and_grad(loss, has_aux=True)(params)
        return value, logits, gradients, jax.tree.map(lambda p, g: p - 0.001 * g, params, gradients)

    before, logits, gradients, trained = train(params)
    assert all(np.any(g) and np.isfinite(g).all() for g in jax.tree.leaves(gradients))
    assert train(trained)[0] < before
    y, state = inference.prefill(model, x[:, :4], max_length=12)
    step = jax.jit(lambda x, state: model.step(x, state))
    outputs = [y]
    for t in (4, 5):
        y, state = step(x[:, t], state)
        outputs.append(y)
    assert_close(np.stack(outputs, axis=1), np.asarray(logits)[:, 3:], "float32")
    generated = inference.generate(model, x, 2).tokens
    np.testing.assert_array_equal(generated[:, 0], np.argmax(logits[:, -1], axis=-1))
