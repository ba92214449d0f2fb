"""The decision transformer: the published equations, parallel equals streamed, nothing ahead."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_linattn import inference, models
from flax_linattn.models.decision_transformer import DECISION_LENGTH
from tests.contract.tolerances import assert_close, assert_same_bits
from tests.models import cases
from tests.models.cases import run_whole as run
from tests.nn.cases import call, moved, run_steps
from tests.nn.equations import affine, array, normed, transformed

SEEN, DONE, LENGTH = 3, 2, 8
"""Numbers of an observation and of an action, steps of an episode."""
WIDTH = 3 + SEEN + DONE
TIME, KNOWN, RETURN, ACTION = 0, 1, 2, slice(3 + SEEN, None)
EVERYWHERE = np.ones((2, LENGTH), bool)
TINY = models.Layers(features=8, num_layers=1, num_heads=2, hidden_features=12)
slow = pytest.mark.slow


@functools.cache
def transformer(mechanism="aaren", **options):
    options = {"max_length": LENGTH, "layers": TINY} | options
    if mechanism == "aft:max_length=16":  # fewer than there are tokens
        mechanism = "aft"
    model = models.DecisionTransformer(SEEN, DONE, mechanism=mechanism, rngs=nnx.Rngs(0), **options)
    return moved(model)


def episodes(rows=2, length=LENGTH, seed=0):
    return cases.episodes(seed, rows, length, SEEN, DONE)


# What it computes, against NumPy in float64.


def published(model, returns, seen, done, times, leave_out=()):
    """Actions of an episode as the published code has them: tokens R1, s1, a1, R2, s2, a2, ...

    Args:
        model: of softmax attention, whose parameters are taken.
        returns: returns to go [T, 1].
        seen: observations [T, S].
        done: actions [T, A], each in its own step.
        times: [T].
        leave_out: steps whose actions are no tokens.
    """
    embedding = model.embedding
    table = array(embedding.times.table)[times]
    parts = (
        (embedding.return_to_go, returns), (embedding.observation, seen), (embedding.action, done),
    )  # fmt: skip
    h = np.stack([affine(linear, values) + table for linear, values in parts], axis=1)
    h = h.reshape(3 * len(seen), -1)
    kept = [n for n in range(len(h)) if not (n % 3 == 2 and n // 3 in leave_out)]
    h = normed(embedding.norm, h)[kept]
    for block in model.backbone.blocks:
        assert block.norm == "post" and block.feed_forward.activation == "gelu"
        h = transformed(block, h)
    of_states = [place for place, n in enumerate(kept) if n % 3 == 1]
    return np.tanh(affine(model.head, h[of_states]))


def parts_of(x):
    """Returns, observations and actions of one episode [T, W]; the last action is any."""
    x = x.astype(np.float64)
    done = np.concatenate([x[1:, ACTION], np.ones((1, DONE))])
    return x[:, RETURN, None], x[:, 3 : 3 + SEEN], done, x[:, TIME].astype(int)


def test_it_is_the_published_equation():
    """A step is told the action before it: the same tokens in the same order, but for the last."""
    model = transformer("softmax", num_layers=2)
    x = episodes()
    got = run(model, x)[0]
    want = np.stack([published(model, *parts_of(row)) for row in x])
    assert got.shape == (2, LENGTH, DONE) and got.dtype == np.float32
    assert_close(got, want, "float32")
    assert_close(run_steps(model, x, model.init_state(2))[0], want, "float32")
    # A window of an episode: other times, and nothing before its first step is told.
    later = transformer("softmax", num_layers=2, max_length=40)
    x[..., TIME] += np.array([[5], [31]])
    want = np.stack([published(later, *parts_of(row)) for row in x])
    assert_close(run(later, x)[0], want, "float32")


@slow
@pytest.mark.parametrize("heads", [1, 4])
def test_it_is_the_published_equation_in_float64(heads):
    """And steps; the fast test is above."""
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        model = models.DecisionTransformer(
            SEEN, DONE, max_length=LENGTH, layers=TINY, mechanism="softmax", num_heads=heads,
            param_dtype=jnp.float64, rngs=nnx.Rngs(0),
        )  # fmt: skip
        x = jnp.asarray(episodes(), jnp.float64)
        tokens = jax.jit(lambda x: model.embedding(x))(x).reshape(2, 3 * LENGTH, -1)
        mask = jnp.ones((2, 3 * LENGTH), bool).at[:, 0].set(False)
        h = jax.jit(lambda tokens: model.backbone(tokens, mask=mask))(tokens)[:, 2::3]
        got = np.tanh(affine(model.head, h))
        want = np.stack([published(model, *parts_of(np.asarray(row))) for row in x])
        assert_close(got, want, "float64")
        actions = jax.jit(lambda x: model(x))(x)
        streamed, _ = run_steps(model, x, model.init_state(2, dtype=jnp.float64))
        assert h.dtype == actions.dtype == streamed.dtype == np.float64
        assert_close((np.asarray(actions), streamed), (want, want), "float64")


def test_discrete_actions_are_one_hot_vectors_of_a_linear_layer():
    """A table is the kernel of a layer without bias; the outputs are logits."""
    discrete = moved(models.DecisionTransformer(
        SEEN, num_actions=4, max_length=LENGTH, layers=TINY, rngs=nnx.Rngs(0)
    ))  # fmt: skip
    one_hot = models.DecisionTransformer(
        SEEN, 4, max_length=LENGTH, layers=TINY, rngs=nnx.Rngs(0)
    )  # fmt: skip
    state = nnx.state(discrete)
    table = state["embedding"]["action"].pop("embedding")
    state["embedding"]["action"]["kernel"] = table
    state["embedding"]["action"]["bias"] = nnx.Param(jnp.zeros(8))
    nnx.update(one_hot, state)
    x = cases.choices(0, 2, LENGTH, SEEN, 4)
    vectors = np.eye(4, dtype=np.float32)[x[..., -1].astype(int)]
    logits, _ = run(discrete, x)
    assert logits.shape == (2, LENGTH, 4) and logits.dtype == np.float32
    expected, _ = run(one_hot, np.concatenate([x[..., :-1], vectors], axis=-1))
    assert_close(np.tanh(logits), expected, "float32")
    for wrong in (-1, 4, np.nan):  # of the second step, whose own outputs and later ones are NaN
        x[:, 1, -1] = wrong
        outputs, _ = run(discrete, x)
        assert np.isfinite(outputs[:, 0]).all() and np.isnan(outputs[:, 1:]).all()
    x[:, 1, KNOWN] = 0
    assert np.isfinite(run(discrete, x)[0]).all()


def test_an_action_that_is_not_known_is_no_token():
    """In the middle, too; whatever stands there is not seen."""
    model, x = transformer("softmax"), episodes()
    whole = run(model, x)[0]
    x[:, 4, KNOWN] = 0
    want = np.stack([published(model, *parts_of(row), leave_out=(3,)) for row in x])
    got, end = run(model, x)
    assert_close(got, want, "float32")
    assert np.abs(got - whole)[:, 4:].max() > 1e-3
    assert_same_bits(got[:, :4], whole[:, :4])
    streamed, after = run_steps(model, x, model.init_state(2))
    assert_close((streamed, after), (got, end), "float32")
    assert end.position.tolist() == [3 * LENGTH - 2] * 2
    for filler in (np.nan, 1e30):
        other = x.copy()
        other[:, [0, 4], ACTION] = filler
        assert_same_bits(run(model, other)[0], got)
        assert_close(run_steps(model, other, model.init_state(2)), (got, end), "float32")


def test_the_embedding_is_a_linear_layer_a_kind():
    embedding = transformer(position="none").embedding
    x = episodes()
    x[:, 0, ACTION] = 0  # there is none
    want = np.stack(
        [
            normed(embedding.norm, affine(linear, values))
            for linear, values in (
                (embedding.action, x[..., ACTION]),
                (embedding.return_to_go, x[..., RETURN, None]),
                (embedding.observation, x[..., 3 : 3 + SEEN]),
            )
        ],
        axis=-2,
    )
    assert_close(call(embedding, x), want, "float32")
    assert_close(call(embedding, x[:, 3]), want[:, 3], "float32")


# Times, and how many steps there is room for.


@pytest.mark.parametrize("position", ["learned", "sinusoidal", pytest.param("none", marks=slow)])
def test_times(position):
    """Those of the steps, not counted; an action has the time of the step before."""
    model, x = transformer(position=position), episodes()
    whole, end = run(model, x)
    streamed, after = run_steps(model, x, model.init_state(2))
    assert_close((streamed, after), (whole, end), "float32")
    moved_on = x.copy()
    moved_on[:, :4, TIME] += 2
    changed = np.abs(run(model, moved_on)[0] - whole).max()
    assert (changed == 0) if position == "none" else (changed > 1e-3)
    assert model.num_positions == (LENGTH if position == "learned" else None)
    if position != "none":
        tokens = call(model.embedding, x)
        later = x.copy()
        later[..., TIME] -= 1
        same = call(model.embedding, later[:, 2:])
        plain = call(model.embedding, x[:, 2:])
        assert np.abs(same - plain).max() > 1e-3
        # The action of step t is embedded as at t - 1: that of step 1 as if it came at 0 or 1.
        early = x.copy()
        early[:, 1, TIME] = 0
        assert_same_bits(call(model.embedding, early)[:, 1, 0], tokens[:, 1, 0])


@pytest.mark.parametrize("position", ["learned", pytest.param("sinusoidal", marks=slow), "none"])
def test_a_time_that_there_is_not_is_seen(position):
    """NaN in its row from there on: never the actions of another time."""
    model, x = transformer(position=position), episodes()
    want = run(model, x)[0]
    wrong = {"none": [], "sinusoidal": [-1.0, np.nan, -np.inf]}
    for time in wrong.get(position, [-1.0, LENGTH, 1e10, 1e30, np.nan, np.inf, -np.inf]):
        strange = x.copy()
        strange[0, 4, TIME] = time
        streamed, _ = run_steps(model, strange, model.init_state(2))
        actions = run(model, strange)[0]
        assert np.isnan(actions[0, 4:]).all() and np.isnan(streamed[0, 4:]).all(), time
        assert_same_bits(actions[1], want[1])
        assert_close(streamed[0, :4], want[0, :4], "float32")
        assert_close(streamed[1], want[1], "float32")
    if position != "learned":  # which knows any later one
        late = x.copy()
        late[..., TIME] += 1e6
        assert np.isfinite(run(model, late)[0]).all()


@pytest.mark.parametrize("position", ["learned", pytest.param("none", marks=slow)])
@pytest.mark.parametrize("mechanism", ["softmax", pytest.param("aaren", marks=slow)])
def test_a_stream_says_when_there_is_no_room(mechanism, position):
    """After steps, and after a prompt: for step max_length + 1, whichever end comes first."""
    model = transformer(mechanism, position=position)
    x = episodes(length=6)
    mask = np.ones((2, 6), bool)
    whole = run(model, np.pad(x, ((0, 0), (0, 2), (0, 0))), np.pad(mask, ((0, 0), (0, 2))))[0]
    stream = inference.Stream(model, batch_size=2, max_length=5)
    limited = mechanism == "softmax"
    for begin in (0, 3):
        stream.reset()
        if begin:
            y = stream.prefill(x[:, :begin], chunk_size=4)
            assert_close(np.asarray(y), whole[:, begin - 1], "float32")
        for t in range(begin, 5):
            assert_close(np.asarray(stream.step(x[:, t])), whole[:, t], "float32")
        if limited:
            with pytest.raises(
                ValueError, match="row 0 has no capacity for observation 6, because its cache"
            ):
                stream.step(x[:, 5])
            with pytest.raises(ValueError, match="no capacity for observation 6"):
                stream.prefill(x[:, 5:], chunk_size=4)
    stream.reset()
    if limited:
        with pytest.raises(
            ValueError, match="max_length must be at least 6, the observations, got 5"
        ):
            stream.prefill(x, chunk_size=4)
    # A row that begins anew has room again, beside one that goes on.
    stream.prefill(x[:, :4], chunk_size=4)
    again = np.array([True, False])
    y = np.asarray(stream.step(np.stack([x[0, 0], x[1, 4]]), reset=again))
    assert_close(y, np.stack([whole[0, 0], whole[1, 4]]), "float32")
    if limited:
        with pytest.raises(ValueError, match="row 1 has no capacity for observation 6"):
            stream.step(np.stack([x[0, 1], x[1, 5]]))
        y = stream.step(np.stack([x[0, 1], x[1, 5]]), again)
        assert_close(np.asarray(y)[0], whole[0, 1], "float32")
    if limited:
        cache = stream.state.layers[0]
        assert max(leaf.shape[2] for leaf in jax.tree.leaves(cache) if leaf.ndim > 2) == 15


def test_a_stream_of_learned_times_ends_with_them():
    model = transformer()
    stream = inference.Stream(model, batch_size=2)
    x = episodes()
    stream.prefill(x[:, :6], chunk_size=6)
    saved = jax.tree.map(jnp.copy, stream.state)
    stream.step(x[:, 6])
    stream.step(x[:, 7])
    with pytest.raises(
        ValueError, match=r"row 0 has no capacity for observation 9, because the model has pos"
    ):
        stream.step(x[:, 7])
    stream.state = saved  # after 17 tokens, which are 6 steps
    for t in (6, 7):
        stream.step(x[:, t])
    with pytest.raises(ValueError, match="no capacity for observation 9"):
        stream.step(x[:, 7])


@pytest.mark.parametrize("mechanism", ["softmax", pytest.param("aaren", marks=slow)])
def test_streams_reset_and_unroll(mechanism):
    """Rows that begin anew at different times, by a stream and in one program."""
    model, x = transformer(mechanism), episodes()
    reset = np.zeros((2, LENGTH), bool)
    reset[0, 3] = reset[1, 5] = True
    for row, start in ((0, 3), (1, 5)):
        x[row, start:, TIME] -= start
        x[row, start, KNOWN] = 0
    want = np.empty((2, LENGTH, DONE), np.float32)
    for row, start in ((0, 3), (1, 5)):
        for part in (slice(start), slice(start, None)):
            length = len(range(LENGTH)[part])
            alone, mask = np.zeros((2, LENGTH, WIDTH), np.float32), EVERYWHERE.copy()
            alone[:, :length] = x[row, part]
            mask[:, length:] = False
            want[row, part] = run(model, alone, mask)[0][0, :length]
    assert_close(np.asarray(inference.unroll(model, x, reset=reset)), want, "float32")
    stream = inference.Stream(model, batch_size=2, max_length=5)
    got = [np.asarray(stream.step(x[:, t], reset=reset[:, t])) for t in range(LENGTH)]
    assert_close(np.stack(got, axis=1), want, "float32")


# Parameters and dtypes.


def test_nothing_learns_from_actions_that_are_not_known():
    """Nor from what stands at padding; of other gradients the contract has it."""
    model, x = transformer(), episodes()
    graph, params = nnx.split(model, nnx.Param)
    mask = EVERYWHERE & (np.arange(LENGTH) % 5 != 3)

    @jax.jit
    def gradients(params, x):
        def loss(params):
            error = nnx.merge(graph, params)(x, mask=mask) ** 2
            return jnp.sum(jnp.where(mask[..., None], error, 0))

        return jax.grad(loss)(params)

    zeros, nans = x.copy(), x.copy()
    for other, filler in ((zeros, 0), (nans, np.nan)):
        other[~mask] = filler
        other[:, 0, ACTION] = filler
    assert_same_bits(gradients(params, nans), gradients(params, zeros))


# Programs, files, errors.


@slow
def test_a_hybrid_stack_with_rotary_layers_streams():
    """Tokens are counted, those left out are not; of other models, ``test_composition.py``."""
    model = transformer(
        ("softmax", "elementwise_series"), num_layers=2, rotary=True, position="none"
    )
    x = episodes()
    x[:, 3, KNOWN] = 0
    whole, end = run(model, x)
    assert_close(run_steps(model, x, model.init_state(2)), (whole, end), "float32")


def test_columns_come_apart_and_together():
    x = jnp.asarray(episodes())
    columns = models.DecisionColumns.from_array(x, SEEN)
    assert columns.observation.shape == (2, LENGTH, SEEN)
    assert columns.action.shape == (2, LENGTH, DONE)
    assert_same_bits(columns.to_array(), x)


def small(observation_dim=SEEN, action_dim=DONE, **options):
    options = {"layers": TINY} | options
    return models.DecisionTransformer(observation_dim, action_dim, rngs=nnx.Rngs(0), **options)


def test_what_it_is_made_of():
    default = nnx.eval_shape(lambda: small(np.int64(11), np.int64(3), layers=None))
    assert default.backbone.layers == models.DECISION_LAYERS
    assert default.max_length == DECISION_LENGTH == default.num_positions
    assert default.embedding.times.table.shape == (DECISION_LENGTH, 128)
    assert (default.observation_dim, default.action_dim, default.streams) == (11, 3, True)
    assert default.observation_shape == (17,) and default.tokens_per_observation == 3
    assert default.backbone.final_norm is None  # as published
    assert nnx.eval_shape(lambda: small(norm="pre")).backbone.final_norm is not None
    kernels = nnx.state(small(kernel_init=nnx.initializers.ones, bias_init=nnx.initializers.zeros))
    for path, leaf in jax.tree_util.tree_leaves_with_path(kernels):
        name = jax.tree_util.keystr(path)
        if "kernel" in name or "bias" in name:
            assert (np.asarray(leaf) == ("kernel" in name)).all(), name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"observation_dim": 0}, "observation_dim must be at least 1, got 0"),
        ({"action_dim": 0}, "action_dim must be at least 1, got 0"),
        ({"action_dim": None}, "needs action_dim, or num_actions for discrete actions, got .*None"),
        ({"num_actions": 4}, "got action_dim=2 and num_actions=4"),
        ({"action_dim": None, "num_actions": 0}, "num_actions must be at least 1, got 0"),
        ({"max_length": 0}, "max_length must be at least 1, got 0"),
        ({"max_length": None}, "learned positions need max_length"),
        ({"position": "rotary"}, "position must be one of sinusoidal, learned, none, got 'rotary'"),
        ({"mechanism": "linformer"}, "no causal form"),
        ({"is_causal": False}, "option must be one of .*, got 'is_causal'"),
        ({"kernel_size": 3}, "option must be one of .*, got 'kernel_size'"),
        ({"num_head": 3}, "did you mean 'num_heads'"),
        (
            {"num_heads": 3},
            "features must be a multiple of num_heads, got features=8 and num_heads=3",
        ),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        small(**options)


def test_steps_of_another_shape_are_refused():
    model = transformer()
    with pytest.raises(TypeError, match=r"observation_dim must be an integer, got 2\.5"):
        small(2.5)
    columns = r"\(time, known, return to go, 3 of the observation, 2 of the previous action\)"
    with pytest.raises(ValueError, match=rf"\[B, T >= 1, 8\] {columns}, got shape \(2, 8, 7\)"):
        model(episodes()[..., 1:])
    with pytest.raises(ValueError, match=rf"expected observations \[B, 8\] {columns}, got"):
        model.step(episodes(), model.init_state(2))
    for dtype in ("int32", "bfloat16", "float16"):
        with pytest.raises(TypeError, match=f"float32 or float64, got {dtype}, .* cast them"):
            model(jnp.zeros((2, LENGTH, WIDTH), dtype))
        with pytest.raises(TypeError, match=f"float32 or float64, got {dtype}"):
            model.step(jnp.zeros((2, WIDTH), dtype), model.init_state(2))
