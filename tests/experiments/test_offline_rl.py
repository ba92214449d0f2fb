"""The tables of decisions: what is judged, and what of it is shown."""

import numpy as np
import pytest

from experiments.intervals import Interval
from experiments.offline_rl import data_sets, latency, positions, rules, table1, target_return
from experiments.verdicts import FAILS, HOLDS, IN_PART, ONE_SEED, OPEN, NotMeasuredError


def played(score):
    return {"return": 30 * score, "score": score, "length": 10.0, "returns": [1.0], "seconds": 1.0}


def rows_of(shift):
    """Three robots' data, two seeds: Aaren is so much better in all, and streams are worse."""
    found = []
    for place, data in enumerate(list(data_sets.DATA_SETS)[::3][:3]):
        beside = {
            "behavior_cloning": played(40.0),
            "percentile_behavior_cloning": played(60.0 + place),
        }
        beside["recorded"] = {"score": 30.0, "best": 70.0}
        found.append({"data": data, "mechanism": table1.CUSTOMARY, "seed": 0, **beside})
        for mechanism in table1.MECHANISMS:
            for seed in (1, 0):
                score = 50.0 + seed + (shift + 0.1 * place if mechanism == "aaren" else 0.0)
                acts = {"window": played(score), "stream": played(score - 20 - place)}
                acts |= {"restart": played(score), "last": played(score - 1)}
                checked = {"stream_max_error": 1e-7, "stream_steps": 9, "mse": 0.1}
                found.append(
                    {"data": data, "mechanism": mechanism, "seed": seed, **acts, **checked}
                )
    return found


@pytest.mark.parametrize(
    ("interval", "comparable", "ahead"),
    [
        (Interval(1.0, 2.0), HOLDS, OPEN),
        (Interval(3.0, 2.5), OPEN, HOLDS),
        (Interval(9.0, 3.0), FAILS, HOLDS),
        (Interval(-9.0, 3.0), FAILS, FAILS),
        (Interval(0.0, 9.0), OPEN, OPEN),
    ],
)
def test_comparable_is_within_the_margin_and_ahead_above_nothing(interval, comparable, ahead):
    assert rules.comparable(interval) == comparable and rules.ahead(interval) == ahead


@pytest.mark.parametrize(("shift", "word"), [(1.0, HOLDS), (9.0, FAILS)])
def test_the_claim_is_judged_over_data_sets(shift, word):
    """Of each data set one number, however many seeds there are."""
    judge = table1.judge_pair(("aaren", "window"), ("softmax", "window"))
    found = judge(rows_of(shift))
    assert found.word == word and "over 3 robots (3 data sets)" in found.ours
    with pytest.raises(NotMeasuredError, match="softmax on"):
        judge([row for row in rows_of(shift) if row["mechanism"] != "softmax"])


def test_ways_to_act_and_clones_are_judged_alike():
    rows = rows_of(1.0)
    assert table1.judge_pair(("aaren", "stream"), ("aaren", "window"))(rows).word == FAILS
    assert table1.judge_pair(("aaren", "restart"), ("aaren", "window"))(rows).word == HOLDS
    assert table1.judge_against_baseline("aaren", "behavior_cloning")(rows).word == HOLDS
    best = table1.judge_against_baseline("aaren", "percentile_behavior_cloning")(rows)
    assert best.word == FAILS and "worse on 3 of the data sets" in best.ours


def test_the_table_has_means_deviations_and_the_paper():
    table = table1.table(rows_of(1.0), table1.Size())
    assert "| HalfCheetah medium | 50.5 ± 0.7 (paper 41.9 ± 1.5) | 51.5 ± 0.7 (paper" in table
    assert "Not D4RL" in table and "differ by at most 1.0e-07" in table
    assert "| mean of the data sets | `softmax` | 50.5 | 29.5 | 50.5 | 49.5 |" in table


def test_data_sets_that_are_not_at_hand_are_left_out(tmp_path):
    assert not [name for name in data_sets.DATA_SETS if data_sets.make_config(name, tmp_path)]
    for each in data_sets.DATA_SETS.values():
        for file in each.files:
            (tmp_path / file).parent.mkdir(exist_ok=True)
            (tmp_path / file).touch()
    config = data_sets.make_config("Ant medium-expert", tmp_path, steps=3)
    assert [path.name for path in config.data.file] == [
        "ant-medium-sb3.hdf5",
        "ant-expert-sb3.hdf5",
    ]
    assert config.fit.steps == 3 and config.data.env == "Ant-v5"
    assert {each.robot for each in data_sets.DATA_SETS.values()} == set(data_sets.ROBOTS)


def test_positions_are_compared_over_data_sets():
    rows = [
        {"data": data, "mechanism": "aaren", "time": way, "seed": 0,
         "window": played(50.0), "stream": played(stream + place), "restart": played(50.0)}
        for place, data in enumerate(positions.Size().data)
        for way, stream in zip(positions.WAYS, (49.0, 10.0, 49.0), strict=True)
    ]  # fmt: skip
    words = [positions.streams("aaren", way)(rows).word for way in positions.WAYS]
    assert words == [HOLDS, FAILS, HOLDS]
    with pytest.raises(NotMeasuredError):
        positions.streams("softmax", "none")(rows)


def test_what_is_asked_for_beyond_the_best_does_not_count():
    row = {"data": "a", "mechanism": "aaren", "best": 100.0, "mean": 50.0,
           "target_returns": [10.0, 50.0, 100.0, 125.0],
           "window": [[9.0], [40.0, 60.0], [99.0], [1.0]],
           "restart": [[9.0], [8.0], [7.0], [99.0]]}  # fmt: skip
    assert target_return.correlation(row, "window") == pytest.approx(1.0)
    assert target_return.correlation(row, "restart") == pytest.approx(-1.0)
    assert rules.follows(0.8) == HOLDS and rules.follows(0.7) == FAILS
    found = target_return.judge_correlation("aaren", "window")([row])
    assert found.word == ONE_SEED and "one run each: a +1.00" in found.ours
    size = target_return.Size(fractions=(0.1, 0.5, 1.0, 1.25))
    assert "| a, 100 | `aaren` | target return | 10 | 50 | 100 | 125 |" in target_return.table(
        [row], size
    )


def test_steps_that_take_longer_are_told_from_those_that_do_not():
    def rows(way, times, num_rows=1):
        steps = latency.Size().steps
        return [
            {"way": way, "rows": num_rows, "step": step, "milliseconds": time, "bytes": 9}
            for step, time in zip(steps, times, strict=True)
        ]

    same, longer = rows("stream", (1.0, 1.1, 1.05)), rows("stream", (1.0, 1.1, 2.0), 64)
    assert latency.constant("stream")(same).word == HOLDS
    assert latency.constant("stream")(same + longer).word == IN_PART
    assert latency.constant("stream")(rows("stream", (1.0, 1.1, 1.3))).word == OPEN
    cache = rows("cache", (1.0, 5.0, 50.0)) + rows("cache", (2.0, 9.0, None), 64)
    assert latency.grows("cache")(cache).word == HOLDS


def test_an_agent_that_is_timed_is_that_of_a_run():
    """All four ways answer with actions of the robot's size."""
    size = latency.Size(features=8, num_layers=1)
    for way in latency.WAYS:
        agent = latency.make_size_agent(size, way, 2, 30)
        seen = np.zeros((2, latency.OBSERVATION), np.float32)
        action = agent.act(seen, np.zeros(2, np.float32), np.ones(2, bool))
        assert action.shape == (2, latency.ACTION) and latency.memory_bytes(agent) > 0
