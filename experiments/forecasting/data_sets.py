"""Series of the forecasting tables: their files and their splits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

FILES: dict[str, tuple[str, ...]] = {
    "ETTh2": ("ett/ETTh2.csv", "ETT-small/ETTh2.csv"),
    "ETTm1": ("ett/ETTm1.csv", "ETT-small/ETTm1.csv"),
    "ETTm2": ("ett/ETTm2.csv", "ETT-small/ETTm2.csv"),
    "Exchange": ("exchange_rate/exchange_rate.csv",),
    "ECL": ("electricity_subset/electricity_2clients_full_length.csv",),
    "Traffic": ("traffic/traffic.csv",),
    "Traffic speed": ("traffic_speed_tgcn/los_speed.csv",),
    "Weather": ("weather/weather.csv",),
}
"""Where each may lie in the folder of real data, ``.gz`` or not: there, or as in
Time-Series-Library."""
EMBEDDED = "ETTh1"
"""The series that comes with the package."""

OPTIONS: dict[str, dict[str, Any]] = {
    "ETTh2": {"split": "8640/2880/2880"},
    "ETTm1": {"split": "34560/11520/11520"},
    "ETTm2": {"split": "34560/11520/11520"},
    "ECL": {"channels": "OT"},
    "Weather": {"encoding": "latin-1"},
    "Traffic speed": {"header": "yes", "channels": "773869", "season": 288},
}
"""Options of series that are not read whole and split 0.7/0.1/0.2."""

STRIDES = {"ETTm1": 16, "ETTm2": 16, "Weather": 16, "ECL": 8}
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


def file_options(name: str, folder: Path | None) -> dict[str, Any] | None:
    """Options of a run on this series; None where its file is not available."""
    csv = None
    if name != EMBEDDED:
        csv = find(name, folder)
        if csv is None:
            return None
    return {"csv": csv, "stride": STRIDES.get(name, 4), **OPTIONS.get(name, {})}


def find(name: str, folder: Path | None) -> Path | None:
    """The file of this series; None where it is not available."""
    if folder is None:
        return None
    files = [folder / f"{file}{suffix}" for file in FILES.get(name, ()) for suffix in ("", ".gz")]
    return next((file for file in files if file.is_file()), None)
