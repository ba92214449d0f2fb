"""The data sets of the Aaren paper's table 2 that are available, or substitutes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.options import task_config
from flax_linattn.tasks.events import EventsConfig


@dataclasses.dataclass(frozen=True)
class DataSet:
    """A data set, its options and the paper's numbers.

    Attributes:
        files: in the folder of real data, by the name of their option; none if synthetic.
        options: further options.
        from_: where the events are from, and how they differ from the paper's.
        paper: NLL and RMSE (of the published kind) of the paper, mean and standard deviation, by
            mechanism.
    """

    files: Mapping[str, str]
    options: Mapping[str, Any]
    from_: str
    paper: Mapping[str, Mapping[str, tuple[float, float]]]


def _paper(
    softmax_nll: tuple[float, float],
    aaren_nll: tuple[float, float],
    softmax_rmse: tuple[float, float],
    aaren_rmse: tuple[float, float],
) -> dict[str, dict[str, tuple[float, float]]]:
    return {
        "softmax": {"nll": softmax_nll, "rmse_of_sequence_sums": softmax_rmse},
        "aaren": {"nll": aaren_nll, "rmse_of_sequence_sums": aaren_rmse},
    }


DATA_SETS: dict[str, DataSet] = {
    "StackOverflow": DataSet(
        {"file": "stackoverflow/time-1-test.txt.gz",
         "event_types_file": "stackoverflow/event-1-test.txt.gz"},
        {"file_format": "rmtpp", "num_sequences": 300},
        "RMTPP's files, the first 300 of 1,326 users of test fold 1; seconds (the paper's unit is "
        "not given)",
        _paper((2.92, 0.04), (2.91, 0.02), (1.44, 0.08), (1.27, 0.17)),
    ),
    "Wikipedia": DataSet(
        {"file": "wikipedia_jodie/ml_wikipedia.txt.gz"},
        {"sequence": "item_id", "num_sequences": 60},
        "JODIE's file, the first 60 of 1,000 pages, the users who edit them as event types; "
        "seconds",
        _paper((9.66, 0.98), (8.98, 1.03), (0.28, 0.04), (0.22, 0.05)),
    ),
    "Reddit, a substitute": DataSet(
        {"file": "tpp_unmarked/reddit_askscience_comments.npz"},
        {"num_sequences": 60},
        "comments on 60 threads of askscience, hours, without event types: not the paper's set, "
        "which has 984 subreddits as event types",
        _paper((0.40, 0.29), (0.31, 0.30), (0.23, 0.03), (0.30, 0.04)),
    ),
    "Uber": DataSet(
        {"file": "uber/uber-raw-data-janjune-15_sample.csv.gz"},
        {"time": "Pickup_date", "sequence": "locationID", "sort": True, "num_sequences": 20,
         "split_by": "time", "timezone": "America/New_York"},
        "a thinned sample of 100,000 pickups of 2015, the first 20 of its zones; seconds",
        _paper((3.33, 0.14), (3.48, 0.10), (73.63, 5.73), (54.61, 5.40)),
    ),
    "Taxi, a substitute": DataSet(
        {"file": "taxi/seaborn_raw_taxis.csv.gz"},
        {"time": "tpep_pickup_datetime", "sequence": "PULocationID", "sort": True,
         "split_by": "time", "timezone": "America/New_York"},
        "6,500 trips of March 2019, by pickup zone; seconds: not the paper's set",
        _paper((2.01, 0.17), (2.33, 0.12), (10.34, 0.32), (10.01, 0.52)),
    ),
    "Sin": DataSet(
        {},
        {"process": "poisson-sine", "num_sequences": 200},
        "synthetic: a Poisson process of rate 1 + sin(t / 2) on [0, 32 pi], 200 sequences; the "
        "paper gives only the period and the interval",
        _paper((0.68, 0.05), (0.78, 0.13), (1.75, 0.09), (2.03, 0.25)),
    ),
}  # fmt: skip
"""By name."""


def make_config(name: str, folder: Path | None, **options: Any) -> EventsConfig | None:
    """The options of runs on a data set; None where its files are not available."""
    data_set = DATA_SETS[name]
    if data_set.files and folder is None:
        return None
    files = {option: folder / file for option, file in data_set.files.items() if folder is not None}
    if not all(file.is_file() for file in files.values()):
        return None
    config = task_config("events", **files, **data_set.options, **options)
    assert isinstance(config, EventsConfig)
    return config
