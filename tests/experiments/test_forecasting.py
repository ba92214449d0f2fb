"""The patch forecaster's table: its rows, its verdicts, and peers trained on the same batches."""

import numpy as np
import pytest

from experiments.forecasting import contexts, defaults, mixing, patch, peers, statistical
from experiments.verdicts import FAILS, HOLDS, OPEN
from flax_linattn import data
from flax_linattn.bench import Journal
from flax_linattn.tasks.forecast.windows import WindowBatch

COSTS = {"parameters": 9, "seconds": 1.0, "state_bytes": 8, "microseconds": 1.0}


def rows_of(errors, ridge=0.5):
    """Rows of models by series, each of two horizons and three seeds."""
    rows = []
    for series in patch.SERIES:
        for horizon in (96, 720):
            simple = {f"{n}_{m}": ridge for n in patch.BASELINES for m in ("mse", "mae")}
            rows.append({"series": series, "horizon": horizon, "model": patch.SIMPLE, **simple})
            for model, mean in errors.items():
                for seed, noise in enumerate((-0.002, 0.0, 0.001)):
                    mse = mean + noise * (1 + len(series) / 10)
                    key = {"series": series, "horizon": horizon, "model": model, "seed": seed}
                    rows.append({**key, "mse": mse, "mae": mse, **COSTS})
    trial = {"series": "ETTh1", "horizon": 96, "model": patch.OURS, "trial": 0}
    return [*rows, {**trial, "options": {"features": 32}, "validation": 0.7, "seconds": 1.0}]


def test_verdicts_are_those_of_differences_by_series():
    rows = rows_of({patch.OURS: 0.45, "PatchTST": 0.5, "DLinear": 0.44})
    beside = {name: patch.not_above(name)(rows) for name in ("PatchTST", "DLinear")}
    assert beside["PatchTST"].word == HOLDS and "-10.0" in beside["PatchTST"].ours
    assert beside["DLinear"].word == FAILS
    assert patch.below_ridge("ETTh1")(rows).word == HOLDS
    assert patch.below_ridge("ETTh1")(rows_of({patch.OURS: 0.55})).word == FAILS
    assert patch.below_ridge("ETTh1")(rows_of({patch.OURS: 0.5003})).word == OPEN
    one = [row for row in rows if row.get("seed", 0) == 0]
    assert patch.below_ridge("ETTh1")(one).word == "not decided, too few seeds"
    assert patch.EXPERIMENT.statements[-1].verdict([]).word == "not run"


def test_a_seed_is_compared_at_the_horizons_that_both_have():
    rows = rows_of({patch.OURS: 0.45, "PatchTST": 0.5})
    rows = [r for r in rows if not (r["model"] == "PatchTST" and r["horizon"] == 720 and r["seed"])]
    found = patch.compare(rows, patch.OURS, "PatchTST")
    assert set(found) == set(patch.SERIES) and set(found["ETTh1"]) == {0, 1, 2}
    assert found["ETTh1"][1] == pytest.approx(100 * (0.45 / 0.5 - 1))


def test_the_table_has_a_line_for_what_was_run():
    page = patch.table(rows_of({patch.OURS: 0.45, "PatchTST": 0.5}), patch.Size())
    lines = [line for line in page.splitlines() if line.startswith("| ETTh1, 96 ")]
    assert len(lines) == 1 and "| 0.414 | 0.386 |" in lines[0] and "0.450 ± 0.00" in lines[0]
    assert "| ETTh1, 192 " not in page and "| features 32 | 0.7000 | 1 |" in page


def test_series_with_too_few_rows_for_a_horizon_are_passed_over(tmp_path, monkeypatch):
    journal = Journal(tmp_path / "rows.json", {}, progress=False)
    monkeypatch.setattr(
        patch, "file_options", lambda name, folder: {"csv": None, "split": "300/9/9"}
    )
    key = {"series": "ETTh1", "horizon": 96, "model": patch.SIMPLE}
    patch.write_row(journal, key, patch.Size(), lambda *arguments: {})
    monkeypatch.setattr(patch, "file_options", lambda name, folder: None)
    patch.write_row(journal, key, patch.Size(), lambda *arguments: {})
    assert journal.rows == []


@pytest.mark.slow  # takes the extra "peers"
@pytest.mark.parametrize("name", peers.PEERS)
def test_peers_learn(name):
    pytest.importorskip("neuralforecast")
    wave = np.sin(np.arange(400.0) / 4)[:, None].astype(np.float32)
    parts = [
        data.Windows({"values": wave}, rows, context_length=32, horizon=4, batch_size=16, seed=seed)
        for rows, seed in ((range(200), 0), (range(200, 300), None), (range(300, 400), None))
    ]
    options = dict(peers.PEERS[name][0])
    how = {"lengths": (32, 4), "seed": 0, "steps": 60, "validate_every": 20}
    found = peers.train_peer(name, options, 1e-2, *parts, **how)
    assert found["mse"] < 0.2 and found["validation"] < 0.2 and found["parameters"] > 100


def test_mixed_channels_are_judged_by_series_and_over_them():
    rows = [
        {"series": series, "mixing": name, "seed": seed, "mse": mse + noise * len(series) / 1e4,
         "parameters": 9, "seconds": 1.0}
        for series in patch.SERIES
        for name, mse in (("", 0.5), (mixing.MIXING, 0.45))
        for seed, noise in enumerate((-1, 0, 1))
    ]  # fmt: skip
    assert mixing.better(rows).word == HOLDS and "-10.0" in mixing.better(rows).ours
    assert mixing.better_on("ETTh1")(rows).word == HOLDS
    one = [row for row in rows if row["seed"] == 0]
    assert mixing.better_on("ETTh1")(one).word == "not decided, too few seeds"
    assert mixing.EXPERIMENT.statements[-1].verdict([]).word == "not run"
    assert "| Exchange | 0.500 ± 0.001 | 0.450 ± 0.001 |" in mixing.table(rows, mixing.Size())
    assert set(patch.chosen_options()) == {"features", "hidden_features", "learning_rate"}


def test_statistical_models_are_judged_over_series():
    rows = [
        {"series": series, "context": 96, "model": model, "windows": 30, "season": 24,
         "mse": mse + len(series) / 1e3, "mae": mse, "milliseconds": 40.0}
        for series in patch.SERIES
        for model, mse in ((statistical.ETS, 0.6), (patch.OURS, 0.4), ("ridge", 0.6))
    ]  # fmt: skip
    found = statistical.below(patch.OURS, statistical.ETS)(rows)
    assert found.word == HOLDS and "ETTh1 -33" in found.ours
    assert statistical.below("ridge", statistical.ETS)(rows).word == OPEN
    assert statistical.EXPERIMENT.statements[-1].verdict([]).word == "not run"
    page = statistical.table(rows, statistical.Size())
    assert "| ETTh1 | 30 | 24 | 96 | - | 0.605 (0.600) | 0.605 (0.600) | - |" in page


@pytest.mark.slow  # takes the extra "peers"
def test_a_statistical_model_is_fitted_to_each_channel_of_each_window():
    pytest.importorskip("statsforecast")
    waves = np.sin(np.arange(60) * 2 * np.pi / 12 + np.array([[0.0], [1.0]])).T
    arrays = {"values": np.stack([waves, waves[::-1]]), "weight": np.array([1.0, 0.0])}
    none = np.zeros(2, np.int64)
    batch = WindowBatch(arrays, none, none, arrays["values"][:1, 48:])
    options = patch.task_config("forecast", context_length=48, horizon=12).data
    for model in (statistical.ets(12), statistical.mstl(12)):
        found = statistical.refit_forecast(model, options)(batch)
        assert found.shape == (1, 12, 2)
        np.testing.assert_allclose(found[0], waves[48:], atol=0.2)


def test_contexts_are_compared_with_the_table_of_96_rows(monkeypatch):
    base = [{**row, "context": patch.LENGTH} for row in rows_of({patch.OURS: 0.5})]
    monkeypatch.setattr(contexts, "from_96_rows", lambda: base)
    rows = [{**row, "context": 512} for row in rows_of({patch.OURS: 0.45}, ridge=0.5)]
    for row in rows:
        if row["model"] == patch.SIMPLE:
            row["ridge_mse"] *= 1 + len(row["series"]) / 100
    assert contexts.better(patch.OURS, 512, 96)(rows).word == HOLDS
    assert "ETTh1 -10.0" in contexts.better(patch.OURS, 512, 96)(rows).ours
    assert contexts.better("ridge", 512, 96)(rows).word == FAILS
    assert contexts.EXPERIMENT.statements[0].verdict(rows).word == "not run"  # 336 rows
    page = contexts.table(rows, contexts.Size(horizons=(96, 720)))
    assert "| ETTh1, 720 | 0.500 | - | 0.525 | 0." in page


def test_the_default_is_compared_with_other_forecasts_over_series():
    numbers = {"mse": 1.0, "mae": 1.0, "crps": 1.0, "coverage_80": 0.8}
    rows = [
        {"series": series, "model": model, "seed": 0, "context": 96, "ridge_maps": "channel",
         "stride": 1, "attention_weight": 0.5,
         "train_seconds": 1.0, "seconds": 2.0, "cpu_seconds": 2.0,
         **{f"test_{name}": level - number / 100 for name in numbers},
         **{f"{m}_{name}": value for m in ("ridge", "seasonal_naive")
            for name, value in numbers.items()}}
        for number, series in enumerate(defaults.SERIES)
        for model, level in (("default", 1.0), ("former default", 1.2))
    ]  # fmt: skip
    found = defaults.judge_default("former default", "mse", defaults.BETTER, 0)(rows)
    assert found.word == HOLDS and "ETTh1 -16.7" in found.ours
    assert defaults.judge_default("ridge, chosen", "mse", defaults.NOT_ABOVE, 1)(rows).word == HOLDS
    assert defaults.EXPERIMENT.statements[0].verdict([]).word == "not run"
    page = defaults.table(rows, defaults.Size())
    assert "| ETTh1 | 1.000 | 1.000 | 1.000 | 1.000 | 1.200 |" in page
    assert "| ETTh1, default, seed 0 | 96 | channel | 1 | 0.50 | 1 | 2 | 2 |" in page
