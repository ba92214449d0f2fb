"""The data sets of the Aaren paper's table 1, replaced by available rollouts."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from experiments.options import configured
from flax_linattn.tasks.offline_rl import OfflineRLConfig

ROBOTS = ("HalfCheetah", "Ant", "Hopper", "Walker2d")
FOLDER = "rl_rollouts"


class Problem(NamedTuple):
    """A data set, its files and the paper's score.

    Attributes:
        robot: the environment is its version 5.
        files: of the folder of real data; joined.
        paper: the score that the paper prints, mean and standard deviation, by mechanism.
    """

    robot: str
    files: tuple[str, ...]
    paper: dict[str, tuple[float, float]]


def _problem(
    robot: str, kinds: tuple[str, ...], softmax: tuple[float, float], aaren: tuple[float, float]
) -> Problem:
    files = tuple(f"{FOLDER}/{robot.lower()}-{kind}-sb3.hdf5" for kind in kinds)
    return Problem(robot, files, {"softmax": softmax, "aaren": aaren})


MEDIUM, REPLAY, EXPERT = ("medium",), ("medium-replay",), ("medium", "expert")

PROBLEMS: dict[str, Problem] = {
    "HalfCheetah medium": _problem("HalfCheetah", MEDIUM, (41.88, 1.47), (42.16, 1.89)),
    "HalfCheetah medium-replay": _problem("HalfCheetah", REPLAY, (36.57, 1.40), (37.91, 1.94)),
    "HalfCheetah medium-expert": _problem("HalfCheetah", EXPERT, (75.98, 6.34), (75.74, 15.13)),
    "Hopper medium": _problem("Hopper", MEDIUM, (80.18, 5.85), (80.86, 4.77)),
    "Hopper medium-replay": _problem("Hopper", REPLAY, (79.73, 7.64), (77.87, 5.68)),
    "Hopper medium-expert": _problem("Hopper", EXPERT, (98.82, 10.33), (103.89, 11.89)),
    "Walker2d medium": _problem("Walker2d", MEDIUM, (77.84, 3.81), (74.44, 5.16)),
    "Walker2d medium-replay": _problem("Walker2d", REPLAY, (72.36, 5.63), (71.44, 6.55)),
    "Walker2d medium-expert": _problem("Walker2d", EXPERT, (109.66, 0.45), (110.51, 1.30)),
    "Ant medium": _problem("Ant", MEDIUM, (94.25, 8.62), (93.29, 4.04)),
    "Ant medium-replay": _problem("Ant", REPLAY, (89.39, 4.96), (85.53, 6.57)),
    "Ant medium-expert": _problem("Ant", EXPERT, (125.47, 10.99), (119.72, 12.63)),
}
"""By name."""


def make_config(name: str, folder: Path | None, **options: Any) -> OfflineRLConfig | None:
    """The options of runs on a data set; None where its files are not available."""
    problem = PROBLEMS[name]
    if folder is None or not all((folder / file).is_file() for file in problem.files):
        return None
    files = tuple(folder / file for file in problem.files)
    config = configured("offline-rl", file=files, env=f"{problem.robot}-v5", **options)
    assert isinstance(config, OfflineRLConfig)
    return config
