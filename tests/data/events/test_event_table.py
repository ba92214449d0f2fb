"""Tables of events."""

import csv
import gzip
import lzma
from datetime import UTC, datetime
from functools import partial
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flax_linattn.checks import OptionError
from flax_linattn.data import DataFormatError
from flax_linattn.data.events import load_events

load_event_table = partial(load_events, format="table")


def write(folder, text, name="toy.csv"):
    path = folder / name
    path.write_text(text)
    return path


def rows_of(path):
    return [*csv.DictReader(gzip.decompress(path.read_bytes()).decode().splitlines())]


def check(events, rows, seconds, event_type, sequence):
    """The events are the rows, by their lines."""
    assert events.num_events == len(rows) and events.lines is not None and events.dates
    assert sorted(np.concatenate(events.lines).tolist()) == [*range(2, len(rows) + 2)]
    for times, types, lines in zip(events.times, events.event_types, events.lines, strict=True):
        own = [rows[line - 2] for line in lines]
        assert times.tolist() == [seconds[line - 2] for line in lines]
        assert len({row[sequence] for row in own}) == 1
        assert [events.event_type_names[at] for at in types] == [row[event_type] for row in own]
    assert events.event_type_names == tuple(sorted({row[event_type] for row in rows}, key=int))
    assert len(events) == len({row[sequence] for row in rows})


def test_uber_as_it_is(data_dir):
    path = data_dir / "uber" / "uber-raw-data-janjune-15_sample.csv.gz"
    with pytest.raises(DataFormatError, match=r"gz:3: .*never decrease.*sort=True") as refused:
        load_events(path, time="Pickup_date")
    assert refused.value.options == ("sort",)
    columns = {"event_type": "locationID", "sequence": "Dispatching_base_num"}
    events = load_events(path, time="Pickup_date", **columns, sort=True, begin="2015-01-01",
                         end="2015-07-01")  # fmt: skip
    rows = rows_of(path)
    seconds = np.array([row["Pickup_date"] for row in rows], "M8[s]").astype(float).tolist()
    check(events, rows, seconds, *columns.values())
    assert events.num_forecast == 100_000
    assert set(events.ends - events.begins) == {181 * 86400.0}


def test_taxi_as_it_is(data_dir):
    path = data_dir / "taxi" / "seaborn_raw_taxis.csv.gz"
    columns = {"event_type": "PULocationID", "sequence": "color"}
    zone = "America/New_York"
    options = {**columns, "time": "tpep_pickup_datetime", "timezone": zone}
    events = load_events(path, **options, sort=True)
    rows = rows_of(path)
    dates = [datetime.fromisoformat(row["tpep_pickup_datetime"]) for row in rows]
    seconds = [date.replace(tzinfo=ZoneInfo(zone)).timestamp() for date in dates]
    check(events, rows, seconds, *columns.values())


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_compressed_or_not(tmp_path, suffix):
    text = '# a comment\ntime,mark,sequence\n1,"a, b",x\n\n1.5,#c,y\n2,"a, b",x\n'
    path = tmp_path / f"toy.csv{suffix}"
    opened = {"": open, ".gz": gzip.open, ".xz": lzma.open}[suffix]
    with opened(path, "wt") as file:
        file.write(text)
    events = load_events(path, end=4)
    assert [own.tolist() for own in events.times] == [[1.0, 2.0], [1.5]]
    assert [own.tolist() for own in events.event_types] == [[1, 1], [0]]
    assert events.event_type_names == ("#c", "a, b") and events.name == "toy" and not events.dates
    assert events.lines is not None and [own.tolist() for own in events.lines] == [[3, 6], [5]]
    assert events.ends.tolist() == [4.0, 4.0] and events.num_forecast == 1


TEXT = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=4)


@given(st.lists(st.tuples(st.floats(-1e99, 1e99), TEXT, TEXT), min_size=1, max_size=8))
def test_what_is_written_is_read(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("table") / "toy.csv"
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n")
        writer.writerow(["mark", "", "time", "sequence"])
        writer.writerows((event_type, "", repr(time), name) for time, event_type, name in rows)
    events = load_event_table(path, sort=True)
    names = list(dict.fromkeys(name for _, _, name in rows))
    assert len(events) == len(names)
    for name, times, types in zip(names, events.times, events.event_types, strict=True):
        own = sorted((row for row in rows if row[2] == name), key=lambda row: row[0])
        assert times.tolist() == [time for time, _, _ in own]
        assert [events.event_type_names[event_type] for event_type in types] == [
            event_type for _, event_type, _ in own
        ]


def test_other_kinds_of_tables(tmp_path):
    frame = pd.DataFrame({"time": [1.5, 2, 3], "mark": [10, 9, 10]})
    frame.to_csv(tmp_path / "toy.csv", index=False, sep=";")
    frame.to_parquet(tmp_path / "toy.parquet")
    for path in tmp_path.iterdir():
        events = load_events(path)
        assert events.times[0].tolist() == [1.5, 2, 3] and events.event_type_names == ("9", "10")
        assert events.event_types[0].tolist() == [1, 0, 1] and not events.dates


def test_names_of_event_types_are_in_order(tmp_path):
    def names(*types):
        rows = "".join(f"{n},{event_type}\n" for n, event_type in enumerate(types))
        return load_event_table(write(tmp_path, "time,mark\n" + rows)).event_type_names

    assert names("10", "9", "-1", "9") == ("-1", "9", "10")
    assert names("10", "9", "x") == ("10", "9", "x")
    assert names("1" * 30, "9") == ("1" * 30, "9")
    assert names("01", "1", "2") == ("01", "1", "2")


def test_dates(tmp_path):
    text = "time\n2015-11-01 01:30:00.25\n2015-11-01T06:30:00Z\n2015-11-01 02:00\n2015/11/2 0:00\n"
    path = write(tmp_path, text)
    events = load_event_table(path, timezone="America/New_York", begin="2015-11-01",
                              end="2015-11-02T12:00:00Z")  # fmt: skip
    first = datetime(2015, 11, 1, 5, 30, tzinfo=UTC).timestamp()
    assert events.dates and len(events) == 1
    assert events.times[0].tolist() == [first + t for t in (0.25, 3600, 5400, 23.5 * 3600)]
    assert events.begins[0] == first - 1.5 * 3600 and events.ends[0] == first + 30.5 * 3600
    seconds = load_event_table(path, timezone="America/New_York", begin=0)
    assert seconds.begins.tolist() == [0.0]
    with pytest.raises(DataFormatError, match=r"toy\.csv:4: .* got 2015-11-01 02:00:00\+00:00 aft"):
        load_event_table(path)
    with pytest.raises(DataFormatError, match=r":2: .*got '1\.11\.2015'.* begin with the year"):
        load_event_table(write(tmp_path, "time\n1.11.2015\n", "other.csv"))
    with pytest.raises(OptionError, match=r"begin must be an existing local time, .*New_York skip"):
        load_event_table(path, timezone="America/New_York", begin="2015-03-08 02:30")


def test_bounds_are_checked_by_line(tmp_path):
    path = write(tmp_path, "time,sequence\n2015-01-02,a\n2015-01-01,b\n2015-01-03,a\n")
    with pytest.raises(
        DataFormatError, match=r"toy\.csv:3: expected events at or after 2015-01-02 00:00:00\+00:00"
        r", the begin of sequence 'b', got one at 2015-01-01 .*; pass an earlier begin"
    ) as refused:  # fmt: skip
        load_event_table(path, begin="2015-01-02")
    assert refused.value.options == ("begin",)
    with pytest.raises(DataFormatError, match=r"csv:4: .* the end of sequence 'a'.* a later end"):
        load_event_table(path, end="2015-01-02")
    for bound in ("soon", "nan", "", float("nan"), float("inf"), 1e101, 10**400):
        with pytest.raises(OptionError, match="end must be a finite number or a date such as"):
            load_event_table(path, end=bound)
    for bound in (True, [1], datetime(2015, 1, 1)):
        with pytest.raises(TypeError, match="end must be a number or a date string"):
            load_event_table(path, end=bound)  # type: ignore[arg-type]


def test_columns_by_their_options(tmp_path):
    path = write(tmp_path, "id,when,mark,mark,sequence\n1,0.5,a,b,\n2,1,a,b,\n")
    with pytest.raises(
        DataFormatError, match=r"csv:1: expected distinct column names, .* 'mark' twice"
    ):
        load_event_table(path, time="when")
    with pytest.raises(DataFormatError, match=r"csv:2: expected a value in column 'sequence'"):
        load_event_table(path, time="when", event_type="id")
    for option in ("time", "event_type", "sequence"):
        what = option.replace("_", " ")
        message = rf"csv:1: expected a column 'x' of {what}s, got columns id, .*{option}=\."
        with pytest.raises(DataFormatError, match=message) as refused:
            load_event_table(path, **{"time": "when", "event_type": "id", option: "x"})
        assert refused.value.options == (option,)
    with pytest.raises(OptionError, match="must be different columns, got when, id, id"):
        load_event_table(path, time="when", event_type="id", sequence="id")
    with pytest.raises(OptionError, match=r"toy\.csv: timezone='Asia/Tokyo' needs dates"):
        load_event_table(write(tmp_path, "time\n1\n"), timezone="Asia/Tokyo")


def test_events_of_one_time_stay_in_order(tmp_path):
    path = write(tmp_path, "time,mark\n2,a\n1,b\n1,a\n2,b\n")
    events = load_event_table(path, sort=True)
    assert events.event_types[0].tolist() == [1, 0, 0, 1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"toy\.csv:1: expected rows of a table, got none"),
        ("time,mark\n", r"toy\.csv:1: expected rows after the header, got none"),
        ("0.5,a\n1,b\n", r"toy\.csv:1: expected a column 'time' of times, got columns 0\.5"
         r", a; .* add a header if the file has none"),
        ("\x1b[1m,b\n1,a\n", r"got columns \\x1b\[1m, b; name one of these"),
        ("time,mark\n1,a\n2\n", r"toy\.csv:3: expected 2 cells, as in the first line, got 1"),
        ("time,mark\n1,a\n2,\n", r"toy\.csv:3: expected a value in column 'mark', got an empty"),
        ('time,mark\n1,"a\n', r"toy\.csv:2: expected cells separated by ',' with closed quotes"),
        ("time\n1\n2x\n", r"toy\.csv:3: expected a number, as in the first row in column 'time'"),
        ("time\n1\n2024-01-01\n", r"toy\.csv:3: expected a number, as in the first row"),
        ("time\n2024-01-01\n1\n", r"toy\.csv:3: expected a date, as in the first row .* got '1'"),
        ("time\n2024-01-01\n\n20240102\n", r"toy\.csv:4: expected a date, as in the first row"),
        ("time\nsoon\n", r"toy\.csv:2: expected a number, or a date such as 2016-07-01 .* 'soon'"),
        ("time,a\n,1\n", r"toy\.csv:2: expected a number, or a date .* got ''"),
        ("time\ninf\n", r"got 'inf'; correct it; numbers must be finite, at most 1e\+100"),
        ("time\n1\n1e999\n", r"toy\.csv:3: .* got '1e999'"),
        ("time\n1\n9e100\n", r"toy\.csv:3: .* got '9e100'"),
        ("time\n1\n3\n2\n", r"toy\.csv:4: expected times that never decrease in sequence 0, "
         r"got 2\.0 after 3\.0; sort the rows by time, or pass sort=True$"),
        ("time,sequence\n1,a\n3,b\n0,a\n", r"toy\.csv:4: .* in sequence 'a', got 0\.0 after 1\.0"),
        ("time\n1\0\n", r"toy\.csv:2: expected text, got a NUL byte"),
    ],
)  # fmt: skip
def test_bad_files_are_named(tmp_path, text, message):
    with pytest.raises(DataFormatError, match=message):
        load_event_table(write(tmp_path, text))


def test_an_hour_that_clocks_skip(tmp_path):
    path = write(tmp_path, "time\n2015-03-08 01:59\n2015-03-08 02:30\n")
    assert load_event_table(path).num_events == 2
    with pytest.raises(
        DataFormatError,
        match=r"csv:3: expected an existing local time .*New_York skip it; ",
    ) as refused:
        load_event_table(path, timezone="America/New_York")
    assert refused.value.options == ("timezone",)


@pytest.mark.slow
def test_half_a_million_events(tmp_path, bounded):
    rows = "".join(
        f"{datetime.fromtimestamp(20.25 * n, UTC).replace(tzinfo=None)},{n % 20},{n % 997}\n"
        for n in range(500_000)
    )
    path = write(tmp_path, "time,mark,sequence\n" + rows)
    with bounded():
        assert load_events(path, timezone="Asia/Tokyo").num_events == 500_000
