"""What the data choose of a forecasting run: season, context length, maps and stride."""

import json

import numpy as np
import pytest

from flax_linattn import data, tasks, training
from flax_linattn.tasks.forecast import ForecastConfig, choices
from flax_linattn.tasks.forecast.panel import SeriesPanel
from flax_linattn.tasks.forecast.ridge import fit_ridge
from flax_linattn.tasks.train_run import fit_data, train_report
from tests.tasks.commands import no_drawing

FORECAST = tasks.get_task("forecast")
SIZES = {"features": 8, "num_layers": 1, "num_heads": 2, "hidden_features": 8, "horizon": 4}


def make_panel(values, splits="0.7/0.1/0.2") -> SeriesPanel:
    series = data.TimeSeries("waves", values, tuple("abcdefgh"[: values.shape[1]]))
    return SeriesPanel.from_series(series, data.chronological_split(len(values), splits))


def preset(**options) -> ForecastConfig:
    return FORECAST.presets["patch"](ForecastConfig.of()).replace(**SIZES | options)


def repeated(rows=700, channels=2):
    """Noise that repeats after 12 rows, with an error from 24 rows before as well."""
    rng = np.random.default_rng(3)
    noise = rng.normal(size=(rows, channels))
    wave = np.tile(rng.normal(size=(12, channels)), (rows // 12 + 1, 1))[:rows]
    return wave + 0.3 * noise + 0.6 * np.roll(0.3 * noise, 24, axis=0)


@pytest.mark.parametrize("season", [5, 12, 31])
def test_a_season_is_found_under_noise_and_trend(season):
    rng = np.random.default_rng(season)
    wave = np.tile(rng.normal(size=season), 600 // season + 1)[:600]
    rows = (wave + 0.3 * rng.normal(size=600) + 0.02 * np.arange(600))[:, None]
    assert choices.seasonal_lag([rows]) == season
    assert choices.seasonal_lag([rows[:30], rows]) == season  # too short a series has no say
    assert choices.seasonal_lag([rng.normal(size=(600, 1)).cumsum(axis=0)]) == 1
    assert choices.seasonal_lag([np.ones((90, 2))]) == choices.seasonal_lag([]) == 1


def test_the_shortest_context_that_is_as_good_is_chosen():
    """As the ridge of each says on the validation rows."""
    panel = make_panel(repeated())
    config, notes = choices.choose(panel, preset())
    assert config.data.season == 12 and not config.auto_options
    data_spec = FORECAST.describe(panel, config)
    (values,) = data_spec.standardizer.apply([panel.series[0].values])
    train, validation, _ = panel.splits[0]
    lengths = [24, 48, 84]  # 12 is shorter than a patch, 168 more than a third of the rows
    errors = [
        fit_ridge(values, [train], [validation], length, 4).validation_error for length in lengths
    ]
    within = [one for one, error in zip(lengths, errors, strict=True) if error < 1.01 * min(errors)]
    assert config.data.context_length == within[0] > 24
    assert f"context_length={within[0]} was chosen on the validation rows (season 12)" in notes[0]
    given, notes = choices.choose(panel, preset(context_length=30, season=7))
    assert (given.data.context_length, given.data.season, notes) == (30, 7, [])
    assert choices.choose(panel, config) == (config, [])


@pytest.mark.parametrize("rows", [20, 40, 60])
def test_a_short_series_gets_a_context_that_fits(rows):
    config, _ = choices.choose(make_panel(repeated(rows), f"{rows - 12}/6/6"), preset())
    assert 1 <= config.data.context_length <= rows - 12 - 4


@pytest.mark.usefixtures("no_steps")
def test_training_in_memory_notes_what_was_chosen(capsys):
    options = {"features": 8, "num_heads": 2, "steps": 1, "epochs": 1}
    run = fit_data(FORECAST, preset(**options), make_panel(repeated(400)))
    length = run.config.data.context_length
    assert f"note: context_length={length} was chosen" in capsys.readouterr().err


def test_test_rows_choose_nothing():
    values = repeated()
    changed = values.copy()
    changed[-140:] = 1e3
    assert choices.choose(make_panel(values), preset()) == choices.choose(
        make_panel(changed), preset()
    )


def test_windows_are_left_out_only_where_all_take_too_long():
    """In proportion to what there is to compute; and never so that less than a batch is left."""
    panel = make_panel(repeated())

    def stride(**options):
        config, notes = choices.choose(panel, preset(context_length=24, **options))
        assert any("training uses one window" in note for note in notes) == (config.data.stride > 1)
        return config.data.stride

    assert stride() == stride(time_limit=0, features=64) == stride(steps=5, time_limit=1e-4) == 1
    strides = [stride(time_limit=limit) for limit in (4e-4, 2e-4)]
    assert 1 < strides[0] < strides[1] <= 2 * strides[0]
    assert stride(time_limit=4e-4, epochs=8) == strides[1]
    assert stride(time_limit=1e-9) == 463 // 32


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_a_run_keeps_what_was_chosen_and_resumes_with_it(tmp_path, capsys):
    csv = tmp_path / "waves.csv"
    rows = repeated(400)
    csv.write_text("a,b\n" + "".join(f"{a:.5f},{b:.5f}\n" for a, b in rows))
    config = preset(csv=csv, epochs=1, quantiles="0.1,0.5,0.9")

    def train(config, **how):
        session = training.Session(
            tmp_path / "run", progress="lines", parallel=training.Parallel("none"), **how
        )
        with no_drawing():
            return train_report(FORECAST, config, session)

    report = train(config)
    said = capsys.readouterr().err
    assert "note: context_length=" in said and "weight of the attention to" in said
    stored = json.loads((tmp_path / "run" / "config.json").read_text())
    found = tasks.load_run(tmp_path / "run")
    assert not found.config.auto_options and stored["season"] == 12
    assert found.model.context == stored["context_length"] == report.values["context_length"]
    assert report.all_values.keys() >= {"beaten_by", "beaten_by_in_crps"}
    assert "CRPS" in report.verdict and "the 80 % interval covers" in report.verdict
    again = train(config.replace(epochs=2), resume=True)
    assert again.values["context_length"] == stored["context_length"]
    with pytest.raises(ValueError, match="has horizon=4, got 5"):
        train(config.replace(horizon=5), resume=True)
    limited = train(config.replace(epochs=90, time_limit=1e-3), resume=True)
    assert limited.values["epochs"] < 90
    assert "note: the time limit of 0.001 s ended training" in capsys.readouterr().err
