"""Offline RL: windows, inference modes, streams, behavior cloning, selection, bad input."""

import dataclasses
import functools
import itertools
import json
import sys
from contextlib import closing

import jax
import numpy as np
import pytest
from flax import nnx
from scipy import stats

from flax_linattn import cli, control, data, tasks, training
from flax_linattn.checks import OptionError
from flax_linattn.data.episodes import Episodes, write_episodes
from flax_linattn.tasks import Run
from flax_linattn.tasks.offline_rl import OfflineRLConfig, OfflineRLSpec, evaluate
from flax_linattn.tasks.offline_rl.agent import RestartMemory, make_agent
from flax_linattn.tasks.offline_rl.behavior_cloning import (
    PolicyAgent,
    predict_policy_outputs,
    train_policy,
)
from flax_linattn.tasks.offline_rl.data import (
    PUBLISHED_TARGETS,
    WindowBatches,
    begin_context,
    describe,
    scale_episodes,
    split_data,
)
from flax_linattn.tasks.offline_rl.evaluate import decision_loss
from flax_linattn.tasks.offline_rl.stream import (
    OfflineRLStream,
    OfflineRLStreamOptions,
    parse_steps,
)
from tests.contract.tolerances import assert_close, assert_same_bits
from tests.nn.cases import STACKED, call, moved
from tests.tasks import states
from tests.tasks.commands import SIZES, fail, flags, one_line, read_lines, succeed

TASK = tasks.get_task("offline-rl")
SEEN, DONE = 3, 2
slow = pytest.mark.slow

pytestmark = pytest.mark.usefixtures("no_figures")


def some(*lengths, seed=0, env_id=None, actions=None):
    """Episodes of so many steps, whose numbers are drawn."""
    rng = np.random.default_rng(seed)
    total = sum(lengths)
    drawn = rng.uniform(-1, 1, (total, DONE))
    return Episodes(
        "drawn",
        5 + 3 * rng.normal(size=(total, SEEN)),
        drawn if actions is None else actions,
        rng.normal(size=total),
        np.cumsum([0, *lengths]),
        np.ones(len(lengths), bool),
        env_id,
    )


def choices(*lengths, seed=0, env_id=None):
    """Episodes of three discrete actions."""
    actions = np.random.default_rng([seed, 1]).integers(0, 3, sum(lengths))
    return some(*lengths, seed=seed, env_id=env_id, actions=actions)


def numbered(*lengths):
    """Episodes whose actions tell which of all steps a step is: (n + 0.5) / N, and 0."""
    total = sum(lengths)
    number = (np.arange(total) + 0.5) / total
    return some(*lengths, actions=np.stack([number, np.zeros(total)], axis=1))


def numbers(batch, total):
    """Of the steps in a batch of such windows."""
    return np.floor(batch["actions"][..., 0] * total).astype(int)


def make_run(episodes, **options) -> Run:
    """A run whose parameters nobody trained."""
    config = OfflineRLConfig.of(**SIZES | {"env": "none"} | options)
    data_spec = describe(episodes, config)
    data_spec.check()
    return Run(TASK, config, data_spec, moved(TASK.model(config, data_spec), 0.3), episodes)


# -- windows ---------------------------------------------------------------------------------

LENGTHS = (2, 5, 9, 3)
CONTEXT = 3
STARTS = np.cumsum([0, *LENGTHS])


def windows(episodes, *, seed, **options):
    config = OfflineRLConfig.of(**{"context": CONTEXT, "batch_size": 64} | options)
    return WindowBatches(episodes, describe(episodes, config), config, seed=seed)


@pytest.mark.parametrize("drawn_by", ["steps", "episodes"])
def test_windows_are_drawn_of_one_episode_each_as_often_as_said(drawn_by):
    batches = windows(numbered(*LENGTHS), seed=0, windows=drawn_by)
    counts = np.zeros(sum(LENGTHS))
    for step in range(150):
        batch = batches.batch(step)
        assert batch["x"].shape == (64, CONTEXT, 3 + SEEN + DONE)
        assert batch["x"].dtype == batch["actions"].dtype == batch["weight"].dtype == np.float32
        assert batch["mask"].dtype == bool and (batch["weight"] == 1).all()
        number = numbers(batch, sum(LENGTHS))
        first = number[:, 0]
        counts += np.bincount(first, minlength=len(counts))
        episode = np.searchsorted(STARTS, first, side="right") - 1
        # One after the other, to the end of the window or of the episode.
        real = np.minimum(STARTS[episode + 1] - first, CONTEXT)
        np.testing.assert_array_equal(batch["mask"], np.arange(CONTEXT) < real[:, None])
        following = first[:, None] + np.arange(CONTEXT)
        np.testing.assert_array_equal(number[batch["mask"]], following[batch["mask"]])
    # A window is as long as it can be: of 9 steps, 7 begin one.
    begins = [max(length - CONTEXT, 0) + 1 for length in LENGTHS]
    share = np.array(LENGTHS) / sum(LENGTHS) if drawn_by == "steps" else np.full(4, 0.25)
    expected = np.zeros(len(counts))
    for start, room, own in zip(STARTS, begins, share, strict=False):
        expected[start : start + room] = own / room
    assert (counts[expected == 0] == 0).all()
    possible = expected > 0
    assert stats.chisquare(counts[possible], counts.sum() * expected[possible]).pvalue > 1e-3


def test_windows_are_a_pure_function_of_the_step():
    batches, again = (windows(some(*LENGTHS), seed=3) for _ in range(2))
    first = batches.batch(7)
    for step in (0, 8, 7_000_000):
        batches.batch(step)
    assert_same_bits(again.batch(7), first)
    assert not np.array_equal(first["x"], batches.batch(8)["x"])
    assert not np.array_equal(first["x"], windows(some(*LENGTHS), seed=4).batch(7)["x"])
    for rows in (slice(0, 8), slice(56, 64), slice(3, 50, 7)):
        part = {name: values[rows] for name, values in first.items()}
        assert_same_bits(batches.batch(7, rows), part)
    assert len(batches) == 1
    in_order = windows(some(*LENGTHS), seed=None)
    for rows in (slice(0, 8), slice(56, 64)):
        part = {name: values[rows] for name, values in in_order.batch(0).items()}
        assert_same_bits(in_order.batch(0, rows), part)


@pytest.mark.parametrize("batch_size", [1, 2, 4, 64])
def test_windows_in_order_hold_every_step_once(batch_size):
    batches = windows(numbered(*LENGTHS), seed=None, batch_size=batch_size)
    met = []
    for step in range(len(batches)):
        batch = batches.batch(step)
        real = batch["mask"] & (batch["weight"] > 0)[:, None]
        met += numbers(batch, sum(LENGTHS))[real].tolist()
        assert (batch["weight"] > 0).any()
        assert_same_bits(batches.batch(step + len(batches)), batch)
    assert met == list(range(sum(LENGTHS)))


@pytest.mark.parametrize("clock", ["episode", "context"])
def test_a_window_tells_what_its_steps_hold(clock):
    """Column by column, by hand: scales, what is left of the return, the action before."""
    episodes = some(*LENGTHS)
    batches = windows(episodes, seed=None, clock=clock, return_scale=2.0)
    train = split_data(episodes, OfflineRLConfig.of().data).train
    mean, scale = train.observations.mean(0), train.observations.std(0) + 1e-6
    batch, row = batches.batch(0), 0
    for start, stop in itertools.pairwise(STARTS):
        for first in range(start, stop, CONTEXT):
            for place, n in enumerate(range(first, min(first + CONTEXT, stop))):
                before = episodes.actions[n - 1] if place else np.zeros(DONE)
                want = np.concatenate(
                    [
                        [place if clock == "context" else n - start, place > 0],
                        [episodes.rewards[n:stop].sum(dtype=np.float64) / 2],
                        (episodes.observations[n] - mean) / scale,
                        before,
                    ]
                )
                got = batch["x"][row, place].copy()
                if not place:
                    got[-DONE:] = 0  # whatever stands there is not told
                np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
                assert_same_bits(batch["actions"][row, place], episodes.actions[n])
            row += 1
    assert (batch["weight"] > 0).sum() == row


def test_the_loss_is_of_real_steps():
    run = make_run(some(4, 7, 9, 12), context=5, batch_size=8)
    batches = WindowBatches(run.data, run.data_spec, run.config, seed=None)
    batch = batches.batch(0)
    total, count = 0.0, 0
    told = call(run.model, batch["x"], mask=batch["mask"])
    for row in range(8):
        for place in range(5):
            if batch["mask"][row, place] and batch["weight"][row]:
                total += ((told[row, place] - batch["actions"][row, place]) ** 2).mean()
                count += 1
    assert count == 32 == run.data.num_steps
    other = {name: values.copy() for name, values in batch.items()}
    other["x"][~batch["mask"]] = np.nan
    other["actions"][~batch["mask"]] = 7.0
    loss_fn = functools.partial(decision_loss, run.data_spec.action_space)
    for own in (batch, other):
        loss, metrics = nnx.jit(loss_fn)(run.model, own, None)
        np.testing.assert_allclose(loss, total / count, rtol=1e-5)
        np.testing.assert_allclose(metrics["loss"], (total, count), rtol=1e-5)
    (metric,) = evaluate.action_metrics(run, batches).items()
    assert metric == ("mse", pytest.approx(total / count, rel=1e-5))


def test_the_loss_of_discrete_actions_is_the_cross_entropy():
    run = make_run(choices(4, 7, 9, 12), context=5, batch_size=8)
    assert (run.data_spec.num_actions, run.data_spec.action_low) == (3, ())
    batches = WindowBatches(run.data, run.data_spec, run.config, seed=None)
    losses, hits = [], []
    for step in range(len(batches)):
        batch = batches.batch(step)
        mask = batch["mask"] & (batch["weight"] > 0)[:, None]
        logits = call(run.model, batch["x"], mask=batch["mask"])[mask].astype(np.float64)
        actions = batch["actions"][mask][:, 0].astype(int)
        p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        losses += [*-np.log(p[np.arange(len(p)), actions])]
        hits += [*(p.argmax(axis=1) == actions)]
    assert len(losses) == 32
    expected = {"cross_entropy": np.mean(losses), "accuracy": np.mean(hits)}
    assert evaluate.action_metrics(run, batches) == pytest.approx(expected, rel=1e-5)


# -- what a run remembers ----------------------------------------------------------------------


def test_actions_and_observations_are_scaled_and_back():
    rng = np.random.default_rng(1)
    wide = rng.uniform([-2, 5], [3, 6], (30, DONE))
    for actions in (wide, 0.9 * wide / 6, np.full((30, DONE), 7.0), np.full((30, DONE), 1e30)):
        episodes = some(10, 10, 10, actions=actions)
        data_spec = describe(episodes, OfflineRLConfig.of())
        data_spec.check()
        train = split_data(episodes, OfflineRLConfig.of().data).train.actions
        scaled = data_spec.scaled_actions(train)
        assert np.abs(scaled).max() <= 1 + 1e-6
        np.testing.assert_allclose(data_spec.actions(scaled), train, rtol=1e-5, atol=1e-6)
        if np.abs(actions).max() <= 1:  # as they are
            assert_same_bits(scaled, train)
            assert data_spec.action_low == (-1.0, -1.0)
        elif np.ptp(actions) > 0:
            np.testing.assert_allclose(scaled.min(0), -1, atol=1e-5)
            np.testing.assert_allclose(scaled.max(0), 1, atol=1e-5)
        else:
            np.testing.assert_allclose(scaled, 0, atol=1e-5)


@pytest.mark.parametrize("value", [0.0, 0.1, -1e30])
def test_a_number_that_never_changes_is_not_scaled(value):
    episodes = some(20, 20, 20)
    seen = episodes.observations.copy()
    seen[:, 1] = value
    episodes = Episodes("flat", seen, episodes.actions, episodes.rewards, episodes.starts,
                        episodes.terminated)  # fmt: skip
    data_spec = describe(episodes, OfflineRLConfig.of())
    data_spec.check()
    assert data_spec.observation_scale[1] == 1.0
    np.testing.assert_allclose(data_spec.scaled_observations(seen)[:, 1], 0, atol=1e-5 * abs(value))
    train = split_data(episodes, OfflineRLConfig.of().data).train
    scaled = data_spec.scaled_observations(train.observations)[:, [0, 2]]
    np.testing.assert_allclose(scaled.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(scaled.std(0), 1, atol=1e-5)


def test_what_return_is_asked_for():
    """The published one of a robot, else the best to train on, else what is given."""
    plain = some(10, 10, 10, 10)
    train = split_data(plain, OfflineRLConfig.of().data).train
    best = float(train.returns.max())
    assert describe(plain, OfflineRLConfig.of()).target_return == best
    for env_id, asked in (("Hopper-v5", 3600), ("Ant-v4", 6000), ("Pendulum-v1", best)):
        data_spec = describe(some(10, 10, 10, 10, env_id=env_id), OfflineRLConfig.of())
        assert (data_spec.env_id, data_spec.target_return) == (env_id, asked)
        assert data_spec.mean_return == pytest.approx(train.returns.mean())
    named = some(10, 10, 10, 10, env_id="Walker2d-v5")
    assert describe(named, OfflineRLConfig.of(target_return=-3.5)).target_return == -3.5
    assert describe(named, OfflineRLConfig.of(env="none")).env_id is None
    assert set(PUBLISHED_TARGETS) == {"HalfCheetah", "Hopper", "Walker2d", "Ant"}
    scale = describe(plain, OfflineRLConfig.of()).return_scale
    assert scale == np.abs(train.returns_to_go()).max()
    assert describe(plain, OfflineRLConfig.of(return_scale=1000.0)).return_scale == 1000


def test_parts_are_whole_episodes_of_their_shares():
    episodes = some(*[3] * 20)
    parts = split_data(
        episodes, OfflineRLConfig.of(validation_fraction=0.2, test_fraction=0.25).data
    )
    assert [part.num_episodes for part in parts] == [11, 4, 5]
    found = np.concatenate([part.returns for part in parts])
    np.testing.assert_array_equal(np.sort(found), np.sort(episodes.returns))
    fewest = split_data(some(3, 3, 3), OfflineRLConfig.of().data)
    assert [part.num_episodes for part in fewest] == [1, 1, 1]
    # The scales are those of the training part alone.
    data_spec = describe(episodes, OfflineRLConfig.of())
    train = split_data(episodes, OfflineRLConfig.of().data).train
    np.testing.assert_allclose(data_spec.observation_mean, train.observations.mean(0), rtol=1e-5)
    assert data_spec.num_train_steps == train.num_steps


PROBLEM = describe(some(4, 5, 6), OfflineRLConfig.of()).to_json()


@pytest.mark.parametrize(
    "wrong",
    [
        {"observation_mean": []},
        {"observation_mean": [1.0, 2.0]},
        {"observation_mean": [float("nan")] * 3},
        {"observation_mean": [10**400] * 3},
        {"observation_mean": 5},
        {"observation_scale": [1.0, 0.0, 1.0]},
        {"observation_scale": [1.0, 1.0]},
        {"action_low": []},
        {"action_low": [-1.0, 1.0], "action_high": [1.0, 1.0]},
        {"action_high": [1.0]},
        {"action_low": [-1e308, -1.0], "action_high": [1e308, 1.0]},
        {"return_scale": 0.0},
        {"return_scale": float("inf")},
        {"target_return": float("nan")},
        {"target_return": None},
        {"max_steps": 0},
        {"max_steps": 1.5},
        {"env_id": 3},
        {"num_train_steps": -1},
    ],
)
def test_what_no_data_say_is_refused(wrong):
    with pytest.raises((ValueError, TypeError)):
        OfflineRLSpec.from_json(PROBLEM | wrong).check()


# -- acting --------------------------------------------------------------------------------------


def replay(agent, plans, steps, junk=0):
    """An agent that plays what was played: whatever it answers, the recorded action is done.

    Args:
        agent: of B rows.
        plans: for each row, the step in which an episode begins -> that episode.
        steps: in all; where a row plays nothing it is idle.
        junk: seed of what idle rows see.

    Returns:
        For each row and episode: the steps that the agent made of it, and its scaled answers.
    """
    rng = np.random.default_rng(junk)
    rows, found, now = len(plans), [{} for _ in plans], [None] * len(plans)
    inner = agent.memory.step

    def decide(x, begins):
        told = inner(x, begins)
        done = told.copy()
        for row, playing in enumerate(now):
            if playing is not None:
                begun, n = playing
                xs, answers = found[row].setdefault(begun, ([], []))
                xs.append(x[row].copy())
                answers.append(told[row].copy())
                taken = agent._data_spec.scaled_actions(plans[row][begun].actions[n : n + 1])
                done[row] = agent._data_spec.action_space.to_vectors(taken)[0]
        return done

    agent.memory.step = decide
    for t in range(steps):
        seen = rng.normal(size=(rows, agent._data_spec.observation_dim)).astype(np.float32)
        rewards, begins = np.zeros(rows, np.float32), np.zeros(rows, bool)
        for row, plan in enumerate(plans):
            if t in plan:
                now[row], begins[row] = (t, 0), True
            elif now[row] is not None:
                begun, n = now[row]
                now[row] = (begun, n + 1) if n + 1 < plan[begun].num_steps else None
            if now[row] is not None:
                begun, n = now[row]
                seen[row] = plan[begun].observations[n]
                rewards[row] = plan[begun].rewards[n - 1] if n else 0
        agent.act(seen, rewards, begins)
    del agent.memory.step
    return [
        {begun: tuple(map(np.stack, pair)) for begun, pair in row.items()} for row in found
    ]  # fmt: skip


def alike(*lengths, seed=0, make=some):
    """Episodes of these lengths that all have one return, which an agent can be asked for."""
    episodes = make(*lengths, seed=seed)
    rewards = episodes.rewards.astype(np.float64)
    for start, stop in zip(episodes.starts, episodes.starts[1:], strict=False):
        rewards[start:stop] += (1.5 - rewards[start:stop].sum()) / (stop - start)
    return Episodes(episodes.name, episodes.observations, episodes.actions, rewards,
                    episodes.starts, episodes.terminated)  # fmt: skip


def pieces(length, context, act):
    """For each step, from which step on the model sees."""
    if act == "stream":
        return [0] * length
    if act == "window":
        return [max(t - context + 1, 0) for t in range(length)]
    begin, found = 0, []
    for t in range(length):
        if t - begin == context:
            begin = t - context // 2
        found.append(begin)
    return found


def expected(run, x, act):
    """Answers by the parallel model on what the agent is said to see: [T, A]."""
    context, clock = run.config.fit.context, run.config.model.clock
    room = -len(x) % 32  # one program for episodes of any length
    if act == "stream":
        padded = np.pad(x, ((0, room), (0, 0)))[None]  # longer than the times that models have
        mask = np.arange(padded.shape[1])[None] < len(x)
        return call(run.model, padded, mask=mask)[0, : len(x)]
    rows = np.zeros((len(x) + room, context, x.shape[1]), np.float32)
    mask = np.zeros((len(x) + room, context), bool)
    mask[len(x) :, 0] = True
    for t, begin in enumerate(pieces(len(x), context, act)):
        own = x[begin : t + 1]
        rows[t, : len(own)] = begin_context(own, clock)
        mask[t, : len(own)] = True
    told = call(run.model, rows, mask=mask)
    return told[np.arange(len(x)), mask.sum(1)[: len(x)] - 1]


ACTS = ["window", "stream", "restart"]


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize(
    ("clock", "make"),
    [("episode", some), ("episode", choices), pytest.param("context", some, marks=slow)],
)
def test_an_agent_sees_what_the_windows_hold_and_answers_as_the_model(act, clock, make):
    """Rows that begin at different times, several episodes a row, idle steps between."""
    episodes = alike(13, 30, 7, 1, 22, make=make)
    # Learned times of a window alone cannot stream, see make_stream_memory.
    position = "sinusoidal" if (act, clock) == ("stream", "context") else "learned"
    run = make_run(episodes, context=6, clock=clock, act=act, max_length=32, position=position)
    one, two, three, four, five = (episodes.take([n]) for n in range(5))
    plans = [{0: one, 15: three, 22: five}, {4: two}, {9: four, 12: one, 40: three}]
    agent = make_agent(run, 3, 30, target_return=1.5)
    found = replay(agent, plans, 60)
    for plan, row in zip(plans, found, strict=True):
        assert plan.keys() == row.keys()
        for begun, (x, told) in row.items():
            want = scale_episodes(plan[begun], run.data_spec).x
            np.testing.assert_allclose(x, want, rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(told, expected(run, want, act), atol=1e-5)


def test_discrete_actions_are_sampled_by_the_seed_of_the_episode():
    run = make_run(choices(5, 6, 7), sample_actions=True, context=4)
    logits = np.log(np.float32([0.2, 0.3, 0.5]))
    seen, rewards = np.zeros((2, SEEN), np.float32), np.zeros(2, np.float32)
    taken = []
    for rows in ([0, 1], [1, 0]):
        agent = make_agent(run, 2, 7)
        agent.memory.step = lambda x, begins: np.tile(logits, (2, 1))
        assert isinstance(agent, control.SamplingAgent)
        agent.begin(rows, [7, 8])
        steps = [agent.act(seen, rewards, np.full(2, not n)) for n in range(2000)]
        taken.append(np.array(steps)[:, rows])
    np.testing.assert_array_equal(taken[0], taken[1])
    assert (taken[0][:, 0] != taken[0][:, 1]).any() and taken[0].dtype == np.int64
    np.testing.assert_allclose(np.bincount(taken[0].ravel()) / 4000, np.exp(logits), atol=0.03)
    greedy = make_agent(run, 2, 7, sample_actions=False)
    greedy.memory.step = lambda x, begins: np.stack([logits, np.full(3, np.nan)])
    assert greedy.act(seen, rewards, np.ones(2, bool)).tolist() == [2, -1]
    with pytest.raises(
        OptionError, match=r"sample_actions needs discrete actions, but .* of 1 num"
    ):
        TASK.load(OfflineRLConfig.of(sample_actions=True))


@pytest.mark.parametrize(
    "act", ["restart", *(pytest.param(act, marks=slow) for act in ("window", "stream"))]
)
def test_what_idle_rows_see_changes_nothing(act):
    """Long after the model has no times and its cache no room: other rows, and the next episode."""
    episodes = alike(9, 10, 8)
    run = make_run(episodes, context=4, act=act, mechanism="softmax", max_length=10)
    plans = [{0: episodes.take([0]), 30: episodes.take([1])},
             {n: episodes.take([2]) for n in (0, 8, 16, 24, 32)}]  # fmt: skip
    one, other = (
        replay(make_agent(run, 2, 10, target_return=1.5), plans, 40, junk) for junk in (1, 2)
    )
    assert_same_bits(one, other)
    for plan, row in zip(plans, one, strict=True):
        for begun, (_, told) in row.items():
            x = scale_episodes(plan[begun], run.data_spec).x
            np.testing.assert_allclose(told, expected(run, x, act), atol=1e-5)


@pytest.mark.parametrize(
    "mechanism",
    [
        case if case.id == "aaren" else pytest.param(*case.values, id=case.id, marks=slow)
        for case in STACKED
    ],
)
def test_the_three_ways_to_act_are_equal_at_first(mechanism):
    """In as many steps as a window has, by one clock; not after them."""
    if mechanism.startswith("aft"):
        mechanism = "aft"
    episodes = alike(14, 12, 10)
    run = make_run(episodes, context=6, mechanism=mechanism, max_length=16)
    told = {}
    for act in ACTS:
        agent = make_agent(run, 1, 14, act=act, target_return=1.5)
        ((_, told[act]),) = replay(agent, [{0: episodes.take([0])}], 14)[0].values()
    for act in ("window", "restart"):
        np.testing.assert_allclose(told[act][:6], told["stream"][:6], atol=1e-5)
        assert np.abs(told[act][6:] - told["stream"][6:]).max() > 1e-3


@pytest.mark.parametrize("length", [200, pytest.param(1000, marks=slow)])
@pytest.mark.parametrize("mechanism", ["aaren", pytest.param("softmax", marks=slow)])
def test_stream_and_parallel_actions_are_equal_over_a_whole_episode(mechanism, length):
    episodes = alike(length, 5, 5)
    run = make_run(episodes, mechanism=mechanism, max_length=length, num_layers=2)
    agent = make_agent(run, 1, length, act="stream", target_return=1.5)
    ((x, told),) = replay(agent, [{0: episodes.take([0])}], length)[0].values()
    want = call(run.model, x[None])[0]
    assert np.abs(want).max() < 1 and np.ptp(want) > 0.1
    assert np.abs(told - want).max() <= 1e-5
    errors = evaluate.stream_error(run, episodes)
    assert errors["stream_steps"] == length and errors["stream_max_error"] <= 1e-5


def test_what_is_asked_for_falls_by_what_came():
    run = make_run(some(10, 10, 10), act="stream", target_return=7.0)
    agent = make_agent(run, 2, 10)
    seen, begins = np.zeros((2, SEEN), np.float32), np.array([True, True])
    agent.act(seen, np.array([5, 5], np.float32), begins)  # rewards of the episodes before
    assert agent.returns_to_go.tolist() == [7.0, 7.0]
    agent.act(seen, np.array([1, -2], np.float32), ~begins)
    agent.act(seen, np.array([0.5, 9], np.float32), np.array([False, True]))
    assert agent.returns_to_go.tolist() == [5.5, 7.0]


def test_agents_that_cannot_be_made():
    run = make_run(some(10, 10, 10), max_length=12)
    with pytest.raises(OptionError, match="may have 13 steps, but the model has times for 12"):
        make_agent(run, 1, 13)
    with pytest.raises(OptionError, match="act must be one of window, stream, restart, got 'str"):
        make_agent(run, 1, 10, act="streem")
    of_context = make_run(some(10, 10, 10), max_length=8, context=4, clock="context")
    for act in ("window", "restart"):  # whose times begin with the window
        make_agent(of_context, 1, 1000, act=act)
    with pytest.raises(OptionError, match="learned times for the 4 steps of the context alone"):
        make_agent(of_context, 1, 13, act="stream")
    make_agent(make_run(some(10, 10, 10), position="sinusoidal"), 1, 10_000, act="stream")


def test_an_agent_plays_in_an_environment():
    """What is played holds the agent's actions, and what it was asked for falls by its rewards."""
    run = make_run(data.pendulum().take(range(10)), env="", act="restart", play_episodes=2)
    assert run.data_spec.env_id == "Pendulum-v1"
    with closing(control.make_environments("Pendulum-v1", 2)) as environments:
        agent = TASK.agent(run, environments, target_return=-300.0)
        assert isinstance(agent.memory, RestartMemory)
        played = control.play(agent, environments, [3, 4])
        left = -300.0 - played.returns - -played.rewards[[199, 399]].astype(np.float64)
        np.testing.assert_allclose(agent.returns_to_go, left, rtol=1e-5)
    assert played.num_episodes == 2 and played.lengths.tolist() == [200, 200]
    assert np.abs(played.actions).max() <= 2.0


# -- streams -------------------------------------------------------------------------------------


def lines_of(episode):
    """What a stream reads."""
    rewards = ["", *map(str, episode.rewards[:-1])]
    rows = zip(rewards, episode.observations, strict=True)
    return [",".join([reward, *map(str, row)]) for reward, row in rows]


def fed(stream, lines):
    """The cells of each line; None of one that says nothing."""
    return [stream.cells(seen) for seen in stream.parse(lines)]


@pytest.fixture(scope="module")
def swings():
    """A run on the pendulum, and what it plays by its stream."""
    run = make_run(data.pendulum().take(range(10)), env="", act="stream", play_episodes=2)
    with closing(control.make_environments("Pendulum-v1", 2)) as environments:
        return run, evaluate.play_run(run, environments)


def test_a_stream_says_what_the_agent_does(swings):
    """Over whole episodes, a blank line between them."""
    run, played = swings
    one, two = (played.take([n]) for n in range(2))
    stream = TASK.stream(run, OfflineRLStreamOptions())
    assert stream.header == ["step", "return_to_go", "action1"]
    cells = fed(stream, [*lines_of(one), "", *lines_of(two)])
    assert cells[200] is None and stream.num_breaks == 1 and stream.num_steps == 400
    for rows, episode in ((cells[:200], one), (cells[201:], two)):
        assert [row[0] for row in rows] == list(range(1, 201))
        done = np.array([[float(cell) for cell in row[2:]] for row in rows])
        np.testing.assert_allclose(done, episode.actions, atol=2e-5)
        left = run.data_spec.target_return - np.cumsum([0, *episode.rewards[:-1]])
        np.testing.assert_allclose([float(row[1]) for row in rows], left, rtol=1e-5)
    assert stream.end() == f"step 200 of the episode; return-to-go: {left[-1]:.6g}"


def test_a_stream_goes_on_in_the_midst_of_an_episode(swings, tmp_path):
    run, played = swings
    lines = lines_of(played.take([0]))[:30]
    lines = [*lines[:10], " ", *lines]
    whole = fed(TASK.stream(run, OfflineRLStreamOptions()), lines)
    for cut in (4, 10, 11, 25):
        first, then = (TASK.stream(run, OfflineRLStreamOptions()) for _ in range(2))
        told = fed(first, lines[:cut])
        first.save(tmp_path / "state.npz")
        then.load(tmp_path / "state.npz")
        assert then.num_rows == cut
        jax.tree.map(np.testing.assert_array_equal, then.record(), first.record())
        assert told + fed(then, lines[cut:]) == whole
    # Of another return that is asked for.
    other = TASK.stream(run, OfflineRLStreamOptions(target_return=-5.0))
    with pytest.raises(ValueError, match="its target_return is"):
        other.load(tmp_path / "state.npz")
    assert fed(other, lines[:1])[0][1] == -5
    with pytest.raises(ValueError, match="expected the reward of action 1 before the observation"):
        fed(other, lines[:1])


COUNTS = ("agent.memory.ages", "agent.steps", "num_steps")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"agent.steps": -1}, "expected steps as integers of at least 0"),
        ({"agent.memory.ages": 5}, "expected at least 5 observations, got 4"),
        ({"agent.memory.ages": 3}, "expected a state after .3. observations, got one after .4."),
        ({"agent.memory.ages": 10**18}, "expected at least 1000"),
        (dict.fromkeys(COUNTS, 4 + 2**32), None),
        ({"num_steps": 3}, "expected at least 4 observations, got 3"),
        ({"agent.steps": 5}, "contradict each other"),
        ({"agent.steps": 3}, "contradict each other"),
        ({"agent.last_actions": 1.5}, "contradict each other"),
        ({"agent.returns_to_go": np.inf}, "expected returns_to_go as finite numbers"),
    ],
)
def test_a_state_that_no_stream_wrote_is_refused(swings, tmp_path, values, message):
    run, played = swings
    stream, path = TASK.stream(run, OfflineRLStreamOptions()), tmp_path / "state.npz"
    fed(stream, lines_of(played.take([0]))[:4])
    stream.save(path)
    states.with_record(path, stream, states.entries_of(path), **values)
    if message is None:
        facts = states.facts_of(states.entries_of(path))
        counts = dict.fromkeys(("num_steps", "rows"), values["num_steps"])
        states.with_facts(path, states.entries_of(path), facts | counts)
    fresh = TASK.stream(run, OfflineRLStreamOptions())
    if message is None:  # the model's counter has begun again
        fresh.load(path)
        return
    with pytest.raises(ValueError, match=message):
        fresh.load(path)
    assert fresh.num_steps == 0


def test_a_cache_ends_with_the_longest_episode():
    run = make_run(some(5, 4, 3), mechanism="softmax", max_length=8)
    stream = OfflineRLStream(run, OfflineRLStreamOptions(act="stream"))
    lines = [",1,2,3", *["0.5,1,2,3"] * 5]
    with pytest.raises(
        OptionError, match=r"no capacity for observation 6, .* A blank line begins a new episode"
    ):
        fed(stream, lines)
    assert stream.num_steps == 5
    assert fed(stream, ["", *lines[:5]])[1] is not None
    longer = OfflineRLStream(run, OfflineRLStreamOptions(act="stream", max_length=8))
    assert len(fed(longer, [*lines, *lines[1:3]])) == 8
    with pytest.raises(OptionError, match="at most 8 steps, for which the model has times"):
        fed(longer, lines[1:2])


def test_numbers_that_overflow_are_told():
    run = make_run(some(5, 4, 3))
    small = dataclasses.replace(run.data_spec, observation_scale=(1e-3,) * 3, return_scale=1e-3)
    for lines in (["0,3e38,1,2"], [",1,1,2", "3e38,1,1,2"]):
        stream = OfflineRLStream(run._replace(data_spec=small), OfflineRLStreamOptions())
        with pytest.raises(
            ValueError, match="the actions of the model are NaN, because its numbers"
        ):
            fed(stream, lines)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("0,1,2", r"lines:2: expected 4 cells, as in the first line, got 3"),
        ("0,1,2,3,4", "lines:2: expected 4 cells, as in the first line, got 5"),
        ("0,1,x,3", "lines:2: .*'x'"),
        ("0,1,,3", "lines:2: "),
        ("0,1,nan,3", "lines:2: expected finite numbers"),
        ("nan,1,2,3", "lines:2: expected finite numbers"),
        ("0,1,inf,3", "lines:2: .*'inf'"),
        ("0,1,1e39,3", "lines:2: expected finite numbers in the range of float32"),
        ("r,1,2,3", "lines:2: .*'r'"),
    ],
)
def test_bad_lines_are_named(line, message):
    with pytest.raises(ValueError, match=message):
        read_lines(parse_steps, ["reward,obs1,obs2,obs3", line], 3, name="lines")


def test_lines_are_read():
    lines = ["reward,obs1,obs2,obs3", ",1,2,3", "-0.5, 1 ,2,3e0", "", " \t", "1,4,5,6"]
    found = read_lines(parse_steps, lines, 3)
    assert found[2] is found[3] is None
    assert [seen.reward for seen in found if seen] == [None, -0.5, 1.0]
    assert found[4].values.tolist() == [4.0, 5.0, 6.0]


# -- behavior cloning ----------------------------------------------------------------------------


def test_behavior_cloning_learns_the_actions():
    rng = np.random.default_rng(0)
    episodes = some(*[50] * 6)
    weights = rng.normal(size=(SEEN, DONE)) / 4
    actions = np.tanh((episodes.observations - 5) / 3 @ weights)
    episodes = some(*[50] * 6, actions=actions)
    data_spec = describe(episodes, OfflineRLConfig.of())
    policy = train_policy(episodes, data_spec, 150, seed=0)
    scaled = data_spec.scaled_observations(episodes.observations)
    told = np.asarray(predict_policy_outputs(policy, scaled))
    assert np.mean((told - actions) ** 2) < 0.02 * actions.var()
    agent = PolicyAgent(policy, data_spec)
    done = agent.act(episodes.observations[:5], np.zeros(5), np.zeros(5, bool))
    assert_close(done, data_spec.actions(told[:5]), "float32")
    again = train_policy(episodes, data_spec, 150, seed=0)
    assert_same_bits(nnx.state(again), nnx.state(policy))


def test_behavior_cloning_learns_discrete_actions():
    episodes = some(*[50] * 6)
    weights = np.random.default_rng(0).normal(size=(SEEN, 3))
    actions = ((episodes.observations - 5) @ weights).argmax(axis=1)
    episodes = some(*[50] * 6, actions=actions)
    data_spec = describe(episodes, OfflineRLConfig.of())
    policy = train_policy(episodes, data_spec, 150, seed=0)
    done = PolicyAgent(policy, data_spec).act(episodes.observations, np.zeros(300), np.zeros(300))
    assert done.dtype == np.int64 and np.mean(done == actions) > 0.95


def test_baselines_of_discrete_actions():
    """The most frequent action, and the largest output of a ridge on one-hot vectors."""
    run = make_run(choices(*[10] * 20), behavior_cloning_steps=1)
    parts = split_data(run.data, run.config.data)
    batches = WindowBatches(parts.test, run.data_spec, run.config, seed=None)
    values = evaluate.baseline_values(run, batches)
    train, test = parts.train.actions, parts.test.actions
    assert values["constant_accuracy"] == np.mean(test == np.bincount(train).argmax())
    x, y = (
        np.insert(run.data_spec.scaled_observations(part.observations), SEEN, 1, axis=1)
        for part in (parts.train, parts.test)
    )
    x64 = np.concatenate([x, np.eye(4)]).astype(np.float64)
    target = np.concatenate([np.eye(3)[train], np.zeros((4, 3))])
    guesses = (y @ np.linalg.lstsq(x64, target, rcond=None)[0]).argmax(axis=1)
    assert values["ridge_accuracy"] == np.mean(guesses == test)
    assert 0 <= values["behavior_cloning_accuracy"] <= 1 and "ridge_mse" not in values
    report, _ = evaluate.test_values(run, batches)
    assert {"test_accuracy", "test_cross_entropy"} <= report.keys() and "test_mse" not in report


def test_baselines_are_those_of_the_training_episodes(monkeypatch):
    """Clones of all and of the best tenth; guesses by hand."""
    run = make_run(some(*[10] * 20), behavior_cloning_steps=1)
    trained_on = []

    def train(episodes, *args):
        trained_on.append(episodes)
        return train_policy(episodes, *args)

    monkeypatch.setattr(evaluate, "train_policy", train)
    parts = split_data(run.data, run.config.data)
    batches = WindowBatches(parts.test, run.data_spec, run.config, seed=None)
    values = evaluate.baseline_values(run, batches)
    every, best = trained_on
    assert every.checksum() == parts.train.checksum()
    assert best.num_episodes == 2
    assert best.returns.min() >= np.sort(parts.train.returns)[-2]
    assert values["data_return"] == pytest.approx(parts.train.returns.mean())
    assert values["best_data_return"] == parts.train.returns.max()
    guess = parts.train.actions.mean(0)
    assert values["mean_mse"] == pytest.approx(np.mean((parts.test.actions - guess) ** 2))
    x, y = (
        np.insert(run.data_spec.scaled_observations(part.observations), SEEN, 1, axis=1)
        for part in (parts.train, parts.test)
    )
    x64 = np.concatenate([x, np.eye(4)]).astype(np.float64)
    target = np.concatenate([parts.train.actions, np.zeros((4, DONE))]).astype(np.float64)
    weights = np.linalg.lstsq(x64, target, rcond=None)[0]
    assert values["ridge_mse"] == pytest.approx(
        np.mean((y @ weights - parts.test.actions) ** 2), rel=1e-4
    )
    assert {
        "behavior_cloning_mse",
        "percentile_behavior_cloning_mse",
    } <= values.keys() and "behavior_cloning_return" not in values
    none = make_run(some(*[10] * 20), behavior_cloning_steps=0)
    assert "behavior_cloning_mse" not in evaluate.baseline_values(none, batches)
    # Where the data are not at hand there are none.
    changed = run._replace(data=some(*[10] * 20, seed=1))
    with pytest.raises(ValueError, match="have changed"):
        evaluate.own_episodes(changed, "train")


# -- training and the test -------------------------------------------------------------------------

TINY = SIZES | {
    "context": 4, "num_episodes": 10, "play_episodes": 2, "behavior_cloning_steps": 10,
    "batch_size": 16,
}  # fmt: skip


def train(folder, **options):
    config = OfflineRLConfig.of(**TINY | options)
    parallel = training.Parallel("none")
    session = training.Session(folder, progress=False, parallel=parallel)
    return tasks.train("offline-rl", config, session)


def test_an_objective_of_returns_plays(swings):
    """The episodes of the test: a pure function of the model."""
    run, played = swings
    config = run.config.replace(select_on="return")
    objective = TASK.objective(config, run.data_spec, 5)
    assert (objective.monitor, objective.mode) == ("return", "max")
    returns = [objective.validate(run.model, step)["return"] for step in (3, 4)]
    assert returns[0] == returns[1] == pytest.approx(played.returns.mean())
    assert TASK.objective(run.config, run.data_spec, 5).validate is None


@pytest.mark.slow
def test_returns_select(tmp_path):
    """The best of metrics.jsonl is selected."""
    train(tmp_path, steps=6, select_on="return", validate_every=2, learning_rate=0.01,
          behavior_cloning_steps=0)  # fmt: skip
    rows = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    returns = {row["step"]: row["validation_return"] for row in rows}
    assert list(returns) == [2, 4, 6] and len(set(returns.values())) == 3
    stored = json.loads((tmp_path / "test.json").read_text())
    assert stored["selected_on"] == "return"
    assert stored["test_return"] == pytest.approx(max(returns.values()))
    last = tasks.load_run(tmp_path, checkpoint="last")
    again = evaluate.played_return(last.config, last.data_spec, last.model, TASK)
    assert again == pytest.approx(returns[6])


def test_without_gymnasium_actions_are_tested(swings, tmp_path, monkeypatch, capsys):
    """A note says why nothing is played; the baselines are those of actions."""
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    run = swings[0]
    config = run.config.replace(behavior_cloning_steps=1)
    run = run._replace(config=config)
    test = split_data(run.data, config.data).test
    batches = WindowBatches(test, run.data_spec, config, seed=None)
    report = TASK.test(run, batches)
    values = {**report.values, **TASK.test_baselines(run, batches)}
    said = capsys.readouterr().err
    assert 'because environments need gymnasium: pip install "flax-linattn[rl]"' in said
    assert "test_return" not in values and values["test_mse"] > 0
    assert report.baselines is not None
    assert set(report.baselines.beaten_by(values)) <= {"mean", "ridge", "behavior_cloning"}
    assert values["behavior_cloning_mse"] > 0 and "behavior_cloning_return" not in values
    for options in ({"select_on": "return"}, {"env": "Pendulum-v1"}):
        with pytest.raises(ValueError, match="environments need gymnasium"):
            train(tmp_path / "run", steps=2, **options)
    assert not (tmp_path / "run" / "config.json").exists()


def test_other_episodes_are_tested_on(tmp_path, capsys):
    run = make_run(some(8, 8, 8), max_length=10)
    others = tmp_path / "others.npz"
    write_episodes(others, some(10, 4, seed=5))
    batches = TASK.test_batches(run, others)
    assert batches.episodes.num_episodes == 2
    report = TASK.test(run, batches)
    assert report.values["num_test_steps"] == 14 and np.isfinite(report.values["test_mse"])
    write_episodes(others, some(11, 4))
    with pytest.raises(OptionError, match=r"others.npz has an episode of 11 steps, but the model"):
        TASK.test_batches(run, others)
    wrong = data.pendulum().take([0])
    write_episodes(others, wrong)
    with pytest.raises(OptionError, match="expected observations of 3 and actions of 2 numbers in"):
        TASK.test_batches(run, others)
    run = make_run(choices(8, 8, 8))
    write_episodes(others, some(8, actions=np.ones(8, int)))  # fewer actions than in training
    assert TASK.test_batches(run, others).episodes.num_actions == 2
    write_episodes(others, some(8, actions=np.full(8, 3)))
    with pytest.raises(OptionError, match=r"and 3 discrete actions in .* and 4 discrete actions"):
        TASK.test_batches(run, others)


def test_an_environment_that_does_not_fit_is_not_played(capsys):
    """Where the data name it, a note says so; where it is asked for, it is refused."""
    episodes = some(8, 8, 8, env_id="Pendulum-v1")  # whose actions have one number
    run = make_run(episodes, env="", play_episodes=2)
    assert evaluate.make_run_environments(run.data_spec, run.config) is None
    said = one_line(capsys.readouterr().err)
    assert (
        "because expected actions of 2 numbers, as in drawn, got actions of 1 number in Pendulum-v1"
        in said
    )
    run = make_run(choices(8, 8, 8, env_id="CartPole-v1"), env="", play_episodes=2)
    assert evaluate.make_run_environments(run.data_spec, run.config) is None
    said = one_line(capsys.readouterr().err)
    assert "observations of 3 numbers, got 4 in CartPole-v1" in said
    seen = np.zeros((24, 4))
    for actions, message in (
        (np.arange(24) % 3, "expected 3 discrete actions, as in drawn, got 2 discrete actions in"),
        (np.zeros((24, 1)), "expected actions of 1 number, as in drawn, got 2 discrete actions in"),
    ):
        episodes = dataclasses.replace(choices(8, 8, 8), observations=seen, actions=actions,
                                       num_actions=None)  # fmt: skip
        with pytest.raises(OptionError, match=message):
            evaluate.check_environment(episodes, "CartPole-v1", run.config)
    fewer = dataclasses.replace(choices(8, 8, 8), observations=seen, actions=np.zeros(24, int),
                                num_actions=None)  # fmt: skip
    evaluate.check_environment(fewer, "CartPole-v1", run.config)
    short = data.pendulum().take(range(4))
    short = Episodes("short", short.observations, short.actions, short.rewards,
                     np.arange(0, 801, 50), np.zeros(16, bool), "Pendulum-v1")  # fmt: skip
    run = make_run(short, env="", play_episodes=2, max_length=100)
    assert evaluate.make_run_environments(run.data_spec, run.config) is None
    said = one_line(capsys.readouterr().err)
    assert "because an episode of Pendulum-v1 may have 200 steps, but the model has times" in said
    with pytest.raises(OptionError, match="may have 200 steps, but the model has times for 100"):
        evaluate.check_environment(short, "Pendulum-v1", run.config)


# -- what is refused -------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path):
    """Writes episodes to a file; returns its name."""

    def write(*lengths, **options):
        path = tmp_path / "some.npz"
        write_episodes(path, some(*lengths, **options))
        return str(path)

    return write


def refused(capsys, tmp_path, *args):
    common = ["--features", "8", "--num-layers", "1", "--num-heads", "2", "--parallel", "none"]
    return one_line(
        fail(capsys, "train", "offline-rl", "--run", str(tmp_path / "run"), *common, *args)
    )


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--file", "/nowhere/at/all.hdf5"], "/nowhere/at/all.hdf5"),
        (["--num-episodes", "101"], "num_episodes must be at most 100, the number of"),
        (["--num-episodes", "2"], "to train, validate and test on, got 2"),
        (["--num-episodes", "1"], "expected at least 3 episodes"),
        (["--max-length", "199"], "200 steps, but the model has times for 199; increase"),
        (["--validation-fraction", "0"],
         "validation_fraction must be between 0 and 1, got 0.0"),
        (["--validation-fraction", "0.5", "--test-fraction", "0.5"], "the sum of"),
        (["--act", "stream", "--clock", "context", "--max-length", "99"], "has times for 99"),
        (["--act", "stream", "--mechanism", "nystrom"], "mechanism"),
        (["--mechanism", "linformer"], "mechanism"),
        (["--select-on", "return", "--play-episodes", "0"], "needs played episodes"),
        (["--select-on", "return", "--env", "none"], "needs an environment, but"),
        (["--act", "restart", "--context", "1"], "needs a context of at least 2"),
        (["--clock", "context", "--context", "9", "--max-length", "8"],
         "the context has 9 steps, but the model has times for 8"),
        (["--env", "Pendulm-v1"], "gymnasium knows no environment 'Pendulm-v1'; did you mean Pend"),
        (["--env", "CartPole-v1"], "CartPole-v1"),
        (["--env", "MountainCarContinuous-v0"], "got 2 in MountainCarContinuous-v0"),
        (["--return-scale", "-1"], "return_scale must be finite and at least 0"),
        (["--target-return", "nan"], "target_return must be finite, got nan"),
    ],
)  # fmt: skip
def test_options_that_do_not_go_are_refused(capsys, tmp_path, args, message):
    said = refused(capsys, tmp_path, *args)
    assert message in said
    assert not (tmp_path / "run" / "config.json").exists()


def test_files_that_do_not_go_are_refused(capsys, tmp_path, file):
    said = refused(capsys, tmp_path, "--file", file(5, 5, 5), "--env", "Pendulum-v1")
    assert "got actions of 1 number in Pendulum-v1" in said and "(--env" in said
    said = refused(capsys, tmp_path, "--file", file(5))
    assert "expected at least 3 episodes" in said and "(--file)" in said
    path = tmp_path / "discrete.npz"
    np.savez(path, observations=np.zeros((3, 2)), actions=np.zeros((3, 2), int),
             rewards=np.zeros(3), terminals=np.ones(3, bool))  # fmt: skip
    said = refused(capsys, tmp_path, "--file", str(path))
    assert "discrete.npz" in said and "(MultiDiscrete) are not supported" in said
    path.write_bytes(b"nothing")
    assert "discrete.npz" in refused(capsys, tmp_path, "--file", str(path))
    one, two = file(5, 5, 5), tmp_path / "two.npz"
    write_episodes(two, data.pendulum().take([0]))
    said = refused(capsys, tmp_path, "--file", one, str(two))
    assert "expected actions of 2 numbers" in said


@pytest.mark.slow
def test_files_are_joined_and_kept_by_their_paths(tmp_path, capsys, monkeypatch):
    for name, seed in (("one", 0), ("two", 1)):
        write_episodes(tmp_path / f"{name}.npz", some(6, 6, 6, seed=seed))
    monkeypatch.chdir(tmp_path)
    out = succeed(capsys, "train", "offline-rl", "--file", "one.npz", "two.npz", "--run", "run",
                  "--steps", "2", "--parallel", "none", "--behavior-cloning-steps", "0",
                  *flags(SIZES))  # fmt: skip
    assert "test_mse" in out
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["file"] == [str(tmp_path / "one.npz"), str(tmp_path / "two.npz")]
    run = tasks.load_run(tmp_path / "run")
    assert run.config.data.file == (tmp_path / "one.npz", tmp_path / "two.npz")
    assert run.config.name.startswith("one-two-aaren")
    assert run.data_spec.env_id is None and run.data_spec.num_train_steps == 24
    monkeypatch.chdir("/")
    assert cli.main(["evaluate", str(tmp_path / "run")]) == 0
