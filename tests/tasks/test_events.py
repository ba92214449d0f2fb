"""Events: scores by hand, what the model sees, pieces, streams, baselines, and bad input."""

import dataclasses
import json
import math

import jax
import numpy as np
import pandas as pd
import pytest
from flax import nnx
from hypothesis import given
from scipy import optimize, special, stats

from flax_linattn import cli, tasks, training
from flax_linattn.checks import OptionError
from flax_linattn.data.events import EventSplit, load_events, split_events
from flax_linattn.data.generators import processes
from flax_linattn.data.tables.cells import join_cells
from flax_linattn.tasks import Run
from flax_linattn.tasks.events import (
    EventsConfig,
    EventsData,
    EventsSpec,
    EventsStream,
    EventsStreamOptions,
    baselines,
    evaluate,
)
from flax_linattn.tasks.events.data import (
    END,
    EVENT,
    NO_TARGET,
    PROCESSES,
    describe,
    make_batches,
    tokenize_sequences,
)
from flax_linattn.tasks.events.evaluate import test_values as values_of
from flax_linattn.tasks.events.rows import Event, EventLines
from flax_linattn.tasks.events.task import events_loss
from flax_linattn.tasks.prediction_table import write_table
from tests.data.generators.processes.events import any_events, sequences, some_events
from tests.nn.cases import STACKED, moved
from tests.tasks import states
from tests.tasks.commands import SIZES, fail, fast, flags, no_drawing, one_line, read_lines

TASK = tasks.get_task("events")
EVENT_SIZES = SIZES | {"kernel_size": 2, "num_components": 3}
CLOSE = {"rtol": 2e-5, "atol": 2e-5}
"""Of numbers that a float32 model and float64 NumPy agree on."""


def in_file_units(nll, data_spec):
    """Of times in units of the scale -> of those of the file."""
    return nll + math.log(data_spec.scale)


def make_run(events, **options) -> Run:
    """A run whose parameters nobody trained; all parts are the same events."""
    config = EventsConfig.of(**EVENT_SIZES | options)
    data_spec = describe(EventSplit(events, events, events), config)
    return Run(TASK, config, data_spec, moved(TASK.model(config, data_spec), 0.3))


def drawn(*lengths):
    """Sequences of so many events of three event types, observed from 0 to the last one."""
    whole = PROCESSES["hawkes-marked"].sample(60, 60.0, seed=1)
    long = [i for i, own in enumerate(whole.times) if len(own) >= max(lengths)][: len(lengths)]
    return dataclasses.replace(
        whole.select(long),
        times=tuple(whole.times[i][:n] for i, n in zip(long, lengths, strict=True)),
        event_types=tuple(whole.event_types[i][:n] for i, n in zip(long, lengths, strict=True)),
        end=None,
    )


def in_units(events, factor):
    """The same events, in another unit of time."""
    return dataclasses.replace(
        events,
        times=tuple(own * factor for own in events.times),
        begin=None if events.begin is None else events.begin * factor,
        end=None if events.end is None else events.end * factor,
    )


# -- scores --------------------------------------------------------------------------------


def tokens_by_hand(events, data_spec, index):
    """What the model is to see of a sequence, cell by cell; and whether its begin is the first."""
    begin, known = events.begins[index], not np.isnan(events.begins[index])
    times = [*([begin] if known else []), *events.times[index]]
    types = [*([len(data_spec.event_type_names)] if known else []), *events.event_types[index]]
    rows = []
    for number, (time, event_type) in enumerate(zip(times, types, strict=True)):
        gap = 0.0
        if number:
            waited = max(time - times[number - 1], data_spec.resolution)
            gap = math.log(waited / data_spec.scale)
        turns = [math.fmod(time, period) / period for period in data_spec.periods]
        turns += [math.fmod(time - times[0], period) / period for period in data_spec.clock]
        waves = [wave(2 * math.pi * turn) for wave in (math.cos, math.sin) for turn in turns]
        rows.append([gap, float(number > 0), event_type, *waves])
    return np.array(rows), known


@nnx.jit
def call(model, x):
    return model(x)


def scores_by_hand(run, events):
    """In float64, an event after the other, from the outputs of one call without any mask."""
    data_spec, K = run.data_spec, run.model.num_components
    rows = [tokens_by_hand(events, data_spec, i) for i in range(len(events))]
    x = np.zeros((len(rows), max(len(row) for row, _ in rows), rows[0][0].shape[1]), np.float32)
    for i, (row, _) in enumerate(rows):
        x[i, : len(row)] = row
    outputs = np.asarray(call(run.model, x), np.float64)
    found = {name: [] for name in evaluate.Scores._fields}
    for i, (_, known) in enumerate(rows):
        times = events.times[i]
        for event in range(int(events.num_given[i]), len(times)):
            before = times[event - 1] if event else events.begins[i]
            gap = max(times[event] - before, data_spec.resolution)
            said = outputs[i, event - 1 + known]
            mixture = mixture_of(said, K, data_spec.spread)
            x = math.log(gap / data_spec.scale)
            types, own = special.log_softmax(said[3 * K :]), events.event_types[i][event]
            found["sequence"].append(i)
            found["log_gap"].append(math.log(gap))
            found["time"].append(log_density(mixture, x) - x - math.log(data_spec.scale))
            found["event_type"].append(types[own])
            found["rank"].append(sum(other > types[own] for other in types))
            found["rescaled"].append(-log_survival(mixture, x))
            logs, means, deviations = mixture
            mean = np.sum(np.exp(logs + means + deviations**2 / 2)) * data_spec.scale
            found["log_mean"].append(math.log(mean))
            median = optimize.brentq(
                lambda x, own=mixture: log_survival(own, x) - math.log(0.5), -60, 60
            )
            found["log_median"].append(median + math.log(data_spec.scale))
        rest = events.ends[i] - times[-1]
        said = mixture_of(outputs[i, len(rows[i][0]) - 1], K, data_spec.spread)
        found["survival"].append(
            log_survival(said, math.log(rest / data_spec.scale)) if rest > 0 else 0.0
        )
    return evaluate.Scores(**{name: np.array(values) for name, values in found.items()})


def mixture_of(outputs, K, spread):
    """Log weights, means and deviations."""
    weights, means, deviations = outputs[:K], outputs[K : 2 * K], outputs[2 * K : 3 * K]
    begin = np.linspace(-1.5, 1.5, K)
    deviations = np.logaddexp(0, deviations) + 0.01
    return special.log_softmax(weights), (means + begin) * spread, deviations * spread


def log_density(mixture, x):
    logs, means, deviations = mixture
    return special.logsumexp(logs + stats.norm.logpdf(x, means, deviations))


def log_survival(mixture, x):
    logs, means, deviations = mixture
    return special.logsumexp(logs + stats.norm.logsf(x, means, deviations))


def cut():
    """The test part of cut sequences, without types: most events are given."""
    return split_events(some_events(1), "0.4/0.2/0.4", by="time").test


KINDS = {
    "types, with ties": (lambda: some_events(2), {"periods": "5,0.75", "mechanism": "softmax"}),
    "cut by time": (cut, {"clock": True, "resolution": 0.5}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_those_of_the_definition(kind):
    make, options = KINDS[kind]
    events = make()
    run = make_run(events, **options)
    found, expected = evaluate.score(run.model, events, run.data_spec), scores_by_hand(run, events)
    for name in evaluate.Scores._fields:
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), **CLOSE)
    assert found.num_events == events.num_forecast == len(expected.time)

    values = values_of(run, found)
    gaps, mean, median = (np.exp(expected[i]) for i in (1, 6, 7))
    n, ends = len(gaps), expected.survival.sum()
    sums = [sum((mean - gaps)[expected.sequence == i]) for i in range(len(events))]
    defined = {
        "test_nll": -(expected.time.sum() + expected.event_type.sum() + ends) / n,
        "test_rmse": math.sqrt(sum((mean - gaps) ** 2) / n),
        "test_rmse_of_median": math.sqrt(sum((median - gaps) ** 2) / n),
        "test_mae": sum(abs(median - gaps)) / n,
        "test_rmse_of_sequence_sums": math.sqrt(sum(np.square(sums)) / n),
        "test_ks": stats.kstest(expected.rescaled, "expon").statistic,
    }
    if run.data_spec.num_event_types > 1:
        defined |= {
            "test_time_nll": -(expected.time.sum() + ends) / n,
            "test_mark_nll": -expected.event_type.sum() / n,
            "test_mark_accuracy": sum(expected.rank == 0) / n,
            "test_mark_top3": sum(expected.rank <= 2) / n,
        }
    assert {name: values[name] for name in defined} == pytest.approx(defined, rel=1e-4)
    assert (values["num_test_events"], values["num_test_sequences"]) == (n, len(events))


def test_what_is_asked_and_seen_by_hand():
    """A begin, a tie, an end, given events; each row holds its own type and the gap before it."""
    events = sequences(
        [[1.0, 1.0, 3.0], [10.0, 14.0]], [[1, 0, 1], [0, 1]], 2,
        begin=[0.5, np.nan], end=[5.0, 14.0], given=[1, 1],
    )  # fmt: skip
    data_spec = EventsSpec("a", ("x", "y"), False, 2.0, 1.0, 0.25, (4.0,), (8.0,), (9,))
    first, second = tokenize_sequences(events, data_spec)
    for index, tokens in enumerate((first, second)):
        rows, _ = tokens_by_hand(events, data_spec, index)
        np.testing.assert_allclose(tokens.observations, rows, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(
        first.observations[:, :3],
        [[0, 0, 2], [np.log(0.25), 1, 1], [np.log(0.125), 1, 0], [0, 1, 1]],
        rtol=1e-6,
    )
    angle = 2 * np.pi * np.array([3.0 / 4, 2.5 / 8])
    np.testing.assert_allclose(
        first.observations[3, 3:], [*np.cos(angle), *np.sin(angle)], atol=1e-6
    )
    np.testing.assert_allclose(first.log_gap, np.log([0.25, 0.125, 1, 1]), rtol=1e-6)
    assert first.target.tolist() == [NO_TARGET, EVENT, EVENT, END]
    assert first.event_type.tolist()[:3] == [1, 0, 1]
    assert second.observations[:, :3].tolist() == [[0, 0, 0], [np.float32(np.log(2)), 1, 1]]
    assert second.target.tolist() == [EVENT, NO_TARGET] and second.event_type[0] == 1


@given(any_events())
def test_any_events_are_asked_for_once_and_told_in_finite_numbers(events):
    data_spec = EventsSpec("a", ("x", "y"), False, 2.0, 1.0, 0.25, (4.0,), (8.0,), (9,))
    tokens = tokenize_sequences(events, data_spec)
    asked = [own.target == EVENT for own in tokens]
    found = np.concatenate([own.log_gap[rows] for own, rows in zip(tokens, asked, strict=True)])
    gaps = np.maximum(np.concatenate(events.gaps()), 0.25)
    np.testing.assert_allclose(2 * np.exp(found), gaps, rtol=1e-5)
    types = np.concatenate([own.event_type[rows] for own, rows in zip(tokens, asked, strict=True)])
    np.testing.assert_array_equal(types, baselines.forecast_event_types(events))
    ends = [bool((own.target == END).any()) for own in tokens]
    assert ends == (events.ends > [times[-1] for times in events.times]).tolist()
    assert all(np.isfinite(own.observations).all() for own in tokens)


def spec(mechanism, length):
    """The mechanism, with learned positions for sequences of this length."""
    return mechanism.replace("max_length=16", f"max_length={length}")


@pytest.mark.parametrize("mechanism", STACKED)
def test_long_sequences_are_scored_in_spans(mechanism, monkeypatch):
    events = drawn(30, 21, 5)
    run = make_run(events, mechanism=spec(mechanism, 64))
    whole = evaluate.score(run.model, events, run.data_spec)
    monkeypatch.setattr(evaluate, "CHUNK_LENGTH", 8)
    for name, values in evaluate.score(run.model, events, run.data_spec)._asdict().items():
        np.testing.assert_allclose(values, getattr(whole, name), **CLOSE)


def test_scores_do_not_depend_on_their_company(monkeypatch):
    """In float64: in float32, sums of other shapes round otherwise, by 3e-6 in a median."""
    events = drawn(14, 9, 5, 12, 14)
    run = make_run(events)
    tokenize = evaluate.tokenize_sequences

    def widen(tree):
        dtypes = {"f": np.float64, "i": np.int32}
        return jax.tree.map(lambda x: x.astype(dtypes.get(x.dtype.kind, x.dtype)), tree)

    monkeypatch.setattr(evaluate, "tokenize_sequences", lambda *to: widen(tokenize(*to)))
    # Flax's LayerNorm promotes float64 with float32.
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        nnx.update(run.model, widen(nnx.state(run.model, nnx.Param)))
        for layer in (run.model.hidden, run.model.times, run.model.marks):
            layer.dtype = np.float64
        whole = evaluate.score(run.model, events, run.data_spec)
        order = [3, 0, 4, 2, 1]
        shuffled = evaluate.score(run.model, events.select(order), run.data_spec)
        monkeypatch.setattr(evaluate, "BATCH_SIZE", 2)
        pairs = evaluate.score(run.model, events, run.data_spec)
    for index, old in enumerate(order):
        for name in ("time", "event_type", "rank", "rescaled", "log_mean", "log_median"):
            own = getattr(shuffled, name)[shuffled.sequence == index]
            want = getattr(whole, name)[whole.sequence == old]
            np.testing.assert_allclose(own, want, rtol=1e-10, atol=1e-10)
    for name, values in pairs._asdict().items():
        np.testing.assert_allclose(values, getattr(whole, name), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("factor", [1e-9, 86_400.0, 1e9])
def test_another_unit_of_time(factor):
    """The same batches for the same parameters; likelihoods less by the factor's logarithm."""
    events = some_events(2)
    other = in_units(events, factor)
    run = make_run(events, clock=True, periods="5")
    config = run.config.replace(periods=f"{5 * factor!r}")
    data_spec = describe(EventSplit(other, other, other), config)
    for name in ("scale", "resolution", "periods", "clock"):
        own = np.array(getattr(run.data_spec, name))
        np.testing.assert_allclose(getattr(data_spec, name), factor * own, rtol=1e-9)
    assert data_spec.spread == pytest.approx(run.data_spec.spread, rel=1e-9)
    batches = make_batches(events, config, run.data_spec, seed=0)
    for one, two in zip(batches, make_batches(other, config, data_spec, seed=0), strict=True):
        for name, values in one.items():
            np.testing.assert_allclose(two[name], values, rtol=1e-5, atol=1e-5)
    found, again = (
        evaluate.score(run.model, own, of_unit)
        for own, of_unit in ((events, run.data_spec), (other, data_spec))
    )
    shift = math.log(factor)
    np.testing.assert_allclose(again.time, found.time - shift, **CLOSE)
    np.testing.assert_allclose(again.log_mean, found.log_mean + shift, **CLOSE)
    np.testing.assert_allclose(again.survival, found.survival, **CLOSE)
    np.testing.assert_allclose(again.rescaled, found.rescaled, **CLOSE)
    nll = -(again.total - found.total) / found.num_events
    assert nll == pytest.approx(shift, abs=1e-5)


# -- leakage -------------------------------------------------------------------------------

KEPT = 7
"""Events of each sequence that stay; those after it are others."""


def changed(events):
    """Times and event types are others from event ``KEPT`` on; as many events."""
    times, types = [], []
    for own, event_type in zip(events.times, events.event_types, strict=True):
        gaps = 3 * np.diff(own[KEPT - 1 :])[::-1] + 0.1
        times.append(np.concatenate([own[:KEPT], own[KEPT - 1] + np.cumsum(gaps)]))
        others = (event_type[KEPT:] + 1) % len(events.event_type_names)
        types.append(np.concatenate([event_type[:KEPT], others]).astype(np.int32))
    return dataclasses.replace(events, times=tuple(times), event_types=tuple(types))


def check_no_leak(run, events):
    """No score or prediction of what stays changes, by a single bit; later ones do."""
    found, other = (
        evaluate.score(run.model, own, run.data_spec) for own in (events, changed(events))
    )
    numbers = [
        np.arange(given, len(own))
        for own, given in zip(events.times, events.num_given, strict=True)
    ]
    number = np.concatenate(numbers)
    for name in ("time", "event_type", "rank", "rescaled", "log_mean", "log_median"):
        predicted = number <= KEPT if name.startswith("log") else number < KEPT
        one, two = getattr(found, name), getattr(other, name)
        np.testing.assert_array_equal(two[predicted], one[predicted])
    assert np.abs(other.log_mean - found.log_mean)[number > KEPT].max() > 1e-3


@pytest.mark.parametrize("mechanism", STACKED)
def test_no_score_knows_what_comes(mechanism):
    events = drawn(14, 14, 14)
    check_no_leak(make_run(events, mechanism=spec(mechanism, 32)), events)


@pytest.mark.slow
def test_badges(data_dir):
    """Real events, of 22 event types: nothing leaks, and the stream says what the scores are."""
    folder = data_dir / "stackoverflow"
    events = load_events(folder / "time-1-test.txt.gz", folder / "event-1-test.txt.gz")
    events = events.select(range(20))
    run = make_run(events)
    check_no_leak(run, events)
    scores = evaluate.score(run.model, events, run.data_spec)
    stream = EventsStream(run, EventsStreamOptions())
    found = steps(stream, [*text_of(events, names=True, blank=True).splitlines()])
    np.testing.assert_allclose(found, scores.time + scores.event_type, rtol=1e-4, atol=1e-4)


# -- pieces --------------------------------------------------------------------------------


def numbered():
    """Every gap another integer; the last before the end, too."""
    gaps = np.split(np.arange(1.0, 40), [9, 10, 26])
    times = [np.cumsum(own) for own in gaps]
    return sequences(
        times, [np.arange(len(own)) % 2 for own in times], 2,
        begin=[0.0, np.nan, 0.0, np.nan],
        end=[times[0][-1] + 100, times[1][-1] + 101, *(own[-1] for own in times[2:])],
        given=[0, 1, 5, 1],
    )  # fmt: skip


@pytest.mark.parametrize("length, history", [(1, 0), (3, 0), (3, 2), (4, 64), (64, 0), (16, 16)])
def test_every_event_is_asked_for_once(length, history):
    events = numbered()
    run = make_run(events)
    config = run.config.replace(length=length, history=history, batch_size=2)
    batches = make_batches(events, config, run.data_spec, seed=None)
    asked = []
    for batch in batches:
        real = batch["mask"] & (batch["weight"][:, None] > 0)
        for row in range(len(real)):
            own = real[row] & (batch["target"][row] > 0)
            assert own.sum() <= length + 1
            if own.any() and not (batch["target"][row][own] == EVENT).any():
                # An end alone is a piece of the sequence that has nothing else.
                gap = np.exp(batch["log_gap"][row][own]) * run.data_spec.scale
                assert gap == pytest.approx(101)
            # What is asked is the last part of a piece, behind up to ``history`` more.
            if own.any():
                first = int(np.argmax(own))
                assert own.sum() == real[row].sum() - first and first <= history
            asked += [*np.exp(batch["log_gap"][row][own]) * run.data_spec.scale]
    expected = [*np.concatenate(events.gaps()), 100, 101]
    np.testing.assert_allclose(sorted(asked), sorted(expected), rtol=1e-5)


def test_the_loss_of_pieces_is_that_of_the_whole():
    """Where the history covers all; and that of the scores, but for the unit."""
    events = numbered()
    run = make_run(events, batch_size=4)
    one_program = dataclasses.replace(run.data_spec, lengths=(17,))
    whole, pieces = (
        training.evaluate(
            run.model,
            events_loss,
            make_batches(events, run.config.replace(**options), one_program, seed=None),
        )
        for options in ({"length": 64}, {"length": 3, "history": 64})
    )
    assert pieces == pytest.approx(whole, rel=1e-5)
    scores = evaluate.score(run.model, events, run.data_spec)
    assert in_file_units(whole["loss"], run.data_spec) == pytest.approx(
        -scores.total / scores.num_events, rel=1e-5
    )
    assert whole["mark_nll"] == pytest.approx(-scores.event_type.mean(), rel=1e-5)
    assert whole["mark_accuracy"] == pytest.approx((scores.rank < 1).mean())


def test_a_batch_of_nothing_but_ends_adds_up():
    """Sequences of one event that is given: no event, and yet a likelihood."""
    events = sequences([[1.0], [2.0, 3.0, 5.0]], begin=[np.nan] * 2, end=[4.0, 9.0])
    run = make_run(events, batch_size=1)
    data_spec = dataclasses.replace(run.data_spec, lengths=(3,))
    batches = make_batches(events, run.config, data_spec, seed=None)
    assert len(batches) == 2
    scores = evaluate.score(run.model, events, run.data_spec)
    loss = training.evaluate(run.model, events_loss, batches)["loss"]
    assert in_file_units(loss, run.data_spec) == pytest.approx(-scores.total / 2, rel=1e-2)


# -- streams -------------------------------------------------------------------------------


def text_of(events, *, names=False, blank=False):
    """Lines of ``time,mark``; with a header and the sequence's number as a file has them."""
    lines = ["time,mark,sequence"] if names and not blank else []
    for index, (times, types) in enumerate(zip(events.times, events.event_types, strict=True)):
        lines += [""] if blank and index else []
        for time, event_type in zip(times, types, strict=True):
            number = f",{index}" if names and not blank else ""
            lines.append(f"{float(time)!r},{events.event_type_names[event_type]}{number}")
    return "\n".join(lines) + "\n"


def streamed(stream, lines):
    """The cells of each line that is answered."""
    rows = [stream.cells(event) for event in stream.parse(lines)]
    return [list(row) for row in rows if row is not None]


def steps(stream, lines):
    """Log likelihoods of the events before which something was known."""
    found = []
    for event in stream.parse(lines):
        if event is None:
            stream.cells(event)
        else:
            found.append(stream.step(event))
    return [value for value in found if value is not None]


@pytest.fixture(scope="module")
def tied():
    """Three sequences with ties, of two event types, nothing known but the events."""
    return dataclasses.replace(some_events(2), begin=None, end=None, given=None)


@pytest.fixture(scope="module")
def tied_run(tied):
    """As if its sequences had a known begin."""
    run = make_run(tied, mechanism="softmax", periods="5", clock=True)
    return run._replace(data_spec=dataclasses.replace(run.data_spec, begins=True))


def test_a_begin_that_was_not_learned_is_refused(tied):
    run = make_run(tied)
    with pytest.raises(OptionError, match="needs a run trained with starts of observation"):
        EventsStream(run, EventsStreamOptions(begin="0"))


def test_a_stream_is_one_sequence():
    """Where a header names the column of sequences, their names are looked at."""
    lines = ["time,mark,sequence", "1,x,anna", "2,y,anna", "", "1,x,ben"]
    assert parsed(NUMBERS, lines) == [Event(1.0, 0), Event(2.0, 1), None, Event(1.0, 0)]
    with pytest.raises(ValueError, match=r"lines:4: expected one sequence .*, got 'ben' after"):
        parsed(NUMBERS, [line for line in lines if line])


@pytest.mark.parametrize("begin", ["", "-3"])
def test_a_stream_says_what_the_scores_are(tied, tied_run, begin):
    events = dataclasses.replace(tied, begin=np.full(3, -3.0)) if begin else tied
    scores = evaluate.score(tied_run.model, events, tied_run.data_spec)
    stream = EventsStream(tied_run, EventsStreamOptions(begin=begin, top_event_types=2, within=1.5))
    rows = streamed(stream, text_of(events, blank=True).splitlines())
    assert stream.header == [
        *("step", "time", "log_likelihood", "mean", "q0.05", "q0.5", "q0.95", "within"),
        *("mark1", "p1", "mark2", "p2"),
    ]
    assert [row[0] for row in rows] == [n for own in events.times for n in range(1, len(own) + 1)]
    assert [float(row[1]) for row in rows] == np.concatenate(events.times).tolist()
    told = [float(row[2]) for row in rows if row[2]]
    np.testing.assert_allclose(told, scores.time + scores.event_type, rtol=2e-5, atol=2e-5)
    assert sum(not row[2] for row in rows) == (0 if begin else 3)
    n = scores.num_events
    nll = -(scores.time.sum() + scores.event_type.sum()) / n
    assert stream.log_likelihood == pytest.approx(-nll * n, rel=1e-5)
    assert stream.end() == f"mean NLL of {n} events: {nll:.4f}"
    # A line tells of the event that comes after it.
    number = np.concatenate([np.arange(len(own)) for own in events.times])
    before = [row for row, later in zip(rows, [*number[1:], 0], strict=True) if later]
    later = number[number >= 1 - bool(begin)] > 0
    means, medians = ([float(row[at]) for row in before] for at in (3, 5))
    np.testing.assert_allclose(means, np.exp(scores.log_mean[later]), rtol=2e-5)
    np.testing.assert_allclose(medians, np.exp(scores.log_median[later]), rtol=2e-5)
    for row in rows:
        assert float(row[4]) < float(row[5]) < float(row[6]) and 0 < float(row[7]) < 1
        assert {row[8], row[10]} == {"m0", "m1"} and float(row[9]) >= float(row[11])
        assert float(row[9]) + float(row[11]) == pytest.approx(1, abs=2e-4)


@pytest.mark.parametrize("begin", fast(["", "-3"], "-3"))
def test_a_stream_is_saved_and_goes_on(tied, tied_run, tmp_path, begin):
    """In a sequence, between two, and after the first event of one: the same lines, to a digit."""
    options = EventsStreamOptions(begin=begin)
    lines = text_of(tied, blank=True).splitlines()
    whole = EventsStream(tied_run, options)
    expected = streamed(whole, lines)
    found, path = [], tmp_path / "state.npz"
    for part in (lines[:2], lines[2:5], lines[5:6], lines[6:]):
        stream = EventsStream(tied_run, options)
        if path.exists():
            stream.load(path)
        found += streamed(stream, part)
        stream.save(path)
    assert found == expected
    assert stream.end() == whole.end()
    jax.tree.map(np.testing.assert_array_equal, stream.record(), whole.record())
    assert (stream.num_steps, stream.num_breaks) == (13, 2)


@pytest.fixture(scope="module")
def two_lines(tied_run, tmp_path_factory):
    """A stream after two events, and its file."""
    stream = EventsStream(tied_run, EventsStreamOptions())
    streamed(stream, ["1,m0", "2,m1"])
    path = tmp_path_factory.mktemp("states") / "state.npz"
    stream.save(path)
    return stream, path


@pytest.mark.parametrize(
    "values, message",
    [
        ({"_stream.num_steps": -1}, "expected num_steps as integers of at least 0"),
        ({"_stream.num_steps": 1}, "expected a state after"),
        ({"_stream.num_steps": 3}, "expected at least 3 observations, got 2"),
        ({"num_steps": 1}, "expected at least 2 observations, got 1"),
        ({"_origin": math.inf}, "expected origin as finite numbers"),
        ({"_last": math.inf}, "expected last as finite numbers"),
        ({"log_likelihood": math.inf}, "expected log_likelihood as finite numbers"),
        ({"num_foreseen": 3}, "contradict each other"),
        ({"_length": 1}, "contradict each other"),
        ({"num_foreseen": -1}, "expected num_foreseen as integers of at least 0"),
    ],
)
def test_damaged_states_are_refused(two_lines, tmp_path, values, message):
    stream, path = two_lines
    damaged = tmp_path / "state.npz"
    states.with_record(damaged, stream, states.entries_of(path), **values)
    before = stream.record()
    with pytest.raises(ValueError, match="damaged state file") as refused:
        stream.load(damaged)
    assert message in str(refused.value)
    jax.tree.map(np.testing.assert_array_equal, stream.record(), before)
    assert stream.num_steps == 2
    stream.load(path)


def test_futures_are_drawn_by_their_seed(tied, tied_run):
    """As the model says; and none where there is no event, or no room."""
    options = EventsStreamOptions(max_length=8, quantiles="0.25,0.5", within=2.0, top_event_types=2)
    stream, plain = (EventsStream(tied_run, options) for _ in range(2))
    with pytest.raises(ValueError, match="simulate needs an event"):
        stream.simulate(1000, 4, seed=0)
    lines = text_of(tied.select([1])).splitlines()
    (*_, row) = streamed(stream, lines)
    times, types = stream.simulate(1000, 4, seed=0)
    assert times.shape == types.shape == (1000, 4)
    again, other = stream.simulate(1000, 4, seed=0), stream.simulate(1000, 4, seed=1)
    np.testing.assert_array_equal(again[0], times)
    np.testing.assert_array_equal(again[1], types)
    assert (other[0] != times).any() and (other[1] != types).any()
    assert (np.diff(times, prepend=tied.times[1][-1], axis=1) > 0).all()
    gaps = times[:, 0] - tied.times[1][-1]
    assert (gaps <= float(row[4])).mean() == pytest.approx(0.25, abs=0.045)
    assert (gaps <= float(row[5])).mean() == pytest.approx(0.5, abs=0.05)
    assert (gaps <= 2.0).mean() == pytest.approx(float(row[6]), abs=0.05)
    assert (types[:, 0] == int(row[7][1])).mean() == pytest.approx(float(row[8]), abs=0.05)
    # They are no part of the stream.
    streamed(plain, lines)
    later = ["18,m0", "19,m0"]
    assert streamed(stream, later) == streamed(plain, later)
    with pytest.raises(OptionError, match="too small for 4 events after the last") as refused:
        stream.simulate(1000, 4, seed=0)
    assert refused.value.options == ("max_length", "events")
    with pytest.raises(OptionError, match="A blank line begins a new sequence") as refused:
        streamed(stream, [f"{time},m0" for time in range(20, 30)])
    assert "max_length" in refused.value.options


def test_lines_of_futures(tied, tied_run):
    options = EventsStreamOptions(max_length=8, simulate=1000, events=4, seed=4)
    stream = EventsStream(tied_run, options)
    assert stream.header == ["future", "event", "time", "mark"]
    assert list(stream.last_cells()) == []  # nothing came: the command says so
    assert streamed(stream, text_of(tied.select([1])).splitlines()) == []
    rows = [list(row) for row in stream.last_cells()]
    assert [row[:2] for row in rows] == [[i, n] for i in range(1000) for n in (1, 2, 3, 4)]
    times, types = stream.simulate(1000, 4, seed=4)
    np.testing.assert_allclose([float(row[2]) for row in rows], times.ravel(), rtol=1e-12)
    assert [row[3] for row in rows] == [f"m{event_type}" for event_type in types.ravel()]
    streamed(stream, [""])
    with pytest.raises(ValueError, match="simulate needs an event, got none since the last blank"):
        list(stream.last_cells())


@pytest.mark.slow
def test_a_figure_of_the_intensity(tied, tied_run, tmp_path):
    pytest.importorskip("matplotlib")
    stream = EventsStream(tied_run, EventsStreamOptions())
    streamed(stream, text_of(tied.select([1])).splitlines())
    stream.plot(tmp_path / "intensity.png")
    assert (tmp_path / "intensity.png").stat().st_size > 5000
    streamed(stream, [""])
    with pytest.raises(ValueError, match="the figure needs an event, got none since"):
        stream.plot(tmp_path / "none.png")


@pytest.mark.parametrize(
    "options, name",
    [
        ({"quantiles": "0.5,1"}, "quantiles"),
        ({"quantiles": "0"}, "quantiles"),
        ({"quantiles": "half"}, "quantiles"),
        ({"quantiles": "nan"}, "quantiles"),
        ({"top_event_types": -1}, "top_event_types"),
        ({"within": -1.0}, "within"),
        ({"within": math.inf}, "within"),
        ({"within": math.nan}, "within"),
        ({"max_length": 0}, "max_length"),
        ({"events": 0}, "events"),
        ({"simulate": -1}, "simulate"),
        ({"seed": -1}, "seed"),
    ],
)
def test_options_of_a_stream_out_of_range(options, name):
    with pytest.raises(OptionError, match=name) as refused:
        EventsStreamOptions(**options)
    assert refused.value.options == (name,)


def test_what_a_stream_refuses(tied_run):
    for begin in ("noon", "inf", "1e101"):
        with pytest.raises(OptionError, match="begin: expected a time as a number"):
            EventsStream(tied_run, EventsStreamOptions(begin=begin))
    stream = EventsStream(tied_run, EventsStreamOptions(begin="1", within=1e-300, quantiles=""))
    assert stream.header[3:] == ["mean", "within", "mark1", "p1"]
    with pytest.raises(OptionError, match=r"expected times from begin='1' on, got 0\.5"):
        streamed(stream, ["0.5,m0"])
    assert streamed(stream, ["1,m0", "2,m1"])[1][4] == 0
    with pytest.raises(ValueError, match=r"do not decrease, got 1\.5 after 2"):
        streamed(stream, ["1.5,m0"])
    for event in (Event(math.nan, 0), Event(math.inf, 0), Event(3.0, -1), Event(3.0, 99)):
        with pytest.raises(ValueError, match="a finite time and an event type from 0 to"):
            stream.step(event)
    assert streamed(stream, ["2.5,m0"])[0][0] == 3


# -- lines ---------------------------------------------------------------------------------

NUMBERS = EventsSpec("a", ("x", "y"), False, 1.0, 1.0, 1.0, (), (), (9,))
ONE = dataclasses.replace(NUMBERS, event_type_names=("event",))
DATES = dataclasses.replace(NUMBERS, dates=True)


def parsed(data_spec, lines, timezone="UTC", columns=("time", "mark", "sequence")):
    return read_lines(EventLines(data_spec, columns, timezone).parse, lines, name="lines")


def test_lines_of_events():
    assert parsed(NUMBERS, ["1,x", " 1e1 , y "]) == [Event(1.0, 0), Event(10.0, 1)]
    assert parsed(NUMBERS, ["\ufeff-1,x"]) == [Event(-1.0, 0)]
    assert parsed(NUMBERS, ["", "1,x", "", "", "0,y"]) == [
        None, Event(1.0, 0), None, None, Event(0.0, 1)
    ]  # fmt: skip
    assert parsed(ONE, ["1", "2,event"]) == [Event(1.0, 0), Event(2.0, 0)]
    # A header may come in any order, with further columns, and behind a blank line.
    assert parsed(NUMBERS, ["", "car,mark,time", '"a,b",y,3']) == [None, Event(3.0, 1)]
    assert parsed(ONE, ["time,car", "1,a"]) == [Event(1.0, 0)]
    assert parsed(NUMBERS, ["when,kind", "3,y"], columns=("when", "kind", "who")) == [Event(3.0, 1)]


def test_dates_and_zones():
    lines = ["1970-01-01 01:00:00,x", "1970-01-01T00:30:00Z,y", "1970/1/1 3:00,x"]
    assert [event.time for event in parsed(DATES, lines)] == [3600, 1800, 10_800]
    berlin = [event.time for event in parsed(DATES, lines, "Europe/Berlin")]
    assert berlin == [0, 1800, 7200]


@pytest.mark.parametrize(
    "data_spec, line, message",
    [
        (NUMBERS, "1", "expected 2 cells (time, mark), got 1."),
        (NUMBERS, "1,x,y", "expected 2 cells (time, mark), got 3."),
        (NUMBERS, "1,z", "expected one of the event types of the run (x, y), got 'z'"),
        (NUMBERS, "1,", "expected one of the event types of the run (x, y), got ''"),
        (NUMBERS, "noon,x", "expected a time as a number of at most 1e+100, got 'noon'"),
        (NUMBERS, "inf,x", "expected a time as a number"),
        (NUMBERS, "nan,x", "expected a time as a number"),
        (NUMBERS, ",x", "expected a time as a number"),
        (NUMBERS, "1e101,x", "expected a time as a number"),
        (NUMBERS, "1970-01-01,x", "expected a time as a number"),
        (NUMBERS, '"1,x', "quote"),
        (ONE, "1,2,3", "expected 1 cells (time) or 2 cells (time, mark), got 3."),
        (DATES, "1,x", "expected a date such as 2016-07-01 00:00:00, as in the training data"),
        (DATES, "2016-13-01,x", "expected a date such as"),
        (DATES, "2016-03-27 02:30,x", "expected a time that exists, got '2016-03-27 02:30'"),
    ],
)
def test_bad_lines_are_named(data_spec, line, message):
    good = "1970-01-01 12:00,x" if data_spec.dates else "0.5,x" if data_spec is NUMBERS else "0.5"
    with pytest.raises(ValueError) as refused:
        parsed(data_spec, [good, line], "Europe/Berlin")
    assert str(refused.value).startswith("lines:2: ") and message in str(refused.value)


@pytest.mark.parametrize(
    "lines, message",
    [
        (["time,mark", "1,x,3"], "lines:2: expected 2 cells, as in the first line, got 3"),
        (
            ["time,kind", "1,x"],
            "lines:1: expected the columns time, mark, got time, kind: 'mark' is missing",
        ),
        (
            ["time,mark,time", "1,x,2"],
            "lines:1: expected the columns time, mark, got time, mark, time: 'time' appears twice",
        ),
        (["1,x", "time,mark"], "lines:2: expected a time as a number"),
    ],
)
def test_bad_headers_are_named(lines, message):
    with pytest.raises(ValueError) as refused:
        parsed(NUMBERS, lines)
    assert message in str(refused.value)


def test_dates_in_and_out(tmp_path):
    """Those without a zone are in that of the run's file; they come out in UTC."""
    path = tmp_path / "rides.csv"
    rows = [f"2016-07-{day:02} {hour:02}:30:00,a" for day in (1, 2, 3) for hour in (8, 12, 18)]
    path.write_text("time,mark\n" + "\n".join(rows) + "\n")
    config = EventsConfig.of(file=path, timezone="Europe/Berlin", **EVENT_SIZES)
    events = TASK.load(config)
    data_spec = dataclasses.replace(TASK.describe(events, config), begins=True)
    assert data_spec.dates and data_spec.periods == (86_400.0, 7 * 86_400.0)
    assert (
        "from 2016-07-01 06:30:00+00:00 to 2016-07-03 16:30:00+00:00"
        in TASK.about_data(events, config).text
    )
    run = Run(TASK, config, data_spec, TASK.model(config, data_spec))
    stream = EventsStream(run, EventsStreamOptions(begin="2016-07-04", within=3600.0))
    rows = streamed(stream, ["2016-07-04 08:00,a", "2016-07-04 08:00:00.5+00:00,a"])
    assert [row[1] for row in rows] == [
        "2016-07-04 06:00:00+00:00", "2016-07-04 08:00:00.500000+00:00"
    ]  # fmt: skip
    assert stream.record()["_origin"] == 1467583200.0  # midnight in Berlin
    with pytest.raises(ValueError, match=r"do not decrease, got .* after 2016-07-04 08:00"):
        streamed(stream, ["2016-07-04 09:00,a"])
    # Nanoseconds, as pandas writes them, are rounded and not cut off.
    late = pd.to_datetime(["2016-07-05 08:00:00.000000999", "2016-07-05 08:00:01.123456789"])
    frame = pd.DataFrame({"time": late, "mark": "a"})
    frame.to_csv(tmp_path / "late.csv", index=False)
    frame.to_parquet(tmp_path / "late.parquet")
    for name in ("late.csv", "late.parquet"):
        (time,) = TASK.predict(run, tmp_path / name)["time"]
        assert str(time) == "2016-07-05 06:00:01.123457+00:00"
    last = streamed(stream, [f"{late[0]},a"])[-1]
    assert last[1] == "2016-07-05 06:00:00.000001+00:00"


def test_unix_seconds_keep_their_digits_and_sequences_their_names(tmp_path):
    """A model of times in float32 would count in steps of 128 seconds."""
    origin, rng, frames = 1_709_280_000.0, np.random.default_rng(0), []
    gaps = rng.exponential(30, 60).round(3)
    for begin in (origin, 0.0):
        path = tmp_path / f"{begin}.csv"
        rows = [f"{time:.3f},u{n % 3}" for n, time in enumerate(begin + np.cumsum(gaps))]
        path.write_text("time,sequence\n" + "\n".join(rows) + "\n")
        config = EventsConfig.of(file=path, **SIZES)
        if not frames:
            data_spec = TASK.describe(TASK.load(config), config)
            model = moved(TASK.model(config, data_spec), 0.3)
        frames.append(TASK.predict(Run(TASK, config, data_spec, model), path))
    late, early = frames
    assert late["sequence"].tolist() == ["u0", "u1", "u2"]
    times = late.columns[1:]
    np.testing.assert_allclose(late[times] - origin, early[times], atol=1e-5)
    assert (np.diff(late[times[2:]]) > 0).all()
    write_table(tmp_path / "next.csv", late)
    written = pd.read_csv(tmp_path / "next.csv", dtype=str)[times].astype(np.float64)
    pd.testing.assert_frame_equal(written, late[times], check_exact=True)
    stream = EventsStream(Run(TASK, config, data_spec, model), EventsStreamOptions(begin=""))
    first = [f"{origin + time:.3f}" for time in np.cumsum(gaps)[::3]]
    printed = [join_cells(row).split(",") for row in streamed(stream, first)][-1]
    assert float(printed[1]) == late["time"][0]
    assert float(printed[1]) + float(printed[3]) == pytest.approx(late["next"][0], abs=1e-4)


# -- baselines ----------------------------------------------------------------------------


def test_guesses_by_hand():
    """Mean and median gap, most frequent and last event type; what is given does not count."""
    train = sequences([[0.0, 1.0, 3.0, 12.0]], [[1, 0, 0, 1]], 2, begin=[np.nan])
    test = sequences([[2.0, 4.0, 5.0], [1.0, 7.0]], [[0, 0, 1], [1, 1]], 2, begin=[0.0, np.nan])
    # Gaps to learn from: 1, 2, 9. Gaps to guess: 2, 2, 1 and 6.
    assert baselines.naive_scores(train, test) == pytest.approx(
        {
            "mean_gap_rmse": math.sqrt((4 + 4 + 9 + 4) / 4),
            "median_gap_mae": (0 + 0 + 1 + 4) / 4,
            "frequent_mark_accuracy": 2 / 4,  # event type 0, of 0, 0, 1 and 1
            "last_mark_accuracy": 2 / 4,  # nothing was before the first
        }
    )


def test_processes_of_more_event_types_than_can_excite_each_other():
    rng = np.random.default_rng(0)
    types = [rng.integers(0, 101, 60) for _ in range(3)]
    times = [np.cumsum(rng.exponential(1.0, 60)) for _ in range(3)]
    events = sequences(times, types, 101, begin=[0.0] * 3)
    fitted = baselines.fit_processes(events, 1e-3)
    assert isinstance(fitted["hawkes"], processes.IndependentEventTypes)
    for process in fitted.values():
        assert process.num_event_types == 101
        assert np.isfinite(process.log_likelihood(events).total).all()
    few_types = baselines.fit_processes(dataclasses.replace(some_events(2)), 0.1)
    assert isinstance(few_types["hawkes"], processes.HawkesProcess)


def test_a_few_of_the_sequences():
    events = sequences([np.arange(n) for n in (3.0, 4.0, 5.0)])
    assert [len(baselines.take_events(events, most)) for most in (1, 3, 4, 7, 8, 12, 99)] == [
        1,
        1,
        2,
        2,
        3,
        3,
        3,
    ]


def test_a_hawkes_process_is_fitted_to_the_first_pieces_of_one_long_sequence(monkeypatch):
    monkeypatch.setattr(baselines, "MAX_HAWKES_EVENTS", 3000)
    events = sequences([np.arange(20_000.0)])
    fitted = baselines.hawkes_sequences(events)
    assert fitted.num_forecast == 3000 and fitted.times[-1][-1] == 3000.0


def test_no_excitement_is_shorter_than_the_resolution():
    """Pairs of events at nearly one time: what the smallest gap would allow."""
    times = np.cumsum(np.tile([1e-3, 1.0], 100))
    fitted = baselines.fit_processes(sequences([times]), 0.5)["hawkes"]
    assert isinstance(fitted, processes.HawkesProcess) and fitted.decay <= 2.0


# -- commands ------------------------------------------------------------------------------

SMALL = [*flags(SIZES | {"num_components": 2, "epochs": 1}), "--parallel", "none"]


@pytest.fixture(scope="module")
def csv(tmp_path_factory):
    """The events of the run of ``test_contract.py``, so that its programs do here, too."""
    path = tmp_path_factory.mktemp("data") / "drawn.csv"
    path.write_text(text_of(PROCESSES["hawkes-marked"].sample(10, 100.0, seed=0), names=True))
    return path


@pytest.fixture(scope="module")
def run_dir(csv, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "events"
    args = [*("--file", str(csv), "--begin", "0", "--end", "100"), *SMALL]
    args += ["--length", "24", "--history", "0", "--learning-rate", "0.001"]
    with no_drawing():
        assert cli.main(["train", "events", "--run", str(folder), *args]) == 0
    return folder


def test_a_run_of_a_file(run_dir, csv):
    report = json.loads((run_dir / "test.json").read_text())
    run = tasks.load_run(run_dir)
    test = split_events(TASK.load(run.config)).test
    assert report["num_test_sequences"] == 2 and test.ends.tolist() == [100.0, 100.0]
    expected = values_of(run, scores_by_hand(run, test))
    numbers = {name: value for name, value in expected.items() if name.startswith("test_")}
    assert {name: report[name] for name in numbers} == pytest.approx(numbers, rel=1e-4)
    # The baselines are judged by the same measure, on the same events.
    flat = np.concatenate(test.gaps())
    poisson = processes.PoissonProcess.fit(split_events(TASK.load(run.config)).train)
    nll = poisson.rate * (flat.sum() + (100 - np.array([t[-1] for t in test.times])).sum())
    types = np.log(poisson.rates)[np.concatenate(test.event_types)].sum()
    assert report["poisson_nll"] == pytest.approx((nll - types) / len(flat))


def test_another_test_file(run_dir, csv, tmp_path, capsys):
    other = tmp_path / "other.csv"
    other.write_text("sequence,mark,time\na,2,1\na,2,3\nb,0,2\n")
    report = tasks.evaluate_run(run_dir, other)
    assert (report["num_test_events"], report["num_test_sequences"]) == (3, 2)
    assert report["hawkes_nll"] > 0 and report["stream_max_error"] < 1e-4
    missing = fail(capsys, "evaluate", str(run_dir), "--test-file", str(tmp_path / "none.csv"))
    assert "none.csv" in missing


@pytest.mark.parametrize(
    "text, message",
    [
        ("time,mark\n1,2\n2,cat\n",
         "{}: line 3: expected one of the event types 0, 1, 2, got 'cat'"),
        ("time,mark\n1970-01-01,2\n", "{}: expected times as numbers, as in the training"),
        ("when,mark\n1,2\n", "{}:1: expected a column 'time' of times, got columns when, mark; "
         "rename the column as in the file of the run"),
        ("time,mark\n1,2\n0.5,0\n", "{}:3: expected times that never decrease in sequence 0, "
         "got 0.5 after 1.0; sort the rows of each sequence by time"),
        ("time,mark\n-1,2\n", "{}:2: expected events at or after 0.0, the begin of sequence 0, got "
         "one at -1.0; remove the events before the start of observation of the run"),
        ("1 2 3\n1 2\n", "{}:1: expected a header, or lines of user, item and timestamp, got lines "
         "of other numbers; pass a file in the format of the run's file"),
    ],
)  # fmt: skip
def test_errors_about_another_file_name_no_option_that_predict_lacks(
    run_dir, tmp_path, capsys, text, message
):
    other = tmp_path / "other.csv"
    other.write_text(text)
    args = ["--input", str(other), "--out", str(tmp_path / "next.csv")]
    found = one_line(fail(capsys, "predict", str(run_dir), *args))
    assert message.format(other) in found
    assert "=..." not in found and "=True" not in found


def test_other_files_are_read_whole(tmp_path):
    """Whatever the run's own took: a number of sequences, or event types in a second file."""
    path = tmp_path / "other.csv"
    path.write_text("sequence,mark,time\n" + "".join(f"{n},0,1\n{n},1,{n + 2}\n" for n in range(5)))
    run = make_run(drawn(9, 9), num_sequences=3)
    assert len(TASK.test_batches(run, path).events) == 5
    data = EventsData(file=path, event_types_file=path, file_format="rmtpp", num_sequences=3)
    config = dataclasses.replace(run.config, data=data)
    assert len(TASK.test_batches(run._replace(config=config), path).events) == 5
    path.write_text("time,mark\n1,0\n")
    with pytest.raises(OptionError, match=r"got first events only") as refused:
        TASK.test_batches(run, path)
    assert str(path) in str(refused.value) and refused.value.options == ("test_file",)
    path.write_text("time,mark\n1,0\n2,1\n")  # after drawn ones, too
    config = dataclasses.replace(run.config, data=EventsData(process="poisson", num_sequences=3))
    assert len(TASK.test_batches(run._replace(config=config), path).events) == 1


def test_a_run_whose_file_is_gone(run_dir, csv, tmp_path, capsys):
    other = tmp_path / "other.csv"
    other.write_text("sequence,mark,time\na,2,1\na,2,3\nb,0,2\n")
    kept = csv.read_text()
    csv.unlink()
    try:
        assert cli.main(["evaluate", str(run_dir), "--test-file", str(other)]) == 0
        streams = capsys.readouterr()
        assert (
            "note: trained baselines are skipped, because the training data cannot be"
            in streams.err
        )
        assert "test_nll" in streams.out and "poisson" not in streams.out
        assert "a data file of the run is missing" in one_line(
            fail(capsys, "evaluate", str(run_dir))
        )
    finally:
        csv.write_text(kept)


@pytest.mark.parametrize(
    "text, args, message",
    [
        (None, [], "{path}"),
        ("", [], "{path}"),
        ("time,mark\n1,a\nx,b\n", [], "{path}:3: expected a number, as in the first row"),
        ("when,mark\n2,a\n3,b\n", [], "{path}:1: expected a column 'time' of times, got"),
        ("time,mark\n2,a\n3,b\n", ["--begin", "2.5"], "{path}:2: expected events at or after"),
        ("time,mark\n2,a\n3,b\n", ["--begin", "noon"], "begin must be a number, like the times"),
        ("time,mark\n2,a\n3,b\n", ["--timezone", "Mars"], "timezone must be a name"),
        ("time,mark\n2,a\n3,b\n", [], "0.6/0.2/0.2 by time leaves none for train"),
        ("time\n" + "2\n" * 9, [], "expected training events at different times"),
        ("time,mark\n2,a\n", ["--periods", "1,-1"], "expected periods as positive numbers"),
        ("time,mark\n2,a\n", ["--scale", "-1"], "expected scale as a number of at least 0"),
        ("time,mark\n2,a\n", ["--length", "0"], "length must be at least 1"),
        ("time\n1\n2\n3\n4\n5\n6\n", ["--mechanism", "linformer"], "has no causal form"),
    ],
)
def test_bad_files_and_options(tmp_path, capsys, text, args, message):
    path = tmp_path / "bad.csv"
    if text is not None:
        path.write_text(text)
    given = ["train", "events", "--run", str(tmp_path / "run"), "--file", str(path), *SMALL, *args]
    told = one_line(fail(capsys, *given))
    assert message.format(path=path) in told, told
    assert not (tmp_path / "run" / "config.json").exists()


def test_options_of_files_alone(tmp_path, capsys):
    own = (["--begin", "0"], ["--end", "9"], ["--event-types-file", "a"], ["--sort"])
    own += (["--sequence", "a"],)
    for args in (*own, ["--file-format", "npz"]):
        told = fail(capsys, "train", "events", "--run", str(tmp_path / "run"), *SMALL, *args)
        assert "needs an event file; set file, or remove" in one_line(told)
    with pytest.raises(
        OptionError, match="process='poisson' generates synthetic events"
    ) as refused:
        EventsData(file=tmp_path / "a.csv", process="poisson")
    assert refused.value.options == ("process", "file")


@pytest.mark.slow
def test_the_published_protocol():
    events = drawn(14, 9)
    config = tasks.get_task("events").presets["thp"](EventsConfig.of())
    data_spec = describe(EventSplit(events, events, events), config)
    assert len(data_spec.clock) == 16
    model = TASK.model(config, data_spec)
    loss = training.evaluate(
        model, events_loss, make_batches(events, config, data_spec, seed=None)
    )["loss"]
    assert np.isfinite(loss)
