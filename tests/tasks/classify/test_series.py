"""Classification: what its folder holds, its streams, its flags; and what bad input says."""

import dataclasses
import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from flax_linattn import cli, data, tasks
from flax_linattn.tasks.classify import ClassifyConfig, ClassifySpec
from flax_linattn.tasks.classify.series.data import find_notes, load_data, make_batches
from tests.tasks.commands import FEW_FEATURES, SMALL, fail, flags, succeed


@pytest.fixture
def run_dir(classify_run):
    """A finished small run on the embedded data, made by the command line."""
    return classify_run


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """Options of a quick run on two files of unequal lengths with missing values."""
    folder = tmp_path_factory.mktemp("data")
    header = (
        "@problemName Toy\n@timestamps false\n@missing true\n@univariate false\n@dimensions 2\n"
        "@equalLength false\n@classLabel true up down\n@data\n"
    )
    rng = np.random.default_rng(0)
    lines = []
    for i in range(20):
        length, sign = rng.integers(2, 5), 1 if i % 2 else -1
        rows = [sign * np.arange(length) + rng.normal(size=length) for _ in range(2)]
        cells = [",".join(f"{value:.3f}" for value in row) for row in rows]
        cells[0] = cells[0].replace(cells[0].split(",")[1], "?", 1)
        lines.append(":".join([*cells, "up" if sign > 0 else "down"]))
    train, test = folder / "Toy_TRAIN.ts", folder / "Toy_TEST.ts.gz"
    train.write_text(header + "\n".join(lines) + "\n")
    with gzip.open(test, "wt") as file:
        file.write(header + "\n".join(lines[:6]) + "\n")
    files = ["--train-file", str(train), "--test-file", str(test)]
    return [*files, *SMALL, "--epochs", "1", "--batch-size", "8"]


def test_what_a_run_folder_says(run_dir):
    assert (run_dir / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    report = json.loads((run_dir / "test.json").read_text())
    assert report["num_test"] == 370
    assert report["selected_on"].startswith("validation part")
    counts = np.array(report["confusion"])
    assert counts.sum(axis=1).tolist() == np.bincount(data.japanese_vowels()[1].labels).tolist()
    assert [figures["recall"] for figures in report["classes"]] == pytest.approx(
        np.diag(counts) / counts.sum(axis=1), abs=5e-4
    )
    assert (run_dir / "confusion.png").read_bytes().startswith(b"\x89PNG")


def test_evaluate_compares_every_step_and_prints_a_table(run_dir, capsys):
    report = tasks.evaluate_run(run_dir)
    # After each of ten prefix lengths, and at the end.
    assert report["stream_steps"] == 11 * data.japanese_vowels()[1].num_examples == 11 * 370
    assert report["stream_max_error"] < 1e-5
    assert cli.main(["evaluate", str(run_dir)]) == 0
    out = capsys.readouterr().out
    assert "stream_max_error" in out
    assert out.splitlines()[-17].split() == [
        *("class", "count", "recall", "precision", "f1", "taken_for")
    ]
    assert out.splitlines()[-6].split() == ["fraction", "observations", "accuracy"]
    last = out.splitlines()[-1].split()
    assert last[0] == "1.0" and float(last[2]) == pytest.approx(report["test_accuracy"], abs=1e-5)


def test_stream_command_reads_files_and_draws(run_dir, tmp_path, capsys):
    series = data.japanese_vowels()[1].series[0]
    lines = [",".join(map(str, row)) for row in series]
    lines[3] = " ".join(["?", *lines[3].split(",")[1:]])
    source = tmp_path / "observations.csv"
    source.write_text("\n".join([*lines, "", *lines]) + "\n")
    figure = tmp_path / "stream.png"
    assert cli.main(["stream", str(run_dir), "--input", str(source), "--figure", str(figure)]) == 0
    out, err = capsys.readouterr()
    assert "so its prediction was not printed; write a blank line after each sequence" in err
    out = out.splitlines()
    assert out[0].startswith("step,prediction,decision,p(1),")
    first, whole, second = out[1:][: len(series)], out[1 + len(series)], out[2 + len(series) :]
    assert first == second  # the blank line reset the stream
    step, prediction, decision, *_ = whole.split(",")  # the prediction for the whole sequence
    assert step == str(len(series)) and decision in (prediction, first[-1].split(",")[2])
    assert figure.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize(
    "options",
    [
        "--parallel jit --mesh data=2,seq=2",
        *(
            pytest.param(f"{options} --epochs 8", marks=pytest.mark.slow)
            for options in (
                "--num-layers 2 --mechanism aaren softmax",
                "--parallel pmap --accumulate 2 --mesh data=4 --buckets 2",
                "--parallel auto --shard-parameters --dtype float16 --tensorboard --profile 1",
                "--dtype bfloat16 --remat blocks",
            )
        ),
    ],
)
def test_devices_and_precision_are_flags(options, toy, tmp_path, capsys):
    """Each trains a run that can be evaluated on one device."""
    if "tensorboard" in options:
        pytest.importorskip("tensorboardX")
    folder = tmp_path / "run"
    args = ["train", "classify", *toy, "--run", str(folder)]
    assert cli.main([*args, *options.split()]) == 0
    assert "all parameters" in capsys.readouterr().err
    epochs, steps = (
        [json.loads(line) for line in (folder / name).read_text().splitlines()]
        for name in ("metrics.jsonl", "steps.jsonl")
    )
    assert all(np.isfinite(line["train_loss"]) for line in epochs)
    assert steps[-1]["tokens_per_second"] > 0 and steps[-1]["model_flops_per_second"] > 0
    report = tasks.evaluate_run(folder)
    assert report["num_test"] == 6 and report["stream_max_error"] < 1e-2


@pytest.mark.usefixtures("no_figures", "no_steps")
def test_the_library_s_preset_is_marked_and_does_not_stream(toy, tmp_path, capsys):
    folder = tmp_path / "run"
    args = ["train", "classify", "--preset", "tslib", "--run", str(folder), *toy]
    assert cli.main(args) == 0
    report = json.loads((folder / "test.json").read_text())
    assert "TEST SET" in report["selected_on"]
    assert "stream_max_error" not in tasks.evaluate_run(folder)
    message = fail(capsys, "stream", str(folder), "--sequence", "0")
    assert "cannot stream" in message and "=" not in message
    assert message.endswith("(--mechanism, --causal, --embedding causal)\n")
    longer = tmp_path / "longer.ts"
    train = Path(toy[1]).read_text()
    longer.write_text(train[: train.index("@data")] + "@data\n1,2,3,4,5:1,2,3,4,5:up\n")
    message = fail(capsys, "evaluate", str(folder), "--test-file", str(longer))
    assert "a sequence of 5 steps" in message and "pooling='mean'" in message
    assert "--" not in message  # evaluate has no such option


@pytest.mark.usefixtures("no_figures", "no_steps")
def test_softmax_stream_beyond_its_cache(toy, tmp_path, capsys):
    folder = tmp_path / "run"
    args = ["train", "classify", "--run", str(folder), *toy, *flags(FEW_FEATURES)]
    assert cli.main([*args, "--num-layers", "2", "--mechanism", "aaren", "softmax"]) == 0
    source = tmp_path / "long.csv"
    source.write_text("\n".join(["0.1,0.2"] * 6) + "\n")
    message = fail(capsys, "stream", str(folder), "--input", str(source))
    assert f"{source}:5: " in message and "observation 5" in message
    assert "A blank line begins a new sequence. (--max-length)" in message
    assert cli.main(["stream", str(folder), "--input", str(source), "--max-length", "6"]) == 0
    args = ["stream", str(folder), "--input", str(source), "--max-length", "0"]
    assert "max_length must be at least 1" in fail(capsys, *args)


def test_a_closed_form_has_no_attention(toy, tmp_path, capsys):
    """It trains no parameters, resumes its run, and streams the outputs of the parallel model."""
    folder, files = tmp_path / "run", toy[:4]
    out = succeed(
        capsys, "train", "classify", *files, "--model", "closed-form", "--run", str(folder)
    )
    assert "mechanism" not in out and "training data, leave-one-out" in out
    run = tasks.load_run(folder)
    assert run.model.attention is None and run.config.name == "Toy_TRAIN-closed-form-0"
    report = tasks.evaluate_run(folder)
    assert report["num_test"] == 6 and report["stream_max_error"] < 1e-5
    lines = succeed(capsys, "stream", str(folder), "--sequence", "0").splitlines()
    assert lines[0].startswith("step,prediction,decision,p(down),p(up)")
    again = ["--run", str(folder), "--resume"]
    succeed(capsys, "train", "classify", *files, *again)
    assert tasks.evaluate_run(folder)["test_loss"] == report["test_loss"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "mechanism", ["aaren", pytest.param("forgetting_aaren", marks=pytest.mark.slow)]
)
def test_latents_read_the_sequence(toy, tmp_path, capsys, mechanism):
    """They train, are tested, and stream what they give in parallel."""
    run = tmp_path / "run"
    succeed(capsys, "train", "classify", *toy, "--run", str(run), "--mechanism", mechanism,
            "--latents", "3")  # fmt: skip
    report = tasks.evaluate_run(run)
    assert report["num_test"] == 6
    assert report["stream_max_error"] < 1e-5
    lines = succeed(capsys, "stream", str(run), "--sequence", "0").splitlines()
    assert lines[0].startswith("step,prediction,decision,p(down),p(up)")


class TestBadInput:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ("--mesh data=64", "(--batch-size, --mesh)\n"),
            ("--mesh data=8,seq=4", "needs 32 devices, but there are 8"),
            ("--mesh seq=2 --mechanism softmax", "'softmax' has no state of constant size"),
            ("--mesh seq=2 --embedding circular", "use --embedding causal and --padding masked"),
            ("--mesh seq=2 --padding seen", "use --embedding causal and --padding masked"),
            (
                "--coordinator localhost:1234",
                "coordinator, num_processes and process_id belong together",
            ),
            (
                "--coordinator localhost:1234",
                "(--coordinator, --num-processes, --process-id)\n",
            ),
            ("--model closed-form --select-on test", "has no effect on --model closed-form"),
            (
                "--model closed-form --epochs 3",
                "one epoch, got --epochs 3; set --epochs 1, or choose",
            ),
            ("--model attention --num-features 84", "num_features has no effect on --model att"),
            ("--preset tslib --buckets 2", "--pooling mean or --pooling last"),
            ("--mechanism linformer", "'linformer' does not support is_causal=True"),
            ("--latents 4 --pooling last", "latents need causal attention"),
            ("--latents 4 --embedding circular", "latents need causal attention"),
            ("--latents 4 --mechanism softmax", "choose one of: aaren, forgetting_aaren"),
            (
                "--latents 4 --mechanism aaren softmax --num-layers 2",
                "latents need a single mechanism",
            ),
        ],
    )
    def test_arguments_that_do_not_go_together(self, toy, tmp_path, capsys, arguments, message):
        run, devices = tmp_path / "run", "--parallel jit" if "--mesh" in arguments else ""
        args = ["train", "classify", *toy, "--run", str(run), *arguments.split(), *devices.split()]
        assert message in fail(capsys, *args)
        assert not (run / "config.json").exists()

    def test_files_that_do_not_go_together(self, tmp_path, capsys):
        message = fail(capsys, "train", "classify", "--train-file", "My_TRAIN.ts")
        assert message == (
            "error: pass both a training and a test file, or neither for JapaneseVowels. "
            "(--train-file, --test-file)\n"
        )
        args = ["--train-file", str(tmp_path / "a.ts"), "--test-file", str(tmp_path / "b.ts")]
        assert "a.ts" in fail(capsys, "train", "classify", *args, "--run", str(tmp_path / "r"))

    def test_folders_that_hold_no_run(self, tmp_path, capsys):
        path = tmp_path / "run"
        for command in (("evaluate",), ("stream",), ("train", "classify", "--resume", "--run")):
            assert "is not a run folder" in fail(capsys, *command, str(path))
        path.write_text("")
        args = ("train", "classify", "--run", str(path))
        assert "expected a run folder, got the file" in fail(capsys, *args)

    @pytest.mark.slow
    def test_a_run_that_failed_at_once_can_start_anew(self, toy, tmp_path, capsys):
        args = ["train", "classify", *toy, "--run", str(tmp_path / "run")]
        assert cli.main([*args, "--learning-rate", "1e38", "--clip-norm", "1e38"]) == 1
        assert "learning rate" in capsys.readouterr().err
        assert cli.main(args) == 0

    def test_stream_sequence_out_of_range(self, run_dir, capsys):
        assert "sequence must be from 0 to 369" in fail(
            capsys, "stream", str(run_dir), "--sequence", "370"
        )


def test_a_line_out_of_range_is_named(run_dir, tmp_path, capsys):
    source = tmp_path / "lines.csv"
    source.write_text("\n".join([",".join(["1"] * 12), "", ",".join(["1e60"] * 12)]) + "\n")
    message = fail(capsys, "stream", str(run_dir), "--input", str(source))
    assert f"{source}:3: " in message and "got 1e+60 for channel dim_0" in message
    assert "standard deviations" in message


def test_blank_lines_are_rows_that_were_seen(run_dir, tmp_path, capsys):
    source, state = tmp_path / "lines.csv", tmp_path / "state.npz"
    rows = [",".join([str(i)] * 12) for i in range(6)]
    rows.insert(2, "")
    args = ["stream", str(run_dir), "--input", str(source), "--state", str(state)]
    source.write_text("\n".join(rows[:5]) + "\n")
    succeed(capsys, *args)
    source.write_text("\n".join(rows) + "\n")
    found = succeed(capsys, *args, "--skip-processed").splitlines()[1:]
    assert found == succeed(capsys, *args[:4]).splitlines()[6:]
    shown = succeed(capsys, "state", str(state)).split()
    assert shown[shown.index("rows") + 1] == "7" and shown[shown.index("num_steps") + 1] == "6"
    assert cli.main([*args, "--threshold", "0.01"]) == 2
    assert "expected 0.01. Use the run and the options" in capsys.readouterr().err


def test_steps_are_scaled_across_channels():
    train, _ = data.japanese_vowels()
    config = ClassifyConfig.of(scaling="each-across-channels")
    data_spec = ClassifySpec(
        train.name, train.channels, train.classes, (29,), data.Standardizer.fit(train.series), {}
    )
    values = make_batches(train, config, data_spec, seed=None).batch(0)["values"][0]
    x = data_spec.standardizer.apply(train.series)[0]
    x = x - x.mean(axis=0)
    expected = x / np.sqrt(np.mean((x - x.mean(1)[:, None]) ** 2, axis=1)[:, None] + 1e-5)
    np.testing.assert_allclose(values[: len(x)], expected, rtol=1e-5)


def test_rare_classes_are_told():
    train, test = data.japanese_vowels()
    kept = [*np.flatnonzero(train.labels > 1), np.flatnonzero(train.labels == 1)[0]]
    assert find_notes(train.subset(kept), test)[:2] == [
        f"classes with no training sequence, never predicted: {train.classes[0]}",
        f"classes with one training sequence: {train.classes[1]}",
    ]


def test_a_channel_with_a_single_value_is_told():
    train, test = data.japanese_vowels()
    one = np.arange(12) == 3
    train = dataclasses.replace(train, series=[np.where(one, 5.0, x) for x in train.series])
    (note,) = find_notes(train, test)
    name = train.channels[3]
    assert note == f"channels with a single value in the training data: {name}"


TOY = "@problemName Toy\n@univariate true\n@classLabel true a {}\n@data\n1,2:a\n{}\n3,4:{}\n"


def test_errors_about_a_file_name_it(tmp_path):
    whole, empty, others = (tmp_path / f"{name}.ts" for name in ("whole", "empty", "others"))
    whole.write_text(TOY.format("b", "1,2:b", "b"))
    empty.write_text(TOY.format("b", "?,?:b", "b"))
    others.write_text(TOY.format("c", "1,2:c", "c"))
    for test_file, message in ((empty, "has no values"), (others, "expected labels among")):
        with pytest.raises(ValueError, match=message) as caught:
            load_data(ClassifyConfig.of(train_file=whole, test_file=test_file).data)
        assert str(caught.value).startswith(f"{test_file}: ")


def test_a_value_that_flattens_its_channel_is_told(toy, tmp_path):
    train, test = Path(toy[1]), Path(toy[3])
    far = tmp_path / "Far_TRAIN.ts"
    lines = train.read_text().splitlines()
    header = lines.index("@data") + 1
    values, rest = lines[header + 3].split(":", 1)
    for value, beyond in (("1e30", False), ("1e39", True)):
        cells = [value, *values.split(",")[1:]]
        changed = [*lines[: header + 3], f"{','.join(cells)}:{rest}", *lines[header + 4 :]]
        far.write_text("\n".join(changed) + "\n")
        files = ClassifyConfig.of(train_file=far, test_file=test).data
        if beyond:
            with pytest.raises(
                ValueError, match=r"Far_TRAIN\.ts: .* got 1e\+39 .* \(sequence 3, s"
            ):
                load_data(files)
            continue
        told = find_notes(*load_data(files))
        assert told == [
            "missing values, interpolated over time: 26",
            "values to train so extreme that they flatten the rest of their channel: 1 (dim_0 "
            "1e+30, sequence 3, step 0, from 0); write ? if one stands for a missing value",
        ]
