"""Corrupted run folders: options and data specs that no run can have are refused by name."""

import json
import os
import shutil
import tarfile
import time
from pathlib import Path

import pytest

from flax_linattn import models, ops, tasks, training
from flax_linattn.tasks.config_file import read_config
from tests.tasks.commands import fail

STORED = Path(__file__).parent / "stored" / "runs.tar.gz"


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """Runs that nobody harms for longer than a test."""
    folder = tmp_path_factory.mktemp("stored")
    with tarfile.open(STORED) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture
def harmed(stored):
    """Writes a file of a run, and puts the old one back in the end."""
    before: dict[Path, bytes] = {}

    def write(name: str, content: bytes | None) -> Path:
        path = stored / name
        before.setdefault(path, path.read_bytes())
        path.unlink() if content is None else path.write_bytes(content)
        return path

    yield write
    for path, content in before.items():
        path.write_bytes(content)


def changed(path: Path, **values) -> bytes:
    return json.dumps(json.loads(path.read_text()) | values).encode()


OPTIONS = {
    "features": ["8", 8.0, True, None, [8], 10**12, 2**17, -8],
    "hidden_features": [10**7, "8", 0],
    "num_layers": [100_000, 10**9, 1e3, "2"],
    "num_heads": [True, 10**10],
    "mechanism": ["aaren:chunk_size=" + "-" * 100_000, "aaren:chunk_size=" + "(" * 150, 8,
                  ["a"] * 50, "aaren:chunk_size={[]: 1}", "-" * 10**6],
    "rotary": ["yes", 1, None],
    "normalize_qk": ["layer", 1],
    "short_conv": [1, 2.0, 10**12],
    "dropout_rate": ["0.1", None, True],
    "batch_size": [10**12, 1e3, True],
    "epochs": [10**12, "3"],
    "learning_rate": ["0.1", 10**400, [], float("nan")],
    "seed": [2**70, "0", 0.5],
    "pooling": [5, ["mean"]],
    "causal": ["no", 0],
    "train_file": [5, ["a"]],
}  # fmt: skip


@pytest.mark.parametrize(
    ("option", "value"),
    [(name, value) for name, values in OPTIONS.items() for value in values],
    ids=lambda value: repr(value)[:30],
)
def test_options_that_no_run_has(stored, harmed, option, value):
    path = stored / "classify" / "config.json"
    harmed("classify/config.json", changed(path, **{option: value}))
    begin = time.process_time()
    with pytest.raises(ValueError, match=str(stored / "classify")) as caught:
        tasks.load_run(stored / "classify")
    assert time.process_time() - begin < 20
    assert len(str(caught.value)) < 2000 and isinstance(caught.value.__cause__, Exception | None)


@pytest.mark.parametrize(
    ("data_spec", "message"),
    [
        ({"lengths": [1e12]}, "lengths must be a list, each an integer, got"),
        ({"lengths": [10**12]}, r"lengths must be at most 16777216, got 1000000000000"),
        ({"lengths": []}, "num_lengths must be at least 1"),
        ({"lengths": ["29"]}, "lengths must be a list"),
        ({"lengths": 29}, "lengths must be a list, each an integer, got 29"),
        ({"channels": ["a", "b"]}, "same length, got 2 of channels"),
        ({"classes": [1, 2]}, "classes must be a list, each text"),
        ({"standardizer": {"mean": "x", "std": []}}, "data_spec.json"),
        ({"checksum": 5}, "checksum must be names and values, got 5"),
    ],
)
def test_problems_that_no_data_have(stored, harmed, data_spec, message):
    path = harmed("classify/data_spec.json", None)
    path.write_bytes(b"{}")
    harmed("classify/data_spec.json", json.dumps(json.loads(original(stored)) | data_spec).encode())
    with pytest.raises(ValueError, match=message) as caught:
        tasks.load_run(stored / "classify")
    assert str(path) in str(caught.value)


def original(stored: Path) -> bytes:
    """The run's data_spec.json, as it was stored."""
    with tarfile.open(STORED) as archive:
        file = archive.extractfile("classify/data_spec.json") or archive.extractfile(
            "./classify/data_spec.json"
        )
        assert file is not None
        return file.read()


@pytest.mark.parametrize("name", ["config.json", "data_spec.json"])
@pytest.mark.parametrize(
    "content",
    [b"[" * 100_000, b'{"a":' * 100_000, b"1" * 10_000, b"\xff{}", '{"ä": 1}'.encode("latin-1")],
    ids=["lists", "names", "digits", "no UTF-8", "Latin-1"],
)
def test_text_that_is_no_json(stored, harmed, name, content):
    path = harmed(f"classify/{name}", content)
    with pytest.raises(ValueError, match="not valid JSON") as caught:
        tasks.load_run(stored / "classify")
    assert str(path) in str(caught.value)


def test_a_pipe_is_not_waited_for(stored, tmp_path):
    names = ["data_spec.json", "progress.json"]
    for name in names:
        run = shutil.copytree(stored / "classify", tmp_path / name)
        for path in list(run.rglob(name)):
            path.unlink()
            os.mkfifo(path)
        with pytest.raises(ValueError, match=name):
            tasks.load_run(run)


def test_a_problem_with_a_class_less_is_named_on_resume(stored, harmed):
    """Where the data have a label that the run's file does not know."""
    path = stored / "classify" / "data_spec.json"
    classes = json.loads(path.read_text())["classes"]
    harmed("classify/data_spec.json", changed(path, classes=classes[:2] + classes[3:]))
    config = read_config(path.parent)
    with pytest.raises(ValueError, match=r"data_spec.json and the data differ in"):
        tasks.train("classify", config, training.Session(path.parent, resume=True, progress=False))


def test_a_problem_that_is_gone_is_not_made_anew(stored, harmed, capsys):
    """It alone says whether the data are those that the run began with."""
    path = harmed("classify/data_spec.json", None)
    args = ["train", "classify", "--run", str(stored / "classify"), "--resume", "--epochs", "2"]
    message = fail(capsys, *args, "--parallel", "none")
    assert f"{path} is missing" in message and "restore the file from a copy" in message
    assert not path.exists()


def test_a_size_that_is_not_the_saved_one_takes_no_memory(stored, harmed):
    """65,536 features would take 50 GB before anyone compared them."""
    path = stored / "classify" / "config.json"
    harmed("classify/config.json", changed(path, features=2**16, hidden_features=2**16))
    with pytest.raises(ValueError, match=r"(?s)model is not the one saved in .*requested .*65536"):
        tasks.load_run(stored / "classify")


@pytest.mark.parametrize("text", ["-" * 100_000, "(" * 900, "[" * 900 + "]" * 900, "{[]: 1}"])
def test_hyperparameters_that_no_parser_takes(text):
    with pytest.raises(ValueError, match="expected hyperparameters of 'aaren' as name=value"):
        ops.get_mechanism(f"aaren:chunk_size={text}")


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("num_layers", 1001, "num_layers must be at most 1000, got 1001"),
        ("rotary", "yes", "rotary must be true or false, got 'yes'"),
        ("dropout_rate", "0", "dropout_rate must be a number, got '0'"),
        ("hidden_features", "8", "hidden_features must be an integer or null, got '8'"),
    ],
)
def test_layers_by_hand(option, value, message):
    with pytest.raises((ValueError, TypeError), match=message):
        models.Layers(**{option: value})
