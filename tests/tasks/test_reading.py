"""Files as users have them, through the forecasting task: what is told, and what is read."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd
import pytest

from flax_linattn import cli, data, tasks
from flax_linattn.data import Dialect
from flax_linattn.data.tables.times import localize
from flax_linattn.tasks.forecast import ForecastConfig
from flax_linattn.tasks.forecast.rows import RowLines
from tests.tasks.commands import fail, no_drawing, no_training, succeed

FORECAST = tasks.get_task("forecast")
ROWS = 1200
SMALL = [
    *("--features", "8", "--num-layers", "1", "--num-heads", "2", "--hidden-features", "8"),
    *("--context-length", "12", "--horizon", "4", "--positions", "3", "--parallel", "none"),
    *("--model", "decoder"),
]


def written(tmp_path, load, times=None, separator=","):
    times = np.datetime64("2024-01-01", "h") + np.arange(ROWS) if times is None else times
    lines = [f"{time}{separator}{value}" for time, value in zip(times, load, strict=True)]
    path = tmp_path / "sales.csv"
    path.write_text(f"date{separator}load\n" + "\n".join(lines) + "\n")
    return path


def notes(path, **options):
    config = ForecastConfig.of(csv=path, horizon=4, context_length=8, **options)
    return FORECAST.load(config.resolve()).notes


@pytest.fixture
def load():
    return 50 + 10 * np.sin(np.arange(ROWS) * 2 * np.pi / 24)


def test_codes_and_far_values_are_told_and_may_be_taken_as_missing(tmp_path, load):
    load[::11] = -9999
    load[[200, 700]] = 450, -300
    path = written(tmp_path, load)
    code, far = notes(path)
    assert code == (
        "repeated values far from all others: 1 (-9999 in 'load', 110 times, first in line 2); if "
        "one is a code for missing values, name it with missing_values"
    )
    assert far == (
        "values more than 30 standard deviations from the median of their channel: 2 (450 in "
        "'load', line 202, -300 in 'load', line 702); leave the cell empty if one is a missing "
        "value"
    )
    missing, left = notes(path, missing_values=("-9999",))
    assert missing.startswith("missing values: 110;") and left == far


def test_the_zone_of_times_is_told(tmp_path, load):
    times = [f"{t}:00+02:00" for t in np.datetime64("2024-01-01", "h") + np.arange(ROWS)]
    path = written(tmp_path, load, times)
    (note,) = notes(path)
    assert note == (
        "times and time features are in the time zone UTC+02:00, from 2024-01-01 00:00:00+02:00 on"
    )
    (note,) = notes(path, timezone="Europe/Paris")
    assert note == (
        "times and time features are in the time zone Europe/Paris, from "
        "2023-12-31 23:00:00+01:00 on"
    )


def test_a_panel_of_nixtla_needs_no_option(tmp_path, load):
    path = tmp_path / "panel.csv"
    days = pd.date_range("2022-01-01", periods=200).astype(str)
    rows = [f"{name},{day},{y}" for name in "AB" for day, y in zip(days, load, strict=False)]
    path.write_text("unique_id,ds,y\n" + "\n".join(rows) + "\n")
    config = ForecastConfig.of(csv=path, horizon=4, context_length=8).resolve()
    assert config.data.id_column == "unique_id" and config.resolve() == config
    assert [one.name for one in FORECAST.load(config).series] == ["A", "B"]


def test_business_days_have_no_gap_at_weekends_but_at_holidays(tmp_path, load):
    days = pd.date_range("2023-11-20", periods=60, freq="B")
    path = written(tmp_path, load[:58], days.delete([25, 30]).astype(str))
    (note,) = notes(path)
    assert note == (
        "rows that break the frequency B: 2 (line 27, 2023-12-26 00:00:00 after 2023-12-22 "
        "00:00:00; line 31, 2024-01-02 00:00:00 after 2023-12-29 00:00:00); the rows are used in "
        "their order"
    )
    (note,) = notes(path, freq="D")
    assert note.startswith("rows that break the frequency D: 11 (")
    with pytest.raises(ValueError, match="expected rows at the frequency MS, got no two"):
        notes(path, freq="MS")


def test_options_of_the_file_are_those_of_the_run(tmp_path, load):
    texts = [f"{x:.3f}".replace(".", ",") for x in load]
    days = [f"{day.day}.{day.month}.{day.year}" for day in
            (np.datetime64("2021-01-01") + np.arange(ROWS)).tolist()]  # fmt: skip
    path = written(tmp_path, texts, days, separator=";")
    config = ForecastConfig.of(csv=path, decimal=",", day_first=True, horizon=2, context_length=4)
    assert config.data.dialect == Dialect(decimal=",", day_first=True)
    assert ForecastConfig.from_json(config.to_json()) == config
    (loaded,) = FORECAST.load(config.resolve()).series
    np.testing.assert_allclose(loaded.values[:, 0], load, atol=1e-3)
    assert loaded.freq == "D"
    (weekly,) = FORECAST.load(config.replace(resample="1w").resolve()).series
    assert weekly.freq == "W-MON"


def test_a_refusal_names_the_flag(tmp_path, load, capsys):
    texts = [f"{x:.3f}".replace(".", ",") for x in load]
    path = written(tmp_path, texts, separator=";")
    args = ["train", "forecast", "--csv", str(path), "--run", str(tmp_path / "run")]
    message = fail(capsys, *args)
    assert "sales.csv:2: expected a number with decimals after '.' in column 2 (load)" in message
    assert " --decimal" in message and "(--decimal)" not in message
    gaps = np.cumsum(np.random.default_rng(0).integers(1, 4000, ROWS)) * np.timedelta64(1, "s")
    path = written(tmp_path, load, np.datetime64("2024-01-01", "s") + gaps)
    message = fail(capsys, *args)
    assert "expected a constant step between rows" in message
    assert " --times irregular" in message and "--times," not in message
    assert message.endswith("with --id-column\n")


def hour(index):
    return datetime(2024, 1, 1) + timedelta(hours=int(index))


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """A run on a file with semicolons, decimal commas, the day first, and a code for missing."""
    folder = tmp_path_factory.mktemp("reading")
    path = folder / "sales.csv"
    rows = [
        f"{hour(i).strftime('%d.%m.%Y %H:%M')}+01:00;{f'{5 + np.sin(i / 4):.3f}'.replace('.', ',')}"
        for i in range(150)
    ]
    rows[20] = rows[20].rpartition(";")[0] + ";-9999"
    path.write_text("when;load\n" + "\n".join(rows) + "\n")
    args = ["train", "forecast", "--csv", str(path), "--run", str(folder / "run"), *SMALL]
    options = ["--decimal", ",", "--day-first", "--missing-values", "-9999"]
    with no_drawing(), no_training():
        assert cli.main([*args, *options, "--epochs", "1", "--no-progress"]) == 0
    return folder / "run"


@pytest.mark.usefixtures("no_figures")
def test_a_run_streams_rows_as_its_file_has_them(run_dir, capsys, tmp_path):
    run = tasks.load_run(run_dir)
    assert run.data_spec.time_zone == "UTC+01:00" and run.config.data.dialect.missing_values == (
        "-9999",
    )
    told = {
        "cells.csv": "01.02.2024 00:00+01:00;5,5\n01.02.2024 01:00+01:00;-9999\n",
        "named.csv": "load;date\n5,5;01.02.2024 00:00+01:00\n;01.02.2024 01:00+01:00\n",
        "json.txt": '{"time": "2024-01-31 23:00Z", "load": 5.5}\n'
        '{"time": "2024-02-01T00:00Z", "load": null}\n',
    }
    printed = set()
    for name, text in told.items():
        (tmp_path / name).write_text(text)
        printed.add(succeed(capsys, "stream", str(run_dir), "--input", str(tmp_path / name)))
    (out,) = printed
    assert [line.split(",")[1] for line in out.splitlines()[1:]] == [
        "2024-02-01 00:00:00+01:00",
        "2024-02-01 01:00:00+01:00",
    ]


def test_predictions_name_their_offset(run_dir, tmp_path):
    first = hour(150).strftime("%Y-%m-%d %H:%M:%S+01:00")
    tasks.predict_run(run_dir, out=tmp_path / "ahead.csv")
    assert (tmp_path / "ahead.csv").read_text().splitlines()[1].split(",")[0] == first
    tasks.predict_run(run_dir, out=tmp_path / "ahead.parquet")
    for kind in ("csv", "parquet"):
        series = data.load_series(tmp_path / f"ahead.{kind}")
        assert series.time_zone == "UTC+01:00" and str(series.index[0]) == first


def test_names_may_leave_out_what_never_changes():
    """In a first line and in JSON; never a channel that does change."""
    channels, optional = ("a", "b", "b+1", "c+1"), {"b+1"}
    for text in ("b,c+1,a\n2,3,1\n", '{"a": 1, "b": 2, "c+1": 3}'):
        (row,) = RowLines(channels, optional=optional).parse(text.splitlines())
        np.testing.assert_array_equal(row.values, [1, 2, np.nan, 3])
    (row,) = RowLines(channels, optional=optional).parse(["c+1,b+1,b,a", "3,4,2,1"])
    np.testing.assert_array_equal(row.values, [1, 2, 4, 3])
    for text in ("b,b+1,a\n2,3,1\n", '{"a": 1, "b": 2, "b+1": 3}'):
        with pytest.raises(ValueError, match=r"'c\+1' is missing"):
            list(RowLines(channels, optional=optional).parse(text.splitlines()))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("01.02.2024 00:00;5,5\n", ":1: expected a time with its offset from UTC, as in"),
        ("01.02.2024 00:00+01:00;5.5\n", ":1: expected a finite number for load, got '5.5'"),
        (
            "soon;5,5\n",
            ":1: expected a time such as 2016-07-01 00:00:00 in the column time, got 'soon'",
        ),
    ],
)
def test_bad_rows_of_a_stream(run_dir, capsys, tmp_path, text, message):
    path = tmp_path / "rows.csv"
    path.write_text(text)
    assert message in fail(capsys, "stream", str(run_dir), "--input", str(path))


def test_rows_of_other_dialects():
    def rows(text, **options):
        found = RowLines(("a", "b"), **options).parse(text.splitlines())
        return [(row.time, *row.values.tolist()) for row in found]

    seven, utc = datetime(2016, 7, 1), datetime(2016, 7, 1, tzinfo=UTC)
    assert rows("a\tb\n1\t2\n", dialect=Dialect(separator="tab")) == [(None, 1, 2)]
    ((_, first, second),) = rows("\t\n", dialect=Dialect(separator="tab"))
    assert np.isnan([first, second]).all()
    assert rows("1467331200|1|2", dialect=Dialect(time_unit="s")) == [(utc, 1, 2)]
    named = rows("b,moment,a\n1,2016-07-01,2\n", dialect=Dialect(time_column="moment"))
    assert named == [(seven, 2, 1)]
    two = Dialect(time_column=("day", "clock"), day_first=True)
    assert rows("1.7.2016,0:00,1,2\n", dialect=two) == [(seven, 1, 2)]
    assert rows("clock,b,day,a\n0:00,1,1.7.2016,2\n", dialect=two) == [(seven, 2, 1)]
    with pytest.raises(ValueError, match="without an offset from UTC, as in the training data"):
        rows("2016-07-01T00:00Z,1,2", time_kind="local")
    assert rows("2016-07-01T02:00+02:00,1,2") == [(utc, 1, 2)]


def test_a_stream_on_local_clocks_goes_on_in_the_hour_that_they_repeat():
    """As the file reader, which infers it from the order of the rows."""
    local = Dialect(timezone="Europe/Berlin")
    clocks = ["01:30", "02:00", "02:30", "02:00", "02:30", "03:00"]
    lines = [f"2024-10-27 {clock},1" for clock in clocks]
    rows = RowLines(("a",), dialect=local, time_kind="zoned").parse(lines)
    times = [pd.Timestamp(row.time) for row in rows]
    assert [str(time)[-6:] for time in times] == ["+02:00"] * 3 + ["+01:00"] * 3
    plain = pd.to_datetime([line[:16] for line in lines])
    assert times == [*localize(plain, "Europe/Berlin")]
    last = datetime(2024, 10, 27, 0, 30, tzinfo=UTC)  # of a stream that goes on
    (row,) = RowLines(("a",), dialect=local, after=last).parse(["2024-10-27 02:00,1"])
    assert row.time.utcoffset() == timedelta(hours=1)
    named = ["2024-10-27 02:30+02:00,1", "2024-10-27 02:30+01:00,1"]
    offsets = [row.time.utcoffset() for row in RowLines(("a",), dialect=local).parse(named)]
    assert offsets == [timedelta(hours=2), timedelta(hours=1)]


def test_a_stream_refuses_a_local_time_that_clocks_skip():
    local = Dialect(timezone="Europe/Berlin")
    with pytest.raises(
        ValueError, match=r"exists in Europe/Berlin, got .*02:30', which clocks skip; correct"
    ):
        list(RowLines(("a",), dialect=local).parse(["2024-03-31 02:30,1"]))
