"""The data sets of the Aaren paper's table 1, replaced by available rollouts."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from experiments.options import task_config
from flax_linattn.tasks.offline_rl import OfflineRLConfig

ROBOTS = ("HalfCheetah", "Ant", "Hopper", "Walker2d")
FOLDER = "rl_rollouts"


class DataSet(NamedTuple):
    """A data set, its files and the paper's score.

    Attributes:
        robot: the environment is its version 5.
        files: of the folder of real data; joined.
        paper: the score that the paper prints, mean and standard deviation, by mechanism.
    """

    robot: str
    files: tuple[str, ...]
    paper: dict[str, tuple[float, float]]


def _data_set(
    robot: str, kinds: tuple[str, ...], softmax: tuple[float, float], aaren: tuple[float, float]
) -> DataSet:
    files = tuple(f"{FOLDER}/{robot.lower()}-{kind}-sb3.hdf5" for kind in kinds)
    return DataSet(robot, files, {"softmax": softmax, "aaren": aaren})


MEDIUM, REPLAY, EXPERT = ("medium",), ("medium-replay",), ("medium", "expert")

DATA_SETS: dict[str, DataSet] = {
    "HalfCheetah medium": _data_set("HalfCheetah", MEDIUM, (41.88, 1.47), (42.16, 1.89)),
    "HalfCheetah medium-replay": _data_set("HalfCheetah", REPLAY, (36.57, 1.40), (37.91, 1.94)),
    "HalfCheetah medium-expert": _data_set("HalfCheetah", EXPERT, (75.98, 6.34), (75.74, 15.13)),
    "Hopper medium": _data_set("Hopper", MEDIUM, (80.18, 5.85), (80.86, 4.77)),
    "Hopper medium-replay": _data_set("Hopper", REPLAY, (79.73, 7.64), (77.87, 5.68)),
    "Hopper medium-expert": _data_set("Hopper", EXPERT, (98.82, 10.33), (103.89, 11.89)),
    "Walker2d medium": _data_set("Walker2d", MEDIUM, (77.84, 3.81), (74.44, 5.16)),
    "Walker2d medium-replay": _data_set("Walker2d", REPLAY, (72.36, 5.63), (71.44, 6.55)),
    "Walker2d medium-expert": _data_set("Walker2d", EXPERT, (109.66, 0.45), (110.51, 1.30)),
    "Ant medium": _data_set("Ant", MEDIUM, (94.25, 8.62), (93.29, 4.04)),
    "Ant medium-replay": _data_set("Ant", REPLAY, (89.39, 4.96), (85.53, 6.57)),
    "Ant medium-expert": _data_set("Ant", EXPERT, (125.47, 10.99), (119.72, 12.63)),
}
"""By name."""


def make_config(name: str, folder: Path | None, **options: Any) -> OfflineRLConfig | None:
    """The options of runs on a data set; None where its files are not available."""
    data_set = DATA_SETS[name]
    if folder is None or not all((folder / file).is_file() for file in data_set.files):
        return None
    files = tuple(folder / file for file in data_set.files)
    config = task_config("offline-rl", file=files, env=f"{data_set.robot}-v5", **options)
    assert isinstance(config, OfflineRLConfig)
    return config
