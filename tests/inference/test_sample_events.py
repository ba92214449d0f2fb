"""Futures of events: they follow the law of the model, and rows do not know of each other."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from scipy import special, stats

from flax_linattn import inference, models
from tests.contract.tolerances import assert_close, assert_same_bits
from tests.inference.cases import take
from tests.meshes import make_mesh
from tests.nn.cases import CAUSAL, call, run_steps

KEY = jax.random.key(7)
LEAST = 1e-3
"""Of a test's p value: one in a thousand right samples is below it, and seeds are fixed."""


class Chain(nnx.Module):
    """Events whose law is known: gap and event type depend on the last event type alone.

    An observation is a log gap and an event type, and an output too. The state counts events.
    """

    def __init__(self):
        logits = [[0.0, 1.0, 0.5], [1.0, -1.0, 0.0], [-jnp.inf, 0.0, 1.0]]
        self.logits = nnx.Param(jnp.array(logits))
        self.log_weights = nnx.Param(jnp.log(jnp.array([0.3, 0.7])))
        self.means = nnx.Param(jnp.array([[-1.0, 2.0], [0.0, 0.5], [10.0, 12.0]]))
        self.deviations = nnx.Param(jnp.array([[0.5, 1.0], [0.1, 3.0], [1.0, 0.2]]))

    def init_state(self, batch_size, max_length=None, *, dtype=jnp.float32):
        return jnp.zeros(batch_size, jnp.int32)

    def step(self, x, state, *, mask=None):
        return x, state + 1

    def next_event(self, outputs):
        last = outputs[..., 1].astype(jnp.int32)
        weights = jnp.broadcast_to(self.log_weights[...], (*last.shape, 2))
        gap = models.LogNormalMixture(weights, self.means[last], self.deviations[last])
        return models.NextEvent(gap, self.logits[last])

    def observation(self, before, log_gap, event_type):
        return jnp.stack([log_gap, event_type.astype(jnp.float32)], axis=-1)

    def distribution(self, event_type):
        """Of log gaps after an event type, float64."""
        weights = np.exp(np.asarray(self.log_weights[...], np.float64))
        mean, std = (np.asarray(own[event_type]) for own in (self.means, self.deviations))
        return lambda x: special.ndtr((x[..., None] - mean) / std) @ weights

    def shares(self, event_type):
        """Of the event types that follow one."""
        return special.softmax(np.asarray(self.logits[event_type], np.float64))


ROWS, EVENTS = 4000, 3
chain = functools.cache(Chain)


@functools.cache
def drawn_of_chain(waited=None):
    """[ROWS, EVENTS], a third of the rows after each event type."""
    model = chain()
    types = np.arange(ROWS) % 3
    x = jnp.stack([jnp.zeros(ROWS), jnp.asarray(types, jnp.float32)], axis=-1)
    if waited is not None:
        waited = jnp.asarray(np.array(waited, np.float32)[types])
    out = inference.sample_events(
        model, x, x, model.init_state(ROWS), EVENTS, key=KEY, waited=waited
    )
    before = np.concatenate([types[:, None], out.event_types[:, :-1]], axis=1)
    return before, jax.tree.map(np.asarray, out)


def test_draws_follow_the_law():
    before, out = drawn_of_chain()
    assert out.log_gaps.shape == out.event_types.shape == (ROWS, EVENTS)
    assert (out.log_gaps.dtype, out.event_types.dtype) == (np.float32, np.int32)
    assert (out.state == EVENTS).all()
    assert_same_bits(
        out.x, np.stack([out.log_gaps[:, -1], out.event_types[:, -1]], 1).astype("float32")
    )
    for event in range(EVENTS):
        for event_type in range(3):
            after = before[:, event] == event_type
            gaps, types = out.log_gaps[after, event], out.event_types[after, event]
            assert stats.kstest(gaps, chain().distribution(event_type)).pvalue > LEAST
            shares, counts = chain().shares(event_type), np.bincount(types, minlength=3)
            assert not counts[shares == 0].any()
            real = shares > 0
            expected = shares[real] * after.sum()
            assert stats.chisquare(counts[real], expected).pvalue > LEAST
            # Gaps and event types do not depend on each other, nor on those of the event before.
            late = gaps > np.median(gaps)
            table = [np.bincount(types[late == side], minlength=3)[real] for side in (0, 1)]
            assert stats.chi2_contingency(table).pvalue > LEAST
            if event:
                earlier = out.log_gaps[after & (before[:, event - 1] == 0), event - 1]
                later = out.log_gaps[after & (before[:, event - 1] == 0), event]
                assert stats.spearmanr(earlier, later).pvalue > LEAST


def test_a_row_and_an_event_are_drawn_alike_however_many_there_are():
    """With one key row i has ``fold_in(key, i)``, and event n of a row ``fold_in`` of that."""
    _, out = drawn_of_chain()
    model = chain()
    x = jnp.stack([jnp.zeros(6), jnp.arange(6.0) % 3], axis=-1)
    few = inference.sample_events(model, x, x, model.init_state(6), EVENTS - 1, key=KEY)
    assert_same_bits(np.asarray(few.log_gaps), out.log_gaps[:6, :-1])
    assert_same_bits(np.asarray(few.event_types), out.event_types[:6, :-1])
    keys = jax.random.split(KEY, 6)
    rows = inference.sample_events(model, x, x, model.init_state(6), EVENTS - 1, key=keys)
    one = slice(4, 5)
    alone = inference.sample_events(
        model, x[one], x[one], model.init_state(1), EVENTS - 1, key=keys[one]
    )
    assert_same_bits(
        (alone.log_gaps, alone.event_types), (rows.log_gaps[one], rows.event_types[one])
    )


def test_after_waiting_the_first_event_comes_later():
    """After event type 0 one deviation of the later component, after 1 nothing, after 2 far out."""
    waited = (3.0, -np.inf, 14.0)
    before, out = drawn_of_chain(waited)
    for event_type, passed in enumerate(waited):
        after = before[:, 0] == event_type
        gaps, law = out.log_gaps[after, 0], chain().distribution(event_type)
        assert (gaps >= passed).all()
        gone = law(np.array(passed))
        found = stats.kstest(gaps, lambda x, law=law, gone=gone: (law(x) - gone) / (1 - gone))
        assert found.pvalue > LEAST, event_type
        # The second event is as ever.
        second = out.log_gaps[before[:, 1] == event_type, 1]
        assert stats.kstest(second, law).pvalue > LEAST
    # Who has not waited draws the same, the event types are the same whoever waited.
    _, plain = drawn_of_chain()
    rows = before[:, 0] == 1
    assert_same_bits(out.log_gaps[rows], plain.log_gaps[rows])
    assert_same_bits(out.event_types, plain.event_types)


# The event model.

TYPES, PERIODS = 3, (24.0,)


@functools.cache
def forecaster(mechanism="aaren", **options):
    return models.EventForecaster(
        TYPES, periods=PERIODS, num_components=2, features=8, num_layers=1, num_heads=2,
        mechanism=mechanism, rngs=nnx.Rngs(0), **options,
    )  # fmt: skip


def history(rows=4, seed=0):
    """Observations of a begin and two events, in NumPy."""
    rng = np.random.default_rng(seed)
    x = np.zeros((rows, 3, 5), np.float32)
    x[:, 0, 2], x[:, 1:, 1] = TYPES, 1
    x[:, 1:, 0] = rng.normal(size=(rows, 2))
    x[:, 1:, 2] = rng.integers(0, TYPES, (rows, 2))
    angle = rng.uniform(0, 2 * np.pi, (rows, 3))
    x[..., 3], x[..., 4] = np.cos(angle), np.sin(angle)
    return x


def begun(model, rows=4):
    """Outputs, the last observation and the state, after a history."""
    x = history(rows)
    outputs, state = run_steps(model, x, model.init_state(rows, 12))
    return jnp.asarray(outputs[:, -1]), jnp.asarray(x[:, -1]), state


def draw(model, last, number=4, key=KEY, **options):
    return inference.sample_events(model, *last, number, key=key, **options)


@pytest.mark.parametrize(
    "mechanism",
    [
        pytest.param(*c.values, id=c.id, marks=() if c.id == "aaren" else pytest.mark.slow)
        for c in CAUSAL
    ],
)
def test_what_comes_out_is_what_the_parallel_model_says(mechanism):
    """Of the history and what was drawn, one after the other."""
    model = forecaster(mechanism)
    out = draw(model, begun(model))
    follow = jax.jit(model.observation)
    x = list(np.moveaxis(history(), 1, 0))
    for event in range(4):
        x.append(np.asarray(follow(x[-1], out.log_gaps[:, event], out.event_types[:, event])))
    assert_close(out.x, x[-1], "float32")
    whole = np.stack(x, axis=1)
    assert_close(out.outputs, call(model, whole)[:, -1], "float32")
    assert_close(out.state, run_steps(model, whole, model.init_state(4, 12))[1], "float32")
    assert out.state.position.tolist() == [7] * 4


def test_it_goes_on_where_it_stopped():
    model = forecaster()
    last = begun(model)
    first = draw(model, last)
    rest = draw(model, (first.outputs, first.x, first.state), 4, jax.random.key(8))
    assert rest.state.position.tolist() == [3 + 8] * 4
    assert not np.any(rest.log_gaps == first.log_gaps)
    # The state that was given is still there.
    assert_same_bits(draw(model, last), first)


def test_rows_do_not_depend_on_each_other():
    model = forecaster()
    last = begun(model)
    keys = jax.random.split(KEY, 4)
    waited = jnp.array([-jnp.inf, 0.0, 1.0, 2.0])
    together = draw(model, last, key=keys, waited=waited)
    order = jnp.array([2, 0, 3, 1])
    moved = jax.tree.map(lambda leaf: jnp.asarray(leaf)[order], last)
    swapped = draw(model, moved, key=keys[order], waited=waited[order])
    assert_same_bits(jax.tree.map(np.asarray, swapped), take(together, np.asarray(order)))


def test_futures_of_one_row():
    """The same key draws the same, another does not, and no row does as another."""
    model = forecaster()
    one = begun(model, rows=1)
    rows = jnp.zeros(4, jnp.int32)
    outputs, x = (jnp.asarray(a)[rows] for a in one[:2])
    many = (outputs, x, inference.gather_rows(one[2], rows))
    drawn = draw(model, many)
    assert_same_bits(draw(model, many), drawn)
    assert len(np.unique(drawn.log_gaps)) == 16
    assert not np.any(draw(model, many, key=jax.random.key(8)).log_gaps == drawn.log_gaps)
    # Row i has fold_in(key, i), however many there are.
    keys = jax.vmap(lambda i: jax.random.fold_in(KEY, i))(jnp.arange(4, dtype=jnp.uint32))
    assert_same_bits(draw(model, many, key=keys), drawn)


def test_none_has_waited_as_none():
    model = forecaster()
    last = begun(model)
    none = np.full(4, -np.inf)  # of float64, as NumPy makes it
    assert_same_bits(draw(model, last, waited=none), draw(model, last))


def test_it_runs_within_other_programs():
    """Compiled, and exported to where the model is not known."""
    model = forecaster()
    last = begun(model)
    want = draw(model, last)
    run = jax.jit(lambda *last: draw(model, last))
    loaded = jax.export.deserialize(jax.export.export(run)(*last).serialize())
    found = loaded.call(*last)
    assert_close(found, want, "float32")
    assert isinstance(found, inference.SampledEvents)


def test_one_program_for_new_weights_and_keys():
    class Counted(Chain):
        traces = 0

        def next_event(self, outputs):
            Counted.traces += 1
            return super().next_event(outputs)

    x = jnp.zeros((2, 2))
    for seed in range(3):
        model = Counted()
        model.means[...] = model.means[...] + seed
        draw(model, (x, x, model.init_state(2)), key=jax.random.key(seed))
        first = Counted.traces if not seed else first
    assert Counted.traces == first


def test_on_a_mesh_with_explicit_axes():
    """Rows over devices: the same draws, which lie as the rows."""
    model = chain()
    x = jnp.array([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0], [3.0, 0.0]])
    last = x, x, model.init_state(4)
    want = jax.tree.map(np.asarray, draw(model, last))
    mesh = make_mesh(AxisType.Explicit, data=2)
    with jax.set_mesh(mesh):
        placed = jax.device_put(last, NamedSharding(mesh, PartitionSpec("data")))
        got = draw(model, placed)
        assert jax.typeof(got.log_gaps).sharding.spec[0] == "data"
    assert_close(jax.tree.map(np.asarray, got), want, "float32")


@pytest.mark.parametrize("how", ["traced", pytest.param("run", marks=pytest.mark.slow)])
def test_float64_observations(how):
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        model = forecaster()
        x = jnp.asarray(history()[:, 1], jnp.float64)
        last = jnp.zeros((4, 3 * 2 + TYPES), jnp.float32), x, model.init_state(4, dtype=x.dtype)
        for waited in (None, jnp.zeros(4)):
            out = jax.eval_shape(lambda *last, w=waited: draw(model, last, waited=w), *last)
            assert out.x.dtype == jnp.float64 and out.log_gaps.dtype == jnp.float32
        if how == "run":
            gaps = draw(model, last, waited=jnp.zeros(4)).log_gaps
            assert (gaps[:, 0] >= 0).all() and np.isfinite(gaps).all()


def test_what_cannot_be_drawn_from_is_refused():
    model = forecaster()
    last = begun(model)
    with pytest.raises(TypeError, match="expected a model that streams, got Linear, which has no"):
        draw(nnx.Linear(2, 3, rngs=nnx.Rngs(0)), last)
    other = models.Forecaster(5, 1, features=8, num_layers=1, num_heads=2, rngs=nnx.Rngs(0))
    with pytest.raises(TypeError, match=r"an event model .* got Forecaster; see"):
        draw(other, last)
    with pytest.raises(TypeError, match=r"expected a key of jax\.random\.key"):
        draw(model, last, key=jax.random.key_data(KEY))
    with pytest.raises(
        ValueError, match=r"a single key or one key per row, \(4,\), got shape \(3,\)"
    ):
        draw(model, last, key=jax.random.split(KEY, 3))
    for number, error in ((0, ValueError), (2.0, TypeError)):
        with pytest.raises(error, match="num_events must be"):
            draw(model, last, number)
    for waited in (0.0, jnp.zeros((4, 1)), jnp.zeros(3)):
        with pytest.raises(ValueError, match=r"waited of shape \(4,\), one number per row, got"):
            draw(model, last, waited=waited)
    with pytest.raises(ValueError, match="expected 3 observations, one per row"):
        draw(model, (*last[:2], model.init_state(3)))
    with pytest.raises(ValueError, match="state"):
        draw(model, (*last[:2], forecaster("softmax").init_state(4, 12)))


def test_a_cache_needs_room():
    model = forecaster("softmax")
    last = jnp.zeros((4, 3 * 2 + TYPES)), jnp.asarray(history()[:, 0]), model.init_state(4)
    with pytest.raises(ValueError, match=r"state of this model grows .*pass max_length"):
        draw(model, last)
