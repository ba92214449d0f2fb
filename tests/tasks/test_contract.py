"""What holds of every task in the registry, and of one outside the package.

A task is trained by the command, small; most tests read that run, or a copy.
"""

import functools
import json
import os
import re
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from flax import nnx

from flax_linattn import cli, data, registry, tasks
from flax_linattn.checks import format_count
from flax_linattn.inference import linattn_runtime
from flax_linattn.storage import file_lock
from flax_linattn.tasks import lines as task_lines
from flax_linattn.tasks import protocols
from flax_linattn.tasks.offline_rl.agent import make_agent
from flax_linattn.tasks.options import flat_hints
from tests.contract.tolerances import assert_same_bits
from tests.data.episodes.cases import save_minari
from tests.tasks.commands import FEW_FEATURES, SMALL, command_line, fail, flags, succeed
from tests.tasks.states import lines_of


class Case(NamedTuple):
    """How a task is trained in seconds, and what its stream reads.

    Attributes:
        args: beside ``SMALL``; a function makes its argument.
        lines: of a stream, without a header; none where runs do not stream.
        bad: a line that the stream refuses, and the message.
        own: an option of its own stream.
        baseline: the number of one of its baselines.
        task: name of the task, where that is not the name of the case.
        comments: whether lines may be comments.
    """

    args: list[Any]
    lines: list[str]
    bad: tuple[str, str]
    own: list[str]
    baseline: str
    task: str = ""
    comments: bool = True


@functools.cache
def text_file():
    """The text of a page of this project."""
    page = Path(__file__).parents[2] / "CONTRIBUTING.md"
    path = Path(tempfile.mkdtemp()) / "text.md"
    return str(shutil.copy(page, path))


@functools.cache
def cartpole():
    """A folder in Minari's layout: CartPole as random choices play it."""
    gymnasium = pytest.importorskip("gymnasium")
    env, episodes = gymnasium.make("CartPole-v1"), {}
    env.action_space.seed(0)
    for seed in range(10):
        seen, actions, rewards, ends = [env.reset(seed=seed)[0]], [], [], [False]
        while not ends[-1]:
            actions.append(env.action_space.sample())
            after, reward, terminated, *_ = env.step(actions[-1])
            seen.append(after), rewards.append(reward), ends.append(terminated)
        episodes[seed] = {
            "observations": np.array(seen), "actions": np.array(actions),
            "rewards": np.array(rewards), "terminations": np.array(ends[1:]),
            "truncations": np.zeros(len(actions), bool),
        }  # fmt: skip
    env.close()
    spaces = {"env_spec": {"id": "CartPole-v1"}, "action_space": {"type": "Discrete", "n": 2}}
    metadata = json.dumps({name: json.dumps(value) for name, value in spaces.items()})
    return str(save_minari(Path(tempfile.mkdtemp()) / "cart", episodes, metadata))


CASES = {
    "classify": Case(
        [*flags(FEW_FEATURES), "--batch-size", "90"],
        lines_of("classify", 12), ("1,2", "expected 12 cells"),
        ["--max-length", "29"], "ridge_accuracy",
    ),
    "forecast": Case(
        [*("--context-length", "12", "--horizon", "4", "--split", "300/60/100"),
         *("--positions", "3", "--stride", "4", "--model", "decoder")],
        lines_of("forecast", 12),
        ("noon,1,2,3,4,5,6,7", "expected a time such as"),
        ["--context", "12"],
        "ridge_mse",
    ),
    "synthetic": Case(
        [*("--base", "8", "--features", "8", "--delay", "1", "--context", "6"),
         *("--validate-every", "1"),
         *("--batch-size", "8", "--test-series", "2", "--learning-rate", "0.001")],
        [str(symbol) for symbol in (3, 1, 4, 5, 1, 6, 7, 5, 4, 1, 5, 6)],
        ("8", "expected a symbol, an integer from 0 to 7, got '8'"),
        ["--max-length", "6"],
        "longest_match_accuracy",
    ),
    "events": Case(
        [*("--process", "hawkes-marked", "--num-sequences", "10", "--length", "24"),
         *("--history", "0", "--num-components", "2", "--learning-rate", "0.001")],
        ["0.5,0", "0.75,2", "0.75,1", *(f"{time},{time % 3}" for time in range(1, 10))],
        ("9.5,x", "expected one of the event types of the run (0, 1, 2), got 'x'"),
        ["--begin", "0"],
        "hawkes_nll",
    ),
    "offline-rl": Case(
        [*("--num-episodes", "10", "--context", "4", "--play-episodes", "2"),
         *("--behavior-cloning-steps", "10")],
        lines_of("offline-rl", 12),
        ("-1,0.5,0.5", "expected 4 cells (reward, observation1, observation2, observation3), got"),
        ["--target-return", "-100"],
        "behavior_cloning_return",
    ),
    "offline-rl of discrete actions": Case(
        [*("--file", cartpole, "--context", "4", "--play-episodes", "2"),
         *("--behavior-cloning-steps", "10")],
        [",0.01,0.2,0.03,-0.1", *(f"1,0.0{n},-0.2,0.0{n},0.3" for n in range(1, 12))],
        ("1,0.5,0.5", "expected 5 cells (reward, observation1, observation2, observation3, observ"),
        ["--target-return", "100"],
        "behavior_cloning_return",
        "offline-rl",
    ),
    "sequence": Case(
        [*("--min-length", "6", "--max-length", "10", "--epoch-size", "32", "--warmup", "0"),
         *("--validation-size", "16", "--test-size", "16", "--causal", "--pooling", "mean"),
         *("--learning-rate", "0.001")],
        ["[MAX", "2", "9", "[MIN", "4", "7", "]", "0", "1", "5", "6", "]"],
        ("[MAXX", "expected digits, [MIN, [MAX"),
        ["--max-length", "16"],
        "naive_bayes_accuracy",
    ),
    "image": Case(
        [*("--patch-size", "16", "--batch-size", "32", "--epoch-size", "32", "--warmup", "0"),
         *("--validation-size", "16", "--test-size", "16", "--learning-rate", "0.001")],
        [], ("", ""), [], "ridge_accuracy",
    ),
    "text": Case(
        [*("--file", text_file, "--context", "16", "--steps", "0", "--validate-every", "0"),
         *("--batch-size", "256", "--short-conv", "2"),
         *("--learning-rate", "0.001", "--schedule", "constant")],
        [f"line {number} of a text" for number in range(12)],
        ("a\0b", "a NUL byte"), ["--max-length", "4096"], "unigram_bits_per_byte",
        comments=False,
    ),
    "bins": Case(
        ["--rows", "600"], [str(row[-1]) for row in data.etth1().values[:12]],
        ("x", "expected a number, got 'x"), [], "guess_bits",
    ),
}  # fmt: skip

pytestmark = pytest.mark.usefixtures("outside_task", "no_figures")


@pytest.fixture(scope="module", params=CASES)
def case_name(request, outside_task):
    return request.param


@pytest.fixture(scope="module")
def task(case_name):
    return CASES[case_name].task or case_name


@pytest.fixture(scope="module")
def case(case_name):
    own = CASES[case_name]
    return own._replace(args=[arg() if callable(arg) else arg for arg in own.args])


def fast(*names):
    """A test of what one part does for every task: the others are slow."""
    slow = pytest.mark.slow
    each = [name if name in names else pytest.param(name, marks=slow) for name in CASES]
    return pytest.mark.parametrize("case_name", each, indirect=True, scope="module")


@pytest.fixture(scope="module")
def run_dir(case_name, task, case, request, tmp_path_factory):
    """A finished small run; its figures are drawn here, and by no other run of this file."""
    if task == "classify":
        return request.getfixturevalue("classify_run")
    folder = tmp_path_factory.mktemp("runs") / case_name.replace(" ", "-")
    assert cli.main(["train", task, "--run", str(folder), *SMALL, *case.args]) == 0
    return folder


@pytest.fixture
def copied(run_dir, tmp_path):
    """A run that may be harmed."""
    folder = tmp_path / "copy"
    shutil.copytree(run_dir, folder)
    return folder


@pytest.fixture
def lines(task, case, tmp_path):
    """A file of what the task's streams read."""
    if not case.lines:
        pytest.skip("runs of this task do not stream")
    path = tmp_path / "lines.csv"
    path.write_text("\n".join(case.lines) + "\n")
    return path


def parameters(folder):
    return nnx.state(tasks.load_run(folder).model)


def test_every_task_of_the_registry_is_here():
    assert set(registry.TASKS) == {case.task or name for name, case in CASES.items()}


def test_options_have_names_of_their_own(task):
    """Flat names are one for one the leaves, and JSON gives the same options again."""
    config = tasks.get_task(task).Config.of()
    assert list(config.flat()) == list(flat_hints(type(config)))
    assert not {"task", "format"} & config.flat().keys()  # config.json has these of its own
    text = json.dumps(config.to_json())
    assert type(config).from_json(json.loads(text)) == config
    with pytest.raises(ValueError, match="did you mean 'num_heads'"):
        config.replace(num_head=2)
    hybrid = config.replace(num_layers=2, mechanism=["aaren", "softmax"])
    assert type(config).from_json(json.loads(json.dumps(hybrid.to_json()))) == hybrid
    for preset in tasks.get_task(task).presets.values():
        assert type(preset(config)) is type(config)


def test_a_run_folder_is_complete(task, run_dir):
    names = {path.name for path in run_dir.iterdir()}
    assert {"config.json", "data_spec.json", "metrics.jsonl", "checkpoints", "test.json"} <= names
    config = json.loads((run_dir / "config.json").read_text())
    assert (config["format"], config["task"]) == (2, task)
    assert "steps.jsonl" in names
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [1, 2]
    run = tasks.load_run(run_dir)
    notes = run.task.about_data(run.task.load(run.config), run.config).notes
    stored = json.loads((run_dir / "test.json").read_text())
    assert stored.get("data_notes", []) == list(notes)
    assert task != "bins" or stored["symbols"] == 120  # the last fifth of 600 hours


@fast("synthetic", "sequence")
def test_evaluate_repeats_the_test_and_checks_the_stream(task, case, run_dir, capsys):
    stored = json.loads((run_dir / "test.json").read_text())
    report = tasks.evaluate_run(run_dir)
    tested = [name for name in report if name.startswith("test_")]
    assert tested and {name: report[name] for name in tested} == pytest.approx(
        {name: stored[name] for name in tested}
    )
    out = succeed(capsys, "evaluate", str(run_dir))
    if case.lines:
        assert report["stream_max_error"] < 1e-4
        assert report["stream_steps"] > 0
        assert "stream_max_error" in out
    # What beats the model is in test.json, and said in a sentence.
    sentence = r"^(warning: )?(?:on test )?((?:.* baselines? (?:is|are) better:|this model is) .*)"
    ((warned, said),) = re.findall(sentence, out, re.MULTILINE)
    assert stored["beaten_by"] == report["beaten_by"]
    assert said.startswith("this model is") != bool(stored["beaten_by"])
    held = stored.get("beaten_by_on_validation", [])
    assert held == report.get("beaten_by_on_validation", [])
    assert bool(warned) == bool(stored["beaten_by"] or held)
    assert all(name.replace("_", " ") in said for name in stored["beaten_by"])
    number = case.baseline
    assert f"{number} " in out and stored[number] == report[number]


@fast("bins")
def test_what_only_other_tasks_do_is_refused(task, run_dir, capsys):
    if not isinstance(tasks.get_task(task), protocols.Acting):
        message = fail(capsys, "rollout", str(run_dir), "--env", "Pendulum-v1")
        assert f"'rollout' needs an offline-RL run, but {run_dir} is a run of {task}." in message
    if not isinstance(tasks.get_task(task), protocols.Backtesting):
        message = fail(capsys, "backtest", str(run_dir))
        assert f"'backtest' needs a forecasting run, but {run_dir} is a run of {task}." in message


@fast("synthetic")
def test_resume_goes_on_to_the_same_bits(task, case, run_dir, tmp_path, capsys):
    """By the run's own options, which are not given again."""
    folder = tmp_path / "two"
    args = ["train", task, "--run", str(folder)]
    once = [*SMALL, *case.args, "--epochs", "1"]
    succeed(capsys, *args, *once)
    succeed(capsys, *args, "--resume", "--parallel", "none", "--epochs", "2")
    assert_same_bits(parameters(folder), parameters(run_dir))
    message = fail(capsys, *args, "--resume", "--learning-rate", "0.5")
    assert "--learning-rate 0.001, got 0.5" in message


@fast("synthetic", "bins")
def test_a_run_continues_another_one(task, case, run_dir, tmp_path, capsys, no_steps):
    """With its options and scales; without a step of training it is that run, to the bit."""
    folder = tmp_path / "continued"
    args = ["train", task, "--run", str(folder), "--from", str(run_dir), "--parallel", "none"]
    succeed(capsys, *args, "--epochs", "1")
    assert_same_bits(parameters(folder), parameters(run_dir))
    for name in ("config.json", "data_spec.json"):
        before, now = (json.loads((of / name).read_text()) for of in (run_dir, folder))
        assert {**before, "epochs": 1} == {**now, "epochs": 1}
    origin = json.loads((folder / "init_run.json").read_text())
    assert origin["run"] == str(run_dir.resolve()) and origin["reinitialized"] == []
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    (step,) = {line["step"] for line in lines if line["epoch"] == lines[-1]["best_epoch"]}
    assert [one["step"] for one in origin["origins"]] == [step]
    if case.lines:
        file = tmp_path / "lines.csv"
        file.write_text("\n".join(case.lines) + "\n")
        streams = [["stream", str(of), "--input", str(file)] for of in (run_dir, folder)]
        assert succeed(capsys, *streams[0]) == succeed(capsys, *streams[1])


@fast("synthetic")
def test_a_continued_run_resumes_to_the_same_bits(task, copied, tmp_path, capsys):
    """When the run that it continues is gone, too."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    args = ["--from", str(copied), "--parallel", "none", "--learning-rate", "0.002"]
    succeed(capsys, "train", task, "--run", str(whole), *args, "--epochs", "2")
    succeed(capsys, "train", task, "--run", str(parts), *args, "--epochs", "1")
    shutil.rmtree(copied)
    message = fail(capsys, "train", task, "--run", str(parts), "--resume", "--from", str(whole))
    assert f"continues {copied.resolve()}, got {whole}" in message and "remove --from" in message
    succeed(capsys, "train", task, "--run", str(parts), "--resume", *args, "--epochs", "2")
    assert_same_bits(parameters(parts), parameters(whole))


def test_what_a_run_does_not_continue(task, run_dir, classify_run, tmp_path, capsys):
    """Refused before data are read."""
    args = ["train", task, "--run", str(tmp_path / "new")]
    message = fail(capsys, *args, "--from", str(run_dir), "--num-layers", "2")
    assert "has --num-layers 1, got 2; a run that continues" in message
    assert "(--keep-optimizer, --from)" in fail(capsys, *args, "--keep-optimizer")
    assert "is not a run folder" in fail(capsys, *args, "--from", str(tmp_path))
    if task != "classify":
        message = fail(capsys, *args, "--from", str(classify_run))
        assert f"is a run of the task 'classify', expected '{task}'" in message
    assert not (tmp_path / "new").exists()


@fast("synthetic")
def test_training_counted_in_steps(task, case, tmp_path, capsys):
    folder = tmp_path / "steps"
    counted = ["--steps", "5", "--validate-every", "2"]
    succeed(capsys, "train", task, "--run", str(folder), *SMALL, *case.args, *counted)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == 3 and lines[-1]["step"] == 5
    report = json.loads((folder / "test.json").read_text())
    assert report["steps"] == 5 and report["best_step"] in (2, 4, 5)
    assert {"epochs", "best_epoch"}.isdisjoint(report)


@fast()  # runs of classify, in test_seeds.py, are fast
def test_many_runs_at_once(task, case, lines, tmp_path, capsys):
    folder = tmp_path / "many"
    args = ["train", task, "--run", str(folder), *SMALL, *case.args]
    succeed(capsys, *args, "--runs", "2", "--epochs", "1")
    stored = json.loads((folder / "test.json").read_text())
    assert [row["seed"] for row in stored["runs"]] == [0, 1]
    assert case.baseline in stored
    report = tasks.evaluate_run(folder)
    counted = "steps" if tasks.load_run(folder, 0).config.fit.by_steps else "epochs"
    assert stored.keys() - report.keys() - {"data_notes"} == {counted, "train_seconds"}
    assert all(report[name] == stored[name] for name in stored.keys() & report.keys())
    assert report["stream_max_error"] < 1e-4
    stream = ["stream", str(folder), "--input", str(lines), "--seed-index"]
    assert succeed(capsys, *stream, "0") != succeed(capsys, *stream, "1")


@fast("classify", "forecast", "sequence", "synthetic", "bins")  # the others by files of their own
def test_a_stream_goes_on_where_it_was_saved(task, case, run_dir, lines, tmp_path, capsys):
    """Of halves with a state as of the whole; a file that is none is refused."""
    whole = succeed(capsys, "stream", str(run_dir), "--input", str(lines), *case.own)
    text = lines.read_text().splitlines(keepends=True)
    state, outputs = tmp_path / "state.npz", []
    for half in (text[:5], text[5:]):
        part = tmp_path / "part.csv"
        part.write_text("".join(half))
        args = ["stream", str(run_dir), "--input", str(part), "--state", str(state)]
        outputs += succeed(capsys, *args, *case.own).splitlines()[1:]
    assert outputs == whole.splitlines()[1:]
    assert len(outputs) == len(text)
    assert "must be a file, got the folder" in fail(
        capsys, "stream", str(run_dir), "--state", str(tmp_path)
    )
    state.write_bytes(state.read_bytes()[:100])
    message = fail(capsys, "stream", str(run_dir), "--state", str(state))
    assert "is no state file, or is damaged" in message


@fast("forecast", "synthetic", "events")
def test_a_whole_file_is_fed_again(task, run_dir, lines, tmp_path, capsys):
    """What the state has seen is told, and left out where that is asked for."""
    whole = succeed(capsys, "stream", str(run_dir), "--input", str(lines)).splitlines()
    part, state = tmp_path / "part.csv", tmp_path / "state.npz"
    part.write_text("".join(lines.read_text().splitlines(keepends=True)[:5]))
    again = ["stream", str(run_dir), "--state", str(state), "--skip-processed", "--input"]
    assert succeed(capsys, *again, str(part)).splitlines() == whole[:6]
    assert cli.main([*again, str(lines)]) == 0
    streams = capsys.readouterr()
    assert streams.out.splitlines()[1:] == whole[6:]
    assert "# state: 5 rows" in streams.err and "# skipped 5 rows" in streams.err
    assert cli.main([*again, str(lines)]) == 0
    assert capsys.readouterr().err.splitlines()[-1] == "# the input has no new observations"
    assert cli.main(["stream", str(run_dir), "--state", str(state), "--input", str(part)]) in (0, 2)
    told = capsys.readouterr().err.splitlines()[0]
    assert told.startswith("# state: 12 rows") and told.endswith("(--skip-processed)")
    assert ("the last of 2016-07-01 11:00:00" in told) == (task == "forecast")
    assert "--skip-processed needs a state file; pass --state." in fail(
        capsys, "stream", str(run_dir), "--skip-processed"
    )
    refused = fail(capsys, "stream", str(run_dir), "--durability", "every-9")
    assert "--durability needs a state file to save to; pass --state." in refused


@fast("synthetic")
def test_a_state_is_saved_before_or_after_the_output(run_dir, lines, tmp_path, capsys, monkeypatch):
    saved, printed, save = [], [], tasks.Streaming.save

    def note(stream, path):
        printed.extend(capsys.readouterr().out.splitlines())
        saved.append((stream.num_rows, max(0, len(printed) - 1)))  # without the header
        save(stream, path)

    monkeypatch.setattr(tasks.Streaming, "save", note)
    monkeypatch.setattr("flax_linattn.tasks.stream.MAX_ROWS_PER_SAVE", 5)
    args = ["stream", str(run_dir), "--input", str(lines), "--state"]
    every_row = [(n, n) for n in range(1, 13)]
    for name, expected in {
        "before-output": [(5, 0), (10, 5), (12, 10)],
        "after-output": [*every_row, (12, 12)],
        "every-5": [(5, 5), (10, 10), (12, 12)],
    }.items():
        saved.clear(), printed.clear()
        assert cli.main([*args, str(tmp_path / f"{name}.npz"), "--durability", name]) == 0
        assert saved == expected
        printed.extend(capsys.readouterr().out.splitlines())
        assert len(printed) == 13
    for wrong in ("every-0", "every-", "before"):
        refused = fail(capsys, *args, str(tmp_path / "state.npz"), "--durability", wrong)
        assert "'before-output', 'after-output' or 'every-N'" in refused
        assert "(--durability)" in refused


@fast("synthetic")
def test_a_row_is_answered_when_no_other_has_arrived(
    case, run_dir, lines, tmp_path, monkeypatch, capsys
):
    """However long the next row takes; and a comment after it does not hold it up."""
    read_end, write_end = os.pipe()
    given = lines.read_text().splitlines(keepends=True)
    given.insert(3, "# a comment\n")
    given_before_wait, printed = iter(given), []

    def arrives(descriptors, *_):
        """A line arrives while the stream waits for one, and only then."""
        printed.append(len(capsys.readouterr().out.splitlines()))
        line = next(given_before_wait, None)
        os.close(write_end) if line is None else os.write(write_end, line.encode())
        return [], [], []

    monkeypatch.setattr(task_lines, "select", SimpleNamespace(select=arrives))
    with open(read_end) as monkeypatched:
        monkeypatch.setattr(sys, "stdin", monkeypatched)
        assert cli.main(["stream", str(run_dir), "--state", str(tmp_path / "state.npz")]) == 0
    # A wait prints what came before the wait before: first the header, too, for a comment nothing.
    assert printed == [0, 0, 2, 1, 1, int(not case.comments), *[1] * 8]


@fast("synthetic")
def test_a_figure_that_cannot_be_drawn_is_refused_at_once(run_dir, lines, tmp_path, capsys):
    args = ["stream", str(run_dir), "--input", str(lines), "--figure", str(tmp_path / "a.png")]
    assert cli.main(args) == 2
    streams = capsys.readouterr()
    assert streams.out == "" and "figures need matplotlib" in streams.err


def test_a_bad_line_is_named(task, case, run_dir, lines, capsys):
    bad, message = case.bad
    lines.write_text("\n".join([*case.lines[:2], bad]) + "\n")
    shown = fail(capsys, "stream", str(run_dir), "--input", str(lines))
    assert f"{lines}:3: " in shown and message in shown


@fast("classify", "text", "synthetic")
def test_comments_and_an_unfinished_last_line_are_left_out(case, run_dir, lines, tmp_path, capsys):
    """The last line may be cut in the middle of a number: it is no row, and in no state."""
    *some, last = lines.read_text().splitlines(keepends=True)
    stream, cut, state = ["stream", str(run_dir), "--input"], tmp_path / "cut.csv", tmp_path / "a"
    whole = succeed(capsys, *stream, str(lines))
    marks = ["# head\n", "#\n", "# restart, 2\n"] if case.comments else ["", "", ""]
    cut.write_text("".join([marks[0], *some[:2], *marks[1:], *some[2:], last[:-1]]))
    args = [*stream, str(cut), "--state", str(state)]
    assert cli.main(args) == 0
    streams = capsys.readouterr()
    assert streams.out == "".join(whole.splitlines(keepends=True)[:-1])
    (note,) = [line for line in streams.err.splitlines() if "newline" in line]
    number = len(some) + 1 + sum(map(bool, marks))
    assert note.startswith(f"# note: {cut}:{number}: skipped the last line (")
    assert f"({format_count(len(last) - 1, 'character')})" in note and note.endswith(
        "(--accept-partial-line)"
    )
    cut.write_text(last)
    assert succeed(capsys, *args).splitlines()[1:] == whole.splitlines()[-1:]
    state.unlink()
    lines.write_text("".join([*some, last[:-1]]))
    assert succeed(capsys, *stream, str(lines), "--accept-partial-line") == whole


@fast("synthetic")
def test_no_line_at_all(run_dir, lines, tmp_path, capsys):
    empty = tmp_path / "empty.csv"
    empty.write_text("")
    assert cli.main(["stream", str(run_dir), "--input", str(empty)]) == 0
    streams = capsys.readouterr()
    assert (streams.out, streams.err) == (
        "",
        "# the input has no observations; write one per line\n",
    )


def test_help_is_made_of_the_options(task, run_dir, capsys):
    assert cli.main(["train", task, "--help-all"]) == 0
    shown = capsys.readouterr().out
    for name in tasks.get_task(task).Config.of().flat():
        assert "--" + name.replace("_", "-") in shown
    assert cli.main(["stream", "--help"]) == 0
    assert f"\n  {task} " in capsys.readouterr().out
    assert cli.main(["--help"]) == 0
    assert f"train {task}" in capsys.readouterr().out


@fast("synthetic")
def test_a_taken_folder_is_left_as_it_is(task, case, run_dir, capsys):
    before = {p: p.read_bytes() for p in run_dir.iterdir() if p.is_file()}
    message = fail(capsys, "train", task, "--run", str(run_dir), *case.args)
    assert "already holds a run" in message and "(--resume, --run)" in message
    assert before == {p: p.read_bytes() for p in run_dir.iterdir() if p.is_file()}


def test_one_process_a_folder(task, case, tmp_path, capsys):
    folder = tmp_path / "run"
    args = ["train", task, "--run", str(folder), *SMALL, *case.args]
    with file_lock(folder / "training.lock", "it"):
        (line,) = fail(capsys, *args).splitlines()  # no summary of data or model before it
    assert "another process uses the run" in line
    assert not (folder / "config.json").exists()


def test_data_that_changed_are_refused(task, copied, capsys):
    data_spec = json.loads((copied / "data_spec.json").read_text())
    changed = data_spec["checksum"]
    data_spec["checksum"] = dict.fromkeys(changed, "0") if isinstance(changed, dict) else "0"
    (copied / "data_spec.json").write_text(json.dumps(data_spec))
    assert "have changed since training" in fail(capsys, "evaluate", str(copied))
    message = fail(capsys, "train", task, "--run", str(copied), "--resume", "--epochs", "3")
    assert "the data differ from the data that the run" in message
    assert json.loads((copied / "config.json").read_text())["epochs"] == 2


def predicted(capsys, run_dir, out, *args):
    """The rows of a file that the command writes, by name."""
    assert cli.main(["predict", str(run_dir), "--out", str(out), *args]) == 0
    told = capsys.readouterr()
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert told.out == "" and f"# {format_count(len(rows), 'row')}: {out}" in told.err
    return rows


@fast("classify", "synthetic", "bins")
def test_predictions_of_its_own_data(task, run_dir, tmp_path, capsys):
    """One home for all tasks; a task that has none says so."""
    if task == "bins":
        message = fail(capsys, "predict", str(run_dir), "--out", str(tmp_path / "a.csv"))
        assert "a run of the task 'bins' makes no predictions" in message
        return
    rows = predicted(capsys, run_dir, tmp_path / "rows.jsonl")
    assert rows and all(row.keys() == rows[0].keys() for row in rows)
    shares = [name for name in rows[0] if name.startswith("p(")]
    for row in rows if shares else []:
        assert sum(row[name] for name in shares) == pytest.approx(1, abs=1e-5)
    assert "must end in .csv, .json" in fail(capsys, "predict", str(run_dir), "--out", "table.xls")
    message = fail(
        capsys, "predict", str(run_dir), "--out", str(tmp_path / "b.csv"), "--input", "gone.csv"
    )
    assert "gone.csv" in message and not (tmp_path / "b.csv").exists()


def only(*names):
    """A test of what some tasks do, fast for the first of them."""
    slow = [pytest.param(name, marks=pytest.mark.slow) for name in names[1:]]
    return pytest.mark.parametrize("case_name", [names[0], *slow], indirect=True, scope="module")


@only("forecast", "events", "sequence", "synthetic")
def test_a_prediction_is_what_the_stream_says_last(task, run_dir, lines, tmp_path, capsys):
    if task == "forecast":
        names = ["date", *tasks.load_run(run_dir).data_spec.channels]
        lines.write_text(",".join(names) + "\n" + lines.read_text())
    header, *_, last = succeed(capsys, "stream", str(run_dir), "--input", str(lines)).splitlines()
    said = dict(zip(header.split(","), last.split(","), strict=True))
    if task == "events":
        lines.write_text("time,mark\n" + lines.read_text())
    told = predicted(capsys, run_dir, tmp_path / "rows.jsonl", "--input", str(lines))
    if task == "forecast":
        values = [value for row in told for name, value in row.items() if name != "date"]
        assert values == pytest.approx([*map(float, last.split(",")[2:])], rel=2e-5, abs=1e-5)
        times = [row["date"] for row in told]
        assert times == [f"2016-07-01 {hour}:00:00" for hour in (12, 13, 14, 15)]
        lines.write_text("".join(lines.read_text().splitlines(keepends=True)[:3]))
        args = ["--out", str(tmp_path / "few.csv"), "--input", str(lines)]
        message = fail(capsys, "predict", str(run_dir), *args)
        assert "add earlier rows, or continue a stream from a saved state" in message
        return
    (row,) = told
    if task == "events":
        assert row["time"] == 9 and row["mark"] == said["mark1"]
        gaps = [row[name] - 9 for name in ("next", "q0.05", "q0.5", "q0.95")]
        expected = [float(said[name]) for name in ("mean", "q0.05", "q0.5", "q0.95")]
        assert gaps == pytest.approx(expected, rel=1e-4)
        return
    assert str(row["prediction"]) == said["prediction"]
    shares = [name for name in header.split(",") if name.startswith("p(")]
    assert [row[name] for name in shares] == pytest.approx(
        [float(said[name]) for name in shares], abs=1e-4
    )


UNDESCRIBED = ("bins",)
"""Tasks whose raw observations a bundle does not describe."""


@only("classify")
def test_a_run_becomes_c_and_onnx(task, case, run_dir, lines, tmp_path, capsys):
    """Names begin with the name of the file; a header is replaced only if asked to."""
    path = tmp_path / "my-model.h"
    args = ["export", str(run_dir), "--out", str(path), "--format", "c"]
    assert "platforms is an option of bundles" in fail(capsys, *args, "--platforms", "cpu")
    assert "require_state is an option of ONNX" in fail(capsys, *args, "--require-state")
    assert cli.main(args) == 0
    assert f"# {path}: bytes of its parts: weights " in capsys.readouterr().err
    text = path.read_text()
    assert "void my_model_step(const float *x" in text
    assert "void my_model_scale(float *x)" in text and "char *my_model_class(int" in text
    assert f"{path} exists; choose another file" in fail(capsys, *args)
    assert cli.main([*args, "--again"]) == 0 and path.read_text() == text
    path.write_text("another file")
    assert "is not an exported model; choose another file" in fail(capsys, *args, "--again")
    pytest.importorskip("onnx")
    path = path.with_suffix(".onnx")
    args = [*args[:3], str(path), "--format", "onnx"]
    assert cli.main(args) == 0 and cli.main([*args, "--again"]) == 0
    assert "bytes; its state: features.num_observations" in capsys.readouterr().err
    assert cli.main([*args, "--again", "--require-state"]) == 0


@only("forecast")
def test_a_forecast_becomes_c_without_a_context(task, case, run_dir, lines, tmp_path, capsys):
    """The steps of C and ONNX do not begin again after a context."""
    args = ["export", str(run_dir), "--out", str(tmp_path / "model.h"), "--format", "c"]
    message = fail(capsys, *args, "--context", "8")
    assert "expected --context 0 for C and ONNX" in message
    assert cli.main([*args, "--context", "0"]) == 0


GIVEN = {
    "forecast": lambda own: (own.values, str(own.time)),
    "events": lambda own: (str(own.event_type), own.time),
    "offline-rl": lambda own: ([own.reward, *own.values],),
}
"""What a session of a bundle takes for an observation of a stream."""


@only("events", "offline-rl")
def test_events_and_agents_become_c(task, case, run_dir, lines, tmp_path, capsys):
    """An agent that restarts after a context does not."""
    args = ["export", str(run_dir), "--out", str(tmp_path / "model.h"), "--format", "c"]
    if task == "offline-rl":
        assert "expected --act stream for C and ONNX" in fail(capsys, *args, "--act", "restart")
        args += ["--act", "stream"]
    assert cli.main(args) == 0
    if task == "events":  # whatever the stream prints, a bundle has the same outputs
        run = tasks.load_run(run_dir)
        one, other = (
            run.task.stream(run, run.task.StreamOptions(simulate=n)).interface() for n in (0, 2)
        )
        assert one == other


@fast("forecast")
def test_a_bundle_says_what_the_stream_says(task, case, run_dir, lines, tmp_path, capsys):
    """In the names and units of the data; a bundle that exists is renewed only if asked to."""
    path, runtime = tmp_path / "model.linattn", tmp_path / "new" / "linattn_runtime.py"
    args = ["export", str(run_dir), "--out", str(path), "--platforms", "cpu", "--chunk-sizes", "4"]
    assert "different files for out and runtime" in fail(capsys, *args, "--runtime", str(path))
    assert cli.main([*args, "--runtime", str(runtime)]) == 0
    note = capsys.readouterr().err
    assert f"# {path}: " in note and "JAX promises to read it until 20" in note
    assert runtime.read_text() == Path(linattn_runtime.__file__).read_text()
    assert f"{path} exists; choose another file, or renew it with --again" in fail(capsys, *args)
    assert cli.main([*args, "--again"]) == 0
    bundle = linattn_runtime.Bundle(path)
    assert bundle.signature["task"]["name"] == task
    if task in UNDESCRIBED:
        assert "takes the model's own arrays" in note and bundle.init_state(3)
        with pytest.raises(linattn_runtime.BundleError, match="does not describe raw observations"):
            bundle.session()
        return
    run = tasks.load_run(run_dir)
    stream, session = run.task.stream(run, run.task.StreamOptions()), bundle.session()
    rows = lines_of("forecast", 40) if task == "forecast" else case.lines
    for observation in stream.parse(rows):
        cells = stream.cells(observation)
        if observation is None:
            session.reset()
            continue
        if task == "text":
            logits = [session.step(byte)["logits"] for byte in observation][-1]
            own = np.asarray(jax.nn.log_softmax(logits))
            np.testing.assert_allclose(own, stream._log_p, rtol=0, atol=1e-5)
            continue
        predictions = [*session.step(*GIVEN.get(task, lambda own: (own,))(observation)).values()]
        if task == "synthetic":
            assert cells[1] in ("", int(np.argmax(predictions[0])))
            continue
        expected_cells = cells[{"events": 3, "forecast": 2, "offline-rl": 2}.get(task, 1) :]
        if task == "classify":  # a bundle has no decisions
            expected_cells = [cells[1], *cells[3:]]
        if task == "events":  # the mean and the quantiles of the time, and the likeliest type
            *times, _, p = expected_cells
            expected_cells, predictions = [*times, p], [*predictions[:4], max(predictions[4:])]
        for own, expected in zip(predictions, expected_cells, strict=True):
            is_close = own == str(expected) if isinstance(own, str) else None
            assert is_close or own == pytest.approx(expected, 1e-5)


@only("classify")
def test_classes_of_sequences_without_labels(run_dir, tmp_path, capsys):
    """A file whose labels are all "?"; the last line of a stream of each sequence says the same."""
    part = data.japanese_vowels()[1].subset([0, 100])
    path = tmp_path / "unknown.ts"
    examples = [":".join(",".join(map(str, x)) for x in own.T) for own in part.series]
    path.write_text("@classLabel true ?\n@data\n" + "".join(f"{own}:?\n" for own in examples))
    rows = predicted(capsys, run_dir, tmp_path / "rows.jsonl", "--input", str(path))
    assert [row["example"] for row in rows] == [0, 1]
    for number, row in zip((0, 100), rows, strict=True):
        said = succeed(capsys, "stream", str(run_dir), "--sequence", str(number)).splitlines()
        _, best, _, *shares = said[-1].split(",")
        assert row["prediction"] == best
        told = [value for name, value in row.items() if name.startswith("p(")]
        assert told == pytest.approx([*map(float, shares)], abs=1e-4)
    path.write_text("@classLabel true ?\n@data\n1,2:3,4:?\n")
    message = fail(
        capsys, "predict", str(run_dir), "--out", str(tmp_path / "a.csv"), "--input", str(path)
    )
    assert "expected sequences of 12 channels, as in training, got 2" in message


@only("offline-rl", "offline-rl of discrete actions")
def test_actions_are_those_of_the_agent_by_the_window(run_dir, tmp_path, capsys):
    """The agent is shown the episode, and its last actions are those that were taken."""
    run = tasks.load_run(run_dir)
    episodes = run.task.test_batches(run, None).episodes
    (row,) = predicted(capsys, run_dir, tmp_path / "rows.jsonl")
    agent = make_agent(run, 1, episodes.num_steps, act="window")
    rewards = np.concatenate([[0.0], episodes.rewards[:-1]])
    taken = run.data_spec.scaled_actions(episodes.actions)
    for step in range(episodes.num_steps):
        begins = np.array([step == 0])
        (action,) = agent.act(episodes.observations[step : step + 1], rewards[[step]], begins)
        agent.last_actions = taken[step : step + 1]
    assert row["step"] == episodes.num_steps
    assert row["return_to_go"] == pytest.approx(float(agent.returns_to_go[0]), rel=1e-6)
    space = run.data_spec.action_space
    expected = [float(column[0]) for column in space.columns(agent.outputs)]
    assert [row[name] for name in space.names] == pytest.approx(expected, abs=1e-5)
    assert row[space.names[0]] == pytest.approx(float(np.ravel(action)[0]), abs=1e-5)


@pytest.mark.slow
@only("image")
def test_classes_of_a_folder_of_images(run_dir, tmp_path, capsys):
    image_module = pytest.importorskip("PIL.Image")
    run = tasks.load_run(run_dir)
    batch = run.task.test_batches(run, None).batch(0)
    scaled = batch["image"][:2] * np.array(run.data_spec.std) + np.array(run.data_spec.mean)
    for name, pixels in zip("ab", np.round(scaled * 255).astype(np.uint8), strict=True):
        image_module.fromarray(pixels[..., 0]).save(tmp_path / f"{name}.png")
    own = predicted(capsys, run_dir, tmp_path / "own.jsonl")[:2]
    rows = predicted(capsys, run_dir, tmp_path / "rows.jsonl", "--input", str(tmp_path))
    assert [row.pop("file") for row in rows] == ["a.png", "b.png"]
    for row, expected in zip(rows, own, strict=True):
        assert row["p(joined)"] == pytest.approx(expected["p(joined)"], abs=1e-5)
    one = predicted(capsys, run_dir, tmp_path / "one.jsonl", "--input", str(tmp_path / "b.png"))
    assert one[0]["prediction"] == rows[1]["prediction"] and one[0]["file"] == "b.png"


@fast("synthetic", "forecast")
@pytest.mark.parametrize("name", ["data_spec.json", "config.json"])
@pytest.mark.parametrize("text", ["{}", "[]", "{", '{"borders": {}}', "\xff"])
def test_damaged_files_are_named(copied, capsys, name, text):
    (copied / name).write_text(text, encoding="latin-1")
    assert str(copied) in fail(capsys, "evaluate", str(copied))


@fast("synthetic")
def test_options_and_formats_of_another_version(run_dir, copied, capsys):
    path = copied / "config.json"
    config = json.loads(path.read_text())
    for number in (1, 3, None):
        path.write_text(json.dumps({**config, "format": number}))
        told = fail(capsys, "evaluate", str(copied))
        assert (
            f"has the format {number}, but this version reads format 2; use the version that made"
            in told
        )
    path.write_text(json.dumps({**config, "color": "red"}))
    assert "'color'" in fail(capsys, "evaluate", str(copied))
    path.write_text(json.dumps({**config, "task": "tides"}))
    assert "is a run of the unknown task 'tides'; expected one of" in fail(
        capsys, "evaluate", str(copied)
    )
    del config["activation"]  # an option that came later has its default
    path.write_text(json.dumps(config))
    assert tasks.load_run(copied).config == tasks.load_run(run_dir).config


@fast("synthetic")
def test_damaged_checkpoints_are_named(copied, capsys):
    for path in (copied / "checkpoints").rglob("*"):
        if path.is_file() and path.parent.name == "d":
            path.write_bytes(b"garbage")
    message = fail(capsys, "evaluate", str(copied))
    assert "checkpoint" in message and str(copied) in message


@pytest.mark.parametrize(
    "name",
    [
        name if name == "synthetic" else pytest.param(name, marks=pytest.mark.slow)
        for name in CASES
        if name in registry.TASKS
    ],
)
def test_sigterm_saves_and_says_how_to_go_on(name, tmp_path):
    """In a process of its own, which knows only the package's tasks."""
    folder = tmp_path / "run"
    own = [arg() if callable(arg) else arg for arg in CASES[name].args]
    args = ["train", name, "--run", str(folder), *SMALL, *own]
    with command_line(*args, "--epochs", "100000", "--patience", "100000") as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("epoch 1/"):
                break
        process.send_signal(signal.SIGTERM)
        rest = process.stderr.read()
    assert process.returncode == 143
    assert "--resume" in rest and str(folder) in rest
    assert any(Path(folder / "checkpoints").iterdir())
