"""The tables' baselines: computed once, stored, and found by the tables' rows."""

import json
import sys

import pytest

from experiments import baselines
from experiments.experiment import DATA_FOLDER
from experiments.tables.baselines import reports


@pytest.fixture(autouse=True)
def embedded_alone(monkeypatch):
    """No data but those of the package, and no aeon."""
    monkeypatch.delenv(DATA_FOLDER, raising=False)
    monkeypatch.setitem(sys.modules, "aeon.classification.convolution_based", None)


def test_what_can_be_computed_is_and_only_once(tmp_path, capsys):
    args = ["--rows", "JapaneseVowels", "--output", str(tmp_path)]
    baselines.main(args)
    out, err = capsys.readouterr()
    assert "| classification | JapaneseVowels | ridge | accuracy 0.98" in out
    assert "classification: JapaneseVowels, seed 0: most frequent class, nearest" in err
    assert "not computed: Hydra" in err and "pip install '.[plots,baselines]'" in err
    path = tmp_path / "baselines.json"
    stored = json.loads(path.read_text())
    for row in stored["rows"]:
        assert {"command", "commit", "cores", "date", "jax", "aeon"} <= row["made"].keys()
        row["report"]["test_accuracy"] = 0.5
    path.write_text(json.dumps(stored))
    baselines.main(args)
    assert "seed 0" not in capsys.readouterr().err
    baselines.main([*args, "--again", "--columns", "ridge"])
    assert len(json.loads(path.read_text())["rows"]) == 3
    found = reports("classification.aaren", "JapaneseVowels, honest", path)
    assert found["ridge"][0]["test_accuracy"] > 0.9


def test_what_is_stored_is_what_the_code_gives(tmp_path):
    """By the names of a run's numbers."""
    baselines.main(["--rows", "ETTh1, 6", "--output", str(tmp_path)])
    row = "forecasting.elementwise", "ETTh1, 6"
    now, stored = reports(*row, tmp_path / "baselines.json"), reports(*row)
    assert list(now) == list(stored) == ["naive", "seasonal naive", "ridge"]
    for column, seeds in now.items():
        errors = {name: value for name, value in seeds[0].items() if name != "test_maps"}
        assert errors == pytest.approx({name: stored[column][0][name] for name in errors}, rel=1e-6)
        assert {"test_mse", "test_mae", "test_original_rmse"} <= seeds[0].keys()
    assert reports("forecasting.aaren", "none") == {}
