"""Integer times, such as years, in streams, states, predictions and notes of forecasting runs."""

import dataclasses
from datetime import datetime

import numpy as np
import pandas as pd
import pytest

from flax_linattn import cli, data
from flax_linattn.estimators import Forecaster
from flax_linattn.tasks.forecast import Row
from flax_linattn.tasks.forecast.panel import notes_on
from tests.tasks import states
from tests.tasks.commands import SIZES, fail, flags, no_drawing, no_training, succeed

ROWS, FIRST = 120, 1900
TRAIN = [
    *flags(SIZES | {"epochs": 1, "context_length": 12, "horizon": 3, "split": "60/30/30"}),
    *("--parallel", "none", "--model", "decoder"),
]


def table(years, name: str = "Year") -> str:
    """A table of these integers and a wave."""
    rows = "".join(f"{year},{np.sin(year / 3):.4f}\n" for year in years)
    return f"{name},y\n{rows}"


def train(folder, text: str, *options: str) -> str:
    """The run folder of a run that was trained on this table."""
    path = folder / "wave.csv"
    path.write_text(text)
    with no_training(), no_drawing():
        run = str(folder / "run")
        args = ["train", "forecast", "--csv", str(path), "--run", run, *TRAIN, *options]
        assert cli.main(args) == 0
    return run


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory) -> str:
    return train(tmp_path_factory.mktemp("years"), table(range(FIRST, FIRST + ROWS)))


@pytest.fixture
def stream_lines(run_dir, tmp_path, capsys):
    """Streams a table; returns the first two cells of each line, and what was said."""

    def stream(text: str, *options: str) -> tuple[list[str], str]:
        path = tmp_path / "lines.csv"
        path.write_text(text)
        capsys.readouterr()
        assert cli.main(["stream", run_dir, "--input", str(path), *options]) == 0
        out, err = capsys.readouterr()
        return [",".join(line.split(",")[:2]) for line in out.splitlines()[1:]], err

    return stream


def test_a_stream_prints_integer_times(stream_lines):
    for name in ("Year", "ds", "time"):
        assert stream_lines(table([2020, 2021], name))[0] == ["1,2020", "2,2021"]
    assert stream_lines("2020,0.1\n2021,0.2\n")[0] == ["1,2020", "2,2021"]
    assert stream_lines("y,Year\n0.1,2020\n")[0] == ["1,2020"]
    assert stream_lines('{"ds": 2020, "y": 1}\n{"ds": "2021.0", "y": 1}\n')[0] == [
        "1,2020",
        "2,2021",
    ]
    assert stream_lines("0.1\n")[0] == ["1,"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "first", "options", "expected"),
    [
        ("Year", "{}", [], "Year"),
        ("ds", "{}-01-01", ["--freq", "YS"], "ds"),
        ("when", "1/7/{}", ["--day-first", "--freq", "YS-JUL"], "when"),
        ("Date,Time", "{}-01-01,0:00", ["--time-column", "Date", "Time", "--freq", "YS"], "time"),
    ],
)
def test_tables_name_the_times_as_the_file_does(tmp_path, capsys, name, first, options, expected):
    rows = [f"{first.format(FIRST + n)},{np.sin(n / 3):.4f}\n" for n in range(ROWS)]
    run, out = train(tmp_path, f"{name},y\n{''.join(rows)}", *options), tmp_path / "out.csv"
    succeed(capsys, "predict", run, "--out", str(out))
    assert out.read_text().splitlines()[0] == f"{expected},y"
    path = str(tmp_path / "wave.csv")
    assert succeed(capsys, "stream", run, "--input", path).startswith(f"step,{expected},y+1,")
    other = tmp_path / "other.csv"
    other.write_text(f"{name.replace(expected, 'date')},y\n{''.join(rows)}")
    if expected != "time":
        succeed(capsys, "predict", run, "--input", str(other), "--out", str(out))
        assert out.read_text().startswith("date,y\n")


def test_a_stream_notes_gaps_of_integer_times(stream_lines):
    _, notes = stream_lines(table([2020, 2021, 2023, 2024]))
    assert "the time 2023 breaks the step 1 of the run" in notes
    assert "breaks the step" not in stream_lines(table([2020, 2021]))[1]


@pytest.mark.parametrize(
    ("years", "message"),
    [
        ([2020, 2019], r"lines.csv:3: expected a time after 2020 .* got 2019"),
        (["2020", "2021-01-01"], r":3: expected an integer time in the column Year, .*'2021-01"),
        (["2020", "9" * 19], r":3: expected an integer time in the column Year"),
    ],
)
def test_a_stream_refuses_times_that_fall_or_are_no_integers(
    years, message, run_dir, tmp_path, capsys
):
    path = tmp_path / "lines.csv"
    path.write_text("Year,y\n" + "".join(f"{year},1\n" for year in years))
    said = fail(capsys, "stream", run_dir, "--input", str(path))
    assert pd.Series([said]).str.contains(message).all(), said


def test_a_state_remembers_integer_times(stream_lines, run_dir, tmp_path, capsys):
    """The rows that it has seen are neither taken again nor are others left out."""
    state = str(tmp_path / "state.npz")
    seen, more = table(range(2000, 2010)), table(range(2005, 2015))
    stream_lines(seen, "--state", state)
    shown = dict(line.split(None, 1) for line in succeed(capsys, "state", state).splitlines())
    assert shown["time"] == "2009"
    (tmp_path / "lines.csv").write_text(seen)
    args = ["stream", run_dir, "--input", str(tmp_path / "lines.csv"), "--state", state]
    assert "expected a time after 2009 (the last observation), got 2000" in fail(capsys, *args)
    found, said = stream_lines(more, "--state", state, "--skip-processed")
    assert found == [f"{11 + i},{2010 + i}" for i in range(5)]
    assert "the last of 2009" in said and "skipped 5 rows" in said
    (tmp_path / "lines.csv").write_text(table([2014]))
    assert "2014; the saved stream may have processed this row already" in fail(capsys, *args)


def test_predictions_continue_integer_times(run_dir, tmp_path, capsys):
    out = tmp_path / "ahead.csv"
    succeed(capsys, "predict", run_dir, "--out", str(out))
    ahead = out.read_text().splitlines()
    assert [line.split(",")[0] for line in ahead] == ["Year", "2020", "2021", "2022"]
    path = tmp_path / "even.csv"
    path.write_text(table(range(2, 60, 2), "ds"))
    succeed(capsys, "predict", run_dir, "--input", str(path), "--out", str(out))
    ahead = out.read_text().splitlines()
    assert [line.split(",")[0] for line in ahead] == ["ds", "60", "62", "64"]


def make_stream(index: pd.Index | None):
    """A stream of a run that nobody trained, on a series of this index."""
    run = states.untrained_run("forecast")
    step = None if index is None else 1
    data_spec = dataclasses.replace(
        run.data_spec, freq=None, time_zone=None, time_features=(), integer_step=step
    )
    return states.make_stream(
        run._replace(data_spec=data_spec, model=run.task.model(run.config, data_spec))
    )


def test_a_run_without_times_takes_times_of_one_kind():
    row = Row(5, np.zeros(7))
    stream = make_stream(None)
    stream.step(row)
    assert stream.last_time == 5
    with pytest.raises(
        ValueError, match="expected a time of the same kind as the last one, 5, got"
    ):
        stream.step(Row(datetime(2024, 1, 1), np.zeros(7)))
    with pytest.raises(ValueError, match="expected a time after 5"):
        stream.step(Row(4, np.zeros(7)))


@pytest.mark.parametrize("time", [-7, 0, 3 * 10**17, datetime(2024, 1, 1)])
def test_the_record_of_a_stream_holds_each_kind_of_time(time, tmp_path):
    stream, other = make_stream(None), make_stream(None)
    stream.step(Row(time, np.zeros(7)))
    stream.save(tmp_path / "state.npz")
    other.load(tmp_path / "state.npz")
    assert other.last_time == time and type(other.last_time) is type(stream.last_time)
    if isinstance(time, int):
        assert make_stream(pd.RangeIndex(1)).load(tmp_path / "state.npz") is None
    else:
        with pytest.raises(ValueError, match="contradict"):
            make_stream(pd.RangeIndex(1)).load(tmp_path / "state.npz")


def test_rows_of_a_series_have_its_integers():
    series = data.TimeSeries("x", np.zeros((3, 1)), ("a",), pd.Index([2, 4, 6]))
    assert series.has_integer_times and series.step == "2"
    assert not data.TimeSeries("x", np.zeros((3, 1)), ("a",)).has_integer_times


def test_a_channel_that_is_named_as_times_and_rises_is_noted(tmp_path, capsys):
    rows = "".join(f"{np.sin(i / 3):.4f},{i / 50},{i}\n" for i in range(ROWS))
    train(tmp_path, f"y,time,date\n{rows}".replace(",0\n", ",5\n", 1))
    said = "".join(capsys.readouterr())
    assert "channels that look like times (time) but are read as values: 1;" in said


def test_a_channel_that_counts_in_equal_steps_is_noted():
    rows = np.stack([np.sin(np.arange(20.0)), np.arange(20.0)], axis=1)
    series = data.TimeSeries("x", rows, ("sales", "week"))
    assert any("look like times (week)" in note for note in notes_on(series, 20))


def test_integer_times_of_a_saved_estimator_are_those_of_its_run(tmp_path, capsys):
    for name, frame in {
        "one": pd.DataFrame({"y": np.sin(np.arange(80.0))}, pd.RangeIndex(1900, 1980)),
        "panel": pd.DataFrame(
            {"unique_id": ["a", "b"] * 80, "ds": np.repeat(np.arange(1900, 1980), 2), "y": 1.5}
        ).assign(y=np.sin(np.arange(160.0))),
    }.items():
        folder, out = tmp_path / name, tmp_path / f"{name}.csv"
        estimator = Forecaster(3, context_length=8, epochs=1, run=folder, options=SIZES)
        with no_training():
            estimator.fit(frame)
        succeed(capsys, "predict", str(folder), "--out", str(out))
        ahead = pd.read_csv(out)
        assert ahead.iloc[:3, -2].tolist() == [1980, 1981, 1982]


def test_a_gap_of_integer_times_is_reported(tmp_path, capsys):
    train(tmp_path, table(np.delete(np.arange(FIRST, FIRST + ROWS + 1), 50)))
    said = "".join(capsys.readouterr())
    note = "rows that break the step 1: 1 (line 52, 1951 after 1949); the rows are used"
    assert note in said and "from 1900 to 2020, step 1" in said
