"""What is published is what today's code makes of what is stored, and stored runs have origins."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from experiments import claims, figures, report
from experiments.efficiency import ratios
from experiments.experiment import Experiment
from experiments.forecasting import streaming
from experiments.measured import Measured
from flax_linattn import bench
from flax_linattn.bench.journal import write_json

ROOT = Path(report.__file__).parent
STORED = [(e, scale) for e in report.all_experiments() for scale in e.sizes]
STORED = [(e, scale) for e, scale in STORED if e.stored(scale).is_file()]

ORIGIN = ("commit", "version", "jax", "flax", "optax", "python", "device", "cores", "command")
ORIGIN += ("date",)

EARLIER = "measured before origins named flax and optax; to be measured anew"
EXCEPTIONS = dict.fromkeys(
    ("long_sequence-cpu", "overheads-cpu", "pytorch-cpu", "strategies-cpu"), EARLIER
)
"""Stored results without all of their origin, by name, with the reason."""


def name_of(value: object) -> str:
    return value.module if isinstance(value, Experiment) else str(value)


@pytest.mark.parametrize(("experiment", "scale"), STORED, ids=name_of)
def test_a_page_is_what_its_stored_results_say(
    experiment: Experiment, scale: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "plot", lambda *arguments: None)
    if isinstance(experiment, Measured):
        experiment = dataclasses.replace(experiment, plot=None)
    stored = experiment.stored(scale)
    shutil.copy(stored, tmp_path)
    experiment.render(scale, tmp_path)
    page = stored.with_suffix(".md")
    assert (tmp_path / page.name).read_text() == page.read_text(), "python -m experiments.report"


def test_the_page_of_all_claims_is_what_stored_results_say(tmp_path: Path) -> None:
    page = claims.render(report.all_experiments(), tmp_path / "claims.md")
    assert page == claims.PAGE.read_text(), "python -m experiments.report"


@pytest.mark.parametrize("module", [ratios, streaming], ids=["ratios", "forecasting streams"])
def test_a_page_of_its_own_is_what_its_stored_results_say(
    module: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench.plots, "plot_curves", lambda *arguments: None)
    monkeypatch.setattr(bench.plots, "save", lambda *arguments: None)
    name = "ratios" if module is ratios else "streaming"
    shutil.copy(module.FOLDER / f"{name}.json", tmp_path)  # type: ignore[attr-defined]
    page = module.render(tmp_path)  # type: ignore[attr-defined]
    assert page == (module.FOLDER / f"{name}.md").read_text()  # type: ignore[attr-defined]


def test_stored_results_have_one_row_a_line(tmp_path: Path) -> None:
    """As ``write_json`` writes them, so that adding a row changes a line."""
    for stored in sorted(path for path in ROOT.rglob("*.json") if "-quick" not in path.name):
        write_json(tmp_path / "results.json", json.loads(stored.read_text()))
        assert (tmp_path / "results.json").read_text() == stored.read_text(), stored


def test_every_page_has_stored_results_or_is_named() -> None:
    known = {experiment.stored(scale).with_suffix(".md") for experiment, scale in STORED}
    known |= {ratios.FOLDER / "ratios.md"}
    known |= {streaming.FOLDER / "streaming.md"}
    assert {page for page in ROOT.glob("*/*.md") if "-quick" not in page.name} <= known


@pytest.mark.parametrize(
    "stored",
    sorted(
        path
        for folder in (
            "efficiency",
            "accuracy",
            "streaming",
            "attention",
            "synthetic",
            "events",
            "offline_rl",
            "recurrent",
            "sequences",
            "text",
        )
        for path in ROOT.glob(f"{folder}/*.json")
        if ".unfinished-" not in path.name
    ),
    ids=lambda path: path.stem,
)
def test_stored_results_know_how_they_were_made(stored: Path) -> None:
    head = json.loads(stored.read_text())
    missing = [name for name in ORIGIN if not head.get(name)]
    assert head.get("finished", True)
    assert "-dirty" not in head.get("commit", ""), "measured with code that no commit holds"
    if stored.stem in EXCEPTIONS:
        assert missing, f"{stored.stem} has its origin: take it from EXCEPTIONS"
    else:
        assert not missing, f"{stored.name} does not say its {', '.join(missing)}: measure it anew"
