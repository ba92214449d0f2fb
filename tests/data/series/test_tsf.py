"""Files of the Monash archive."""

import pytest

from flax_linattn import data
from flax_linattn.data import DataFormatError


def write(tmp_path, text, name="toy.tsf"):
    path = tmp_path / name
    path.write_text(text)
    return path


TSF = (
    "# made for a test\n@relation toy\n@attribute series_name string\n"
    "@attribute start_timestamp date\n@frequency {}\n@horizon 2\n@missing true\n"
    "@equallength {}\n@data\n"
)


def test_tsf_times_follow_the_frequency(tmp_path):
    for frequency, last in (
        ("half_hourly", "2024-01-31 10:00:00"),
        ("10_minutes", "2024-01-31 09:20:00"),
        ("monthly", "2024-03-31 09:00:00"),
        ("yearly", "2026-01-31 09:00:00"),
    ):
        text = TSF.format(frequency, "false") + "T1:2024-01-31 09-00-00:1,2,?\n"
        (series,) = data.load_tsf(write(tmp_path, text, "toy.tsf"))
        assert series.times is not None and str(series.times[-1]) == last
        assert series.num_missing == 1
        if frequency == "monthly":
            assert str(series.times[1]) == "2024-02-29 09:00:00"  # the last day


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("", r"toy\.tsf:9: expected series after @data, got none"),
        ("T1:2024-01-01 00-00-00\n", r"toy\.tsf:10: expected 2 attributes and the values"),
        ("T1:yesterday:1\n", r"expected a date such as .* got 'yesterday'"),
        ("T1:2024-01-01 00-00-00:NA,b\n", r"toy\.tsf:10: expected finite numbers .* got 'b'"),
        ("T1:2024-01-01 00-00-00:1e999\n", r"got '1e999'"),
        ("T1:2024-01-01 00-00-00:1,23", r"toy\.tsf:10: expected a newline at the end"),
        (
            "T1:2024-01-01 00-00-00:1\n\nT1:2024-01-02 00-00-00:2\n",
            r"toy\.tsf:12: expected series of different names, got 'T1' again \(first on line 10\)",
        ),
        ("T1:2024-01-01 00-00-00:1\nT2:2024-01-01 00-00-00:1,2\n", r"of one length, as @equal"),
    ],
)
def test_bad_tsf_files_are_named(tmp_path, body, message):
    with pytest.raises(DataFormatError, match=message):
        data.load_tsf(write(tmp_path, TSF.format("daily", "true") + body, "toy.tsf"))
    for frequency in ("often", "10 minutes", "0_minutes", "", "9" * 5000 + "_daily"):
        with pytest.raises(DataFormatError, match=r"toy\.tsf:5: .* such as 10_minutes"):
            data.load_tsf(write(tmp_path, TSF.format(frequency, "true"), "toy.tsf"))
    text = TSF.format("daily", "true").replace("@missing true", "@missing false")
    with pytest.raises(DataFormatError, match="no missing values, as the header has"):
        data.load_tsf(write(tmp_path, text + "T1:2024-01-01 00-00-00:1,?\n", "toy.tsf"))


@pytest.mark.parametrize(
    ("frequency", "start", "length"),
    [
        ("999999999_weekly", "2024-01-01", 2),
        ("999999999_yearly", "2024-01-01", 2),
        ("100_yearly", "2024-01-01", 81),
        ("monthly", "9999-11-30", 3),
        ("daily", "9999-12-31", 2),
    ],
)
def test_tsf_times_that_would_wrap_are_refused(tmp_path, frequency, start, length):
    def text(length):
        return TSF.format(frequency, "true") + f"T1:{start} 00-00-00:{'1,' * (length - 1)}2\n"

    with pytest.raises(DataFormatError, match=r"toy\.tsf:10: expected times up to the year 9999"):
        data.load_tsf(write(tmp_path, text(length), "toy.tsf"))
    (series,) = data.load_tsf(write(tmp_path, text(length - 1), "toy.tsf"))
    assert series.times is not None and "2024" <= str(series.times[-1]) <= "9999-12-31 23:59:59"


def test_a_tag_of_a_tsf_file_stands_once(tmp_path):
    text = "@frequency daily\n@frequency hourly\n@data\n1\n"
    with pytest.raises(
        DataFormatError, match=r"toy\.tsf:2: expected @frequency once, got it again"
    ):
        data.load_tsf(write(tmp_path, text, "toy.tsf"))


def test_series_of_other_times_are_no_table(tmp_path):
    text = TSF.format("daily", "false")
    text += "T1:2024-01-01 00-00-00:1,2\nT2:2024-01-02 00-00-00:3,4\n"
    path = write(tmp_path, text, "toy.tsf")
    with pytest.raises(ValueError, match=r"toy\.tsf: .* T2 \(line 11\) has 2 .*channels="):
        data.load_series(path)
    second = data.load_series(path, channels=["T2"])
    assert second.channels == ("T2",) and second.values.tolist() == [[3.0], [4.0]]
    with pytest.raises(ValueError, match=r"unknown channel 'T3'; .*toy\.tsf has T1, T2"):
        data.load_series(path, channels=["T3"])
