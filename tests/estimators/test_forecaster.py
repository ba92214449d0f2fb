"""Forecasters on arrays and data frames: one small fit of ETTh1, of which most tests ask."""

import datetime
import pickle

import numpy as np
import pytest
from flax import nnx

from flax_linattn import cli, data, tasks
from flax_linattn.estimators import Forecaster
from flax_linattn.tasks.forecast.windows import compile_forecast
from tests.contract.tolerances import assert_same_bits
from tests.tasks.commands import no_training

SMALL = {"features": 8, "num_layers": 1, "num_heads": 2, "hidden_features": 8}
ROWS = 300


def make(**parameters):
    return Forecaster(
        horizon=4, input_length=16, epochs=1, batch_size=64, random_state=0, **parameters
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs") / "kept"


@pytest.fixture(scope="module")
def values():
    return data.etth1().values[: ROWS + 20, :3]


@pytest.fixture(scope="module")
def fitted(values, folder):
    """On an array; its run is kept."""
    return make(options=SMALL, run=folder).fit(values[:ROWS])


def test_forecasts_are_those_of_the_run(fitted, values, folder, tmp_path):
    """The folder knows the series, and the command says the same."""
    ahead = fitted.predict()
    assert ahead.shape == (4, 3) and ahead.dtype == np.float64
    table = tasks.predict_run(folder)
    assert list(table) == ["step", "x0", "x1", "x2"]
    np.testing.assert_array_equal(table.to_numpy()[:, 1:], ahead)
    # So says one that reads other rows from a file.
    later = values[: ROWS + 7]
    lines = [",".join(map(repr, row)) for row in later.tolist()]
    (tmp_path / "later.csv").write_text("x0,x1,x2\n" + "\n".join(lines) + "\n")
    out = tmp_path / "out.csv"
    args = ["predict", str(folder), "--input", str(tmp_path / "later.csv"), "--out", str(out)]
    assert cli.main(args) == 0
    told = np.loadtxt(out, delimiter=",", skiprows=1)[:, 1:]
    np.testing.assert_allclose(told, fitted.predict(later), rtol=1e-8)
    # Only the last rows count.
    np.testing.assert_array_equal(fitted.predict(later[-16:]), fitted.predict(later))


def test_forecasts_are_in_the_units_of_the_series(fitted, values):
    """Of windows of validation rows they are those by which the parameters were selected."""
    run = fitted.run_
    history = (fitted.run_.problem.standardizer, values[:ROWS])
    scaled = ((history[1] - history[0].mean) / history[0].std).astype(np.float32)
    last = ROWS - 4
    window = {"values": scaled[None, last - 16 : last + 4]}
    (expected,) = np.asarray(compile_forecast(run)(window), np.float64)
    found = fitted.predict(values[:last])
    np.testing.assert_allclose(found, expected * history[0].std + history[0].mean, rtol=1e-6)


def test_a_stream_goes_on_after_the_series(fitted, values):
    stream = fitted.stream()
    np.testing.assert_allclose(stream.forecast, fitted.predict(), rtol=1e-4, atol=1e-4)
    named = fitted.stream().step(
        dict(zip(("x2", "x0", "x1"), values[ROWS][[2, 0, 1]], strict=True))
    )
    ahead = stream.step(values[ROWS])
    np.testing.assert_array_equal(named, ahead)
    assert ahead.shape == (4, 3) and np.isfinite(ahead).all()
    assert not np.allclose(ahead, fitted.predict())
    with pytest.raises(ValueError, match="expected 3 finite or missing values"):
        stream.step([1.0, 2.0])
    with pytest.raises(ValueError, match=r"expected 3 finite .*got \[1.0, 2.0, 3.0, 4.0\]"):
        stream.step([1.0, 2.0, 3.0, 4.0])
    with pytest.raises(ValueError, match="expected a row of x0, x1, x2, got x0, y; name these"):
        stream.step({"x0": 1.0, "y": 2.0})
    with pytest.raises(ValueError, match="expected a time such as"):
        stream.step(values[ROWS], "noon")


def test_pickles_forecast_alike(fitted, values):
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict(), fitted.predict())
    np.testing.assert_array_equal(again.predict(values), fitted.predict(values))
    assert again.run_.data is None and again.get_params().keys() == fitted.get_params().keys()


def test_quantiles_are_in_the_form_of_the_series(values):
    pd = pytest.importorskip("pandas")
    index = pd.date_range("2016-07-01", periods=ROWS, freq="h", name="when")
    series = pd.Series(values[:ROWS, 0], index, name="load")
    options = {**SMALL, "quantiles": "0.1,0.5,0.9"}
    with no_training():
        forecaster = make(options=options).fit(series)
    found = forecaster.predict_quantiles(levels=[0.9, 0.1])
    assert found.columns.tolist() == [("load", 0.9), ("load", 0.1)]
    assert found.index.equals(forecaster.predict().index) and found.index.name == "when"
    assert (found["load", 0.1] < found["load", 0.9]).all()
    assert forecaster.predict_quantiles(series[:200]).shape == (4, 3)
    assert forecaster.predict_quantiles(levels=0.5).columns.tolist() == [("load", 0.5)]
    zoned = datetime.datetime(2016, 9, 1, tzinfo=datetime.UTC)
    for time in (zoned, str(zoned)):
        with pytest.raises(ValueError, match="expected a time without an offset from UTC"):
            forecaster.stream().step([1.0], time)
    with pytest.raises(ValueError, match=r"that were learned \(0.1, 0.5, 0.9\), got 0.95; fit"):
        forecaster.predict_quantiles(levels=[0.95])


def test_quantiles_of_arrays(values, tmp_path):
    """As the command writes them."""
    forecaster = make(options={**SMALL, "quantiles": "0.25,0.75"}, run=tmp_path / "run")
    with no_training():
        found = forecaster.fit(values[:ROWS, :2]).predict_quantiles()
    assert found.shape == (4, 2, 2)
    table = tasks.predict_run(tmp_path / "run")
    np.testing.assert_array_equal(table[["x0@0.25", "x0@0.75"]].to_numpy(), found[:, 0])


def test_what_does_not_fit(fitted, values):
    with pytest.raises(ValueError, match="got \\['x0', 'x1'\\]; give the same"):
        fitted.predict(values[:, :2])
    with pytest.raises(ValueError, match="has learned no quantiles; fit it with some"):
        fitted.predict_quantiles()
    with pytest.raises(ValueError, match="has 10 rows, expected at least 16"):
        fitted.predict(values[:10])
    with pytest.raises(ValueError, match="expected at least 24 rows for input_length=16"):
        make().fit(values[:20])
    with pytest.raises(ValueError, match="already holds a run"):
        make(run=fitted.run).fit(values)
    with pytest.raises(ValueError, match="option must be one of"):
        make(options={"nothing": 3}).fit(values)


@pytest.mark.parametrize("name", ["time", "#x", " a"])
def test_a_run_is_kept_only_if_its_series_can_be_read_again(name, values, tmp_path):
    """Which is found before training; a run of before keeps its data."""
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(values[:ROWS], columns=[name, "b", "c"])
    with pytest.raises(ValueError, match="is not read as it was written"):
        make(options=SMALL, run=tmp_path / "run").fit(frame)
    assert not [*(tmp_path / "run").iterdir()]


def test_a_kept_run_keeps_its_series(fitted, values, folder):
    before = (folder / "data.csv").read_bytes()
    with pytest.raises(ValueError, match="already holds a run"):
        make(options=SMALL, run=folder).fit(values[: ROWS - 5])
    assert (folder / "data.csv").read_bytes() == before


def test_a_fit_continues_a_run(fitted, values, folder):
    """From its folder, or in memory: its model, its scales and its options of the model."""
    scale, state = fitted.run_.problem.standardizer, nnx.state(fitted.run_.model, nnx.Param)
    for run in (folder, fitted.run_):
        with no_training():
            again = make().fit(values[20:], init_run=run)
        assert_same_bits(nnx.state(again.run_.model, nnx.Param), state)
        np.testing.assert_array_equal(again.run_.problem.standardizer.mean, scale.mean)
        assert again.run_.config.layers == fitted.run_.config.layers
    with pytest.raises(ValueError, match="the given run has mechanism='aaren', got 'taylorshift'"):
        make(mechanism="taylorshift").fit(values, init_run=fitted.run_)
    with pytest.raises(ValueError, match=r"\(\['x0', 'x1', 'x2'\]\), got \['x0', 'x1'\]"):
        make().fit(values[:, :2], init_run=fitted.run_)


@pytest.mark.slow
def test_a_data_frame_gives_a_data_frame(fitted, values):
    """The same numbers as of the array, by the names and the times to come."""
    pd = pytest.importorskip("pandas")
    index = pd.date_range("2016-07-01", periods=ROWS, freq="h", tz="Europe/Berlin")
    frame = pd.DataFrame(values[:ROWS], index, columns=["a", "b", "c"])
    forecaster = make(options=SMALL).fit(frame)
    ahead = forecaster.predict()
    assert ahead.index[0] == index[-1] + pd.Timedelta("1h") and ahead.index.tz is not None
    assert ahead.columns.tolist() == forecaster.feature_names_in_.tolist() == ["a", "b", "c"]
    np.testing.assert_allclose(ahead.to_numpy(), fitted.predict(), rtol=1e-6)
    moved = forecaster.predict(frame[["c", "a", "b"]])
    np.testing.assert_array_equal(moved.to_numpy(), ahead.to_numpy())
    with pytest.raises(ValueError, match="expected rows 3600"):
        forecaster.predict(frame.set_axis(pd.date_range("2016", periods=ROWS, freq="D")))
    stream = forecaster.stream()
    other, next_time = forecaster.stream(), index[-1] + pd.Timedelta("1h")
    later = stream.step(values[ROWS], next_time.tz_convert("UTC").tz_localize(None))
    with pytest.raises(ValueError, match="got a, b, c, c; name these"):
        stream.step(pd.Series(range(4), ["a", "b", "c", "c"]))
    row = pd.Series(values[ROWS], ["a", "b", "c"])[["b", "c", "a"]]
    np.testing.assert_array_equal(later, other.step(row, next_time))


@pytest.mark.slow
def test_one_channel_of_a_seasonal_series_is_learned():
    """A real fit: the error is far below that of repeating the last value."""
    rng = np.random.default_rng(0)
    series = np.sin(2 * np.pi * np.arange(1000) / 24) + 0.1 * rng.normal(size=1000)
    forecaster = Forecaster(horizon=24, input_length=72, random_state=0, options=SMALL)
    ahead = forecaster.fit(series[:-24]).predict()
    assert ahead.shape == (24,)
    assert np.mean((ahead - series[-24:]) ** 2) < 0.03
    again = Forecaster(horizon=24, input_length=72, random_state=0, options=SMALL)
    np.testing.assert_array_equal(again.fit(series[:-24]).predict(), ahead)
