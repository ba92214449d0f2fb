"""Sequences read by latents: parallel, prefixes, steps, splits, padding, packing, saved models."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_linattn import inference, models
from tests.contract.tolerances import assert_close, assert_same_bits
from tests.models.cases import CHANNELS, CLASSES, moved, rows_of_segments
from tests.nn.cases import LAYOUTS, at_real, call, normal, padded, pulled, run_steps

ROWS, LENGTH = LAYOUTS.shape
LATENTS = 3


@functools.cache
def reader(reads_by="aaren", **options):
    options = {"num_layers": 1, "rngs": nnx.Rngs(0)} | options
    return moved(
        models.PerceiverReader(
            CHANNELS,
            CLASSES,
            num_latents=LATENTS,
            reads_by=reads_by,
            features=8,
            num_heads=2,
            hidden_features=12,
            **options,
        )
    )


READS = pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"reads_by": "forgetting_aaren"}, marks=pytest.mark.slow),
        pytest.param({"norm": "pre", "mechanism": "linear"}, marks=pytest.mark.slow),
    ],
    ids=["aaren", "forgetting", "pre"],
)


@READS
def test_every_step_is_the_loop_is_every_split_is_the_whole(options):
    model = reader(**options)
    x, start = normal(1, ROWS, LENGTH, CHANNELS), model.init_state(ROWS)
    running = call(model, x, every_step=True)
    assert running.shape == (ROWS, LENGTH, CLASSES)
    assert running.dtype == np.float32
    by_steps, last = run_steps(model, x, start)
    assert_close(by_steps, running, "float32")
    half = LENGTH // 2
    y, state = call(model, x[:, :half], state=start, return_state=True)
    assert_close(y, running[:, half - 1], "float32")
    y, state = call(model, x[:, half:], state=state, return_state=True)
    assert_close(y, running[:, -1], "float32")
    assert_close(state, last, "float32")
    assert_close(call(model, x), running[:, -1], "float32")


def test_what_the_latents_read_is_softmax_cross_attention():
    """The model written out by the plain equations of its parts."""
    model = reader()
    x = normal(2, ROWS, LENGTH, CHANNELS)
    positions = jnp.tile(jnp.arange(LENGTH), (ROWS, 1))

    @nnx.jit
    def plain(model, x):
        h, _ = model.input_embedding(x, positions=positions)
        layer = model.latent_attention
        q, k, v = (
            projection(tokens).reshape(ROWS, -1, 2, 4)
            for projection, tokens in (
                (layer.query_projection, jnp.broadcast_to(layer.latents, (ROWS, LATENTS, 8))),
                (layer.key_projection, h),
                (layer.value_projection, h),
            )
        )
        weight = jax.nn.softmax(jnp.einsum("blhk,bshk->bhls", q, k) * 0.5, axis=-1)
        read = layer.out_projection(jnp.einsum("bhls,bshv->blhv", weight, v).reshape(ROWS, -1, 8))
        z = model.read_norm(layer.latents + read)
        return model.head(model.backbone(z).mean(axis=1))

    assert_close(call(model, x), plain(model, x), "float32")


def test_padding_anywhere_changes_nothing():
    """Outputs and all parameter gradients, with NaN as padding; so do masked steps."""
    model, weights = reader(), normal(20, ROWS, CLASSES)
    real, right = normal(3, ROWS, 4, CHANNELS), np.tile(LAYOUTS[:1], (ROWS, 1))
    want = pulled(model, padded(real, 0.0, right), weights, mask=right)
    got = pulled(model, padded(real), weights, mask=LAYOUTS)
    assert_close(got.y, want.y, "float32")
    assert_close(got.params, want.params, "float32")
    stepped, state = run_steps(model, padded(real), model.init_state(ROWS), LAYOUTS)
    assert_close(at_real(stepped)[:, -1], want.y, "float32")
    assert state.position.tolist() == [4] * ROWS


def test_packed_sequences_are_by_themselves():
    model, x = reader(), normal(4, 2, 8, CHANNELS)
    ids, mask, sequences = rows_of_segments()
    poisoned = np.where(mask[..., None], x, np.nan)
    found = call(model, poisoned, mask=mask, segment_ids=ids, every_step=True)
    for row, places in sequences:
        alone, first = np.zeros_like(x), np.zeros((2, 8), bool)
        alone[:, : len(places)], first[:, : len(places)] = x[row, places], True
        want = call(model, alone, mask=first, every_step=True)[0, : len(places)]
        assert_close(found[row, places], want, "float32")


def test_the_state_does_not_grow():
    model = reader()
    small, large = (model.init_state(2, max_length=length) for length in (1, 10**9))
    assert_same_bits(small, large)
    heads = 2 * LATENTS * 2  # rows, latents, heads of 4 channels
    assert sum(leaf.size for leaf in jax.tree.leaves(small.latents)) == heads * (1 + 1 + 4)


def test_it_streams_and_is_saved(tmp_path):
    model, x = reader(), normal(5, 1, LENGTH, CHANNELS)
    y, state = inference.prefill(model, x[:, :4])
    assert_close(y, call(model, x[:, :4]), "float32")
    models.save_model(tmp_path / "reader", model)
    again = models.load_model(tmp_path / "reader")
    assert_same_bits(run_steps(again, x[:, 4:], state), run_steps(model, x[:, 4:], state))


def test_dropout_is_turned_on_by_a_key():
    model = reader(dropout_rate=0.5)
    x = normal(6, ROWS, LENGTH, CHANNELS)
    still = call(model, x)
    assert_same_bits(still, call(model, x))
    moving = [call(model, x, dropout_key=jax.random.key(seed)) for seed in (0, 0, 1)]
    assert_same_bits(moving[0], moving[1])
    assert not np.allclose(moving[0], moving[2])
    assert not np.allclose(moving[0], still)


def test_an_embedding_of_tokens():
    embedding = models.TokenEmbedding(11, 8, rngs=nnx.Rngs(0))
    model = models.PerceiverReader(
        embedding, 2, num_latents=2, features=8, num_heads=2, rngs=nnx.Rngs(1)
    )
    assert call(model, jnp.array([[1, 2, 3]])).shape == (1, 2)


def test_layers_with_a_parameter_for_each_position_have_one_for_each_latent():
    model = models.PerceiverReader(
        3, 2, num_latents=2, features=8, num_heads=2, mechanism="linformer", rngs=nnx.Rngs(0)
    )
    assert model.backbone.mechanisms[0].max_length == 2
    assert call(model, normal(1, 2, 5, 3)).shape == (2, 2)


REFUSED = [
    ({"rotary": True, "mechanism": "softmax"}, "latents have no positions"),
    ({"reads_by": "softmax"}, "latents read by aaren or forgetting_aaren"),
    ({"num_latents": 0}, "num_latents must be at least 1"),
    ({"mechanism": "gated_linear"}, "latents have no order, and 'gated_linear' is causal only"),
    ({"colour": 1}, "colour"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_options_that_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        models.PerceiverReader(3, 2, features=8, num_heads=2, rngs=nnx.Rngs(0), **options)


CALLS = [
    (lambda model, x: model(x, segment_ids=jnp.zeros(x.shape[:2], int)), "every_step=True"),
    (lambda model, x: model(x[..., :2]), r"expected observations \[B, T >= 1, 3\]"),
    (lambda model, x: model(x, mask=jnp.ones((1, 1), bool)), "expected mask as bool"),
    (lambda model, x: model.step(x, model.init_state(ROWS)), "an observation for each row"),
    (lambda model, x: model(x, state=(1, 2)), "expected a PerceiverState"),
]


@pytest.mark.parametrize(("use", "message"), CALLS)
def test_calls_that_are_refused(use, message):
    with pytest.raises(ValueError, match=message):
        use(reader(), normal(1, ROWS, LENGTH, CHANNELS))


def test_what_looks_at_the_future_does_not_stream():
    model = reader(embedding_padding="circular")
    assert not model.streams
    for use in (lambda: model.init_state(1), lambda: model(jnp.ones((1, 2, 3)), every_step=True)):
        with pytest.raises(ValueError, match="embedding_padding='causal'"):
            use()
