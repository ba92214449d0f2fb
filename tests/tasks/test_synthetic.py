"""Runs on symbols: what their models learn, what is refused, and what their streams say."""

import dataclasses
import json
import shlex

import jax
import numpy as np
import pytest
from flax import nnx

from flax_linattn import cli, data, models, ops, tasks, training
from flax_linattn.tasks.options import mechanisms_by_direction
from flax_linattn.tasks.synthetic import SyntheticConfig, SyntheticData, recall
from flax_linattn.tasks.synthetic.data import make_batches, make_generator
from flax_linattn.tasks.synthetic.evaluate import LOSSES, count_matches, fit_lag, longest_match
from flax_linattn.tasks.synthetic.options import RECALL
from flax_linattn.tasks.synthetic.stream import RecallQueries
from flax_linattn.tasks.synthetic.task import SyntheticTask
from tests.nn.cases import call
from tests.tasks.commands import fail, fast, no_drawing, one_line, succeed
from tests.training.problem import signal_at

TINY = [
    *("--base", "4", "--delay", "1", "--context", "8", "--features", "4"),
    *("--epochs", "6", "--validate-every", "2", "--test-series", "2", "--parallel", "none"),
]


pytestmark = pytest.mark.usefixtures("no_figures")

SEQUENCES = [arg for arg in TINY if arg not in ("--delay", "1")]
"""What those that are no series take."""


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """A finished tiny run, made by the command line."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    with no_drawing():
        assert cli.main(["train", "synthetic", *TINY, "--run", str(folder)]) == 0
    return str(folder)


def tiny(**options):
    sizes = {"base": 4, "delay": 1, "context": 8, "features": 4}
    return SyntheticConfig.of(**sizes | options)


def made(config, step=0):
    """A new model and a batch to train it on."""
    task = tasks.get_task("synthetic")
    drawn = task.load(config)
    model = task.model(config, task.describe(drawn, config))
    return model, make_batches(drawn, config).train.batch(step)


def test_the_default_model_is_that_of_the_paper():
    config = SyntheticConfig.of()
    model, batch = made(config)
    assert isinstance(model, models.WindowModel)
    layers = config.layers
    assert (layers.features, layers.num_layers, layers.num_heads) == (16, 1, 1)
    assert (layers.norm, layers.activation, layers.dropout_rate) == ("pre", "tanh", 0)
    assert (config.fit.optimizer.optimizer, config.fit.loss) == ("sgd", "squared")
    assert config.fit.optimizer.momentum > 0
    assert batch["tokens"].shape == (40, 32)
    # Shifted windows of one series.
    np.testing.assert_array_equal(batch["tokens"][1:, :-1], batch["tokens"][:-1, 1:])
    np.testing.assert_array_equal(batch["tokens"][1:, -1], batch["target"][:-1])


@pytest.mark.parametrize("kind", ["squared", "cross_entropy"])
def test_the_loss_is_what_it_says(kind):
    model, batch = made(tiny(loss=kind), step=3)
    loss, metrics = nnx.jit(LOSSES[kind])(model, batch, None)
    scores = np.asarray(call(model, batch["tokens"]), np.float64)
    right = np.eye(4)[batch["target"]]
    if kind == "squared":
        expected = ((scores - right) ** 2).sum(-1).mean()
    else:
        expected = (np.log(np.exp(scores).sum(-1)) - (scores * right).sum(-1)).mean()
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    hits = scores.argmax(-1) == batch["target"]
    assert [float(x) for x in metrics["accuracy"]] == [hits.sum(), 40]
    assert [float(x) for x in metrics["success"]] == [hits.all(), 1]


def test_the_loss_of_sequences_counts_what_is_asked():
    config = recall(SyntheticConfig.of()).replace(
        base=16, context=24, num_pairs=3, features=8, batch_size=5
    )
    model, batch = made(config)
    assert isinstance(model, models.LanguageModel)
    loss, metrics = nnx.jit(LOSSES["cross_entropy"])(model, batch, None)
    scores = np.asarray(call(model, batch["tokens"]), np.float64)
    nats = np.log(np.exp(scores).sum(-1)) - np.take_along_axis(
        scores, batch["targets"][..., None], -1
    ).squeeze(-1)
    np.testing.assert_allclose(loss, nats[batch["is_query"]].mean(), rtol=1e-5)
    hits = scores.argmax(-1) == batch["targets"]
    assert float(metrics["accuracy"][1]) == 15
    assert float(metrics["accuracy"][0]) == hits[batch["is_query"]].sum()
    assert float(metrics["success"][0]) == (hits | ~batch["is_query"]).all(1).sum()
    assert float(metrics["success"][1]) == 5


def slow_match(tokens):
    """The longest match, one place after another."""
    guesses = []
    for t in range(len(tokens)):
        best, guess = 0, tokens[t]
        for place in range(t):
            length = 0
            while length <= place and tokens[place - length] == tokens[t - length]:
                length += 1
            if length and length >= best:
                best, guess = length, tokens[place + 1]
        guesses.append(guess)
    return guesses


def test_the_longest_match_is_the_longest():
    tokens = np.random.default_rng(0).integers(3, size=(20, 17))
    expected = [slow_match(row.tolist()) for row in tokens]
    np.testing.assert_array_equal(longest_match(tokens), expected)


def test_the_longest_match_recalls_what_it_is_asked():
    rng = np.random.default_rng(0)
    for task in (data.AssociativeRecall(3, 20, 16), data.Induction(20, 16)):
        assert count_matches(task.sample(rng, 50)) in [(150, 150), (50, 50)]
    right, asked = count_matches(data.Parity(20).sample(rng, 50))
    assert 0.3 < right / asked < 0.7


# N16T2 modulo 2, 4, 8 and 16 comes again after 7, 14, 28 and 56 symbols.
@pytest.mark.parametrize("context, lag, expected", [(16, 14, 1 / 4), (32, 28, 1 / 2), (64, 56, 1)])
def test_one_lag_guesses_by_the_cycles(context, lag, expected):
    states = np.stack(np.meshgrid(*[np.arange(16)] * 3), axis=-1).reshape(-1, 3)
    series = np.concatenate([states, data.Rule(16, 2).follow(states, context - 2)], axis=1)
    every = {"tokens": series[:, :context], "target": series[:, context]}
    drawn = make_generator(SyntheticConfig.of(context=context).data)
    rng = np.random.default_rng(0)
    for batches, error in (([every], 0), ((drawn.sample(rng, 40) for _ in range(500)), 0.05)):
        found, guesses = fit_lag(batches, 16)
        right = np.mean(guesses[every["tokens"][:, -found]] == every["target"])
        assert found == lag and right == pytest.approx(expected, abs=error)


@pytest.mark.slow
def test_a_mechanism_learns_a_small_rule(tmp_path):
    """N2T1: 3 symbols that come again and again, as the paper's appendix of small cases has it.

    That a model learns is a fast test of ``tests/models/test_composition.py``.
    """
    config = SyntheticConfig.of(
        base=2, delay=1, context=6, features=2, epochs=600, learning_rate=0.02, test_series=20
    )
    values = tasks.train("synthetic", config, training.Session(tmp_path, progress=False))
    assert values["test_accuracy"] > 0.9 > values["chance_accuracy"]


MECHANISMS = mechanisms_by_direction(is_causal=True)


@pytest.mark.parametrize("name", fast(MECHANISMS, "softmax", "aaren", "expressive"))
def test_every_causal_mechanism_can_be_trained(name):
    model, batch = made(tiny(mechanism=name))
    grads = nnx.jit(nnx.grad(lambda model: LOSSES["squared"](model, batch, None)[0]))(model)
    leaves = [np.asarray(x) for x in jax.tree.leaves(grads)]
    assert all(np.isfinite(x).all() for x in leaves)
    assert any(np.any(x != 0) for x in leaves)


RULES = ["nt-r", "nt+nt-s", "recall", "copying", "induction", "parity"]


@pytest.mark.parametrize("rules", fast(RULES, "recall"))
def test_other_symbols(tmp_path, capsys, rules):
    folder = str(tmp_path / "run")
    series = rules not in RECALL
    args = [*TINY, "--readout", "last"] if series else [*SEQUENCES, "--position", "learned"]
    pairs = ["--num-pairs", "2"] if rules == "recall" else []
    succeed(capsys, "train", "synthetic", "--rules", rules, *args, *pairs, "--run", folder)
    stored = json.loads((tmp_path / "run" / "test.json").read_text())
    report = tasks.evaluate_run(folder)
    assert report["test_accuracy"] == stored["test_accuracy"]
    assert report["stream_max_error"] < 1e-4
    assert report["rules"] == rules


def test_a_stream_guesses_once_its_window_is_full(run_dir, tmp_path, capsys):
    model = tasks.load_run(run_dir).model
    series = data.Rule(4, 1).follow([1, 3], 12)
    lines = tmp_path / "series.txt"
    lines.write_text("\n".join(map(str, [*series, "", *series[:9]])) + "\n")
    out = succeed(capsys, "stream", run_dir, "--input", str(lines)).splitlines()
    rows = [line.split(",") for line in out[1:]]
    assert out[0] == "step,prediction,right,guesses"
    assert [row[0] for row in rows] == [str(i) for i in [*range(1, 13), *range(1, 10)]]
    assert [row[1] for row in rows[:7]] == [""] * 7
    windows = np.lib.stride_tricks.sliding_window_view(series, 8)
    guesses = call(model, windows).argmax(-1)
    assert [int(row[1]) for row in rows[7:12]] == guesses.tolist()
    right = int((guesses[:-1] == series[8:]).sum())
    assert rows[11][2:] == [str(right), "4"]
    assert [row[1] for row in rows[12:19]] == [""] * 7  # a blank line began a new series


ASKED = {
    "recall": {"base": 16, "context": 20, "num_pairs": 3},
    "copying": {"base": 5, "context": 8},
    "induction": {"base": 5, "context": 9},
    "parity": {"context": 7},
}


@pytest.mark.parametrize("rules", ASKED)
def test_what_a_stream_is_asked_is_what_sequences_ask(rules):
    """Of drawn sequences the same places and answers, also where a state was saved between."""
    options = SyntheticData(rules, **ASKED[rules])
    drawn = make_generator(options)
    batch = drawn.sample(np.random.default_rng(0), 50)
    whole = RecallQueries(options, drawn.num_tokens)
    for tokens, targets, asked in zip(
        *(batch[n] for n in ("tokens", "targets", "is_query")), strict=True
    ):
        whole.reset()
        parts = RecallQueries(options, drawn.num_tokens)
        answers = []
        for token in tokens.tolist():
            answers.append(whole.answer(token))
            again = RecallQueries(options, drawn.num_tokens)
            again.step, again.stored = parts.step, parts.stored.copy()
            parts = again
            assert parts.answer(token) == answers[-1]
        expected = [int(y) if a else None for y, a in zip(targets, asked, strict=True)]
        assert answers == expected


@pytest.mark.slow
def test_behind_what_is_asked_a_stream_asks_nothing():
    copying = RecallQueries(SyntheticData("copying", base=5, context=4), 6)
    assert [copying.answer(x) for x in (1, 2, 5, 1, 2, 5)] == [None, None, 1, 2, None, None]
    induction = RecallQueries(SyntheticData("induction", base=5, context=4), 6)
    assert [induction.answer(x) for x in (5, 3, 1, 5, 5)] == [None, None, None, 3, 3]


@pytest.mark.usefixtures("no_steps")
def test_a_stream_counts_what_is_asked(tmp_path, capsys):
    """The right guesses at the questions, and no others; a state keeps what answers stand in."""
    folder, state = str(tmp_path / "run"), str(tmp_path / "state.npz")
    args = [*SEQUENCES, "--rules", "copying"]
    succeed(capsys, "train", "synthetic", *args, "--run", folder)
    run = tasks.load_run(folder)
    drawn = make_generator(run.config.data)
    batch = drawn.sample(np.random.default_rng(5), 3)
    lines = "\n\n".join("\n".join(map(str, row)) for row in batch["tokens"]).splitlines()
    guesses = call(run.model, batch["tokens"]).argmax(-1)
    hits = ((guesses == batch["targets"]) & batch["is_query"]).cumsum()
    outputs = []
    for part in (lines[:6], lines[6:]):  # in the middle of a sequence's second half
        file = tmp_path / "part.txt"
        file.write_text("\n".join(part) + "\n")
        told = succeed(capsys, "stream", folder, "--input", str(file), "--state", state)
        outputs += [line.split(",") for line in told.splitlines()[1:]]
    assert [int(row[1]) for row in outputs] == guesses.ravel().tolist()
    assert [int(row[2]) for row in outputs] == hits.tolist()
    assert [int(row[3]) for row in outputs] == batch["is_query"].cumsum().tolist()


@pytest.mark.slow
def test_an_interruption_says_how_to_go_on(tmp_path, capsys, monkeypatch):
    """In Python and by the command, which then does."""
    batches = SyntheticTask.batches

    def stopping(task, data, config, data_spec, sequence_shards):
        splits = batches(task, data, config, data_spec, sequence_shards)
        one_signal = signal_at(splits.train, 3) if config.seed == 0 else splits.train
        return splits._replace(train=one_signal)

    args = ["train", "synthetic", *TINY, "--runs", "2", "--run", str(tmp_path)]
    with monkeypatch.context() as patch:
        patch.setattr(SyntheticTask, "batches", stopping)
        assert cli.main(args) == 130
    told = capsys.readouterr().err.splitlines()
    assert "To continue, start the same runs again with the resume option." in told[-2]
    assert told[-1] == shlex.join(["flax-linattn", *args, "--resume"])
    succeed(capsys, *shlex.split(told[-1])[1:])
    assert len(json.loads((tmp_path / "test.json").read_text())["runs"]) == 2


@pytest.mark.parametrize(
    "args, message",
    [
        (["--base", "1"], "base must be at least 2, got 1. (--base)"),
        (["--delay", "9"], "context"),
        (["--context", "1"], "to hold the state for a delay"),
        (["--mechanism", "linformer"], "'linformer' has no causal form"),
        (["--mechanism", "bidirectional_aaren"], "has no causal form"),
        (["--rules", "nt+fibonacci"], "must be one of nt, nt-s, nt-r, got"),
        (["--rules", "fibonacci"], "nt-r, recall, copying"),
        (["--rules", "nt+nt"], "twice"),
        (["--rules", "nt-r", "--condition", "x9=0"], "condition"),
        (["--base", "8"], "needs --features 8"),
        (["--rules", "recall", "--delay", "2"], "context must be at least 32, 4 tokens"),
        (["--rules", "recall", "--delay", "2"], "(--context, --num-pairs)"),
        (["--rules", "recall", "--delay", "2", "--context", "32"], "base must be at least 16"),
        (["--rules", "copying", "--delay", "2", "--context", "5"], "needs an even context"),
        (
            ["--rules", "copying"],
            "--delay has an effect only on series, got --rules copying; remove",
        ),
        (
            ["--rules", "parity", "--delay", "2", "--readout", "last"],
            "--readout has an effect only",
        ),
        (["--rules", "parity", "--delay", "2", "--projections", "shared"], "--projections has"),
        (
            ["--rules", "parity", "--delay", "2", "--init-scale", "1"],
            "--init-scale has",
        ),
        (
            ["--rules", "nt+nt-s", "--condition", "x1=1"],
            "effect only on --rules nt-r",
        ),
        (["--num-pairs", "2"], "effect only on --rules recall, got --rules nt"),
        (["--position", "none"], "effect only on tasks other than series"),
        (["--optimizer", "adam", "--momentum", "0.5"], "(--momentum, --optimizer)"),
        (["--runs-at-once", "2"], "--runs-at-once 2 needs several runs"),
        (["--runs", "2", "--runs-at-once", "0"], "runs_at_once must be at least 1, got 0"),
        (["--rules", "nt", "--init-scale", "0"], "init_scale must be positive"),
        (["--momentum", "1.5"], "momentum"),
    ],
)
def test_what_is_refused(capsys, tmp_path, args, message):
    given = ["train", "synthetic", *TINY, *args, "--run", str(tmp_path / "run")]
    told = one_line(fail(capsys, *given))
    assert message in told, told
    assert not (tmp_path / "run" / "config.json").exists()


def test_mixtures_with_a_rare_event_have_its_condition():
    assert SyntheticConfig.of(rules="nt+nt-r", condition="x1=1").data.condition == "x1=1"


def test_test_files_are_refused(run_dir, tmp_path, capsys):
    file = str(tmp_path / "config.json")
    assert "generated, not read" in fail(capsys, "evaluate", run_dir, "--test-file", file)


@pytest.mark.usefixtures("no_steps", "own_mechanisms")
def test_a_mechanism_of_ones_own(tmp_path, capsys):
    """By name, in a run of the package's commands."""

    @dataclasses.dataclass(frozen=True)
    class Sharp(ops.SoftmaxAttention):
        name = "sharp"
        about = "softmax attention with a factor of 2"
        scale: float | None = 2.0

    ops.register_mechanism("sharp", Sharp)
    succeed(capsys, "train", "synthetic", *TINY, "--mechanism", "sharp", "--run", str(tmp_path))
    assert tasks.load_run(tmp_path).config.layers.mechanisms == (Sharp(),)
