"""Eleven data sets of the UEA and UCR archives, prepared as for a run of seed 0."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import NDArray

from experiments.classification.data_sets import file_options
from experiments.options import run_without_model, task_config

PACKAGES = {
    **dict.fromkeys(
        ("ACSF1", "ArrowHead", "BasicMotions", "GunPoint", "ItalyPowerDemand", "OSULeaf"), "aeon"
    ),
    "PickupGestureWiimoteZ": "aeon",
    "PLAID": "sktime",
}
"""Data sets whose files a package (BSD-3) contains."""
DATA_SETS = (
    *PACKAGES,
    *("JapaneseVowels", "SpokenArabicDigits", "UWaveGestureLibrary"),
)
LARGE = "SpokenArabicDigits"
"""The data set with 6,599 training sequences; the next ones have 537 and 270."""


class Part(NamedTuple):
    """Standardized and padded sequences with their labels.

    Attributes:
        values: float32 [N, T, C], padded with zeros.
        mask: bool [N, T]; True marks observations.
        labels: int [N].
    """

    values: NDArray
    mask: NDArray
    labels: NDArray

    @property
    def channels_first(self) -> NDArray:
        """Values of shape [N, C, T], as aeon expects them."""
        return self.values.transpose(0, 2, 1)


class Prepared(NamedTuple):
    """A data set with its official split.

    Attributes:
        train: training sequences.
        test: test sequences.
        num_classes: number of classes.
    """

    train: Part
    test: Part
    num_classes: int


def package_folder(package: str) -> Path | None:
    """The folder of data in an installed package; None if it is not installed."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "datasets" / "data"


def find_files(folder: Path | None) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Options of a run on each available data set, and why the others are missing.

    Args:
        folder: the folder of real data, or None.
    """
    available, missing = dict[str, dict[str, Any]](), dict[str, str]()
    for name in DATA_SETS:
        package = PACKAGES.get(name, "")
        if not package:
            options = file_options(name, folder)
            if options is None:
                missing[name] = "its files are not in the folder that FLAX_LINATTN_DATA names"
        elif (inside := package_folder(package)) is None:
            options, missing[name] = None, f"{package} is not installed; pip install {package}"
        else:
            train, test = (inside / name / f"{name}_{part}.ts" for part in ("TRAIN", "TEST"))
            options = {"train_file": train, "test_file": test}
            if not (train.is_file() and test.is_file()):
                options, missing[name] = None, f"this version of {package} has no {train.name}"
        if options is not None:
            available[name] = options
    return available, missing


def prepare(files: Mapping[str, Any]) -> Prepared:
    """Reads and prepares a data set, given as options of a run."""
    return _prepare(tuple(sorted(files.items())))


@functools.lru_cache(maxsize=1)
def _prepare(files: tuple[tuple[str, Any], ...]) -> Prepared:
    run, test = run_without_model("classify", task_config("classify", **dict(files)))
    task: Any = run.task
    parts = (task.train_batches(run).arrays, test.arrays)
    train, tested = (Part(part["values"], part["mask"], part["labels"]) for part in parts)
    return Prepared(train, tested, len(run.data_spec.classes))
