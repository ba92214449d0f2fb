"""The data sets of the classification tables, and where their files are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiments.tables import Metric

ACCURACY = Metric("accuracy", "accuracy, %", 100, 2, larger_is_better=True, margin=0.01)

NAMES = {
    "EthanolConcentration": "uea/EthanolConcentration/EthanolConcentration_{}.ts.gz",
    "FaceDetection": "uea/FaceDetection/FaceDetection_{}.ts.gz",
    "Handwriting": "uea/Handwriting/Handwriting_{}.ts.gz",
    "Heartbeat": "uea/Heartbeat/Heartbeat_{}.ts.gz",
    "JapaneseVowels": "",
    "PEMS-SF": "uea/PEMS-SF/PEMS-SF_{}.ts.gz",
    "SelfRegulationSCP1": "uea/SelfRegulationSCP1/SelfRegulationSCP1_{}.ts.gz",
    "SelfRegulationSCP2": "uea/SelfRegulationSCP2/SelfRegulationSCP2_{}.ts.gz",
    "SpokenArabicDigits": "uea/SpokenArabicDigits/{}_Arabic_Digit.txt.xz",
    "UWaveGestureLibrary": "uea/UWaveGestureLibrary/UWaveGestureLibrary_{}.ts.gz",
}
"""In the folder of real data; Japanese Vowels comes with the package."""

NOT_HERE = "data sets whose files are not at hand, and so have no row here"


def problem(name: str, folder: Path | None) -> dict[str, Any] | None:
    """Options of a run on this data set; None where its files are not at hand."""
    file = NAMES[name]
    if not file:
        return {}
    parts = ("Train", "Test") if "Arabic" in name else ("TRAIN", "TEST")
    paths = [Path() if folder is None else folder / file.format(part) for part in parts]
    if not all(path.is_file() for path in paths):
        return None
    return {"train_file": paths[0], "test_file": paths[1]}
