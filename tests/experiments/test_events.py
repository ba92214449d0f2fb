"""The tables of events: what is judged, and what of it is shown."""

import pytest

from experiments.events import data_sets, known_processes, long_stream, rules, table2
from experiments.intervals import Interval
from experiments.verdicts import FAILS, HOLDS, OPEN, NotMeasuredError
from flax_linattn.tasks.events.data import PROCESSES


def runs(*nlls):
    return [
        {"seed": seed, "nll": nll, "time_nll": None, "mark_nll": None, "rmse": 1.0, "mae": 1.0,
         "mark_accuracy": None, "ks": 0.1, "num_test_events": 9, "quantiles": [1.0] * 50}
        for seed, nll in enumerate(nlls)
    ]  # fmt: skip


def rows_of(shift):
    """Three data sets, of which Aaren is worse by so much in all."""
    found = []
    for place, data in enumerate(list(data_sets.DATA_SETS)[:3]):
        beside = {f"{name}_{kind}": 2.0 for name in table2.BASELINES for kind in ("nll", "ks")}
        beside |= {"mean_gap_rmse": 2.0, "median_gap_mae": 2.0}
        found.append({"data": data, "mechanism": table2.CUSTOMARY, **beside})
        own = (1.0 + 0.001 * place, 1.1)
        found.append({"data": data, "mechanism": "softmax", "runs": runs(1.0, 1.1)})
        found.append(
            {"data": data, "mechanism": "aaren", "runs": runs(*(nll + shift for nll in own))}
        )
    return found


@pytest.mark.parametrize(
    ("interval", "word"),
    [
        (Interval(0.01, 0.03), HOLDS),
        (Interval(0.03, 0.03), OPEN),
        (Interval(0.09, 0.03), FAILS),
        (Interval(-0.09, 0.03), FAILS),
    ],
)
def test_comparable_is_within_the_margin(interval, word):
    assert rules.comparable(interval) == word


def test_a_process_is_found_within_two_per_cent():
    assert rules.near_true(-1.019, -1.0) == HOLDS and rules.near_true(1.021, 1.0) == FAILS


@pytest.mark.parametrize(("shift", "word"), [(0.01, HOLDS), (0.2, FAILS)])
def test_the_claim_is_judged_over_data_sets(shift, word):
    found = table2.judge_against_softmax("aaren")(rows_of(shift))
    assert found.word == word and "over 3 sets" in found.ours
    with pytest.raises(NotMeasuredError, match="linear on"):
        table2.judge_against_softmax("linear")(rows_of(shift))


def test_the_table_says_where_a_model_loses():
    table = table2.table(rows_of(1.5), table2.Size())
    assert "| `softmax` | 0 of 3, -0.950 |" in table and "| `aaren` | 3 of 3, +0.550 |" in table


def test_data_sets_that_are_not_at_hand_are_left_out(tmp_path):
    assert [name for name in data_sets.DATA_SETS if data_sets.make_config(name, tmp_path)] == [
        "Sin"
    ]
    config = data_sets.make_config("Sin", None, epochs=3)
    assert config.fit.epochs == 3 and config.data.process in PROCESSES


def test_known_processes_are_judged_by_their_largest_size():
    small = {"process": "poisson", "train": 5, "true_nll": 1.0, "runs": runs(1.5), "baselines": {}}
    rows = [small, {**small, "train": 50, "train_events": 500, "runs": runs(1.01, 1.02)}]
    assert known_processes.judge_process("poisson")(rows).word == HOLDS
    assert (
        known_processes.judge_process("poisson")([*rows[:1], {**rows[1], "runs": runs(1.1)}]).word
        == FAILS
    )


def test_a_stream_whose_state_grows_is_not_the_batch():
    row = {"mechanism": "aaren", "stream_nll": 1.0, "batch_nll": 1.0, "state_bytes": [8, 8]}
    assert long_stream.is_batch([row]).word == HOLDS
    assert long_stream.is_batch([{**row, "state_bytes": [8, 16]}]).word == FAILS
    assert long_stream.is_batch([{**row, "stream_nll": 1.1}]).word == FAILS
