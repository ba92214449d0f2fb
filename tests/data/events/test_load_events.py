"""Which format a file is of, and which options it takes."""

import gzip
import json

import numpy as np
import pytest

from flax_linattn.checks import OptionError
from flax_linattn.data import DataFormatError
from flax_linattn.data.events import load_events

JODIE = "user_id,item_id,timestamp,state_label,comma_separated_list_of_features\n1,2,3,0,0\n"
EASYTPP = json.dumps({"time_since_start": [0, 1], "type_event": [1, 1]})
FILES = {
    "rmtpp": ("toy.txt", "1 2 3\n4 5 6\n", {"format": "rmtpp"}),
    "jodie": ("toy.csv", JODIE, {}),
    "jodie, plain": ("toy.csv", "1 2 3\n2 2 4\n", {}),
    "easytpp": ("toy.txt", EASYTPP, {}),
    "easytpp, array": ("toy.jsonl", f"\n [{EASYTPP}]", {}),
    "table": ("toy", "\ntime\n3\n", {}),
    "table, with event types": ("toy.txt", "# c\nmark,time\na,3\n", {}),
}


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_formats_are_known_by_what_they_look_like(tmp_path, kind, suffix):
    name, text, options = FILES[kind]
    path = tmp_path / (name + suffix)
    path.write_bytes(gzip.compress(text.encode()) if suffix else text.encode())
    events = load_events(path, **options)
    own = load_events(path, format=kind.split(",")[0], begin=-1, end=9)
    assert events.times[0].tolist() == own.times[0].tolist()
    assert events.event_type_names == own.event_type_names and events.lines is not None
    assert set(own.begins) == {-1.0} and set(own.ends) == {9.0}


def test_npz_by_its_bytes_and_pairs_by_the_second_file(tmp_path):
    path = tmp_path / "toy.bin"
    with open(path, "wb") as file:
        np.savez(file, times=np.array([1.0, 2.0]), lengths=[2])
    assert load_events(path).num_events == 2
    times, types = tmp_path / "times.csv", tmp_path / "marks"
    times.write_text("1 2 3\n")
    types.write_text("1 2 2\n")
    assert load_events(times, types).event_type_names == ("1", "2")
    with pytest.raises(
        OptionError, match=r"event_types_file is an option of format rmtpp, got .* of format"
    ):
        load_events(path, types)


def test_a_table_of_users_and_items_is_no_jodie_file(tmp_path):
    """Without state labels: its columns are named like those of any other table."""
    path = tmp_path / "toy.csv"
    path.write_text("user_id,item_id,timestamp\n7,1,0.5\n7,2,1.5\n")
    events = load_events(path, time="timestamp", event_type="item_id", sequence="user_id")
    assert events.times[0].tolist() == [0.5, 1.5] and events.event_type_names == ("1", "2")


def test_what_cannot_be_told(tmp_path):
    path = tmp_path / "toy.txt"
    for text in ("1 2\n3 4\n", "1 2 3\n4 5\n", "1 2.5 3\n", "5\n"):
        path.write_text(text)
        with pytest.raises(
            DataFormatError,
            match=r"toy\.txt:1: expected a header, .*event_types_file=\.\.\., or format",
        ) as refused:
            load_events(path)
        assert refused.value.options == ("format", "event_types_file")
    for text in ("", "\n \n"):
        path.write_text(text)
        with pytest.raises(DataFormatError, match=r"toy\.txt:\d: expected rows of events, got no"):
            load_events(path)
    with pytest.raises(FileNotFoundError, match="found nothing there"):
        load_events(tmp_path / "none")
    with pytest.raises(OptionError, match=r"format must be one of auto, rmtpp, .* mean 'jodie'"):
        load_events(path, format="jodi")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("rmtpp", {"event_type": "x"}),
        ("easytpp", {"sort": True}),
        ("easytpp", {"timezone": "Asia/Tokyo"}),
        ("jodie", {"time": "t"}),
        ("table", {"gaps": False}),
    ],
)
def test_options_of_other_formats_are_refused(tmp_path, kind, options):
    name, text, _ = FILES[kind]
    path = tmp_path / name
    path.write_text(text)
    (option,) = options
    with pytest.raises(
        OptionError, match=rf"{option} is an option of format .*, got .* of format {kind}"
    ) as refused:
        load_events(path, format=kind, **options)
    assert refused.value.options == (option, "format")
