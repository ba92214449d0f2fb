"""The backbone: features by every route, positions that continue, the caches' sizes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_linattn import models, ops
from tests.contract.tolerances import assert_close
from tests.models.cases import CHANNELS, MAX_LENGTH, backbone, rows_of_segments
from tests.nn.cases import STACKED, call, normal, run_steps


@pytest.mark.parametrize("mechanism", STACKED)
def test_packed_state_continues_its_own_segment_only(mechanism):
    """A step after a packed call goes on in the last segment."""
    model = backbone(mechanism, num_layers=1)
    ids, mask, sequences = rows_of_segments()
    x, extra = np.asarray(normal(3, 2, 8, CHANNELS)), np.asarray(normal(4, 2, CHANNELS))
    _, state = call(model, x, mask=mask, segment_ids=ids, return_state=True)
    assert state.segment_id.tolist() == [2, 4]
    assert state.position.tolist() == [2, 2]
    h, state = run_steps(model, extra[:, None], state)
    last = np.stack([x[row, positions] for row, positions in (sequences[2], sequences[5])])
    want = call(model, np.concatenate([last, extra[:, None]], axis=1))
    assert_close(h[:, 0], want[:, -1], "float32")
    assert state.position.tolist() == [3, 3]


def test_positions_matter_and_continue():
    """The same observation at another position has other features."""
    model = backbone(kernel_size=1, num_layers=1)
    x = jnp.ones((1, 4, CHANNELS))
    h = call(model, x)
    assert not np.allclose(h[:, 0], h[:, 1], atol=1e-3)
    _, state = call(model, x[:, :2], return_state=True)
    assert_close(call(model, x[:, 2:], state=state), h[:, 2:], "float32")


def test_learned_positions_end():
    model = backbone(position="learned", max_length=3, num_layers=1)
    x = normal(5, 1, 4, CHANNELS)
    with pytest.raises(ValueError, match="has positions for 3 observations, got 4"):
        model(x)
    h, _ = run_steps(model, x, model.init_state(1))
    assert np.isfinite(h[:, :3]).all()
    assert np.isnan(h[:, 3:]).all()


def test_the_final_norm_may_be_left_out():
    """Its parameters with it, in parallel and by steps; nothing else changes."""
    normed, bare = backbone(num_layers=1), backbone(num_layers=1, final_norm=False)
    state = nnx.state(normed, nnx.Param)
    del state["final_norm"]
    assert jax.tree.structure(state) == jax.tree.structure(nnx.state(bare, nnx.Param))
    bare = nnx.merge(nnx.graphdef(bare), state)
    x = normal(7, 2, 5, CHANNELS)
    h = call(bare, x)
    assert_close(call(normed.final_norm, h), call(normed, x), "float32")
    assert not np.allclose(h, call(normed, x), atol=1e-2)
    assert_close(run_steps(bare, x, bare.init_state(2))[0], h, "float32")


def test_max_length_sizes_the_caches():
    model = backbone("softmax")
    assert [layer.capacity for layer in model.init_state(2).layers] == [MAX_LENGTH] * 2
    assert [layer.capacity for layer in model.init_state(2, 3).layers] == [3, 3]
    model = backbone("softmax", num_layers=1)
    x, state = normal(6, 2, 4, CHANNELS), model.init_state(2, 3)
    _, state = run_steps(model, x[:, :3], state)
    with pytest.raises(ValueError, match="cache holds 3 tokens, got token number 4"):
        model.step(x[:, 3], state)


@pytest.mark.parametrize(
    ("options", "streams"),
    [
        ({}, True),
        ({"is_causal": False}, False),
        ({"embedding_padding": "circular"}, False),
    ],
)
def test_streams(options, streams):
    assert backbone(**options).streams is streams


def test_the_length_goes_to_mechanisms_that_learn_positions():
    model = backbone("linformer:num_projections=2", is_causal=False)
    parameters = model.blocks[0].attention.mechanism_parameters
    assert parameters["key_projection"].shape == (MAX_LENGTH, 2)
    assert not model.streams
    assert call(model, jnp.ones((2, 5, CHANNELS))).shape == (2, 5, 8)
    with pytest.raises(ValueError, match="'linformer' needs the whole sequence at once"):
        model.init_state(2)


def test_hyperparameters_in_the_name():
    model = backbone("elementwise_series:order=2,chunk_size=4")
    assert model.mechanisms[0] == ops.get_mechanism("elementwise_series", order=2, chunk_size=4)
    assert model.init_state(1).layers[0].s.shape[1] == 3


def test_bert_base():
    """Twelve layers of width 768 with 12 heads: the parameter count of its encoder."""
    size = models.get_size("bert-base")
    model = nnx.eval_shape(lambda: models.Backbone(5, size, mechanism="softmax", rngs=nnx.Rngs(0)))
    blocks = nnx.split(model.blocks, nnx.Param)[1]
    count = sum(leaf.size for leaf in jax.tree.leaves(blocks))
    assert count == 12 * (4 * (768**2 + 768) + 2 * 768 * 3072 + 768 + 3072 + 4 * 768)
    assert model.blocks[0].attention.num_heads == 12
    with pytest.raises(ValueError, match="size must be one of bert-base, tslib"):
        models.get_size("bert")


@pytest.mark.parametrize("remat", [pytest.param("dots", marks=pytest.mark.slow), "blocks"])
def test_recomputation_changes_memory_only(remat):
    """The same outputs and gradients, dropout included; products are made again or kept.

    On a CPU XLA merges what is made twice, so that the compiled memory does not tell.
    """
    (plain, want), (again, got) = recomputed("none"), recomputed(remat)
    assert_close(got, want, "float32")
    assert plain == again if remat == "dots" else plain < again


@functools.cache
def recomputed(remat):
    """How many products the program holds, and a loss with its gradients."""
    x, mask = normal(3, 2, 6, CHANNELS), jnp.ones((2, 6), bool)
    graph, params = nnx.split(backbone("aaren", dropout_rate=0.5, remat=remat, num_layers=1))

    def loss(params):
        h = nnx.merge(graph, params)(x, mask=mask, dropout_key=jax.random.key(0))
        return jnp.mean(h**2 * jnp.arange(6.0)[:, None])

    lowered = jax.jit(jax.value_and_grad(loss)).lower(params)
    return lowered.as_text().count("dot_general"), lowered.compile()(params)


def test_a_scan_over_layers_is_the_loop():
    """Outputs, states and gradients, with dropout, padding, packing and a state; then steps."""
    plain, scanned = (
        backbone("retention", dropout_rate=0.3, scan_layers=scans) for scans in (False, True)
    )
    ids, mask, _ = rows_of_segments()
    x = normal(3, 2, 8, CHANNELS)

    def trained(model):
        """How many products the program holds; outputs, states and gradients."""
        graph, params, rest = nnx.split(model, nnx.Param, ...)

        def loss(params):
            model, state, loss = nnx.merge(graph, params, rest), None, 0.0
            for span in (slice(5), slice(5, 8)):
                tokens = {"mask": mask[:, span], "segment_ids": ids[:, span]}
                how = {"return_state": True, "dropout_key": jax.random.key(0)}
                h, state = model(x[:, span], state=state, **tokens, **how)
                loss += jnp.mean(jnp.where(tokens["mask"][..., None], h**2, 0.0))
            return loss, state

        lowered = jax.jit(jax.value_and_grad(loss, has_aux=True)).lower(params)
        return lowered.as_text().count("dot_general"), lowered.compile()(params)

    (products, want), (scanned_products, got) = map(trained, (plain, scanned))
    assert_close(got, want, "float32")
    assert scanned_products < 0.8 * products
    y, state = call(scanned, x[:, :5], return_state=True)
    steps, _ = run_steps(scanned, x[:, 5:], state)
    assert_close(np.concatenate([y, steps], axis=1), call(plain, x), "float32")


def test_the_period_of_a_scan_over_layers():
    periods = {"aaren": 1, ("aaren", "softmax", "aaren", "softmax"): 2}
    periods |= {("aaren", "softmax", "softmax", "aaren"): 4}
    for mechanism, period in periods.items():
        assert models.Layers(num_layers=4, mechanism=mechanism).scan_period == period
    changed = backbone("retention", scan_layers=True)
    changed.blocks[-1].attention.out_projection.precision = "highest"
    with pytest.raises(ValueError, match="an attribute of a block was changed"):
        changed(jnp.zeros((1, 2, 3)))
    with pytest.raises(ValueError, match="scan_layers needs equal blocks, but drop_path_rate"):
        models.Layers(scan_layers=True, drop_path_rate=0.1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"mechanism": "aft:max_length=2", "max_length": 3},
            "'aft' has max_length=2, but the model needs 3 positions; remove",
        ),
        ({"mechanism": "nystrom"}, "'nystrom' does not support is_causal=True; make the"),
        ({"remat": "all"}, "remat must be one of none, dots, blocks, got 'all'"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=message):
        backbone(**options)
