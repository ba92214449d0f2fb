"""The series of the forecasting tables: their files, and how their rows are split."""

from __future__ import annotations

from pathlib import Path
from typing import Any

FILES = {
    "ETTh1": "",
    "ETTh2": "ett/ETTh2.csv.gz",
    "ETTm2": "ett/ETTm2.csv.gz",
    "Exchange": "exchange_rate/exchange_rate.csv",
    "ECL": "electricity_subset/electricity_2clients_full_length.csv.gz",
    "Traffic speed": "traffic_speed_tgcn/los_speed.csv.gz",
}
"""In the folder of real data; ETTh1 comes with the package."""

OPTIONS: dict[str, dict[str, Any]] = {
    "ETTh2": {"split": "8640/2880/2880"},
    "ETTm2": {"split": "34560/11520/11520"},
    "ECL": {"channels": "OT"},
    "Traffic speed": {"header": "yes", "channels": "773869", "season": 288},
}
"""Of those that are not read whole and split 0.7/0.1/0.2."""

STRIDES = {"ETTm2": 16, "ECL": 8}
"""Rows from one training window to the next, of size cpu in Aaren's tables; of all others 4."""

SIZES: dict[str, dict[str, Any]] = {
    "cpu": {
        "features": 32,
        "hidden_features": 64,
        "num_heads": 4,
        "learning_rate": 1e-3,
        "schedule": "constant",
    },
    "paper": {"features": 512, "hidden_features": 2048, "learning_rate": 1e-4, "stride": 1},
}
"""Options of the tables' sizes."""


def problem(name: str, folder: Path | None) -> dict[str, Any] | None:
    """Options of a run on this series; None where its file is not at hand."""
    file = FILES.get(name)
    if file is None or (file and (folder is None or not (folder / file).is_file())):
        return None
    csv = folder / file if file and folder is not None else None
    return {"csv": csv, "stride": STRIDES.get(name, 4), **OPTIONS.get(name, {})}
