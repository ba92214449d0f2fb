"""What holds of classes of series, of tokens and of images alike: runs, data, options."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from flax_linattn import tasks, training
from flax_linattn.checks import OptionError
from flax_linattn.tasks.classify.metrics import class_metrics
from tests.data.images.samples import write_image_folder, write_texts
from tests.tasks.commands import SIZES, fail, flags, one_line, succeed

pytestmark = pytest.mark.usefixtures("no_figures")

SMALL = SIZES | {"epochs": 1}
RECIPE = {"warmup": 0.0, "batch_size": 8}
VECTORS = {"constant", "nearest_neighbor", "ridge"}


def write_series(folder: Path, channels: int = 2) -> dict[str, Any]:
    """A pair of .ts files of 12 and 6 sequences, with a missing value."""
    rng = np.random.default_rng(0)
    folder.mkdir(exist_ok=True)
    paths = {"train_file": folder / "Toy_TRAIN.ts", "test_file": folder / "Toy_TEST.ts"}
    for path, count in zip(paths.values(), (12, 6), strict=True):
        lines = []
        for label in ("up", "down") * (count // 2):
            steps = np.arange(4) * (1 if label == "up" else -1)
            rows = steps + rng.normal(size=(channels, 4))
            cells = [",".join(f"{value:.3f}" for value in row) for row in rows]
            lines.append(":".join([*cells, label]))
        lines[0] = "?" + lines[0][lines[0].index(",") :]
        header = f"@missing true\n@dimensions {channels}\n@classLabel true up down\n@data\n"
        path.write_text(header + "\n".join(lines) + "\n")
    return paths


def write_reviews(folder: Path) -> dict[str, Any]:
    return {"data": str(write_texts(folder, per_class=4))}


def write_pixels(folder: Path) -> dict[str, Any]:
    return {"data": str(write_image_folder(folder, ("across", "down"), 6, 4))}


def write_pictures(folder: Path) -> dict[str, Any]:
    return {"folder": write_image_folder(folder, ("across", "down"), 6, 8)}


class Kind(NamedTuple):
    """A kind of labeled files.

    Attributes:
        task: the task that reads them.
        write: writes some into a folder, and gives the options that name them.
        options: further options.
        held_out: the option of the fraction that selects the parameters.
        baselines: the simple methods that a report compares with.
        other: writes files of another kind.
        message: the error about these.
    """

    task: str
    write: Callable[[Path], dict[str, Any]]
    options: dict[str, Any]
    held_out: str
    baselines: set[str]
    other: Callable[[Path], dict[str, Any]]
    message: str


KINDS = {
    "series": Kind(
        "classify", write_series, {"batch_size": 8}, "validation_fraction", VECTORS,
        lambda folder: write_series(folder, channels=1),
        "expected sequences of 2 channels, as in training, got 1 in",
    ),
    "texts": Kind(
        "sequence", write_reviews, RECIPE, "validation_fraction",
        {"constant", "naive_bayes", "first_token"}, write_pixels,
        "as in training, got gray of the classes",
    ),
    "packed": Kind(
        "sequence", write_reviews,
        {**RECIPE, "padding": "packed", "pooling": "mean"}, "validation_fraction",
        {"constant", "naive_bayes", "first_token"}, write_pixels,
        "as in training, got gray of the classes",
    ),
    "pixels": Kind(
        "sequence", write_pixels, RECIPE, "validation_fraction", VECTORS, write_reviews,
        "as in training, got bytes of the classes neg, pos",
    ),
    "images": Kind(
        "image", write_pictures, RECIPE, "validation_fraction", VECTORS,
        lambda folder: {"folder": write_image_folder(folder, ("across", "down"), 6, 16)},
        "as in training, got images of 16 x 16 x 3 of the classes across, down in",
    ),
}  # fmt: skip


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


def load(kind, files, **options):
    """The source of the files, and the options that name them."""
    task = tasks.get_task(kind.task)
    config = task.Config.of(**SMALL | kind.options | files | options)
    return task.load(config), config


@pytest.mark.slow
def test_a_run_of_files(kind, tmp_path, capsys, request):
    """It is tested against simple methods, and again, on data of its own kind alone.

    Packed tokens are trained on; ``tests/tasks/test_contract.py`` trains each task on padded ones.
    """
    if kind is not KINDS["packed"]:
        request.getfixturevalue("no_steps")
    files, others = kind.write(tmp_path / "data"), kind.other(tmp_path / "other")
    run = str(tmp_path / "run")
    args = flags(SMALL | kind.options | files)
    succeed(capsys, "train", kind.task, "--run", run, "--parallel", "none", *args)
    stored = json.loads((tmp_path / "run" / "test.json").read_text())
    counts = np.array(stored["confusion"])
    assert stored["test_accuracy"] == pytest.approx(np.trace(counts) / stored["num_test"])
    assert [row["count"] for row in stored["classes"]] == counts.sum(axis=1).tolist()
    found = {name.removesuffix("_accuracy") for name in stored if name.endswith("_accuracy")}
    own = {"test", "test_balanced"} | ({"decision"} if kind.task == "classify" else set())
    assert found == kind.baselines | own | {f"{name}_balanced" for name in kind.baselines}
    assert kind.baselines <= {*tasks.get_task(kind.task).baseline_names}  # those of the verdict
    again = tasks.evaluate_run(run, Path(list(files.values())[-1]))
    assert again["test_loss"] == pytest.approx(stored["test_loss"])
    message = fail(capsys, "evaluate", run, "--test-file", str(list(others.values())[-1]))
    assert kind.message in one_line(message)
    first, *_ = sorted(path for path in (tmp_path / "data").rglob("*") if path.is_file())
    if first.suffix == ".ts":
        first.write_text(first.read_text().replace("0.", "1."))
    else:
        first.unlink()
    assert "changed since" in one_line(fail(capsys, "evaluate", run))


def test_what_selects_is_held_out_or_the_test_set(kind, tmp_path):
    files = kind.write(tmp_path / "data")
    source, _ = load(kind, files, **{kind.held_out: 0.25})
    alone, config = load(kind, files, select_on="test")
    sizes = [len(part.labels) for part in (source.fitted, source.validation)]
    assert sizes == [len(alone.fitted.labels) * 3 // 4, len(alone.fitted.labels) // 4]
    assert len(set(source.validation.labels.tolist())) == len(source.classes)  # stratified
    assert alone.validation is alone.test
    batches = tasks.get_task(kind.task).batches(alone, config, alone.describe(config), 1)
    ours, theirs = (part.batch(0) for part in (batches.validation, batches.test))
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("name", ["texts", "pixels", "images"])
def test_a_single_class_is_refused(name, tmp_path):
    kind = KINDS[name]
    files = kind.write(tmp_path / "data")
    for part in ("train", "test"):
        _, *others = sorted((tmp_path / "data" / part).iterdir())
        for folder in others:
            shutil.rmtree(folder)
    with pytest.raises(ValueError, match="expected at least two classes, got"):
        load(kind, files)


SIZES_OF_PARTS = {"epoch_size": 16, "validation_size": 8, "test_size": 8}


@pytest.mark.parametrize(
    ("task", "options"),
    [
        ("sequence", RECIPE | SIZES_OF_PARTS),
        ("image", RECIPE | SIZES_OF_PARTS),
        ("synthetic", {"base": 8, "batch_size": 8}),
    ],
)
def test_generated_parts_are_apart_and_stay_as_they_are(task, options):
    of_task = tasks.get_task(task)
    config = of_task.Config.of(**SMALL | options)

    def parts():
        source = of_task.load(config)
        return of_task.batches(source, config, of_task.describe(source, config), 1)

    def labels_and_all(part, step):
        batch = part.batch(step)
        return b"".join(batch[name].tobytes() for name in sorted(batch))

    firsts = [labels_and_all(part, 0) for part in parts()]
    assert len(set(firsts)) == 3
    assert [labels_and_all(part, 0) for part in parts()] == firsts
    train, _, test = parts()
    assert labels_and_all(test, len(test)) == firsts[2]
    assert labels_and_all(train, len(train)) != firsts[0]


@pytest.mark.parametrize(
    ("task", "options", "message"),
    [
        ("classify", {"validation_fraction": 1.0}, "validation_fraction must be between 0 and 1"),
        ("classify", {"buckets": 0}, "buckets must be at least 1"),
        ("classify", {"pooling": "max"}, "must be one of mean, last, flatten, got 'max'"),
        ("sequence", {"causal": True}, "a class token needs a model that is not causal"),
        (
            "sequence",
            {"test_lengths": (20,), "data": "pathfinder"},
            "test_lengths needs data='listops'",
        ),
        ("sequence", {"select_on": "test"}, "select_on has no effect on listops"),
        (
            "sequence",
            {"data": "a/folder", "epoch_size": 9},
            "epoch_size has no effect on data from",
        ),
        ("sequence", {"data": "pathfinder", "max_length": 9}, "max_length has no effect on path"),
        ("sequence", {"validation_fraction": 1.0}, "validation_fraction must be between 0 and 1"),
        ("sequence", {"test_lengths": (2,)}, "test_lengths must be at least 4"),
        ("sequence", {"test_lengths": (81,), "position": "learned"}, "up to max_length"),
        ("sequence", {"test_lengths": (81,), "mechanism": "aft"}, "choose another mechanism"),
        ("sequence", {"padding": "packed", "data": "a"}, "packed texts need"),
        ("image", {"augmentation": "light"}, "augmentation has no effect on synthetic images"),
        ("image", {"folder": "a", "test_size": 9}, "test_size has no effect on a folder"),
        ("image", {"validation_fraction": 0.0}, "validation_fraction must be between 0 and 1"),
        ("image", {"patch_size": 0}, "patch_size must be at least 1"),
    ],
)
def test_options_that_do_not_go_together(task, options, message):
    with pytest.raises(OptionError, match=message):
        tasks.get_task(task).Config.of(**options)


@pytest.mark.parametrize(
    ("task", "options", "parallel", "message"),
    [
        ("sequence", {"mechanism": "linformer", "causal": True, "pooling": "mean"}, {},
         "'linformer' has no causal form; choose one of softmax"),
        ("image", {}, {"mesh": "seq=2"}, "the task 'image' cannot split sequences in time"),
    ],
)  # fmt: skip
def test_models_that_do_not_go_with_the_devices(task, options, parallel, message):
    placement = training.Parallel(**parallel).place(8) if parallel else training.ONE_DEVICE
    of_task = tasks.get_task(task)
    with pytest.raises(OptionError, match=message):
        of_task.check(of_task.Config.of(**options), placement)


@pytest.mark.slow
def test_what_is_learned_of_expressions(tmp_path):
    """Lists of few tokens, beyond what their first token tells."""
    config = tasks.get_task("sequence").Config.of(
        min_length=4, max_length=6, epoch_size=6400, epochs=8, test_size=1000, validation_size=500,
        learning_rate=5e-3, batch_size=64, features=32, num_layers=2, num_heads=4,
    )  # fmt: skip
    values = tasks.train("sequence", config, training.Session(tmp_path, progress=False))
    assert values["test_accuracy"] > values["first_token_accuracy"] + 0.1
    assert values["beaten_by"] == []


@pytest.mark.slow
def test_what_is_learned_of_images(tmp_path):
    """Stripes of ten kinds, better than by their neighbors."""
    folder = write_image_folder(tmp_path / "stripes", tuple("abcdef"), 60, 16)
    config = tasks.get_task("image").Config.of(
        folder=folder, epochs=20, warmup=0.1, features=32, num_layers=2
    )
    values = tasks.train("image", config, training.Session(tmp_path / "run", progress=False))
    assert values["test_accuracy"] > 0.9


def test_a_class_without_examples_or_predictions_has_no_share():
    figures = class_metrics(np.array([[2, 0, 1], [0, 0, 0], [1, 0, 4]]), ["a", "b", "c"])
    nothing = {"count": 0, "recall": None, "precision": None, "f1": None, "taken_for": ""}
    assert figures[1] == {"class": "b", **nothing}
    assert figures[2]["recall"] == figures[2]["precision"] == figures[2]["f1"] == 0.8
    assert figures[0]["taken_for"] == "c: 1"
