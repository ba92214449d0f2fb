"""Forecasters on arrays and data frames: one small fit of ETTh1, of which most tests ask."""

import datetime
import pickle
import re

import numpy as np
import pandas as pd
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
        horizon=4, context_length=16, epochs=1, batch_size=64, random_state=0, **parameters
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
    history = (fitted.run_.data_spec.standardizer, values[:ROWS])
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
    with pytest.raises(ValueError, match="expected a row with the channels x0, x1, x2, got x0, y;"):
        stream.step({"x0": 1.0, "y": 2.0})
    with pytest.raises(ValueError, match="expected a time such as"):
        stream.step(values[ROWS], "noon")


def test_pickles_forecast_alike(fitted, values):
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict(), fitted.predict())
    np.testing.assert_array_equal(again.predict(values), fitted.predict(values))
    assert again.run_.data is None and again.get_params().keys() == fitted.get_params().keys()


def test_quantiles_are_in_the_form_of_the_series(values):
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
    with pytest.raises(ValueError, match=r"among the fitted ones \(0.1, 0.5, 0.9\), got 0.95; fit"):
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
    with pytest.raises(ValueError, match="X has 2 features, but Forecaster is expecting 3"):
        fitted.predict(values[:, :2])
    with pytest.raises(ValueError, match="fitted without known future covariates"):
        fitted.predict(X_future=values)
    with pytest.raises(ValueError, match="expected a model with quantiles"):
        fitted.predict_quantiles()
    with pytest.raises(ValueError, match=r"expected at least 16 rows .*, got 10"):
        fitted.predict(values[:10])
    with pytest.raises(ValueError, match="expected a series of at least 24 rows for context"):
        make().fit(values[:20])
    with pytest.raises(ValueError, match="already holds a run"):
        make(run=fitted.run).fit(values)
    with pytest.raises(ValueError, match="has no option 'nothing'; did you mean"):
        make(options={"nothing": 3}).fit(values)


def test_panels_that_are_too_short_are_named():
    """With the number of rows that a series needs."""
    frame = shops()[["unique_id", "ds", "y"]]
    short = frame.groupby("unique_id").head(10).drop(index=0)
    message = r"at least 24 rows for context_length=16 and horizon=4 \(the last 4 rows select the"
    with pytest.raises(ValueError, match=f"{message} .*n_samples=10 in series '3', the longest of"):
        make().fit(short)
    left_out = pd.concat([frame[:60], frame[60:63]])
    with no_training(), pytest.warns(UserWarning) as found:
        fitted = make(options=SMALL).fit(left_out)
    (note,) = {str(one.message) for one in found}
    assert note == "excluded 1 series (3) with fewer than 5 rows"
    assert [member.name for member in fitted.run_.data_spec.members] == ["7"]


def test_y_is_no_argument_of_a_forecaster(values):
    with pytest.raises(ValueError, match=r"X alone, got X with 9 rows and y \(list\) with 8;"):
        make().fit(values[:9], [0] * 8)
    frame = shops()
    with pytest.raises(ValueError, match=r"got X with 120 rows and y \(DataFrame\) with 120; pass"):
        make().fit(frame.drop(columns="y"), frame[["y"]])
    with no_training(), pytest.warns(UserWarning, match="y is ignored, because X holds the series"):
        make(options=SMALL).fit(values[:60], np.zeros(60))


def test_a_run_is_kept_only_if_its_series_can_be_read_again(values, tmp_path):
    """Which is found before training; any names of channels can be read."""
    frame = pd.DataFrame(values[:ROWS], columns=["x,y", "#x", " a"])
    with no_training():
        make(options=SMALL, run=tmp_path / "names").fit(frame)
    found = tasks.predict_run(tmp_path / "names")
    assert found.columns.tolist() == ["step", "x,y", "#x", " a"]
    counted = frame.assign(day=range(ROWS))
    options = {**SMALL, "time_column": "day"}
    with pytest.raises(ValueError, match="is not read back unchanged: unknown column 'day'"):
        make(options=options, run=tmp_path / "run").fit(counted)
    assert not [*(tmp_path / "run").iterdir()]


def test_a_kept_run_keeps_its_series(fitted, values, folder):
    before = (folder / "data.parquet").read_bytes()
    with pytest.raises(ValueError, match="already holds a run"):
        make(options=SMALL, run=folder).fit(values[: ROWS - 5])
    assert (folder / "data.parquet").read_bytes() == before


def shops(rows=60, names=(7, 3)):
    """Sales of shops in Nixtla's form, which follow a price that is known ahead."""
    rng = np.random.default_rng(0)
    days = pd.date_range("2024-01-01", periods=rows, name="ds")
    frames = []
    for name in names:
        price = rng.normal(size=rows)
        sales = 10 * name + price + 0.1 * rng.normal(size=rows)
        columns = {"unique_id": name, "ds": days, "y": sales, "price": price}
        frames.append(pd.DataFrame(columns).assign(region="north" if name > 5 else "south"))
    return pd.concat(frames, ignore_index=True)


@pytest.fixture(scope="module")
def of_shops(tmp_path_factory):
    """On all days but the last 4, and its folder."""
    folder = tmp_path_factory.mktemp("runs") / "shops"
    known = shops().groupby("unique_id", sort=False).head(56)
    options = {**SMALL, "quantiles": "0.1,0.9", "steps": 40, "validate_every": 40}
    return make(learning_rate=0.01, options=options, run=folder).fit(known), folder


def test_a_panel_of_nixtla(of_shops, tmp_path):
    """One model of all series, whose covariates of the horizon come as a frame."""
    forecaster, folder = of_shops
    data_spec = forecaster.run_.data_spec
    assert data_spec.channels == ("y", "price", "region=north", "region=south")
    assert data_spec.target_names == ("y",) and len(data_spec.known_future) == 3
    assert [data_spec.channels[which] for which in data_spec.static] == [
        "region=north",
        "region=south",
    ]
    assert forecaster.feature_names_in_.tolist() == ["y", "price", "region"]
    later = shops().groupby("unique_id", sort=False).tail(4)
    found = forecaster.predict(X_future=later)
    assert found.columns.tolist() == ["unique_id", "ds", "y"]
    assert found[["unique_id", "ds"]].equals(later[["unique_id", "ds"]].reset_index(drop=True))
    level = found.groupby("unique_id")["y"].mean()
    assert abs(level[7] - 70) < 5 and abs(level[3] - 30) < 5  # each by its own scale
    quantiles = forecaster.predict_quantiles(levels=[0.9], X_future=later)
    assert quantiles.columns.tolist() == ["unique_id", "ds", "y@0.9"]
    # What is known changes the forecast, and its order does not; later rows are left out.
    other = later.assign(price=later["price"] + 3)
    assert (forecaster.predict(X_future=other)["y"] > found["y"]).all()
    more = pd.concat([later.iloc[::-1][:4].iloc[::-1], later[:4]])
    assert forecaster.predict(X_future=more).equals(found)
    assert forecaster.predict(X_future=later.iloc[::-1]).equals(found)
    shuffled = later.sample(frac=1, random_state=0)
    assert forecaster.predict(X_future=shuffled).equals(found)
    with pytest.raises(ValueError, match="expected one row for each time, got several for 2024-"):
        forecaster.predict(X_future=pd.concat([shuffled, later[:1]]))
    with pytest.raises(ValueError, match="expected X_future with price for the 4 rows after 2024-"):
        forecaster.predict()
    # As the command says of a table with the rows of the horizon, whose targets are missing.
    table = shops().assign(**{f"region={name}": 0.0 for name in ("north", "south")})
    for name in ("north", "south"):
        table[f"region={name}"] = (table["region"] == name).astype(float)
    table.loc[later.index, "y"] = np.nan
    table.drop(columns="region").to_csv(tmp_path / "shops.csv", index=False)
    out = tmp_path / "out.csv"
    args = ["predict", str(folder), "--input", str(tmp_path / "shops.csv"), "--out", str(out)]
    assert cli.main(args) == 0
    np.testing.assert_allclose(pd.read_csv(out)["y"], found["y"], rtol=1e-8)


def test_series_that_a_panel_did_not_know(of_shops):
    forecaster, _ = of_shops
    frame = shops(names=(9, 4, 7))
    known = frame.groupby("unique_id", sort=False).head(56)
    short = known.drop(known[known["unique_id"] == 4].index[:50])
    with pytest.warns(
        UserWarning, match=r"no forecast for 1 series \(4\), because .* needs 16 rows"
    ):
        found = forecaster.predict(short, X_future=frame)
    assert found["unique_id"].tolist() == [9] * 4 + [7] * 4
    assert abs(found["y"][:4].mean() - 90) < 5
    stream = forecaster.stream(3)
    assert stream.forecast.shape == (4, 1, 3)


def test_a_panel_with_a_multiindex_is_that_of_columns(of_shops):
    frame = shops().set_index(["unique_id", "ds"])[["y"]]
    with no_training():
        forecaster = make(options=SMALL).fit(frame)
    found = forecaster.predict()
    assert found.index.names == ["unique_id", "ds"] and found.columns.tolist() == ["y"]
    assert found.index[-1] == (3, pd.Timestamp("2024-03-04"))
    assert forecaster.predict(frame.loc[[3]]).equals(found.loc[[3]])
    assert forecaster.predict(frame.loc[7]).shape == (4, 1)  # one series without its id


def test_known_future_covariates_of_one_series():
    """Of a frame by time, and of an array by place."""
    frame = shops(names=(7,)).set_index("ds")[["y", "price"]]
    options = {**SMALL, "known_future": "price"}
    with no_training():
        forecaster = make(options=options).fit(frame[:56])
        array = make(options={**SMALL, "known_future": "x1"}).fit(frame[:56].to_numpy())
    found = forecaster.predict(X_future=frame[["price"]])
    assert found.columns.tolist() == ["y"] and found.index.equals(frame.index[56:])
    np.testing.assert_allclose(array.predict(X_future=frame["price"][56:]), found, rtol=1e-6)
    # Or as the last rows of the series.
    assert forecaster.predict(frame.assign(y=frame["y"].where(frame.index < "2024-02-26"))).equals(
        found
    )
    # Or as the last known value, where one is missing.
    prices = frame[["price"]].copy()
    prices.iloc[-1] = np.nan
    message = "^'price' has missing values in the horizon, which are replaced by .*; pass them"
    with pytest.warns(UserWarning, match=message):
        filled = forecaster.predict(X_future=prices)
    assert filled.equals(forecaster.predict(X_future=prices.ffill()))
    with pytest.raises(ValueError, match=r"X_future: expected rows from 2024-02-26 .* without"):
        forecaster.predict(X_future=frame[["price"]][:58])


def test_missing_values_of_the_horizon_are_told(of_shops):
    """They repeat the last known one."""
    forecaster, _ = of_shops
    later = shops().groupby("unique_id", sort=False).tail(4).reset_index(drop=True)
    later.loc[7, "price"] = np.nan
    message = r"'price' has missing values in the horizon of 1 series \('3'\), .* value; pass"
    with pytest.warns(UserWarning, match=message):
        found = forecaster.predict(X_future=later)
    assert found.equals(forecaster.predict(X_future=later.ffill()))
    with pytest.warns(UserWarning, match=message):
        forecaster.predict_quantiles(X_future=later)


def test_a_fit_continues_a_run(fitted, values, folder):
    """From its folder, or in memory: its model, its scales and its options of the model."""
    scale, state = fitted.run_.data_spec.standardizer, nnx.state(fitted.run_.model, nnx.Param)
    for run in (folder, fitted.run_):
        with no_training():
            again = make().fit(values[20:], init_run=run)
        assert_same_bits(nnx.state(again.run_.model, nnx.Param), state)
        np.testing.assert_array_equal(again.run_.data_spec.standardizer.mean, scale.mean)
        assert again.run_.config.layers == fitted.run_.config.layers
    with pytest.raises(ValueError, match="the given run has mechanism='aaren', got 'taylorshift'"):
        make(mechanism="taylorshift").fit(values, init_run=fitted.run_)
    with pytest.raises(ValueError, match=r"\(\['x0', 'x1', 'x2'\]\), got \['x0', 'x1'\]"):
        make().fit(values[:, :2], init_run=fitted.run_)


@pytest.fixture(scope="module")
def untimed():
    """Fitted on integers, so that it takes times of every frequency."""
    with no_training():
        return make(options=SMALL).fit(
            pd.DataFrame({"a": np.sin(np.arange(140.0))}, pd.RangeIndex(860, 1000))
        )


AHEAD = {
    "integers": (pd.RangeIndex(860, 1000), [1000, 1001, 1002, 1003]),
    "row numbers": (pd.RangeIndex(40), [40, 41, 42, 43]),
    "local midnights in spring": (
        pd.date_range("2024-01-20", "2024-03-29", freq="D", tz="Europe/Berlin"),
        ["2024-03-30 00:00:00+01:00", "2024-03-31 00:00:00+01:00", "2024-04-01 00:00:00+02:00",
         "2024-04-02 00:00:00+02:00"],
    ),
    "business days": (
        pd.date_range("2023-11-01", periods=48, freq="B"),
        ["2024-01-08", "2024-01-09", "2024-01-10", "2024-01-11"],
    ),
    "texts": (
        pd.Index([str(t) for t in pd.date_range("2024-01-01", periods=40, freq="h")]),
        ["2024-01-02 16:00:00", "2024-01-02 17:00:00", "2024-01-02 18:00:00",
         "2024-01-02 19:00:00"],
    ),
    "dates": (
        pd.Index([t.date() for t in pd.date_range("2024-01-01", periods=40)]),
        ["2024-02-10", "2024-02-11", "2024-02-12", "2024-02-13"],
    ),
    "periods": (
        pd.period_range("2014Q1", periods=40, freq="Q"), ["2024Q1", "2024Q2", "2024Q3", "2024Q4"],
    ),
    "weeks that end on Sunday": (
        pd.period_range("2024-01-01", periods=40, freq="W-SUN"),
        ["2024-10-07/2024-10-13", "2024-10-14/2024-10-20", "2024-10-21/2024-10-27",
         "2024-10-28/2024-11-03"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", AHEAD)
def test_predictions_continue_the_index(untimed, name):
    index, expected = AHEAD[name]
    frame = pd.DataFrame({"a": np.cos(np.arange(len(index)))}, index.rename("when"))
    ahead = untimed.predict(frame).index
    assert ahead.name == "when" and not ahead.hasnans
    if isinstance(index, pd.PeriodIndex):
        assert ahead.dtype == index.dtype
    elif not isinstance(expected[0], int):
        expected = [str(type(ahead[0])(text)) for text in expected]
    assert [x if isinstance(x, int) else str(x) for x in ahead] == expected


HOURS = pd.date_range("2024-01-01", periods=80, freq="h")
GAP = "^rows that break the frequency h: 1 .row 20 .counting from 0., 2024-01-01 21"
REPEAT = "^rows with the same time as the row before: 1 .row 21 .counting from 0., 2024-01-01 20"


@pytest.mark.parametrize(
    ("index", "missing", "messages"),
    [
        (HOURS.delete(20), [], [GAP]),
        (HOURS.insert(20, HOURS[20]), [], [REPEAT]),
        (HOURS, [30, 31], ["^missing values: 2; each is replaced"]),
        (HOURS.delete(20), [30], [GAP, "^missing values: 1;"]),
        (pd.RangeIndex(80), [30], ["^missing values: 1;"]),
    ],
)
def test_gaps_repeats_and_missing_values_are_warned_of_once(index, missing, messages):
    """By ``fit``, and by ``predict`` in the context of other rows; not again of fitted ones."""
    series = pd.Series(np.sin(np.arange(float(len(index)))), index)
    series.iloc[missing] = np.nan
    forecaster = make(options=SMALL)

    def warned(call):
        with pytest.warns(UserWarning) as found:
            call()
        assert len(found) == len(messages)
        assert {one.filename for one in found} == {__file__}
        for one, message in zip(found, messages, strict=True):
            assert re.search(message, str(one.message))

    with no_training():
        warned(lambda: forecaster.fit(series))
    forecaster.predict()
    forecaster.predict(series)  # nothing is odd in its last 16 rows
    warned(lambda: forecaster.predict(series[:34]))


def test_notes_on_a_panel_name_the_series(of_shops):
    forecaster, _ = of_shops
    frame = shops()
    known = frame.groupby("unique_id", sort=False).head(56).drop(index=50)
    with pytest.warns(UserWarning, match="^7: rows that break the frequency D: 1 "):
        forecaster.predict(known, X_future=frame)
    # Targets of the horizon are no missing values.
    frame.loc[frame.groupby("unique_id").tail(4).index, "y"] = np.nan
    forecaster.predict(frame)
    with pytest.warns(UserWarning, match=r"no forecast for 1 series \(7\), because") as found:
        forecaster.predict(frame[-64:])
    assert len(found) == 1


@pytest.mark.parametrize("start", [1, 1900])
def test_integers_and_years_of_a_panel_are_continued(start):
    frame = shops().assign(ds=[*range(start, start + 60)] * 2)[["unique_id", "ds", "y"]]
    with no_training():
        found = make(options=SMALL).fit(frame).predict()
    assert found["ds"].tolist() == [*range(start + 60, start + 64)] * 2


def test_integer_times_stay_integers_and_their_gaps_are_reported():
    years = np.delete(np.arange(1900, 1981), 40)
    frame = pd.DataFrame({"y": np.sin(years / 3), "Year": years})
    gap = r"rows that break the step 1: 1 \(row 40 \(counting from 0\), 1941 after 1939\)"
    with no_training(), pytest.warns(UserWarning, match=gap):
        forecaster = make(options=SMALL).fit(frame)
    assert forecaster.predict()["Year"].tolist() == [1981, 1982, 1983, 1984]
    stream = forecaster.stream()
    stream.step([0.5], time=1981)
    for time, message in ((1980, "a time after 1981"), ("1982-01-01", "expected an integer time")):
        with pytest.raises(ValueError, match=message):
            stream.step([0.5], time=time)


def test_a_frequency_that_is_given_decides():
    index = pd.date_range("2023-01-02", periods=60, freq="B")
    series = pd.Series(np.sin(np.arange(59.0)), index.delete(20))
    with no_training(), pytest.warns(UserWarning, match="break the frequency D: 11"):
        fitted = make(options={**SMALL, "freq": "D"}).fit(series)
    with no_training():
        ahead = fitted.predict().index
        assert ahead.equals(pd.date_range(index[-1], periods=5, freq="D")[1:])
        assert fitted.run_.data_spec.freq == "D" and fitted.run_.data_spec.season == 7
        with pytest.raises(ValueError, match=r"frequency h, got no two .* set freq='B', which"):
            make(options={**SMALL, "freq": "h"}).fit(series)
        with pytest.raises(ValueError, match=r"freq=.* needs rows with times, got rows wi"):
            make(options={**SMALL, "freq": "h"}).fit(series.to_numpy())
    trading = pd.offsets.CustomBusinessHour(start="10:00", end="14:00", holidays=["2024-01-01"])
    hours = pd.date_range("2023-12-21 10:00", periods=40, freq=trading)
    with no_training():
        found = make(options=SMALL).fit(pd.Series(np.sin(np.arange(28.0)), hours[:28])).predict()
    assert found.index.equals(hours[28:32]) and hours[31].year == 2024


@pytest.mark.slow
def test_a_data_frame_gives_a_data_frame(fitted, values):
    """The same numbers as of the array, by the names and the times to come."""
    index = pd.date_range("2016-07-01", periods=ROWS, freq="h", tz="Europe/Berlin")
    frame = pd.DataFrame(values[:ROWS], index, columns=["a", "b", "c"])
    forecaster = make(options=SMALL).fit(frame)
    ahead = forecaster.predict()
    assert ahead.index[0] == index[-1] + pd.Timedelta("1h") and ahead.index.tz is not None
    assert ahead.columns.tolist() == forecaster.feature_names_in_.tolist() == ["a", "b", "c"]
    np.testing.assert_allclose(ahead.to_numpy(), fitted.predict(), rtol=1e-6)
    moved = forecaster.predict(frame[["c", "a", "b"]])
    np.testing.assert_array_equal(moved.to_numpy(), ahead.to_numpy())
    with pytest.raises(ValueError, match="expected rows at the frequency h"):
        forecaster.predict(frame.set_axis(pd.date_range("2016", periods=ROWS, freq="D")))
    stream = forecaster.stream()
    other, next_time = forecaster.stream(), index[-1] + pd.Timedelta("1h")
    with pytest.raises(ValueError, match="expected a time with its offset from UTC"):
        stream.step(values[ROWS], next_time.tz_localize(None))
    later = stream.step(values[ROWS], next_time.tz_convert("UTC"))
    with pytest.raises(ValueError, match="got a, b, c, c; pass these names"):
        stream.step(pd.Series(range(4), ["a", "b", "c", "c"]))
    row = pd.Series(values[ROWS], ["a", "b", "c"])[["b", "c", "a"]]
    np.testing.assert_array_equal(later, other.step(row, next_time))


@pytest.mark.slow
def test_one_channel_of_a_seasonal_series_is_learned():
    """A real fit: the error is far below that of repeating the last value."""
    rng = np.random.default_rng(0)
    series = np.sin(2 * np.pi * np.arange(1000) / 24) + 0.1 * rng.normal(size=1000)
    forecaster = Forecaster(horizon=24, context_length=72, random_state=0, options=SMALL)
    ahead = forecaster.fit(series[:-24]).predict()
    assert ahead.shape == (24,)
    assert np.mean((ahead - series[-24:]) ** 2) < 0.03
    again = Forecaster(horizon=24, context_length=72, random_state=0, options=SMALL)
    np.testing.assert_array_equal(again.fit(series[:-24]).predict(), ahead)
