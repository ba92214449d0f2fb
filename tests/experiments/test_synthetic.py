"""Synthetic sequence tasks: what is chosen, judged and measured."""

import dataclasses
import functools
import itertools
import math

import numpy as np
import pytest
from flax import nnx

from experiments.synthetic import (
    complexity,
    figure6,
    learning_curves,
    recall,
    rules,
    search,
    snapshots,
)
from experiments.synthetic.runs import Cell, train_cells
from experiments.verdicts import FAILS, HOLDS, OPEN, NotMeasuredError, Word, opposite
from flax_linattn import models
from flax_linattn.tasks.synthetic import SyntheticConfig

SIZE = search.Size(learning_rates=(0.1, 0.2), momenta=(0.0,), seeds=1)


def searched(accuracy):
    """Rows of a search in which ``accuracy(mechanism, context, reading, rate)`` came out."""
    return [
        {
            "mechanism": mechanism,
            "context": context,
            **reading._asdict(),
            "runs": [
                {
                    "learning_rate": rate,
                    "momentum": 0.0,
                    "failed": None,
                    "validation_accuracy": accuracy(mechanism, context, reading, rate),
                }
                for rate in SIZE.learning_rates
            ],
        }
        for mechanism, context, reading in itertools.product(
            search.MECHANISMS, search.CONTEXTS, search.WHOLE
        )
    ]


def test_the_standard_is_the_setting_nearest_to_the_paper():
    hidden = search.WHOLE[2]

    def accuracy(mechanism, context, reading, rate):
        if (reading, rate) == (hidden, 0.2):
            return search.PRINTED.get((mechanism, context), 0.0)
        return 1.0  # better than what the paper tells

    rows = searched(accuracy)
    found = search.standard(rows, SIZE)
    assert (search.row_reading(found._asdict()), found.learning_rate) == (hidden, 0.2)
    assert search.difference(search.means(rows, SIZE)[found]) == 0
    best = search.best(rows, SIZE, "softmax:scale=1")
    assert best.learning_rate == 0.1, "the first of equals"
    assert search.standard(rows[::-1], SIZE) == found


def test_an_unfinished_search_says_what_is_missing():
    rows = searched(lambda *_: 1.0)[:-1]
    with pytest.raises(ValueError, match=r"not finished: \('softmax:scale=1', 64, .*\) is missing"):
        search.standard(rows, SIZE)


def test_a_run_that_failed_counts_nothing():
    assert search.score({"failed": 7, "validation_accuracy": 0.9}) == 0
    assert rules.count_learned([1.0, None, 0.9989, 0.999]) == (2, 4)
    row = {"runs": [{"test_accuracy": a} for a in (None, 0.5, 1.0)]}
    assert learning_curves.median(row) == 0.5


def test_runs_that_still_rise_decide_no_plateau():
    """Unless there are as many as the paper's."""
    flat, rising = [0.5] * 50, [0.5] * 40 + [0.53] * 10
    word = rules.about(0.5, 0.36)
    assert rules.finished(word, [flat] * 8) == FAILS
    unfinished = rules.finished(word, [flat] * 7 + [rising])
    assert unfinished == f"{OPEN}, unfinished runs"
    assert rules.finished(word, [rising] * rules.PAPER_RUNS) == FAILS


@pytest.mark.parametrize(
    ("did", "of", "low", "high", "word"),
    [(16, 16, 0.794, 1, HOLDS), (0, 16, 0, 0.206, FAILS), (8, 16, 0.247, 0.753, OPEN)],
)
def test_intervals_of_shares(did, of, low, high, word):
    """Against the tables of Clopper and Pearson."""
    share = rules.SuccessRate(did, of)
    np.testing.assert_allclose(share.interval, (low, high), atol=1e-3)
    assert rules.majority(share) == word
    assert opposite(rules.majority(share)) == {HOLDS: FAILS, FAILS: HOLDS, OPEN: OPEN}[word]


def test_when_runs_first_came_so_far():
    row = {"epochs": [50, 100, 150], "runs": [{"accuracies": a} for a in ([0, 0.5, 1], [0, None])]}
    row["runs"][1]["accuracies"].append(0.2)
    assert learning_curves.first_epochs(row, 0.5) == [100, math.inf]


@pytest.mark.parametrize(
    ("easy", "hard", "word"), [(50, 100, HOLDS), (100, 50, FAILS), (50, 50, OPEN)]
)
def test_which_rule_comes_first(easy, hard, word):
    def curve(epoch):
        return {"accuracies": [float(e >= epoch) for e in (50, 100)]}

    run = {"alone": {"nt": curve(hard), "nt-s": curve(easy)}}
    row = {"mechanism": "expressive", "rules": "nt+nt-s", "epochs": [50, 100]}
    assert figure6.in_order([row | {"runs": [run] * 16}]).word == word


@pytest.mark.slow
def test_the_width_of_equal_bytes(monkeypatch):
    monkeypatch.setattr(
        recall, "block_state_bytes", functools.cache(recall.block_state_bytes)
    )  # of models
    size = recall.Size()
    for mechanism in ("aaren", "elementwise_series", "softmax", "taylorshift"):
        width = recall.equal_width(size, mechanism)
        others = [recall.block_state_bytes(size, mechanism, w) for w in recall.WIDTHS]
        chosen = recall.block_state_bytes(size, mechanism, width)
        assert abs(math.log(chosen / 2048)) == min(abs(math.log(b / 2048)) for b in others)
    assert (
        recall.block_state_bytes(size, "softmax", 8)
        == 2 * recall.block_state_bytes(size, "softmax", 4) - 8
    )
    with pytest.raises(NotMeasuredError, match="aaren on copying"):
        recall.find_row([], "aaren", "width", "copying")


@pytest.mark.slow
def test_runs_that_differ_in_their_rates():
    config = SyntheticConfig.of(
        base=4,
        features=4,
        context=6,
        rules="nt+nt-s",
        epochs=20,
        validate_every=10,
        validation_series=1,
        test_series=1,
    )
    cells = [Cell(0.01, 0.9, 0), Cell(1e9, 0.9, 0)]
    found = train_cells(config, cells, ("nt", "nt-s"))
    assert found["epochs"] == [10, 20]
    good, bad = found["runs"]
    assert good["failed"] is None and 0 <= good["test_accuracy"] <= 1
    assert len(good["alone"]["nt"]["accuracies"]) == 2
    assert bad["failed"] is not None and bad["test_accuracy"] is None
    (lost,) = train_cells(config, cells[1:], ("nt",))["runs"]
    assert lost["failed"] == bad["failed"] and lost["alone"]["nt"]["accuracies"] == []


def test_weights_of_a_model():
    model = models.WindowModel(5, 7, mechanism="softmax:scale=1", rngs=nnx.Rngs(0))
    tokens = np.random.default_rng(0).integers(0, 5, (3, 7))
    weights = np.asarray(snapshots.head_weights(model, tokens))
    assert weights.shape == (3, 7, 7)
    np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=1e-5)
    assert not weights[:, ~np.tri(7, dtype=bool)].any()
    attention = model.backbone.blocks[0].attention
    for layer in (attention.query_projection, attention.key_projection):
        layer.kernel[...] = 0 * layer.kernel[...]
    np.testing.assert_allclose(snapshots.head_weights(model, tokens)[0, -1], 1 / 7, rtol=1e-5)


def test_margins_are_of_runs_with_the_same_seed():
    """And fewer runs than the paper's decide nothing while they rise."""
    place = complexity.MIXTURE
    rows = [
        {**dataclasses.asdict(place), "mechanism": name, "runs": [
            {"test_accuracy": 0.5 + own * (1 + seed / 99), "accuracies": [0.1] * 8 + [0.2] * 2}
            for seed in range(8)]}
        for name, own in ((complexity.EXPRESSIVE, -0.2), (complexity.DOT_PRODUCT, 0))
    ]  # fmt: skip
    np.testing.assert_allclose(complexity.margins(rows, place), -0.2 - 0.2 * np.arange(8) / 99)
    assert complexity.judge_mixture(rows).word == FAILS
    word = complexity.unless_unfinished(Word(HOLDS), rows, place)
    assert word.startswith(OPEN) and rules.UNFINISHED in word.rules


def test_access_takes_two_settings_and_two_places():
    def rows(ours, other, settings=1):
        cell = {"results": complexity.SEARCH, "readout": 0, "projections": 0, "init_scale": 0}
        run = {"learning_rate": 0.1, "alone": {"nt": {"test_accuracy": other - 0.21}}}
        return [
            {**dataclasses.asdict(place), **cell, "mechanism": name, "setting": setting,
             "runs": [{**run, "test_accuracy": value}] * 16}
            for place in complexity.PLACES
            for setting in (learning_curves.STANDARD, "softmax")[:settings]
            for name, value in ((complexity.EXPRESSIVE, ours), (complexity.DOT_PRODUCT, other))
        ]  # fmt: skip

    for case, word in (((0.5, 1), OPEN), ((0.5, 2), HOLDS), ((1, 2), FAILS)):
        assert complexity.judge_access(rows(1, *case)).word == word
    assert complexity.judge_not_worse(rows(1, 0.5)).word == OPEN  # margins without a width
    assert complexity.judge_fall(rows(1, 0.5)).word == HOLDS
    assert complexity.count_worse(rows(0.5, 0.6)) == (5, 5)  # contexts
