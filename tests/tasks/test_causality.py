"""Real series whose future is changed: no earlier forecast may change, through the whole task."""

import dataclasses

import numpy as np
import pytest

from flax_linattn import data, tasks
from flax_linattn.tasks.forecast import ForecastConfig
from flax_linattn.tasks.forecast.panel import SeriesPanel
from flax_linattn.tasks.forecast.spec import describe
from flax_linattn.tasks.forecast.windows import PanelWindows, compile_forecast, standardize
from tests.nn.cases import CAUSAL

AAREN = [
    case if case.id == "aaren" else pytest.param(*case.values, id=case.id, marks=pytest.mark.slow)
    for case in CAUSAL
]
FORECAST = tasks.get_task("forecast")
SMALL = {"features": 8, "num_heads": 2, "hidden_features": 8, "num_layers": 1}
CHANGED = 500
"""The first row whose value another has taken."""


def spec(mechanism, length):
    """The mechanism, with learned positions for sequences of this length."""
    return mechanism.replace("max_length=16", f"max_length={length}")


def changed(values, first):
    """The same until ``first``, and after it another series of three times the size."""
    other = 3 * np.roll(values, 37, axis=0)
    return np.where(np.arange(len(values))[:, None] < first, values, other)


@pytest.fixture(scope="module")
def rows():
    series = data.etth1()
    return dataclasses.replace(series, values=series.values[:600], index=series.index[:600])


@pytest.mark.parametrize(
    "model", ["decoder", "encoder-decoder", pytest.param("patch", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("mechanism", AAREN)
def test_forecasts_of_real_rows(rows, mechanism, model):
    config = ForecastConfig.of(
        mechanism=spec(mechanism, 24), model=model, split="400/50/150", context_length=24,
        horizon=12, batch_size=128,
        **({"label_length": 12} if model == "encoder-decoder" else {}), **SMALL,
    )  # fmt: skip
    split = data.chronological_split(len(rows.values), config.data.split)
    other = dataclasses.replace(rows, values=changed(rows.values, CHANGED))
    found = []
    for series in (rows, other):
        data_spec = describe(SeriesPanel.from_series(series, split), config)
        run = tasks.Run(FORECAST, config, data_spec, FORECAST.model(config, data_spec))
        forecast_of = compile_forecast(run)
        arrays = standardize(series, data_spec)
        windows = PanelWindows([data_spec], arrays, [split.test], config)
        found.append(np.concatenate([forecast_of(batch) for batch in windows]))
    last_seen = windows.starts + config.data.context_length - 1
    before = last_seen < CHANGED
    assert 0 < before.sum() < len(before)
    whole, other = (values[: len(before)] for values in found)
    np.testing.assert_array_equal(other[before], whole[before])
    assert np.abs(other[~before] - whole[~before]).max() > 0.1
