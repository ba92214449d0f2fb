"""Interactions of users with items."""

import gzip
from functools import partial

import numpy as np
import pytest

from flax_linattn.data import DataFormatError
from flax_linattn.data.events import load_events

load_jodie = partial(load_events, format="jodie")

HEADER = "user_id,item_id,timestamp,state_label,comma_separated_list_of_features\n"


def write(folder, text, name="toy.csv"):
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize("sequence", ["user_id", "item_id"])
def test_wikipedia_as_it_is(sequence, data_dir):
    path = data_dir / "wikipedia_jodie" / "ml_wikipedia.txt.gz"
    events = load_events(path, sequence=sequence, format="jodie")
    rows = np.array(gzip.decompress(path.read_bytes()).split(), np.float64).reshape(-1, 3)
    own, other = (0, 1) if sequence == "user_id" else (1, 0)
    assert events.num_events == len(rows) == 157_474
    assert len(events) == len(np.unique(rows[:, own]))
    assert len(events.event_type_names) == len(np.unique(rows[:, other]))
    assert events.lines is not None and events.begin is None and not events.dates
    names = np.array(events.event_type_names, np.float64)
    assert (np.diff(names) > 0).all()
    for index in range(0, len(events), 97):
        lines = events.lines[index]
        chosen = np.flatnonzero(rows[:, own] == rows[lines[0] - 1, own])
        np.testing.assert_array_equal(lines, chosen + 1)
        np.testing.assert_array_equal(events.times[index], rows[chosen, 2])
        np.testing.assert_array_equal(names[events.event_types[index]], rows[chosen, other])


def test_both_forms_are_the_same(tmp_path):
    rows = [(f"u{i * 7 % 3}", i * i % 5, i * 0.5) for i in range(12)]
    plain = write(tmp_path, "".join(f"{u} {i}\t{t}\n" for u, i, t in rows), "toy.txt")
    features = [",".join(["-0.5"] * (1 + n % 4)) for n in range(12)]  # ragged
    official = write(
        tmp_path,
        HEADER
        + "".join(f"{u},{i},{t},0,{x}\n" for (u, i, t), x in zip(rows, features, strict=True)),
    )
    one, other = load_jodie(plain, end=6), load_events(official, end=6)
    for mine, its in zip(
        (*one.times, *one.event_types), (*other.times, *other.event_types), strict=True
    ):
        np.testing.assert_array_equal(mine, its)
    assert one.event_type_names == other.event_type_names == ("0", "1", "4")
    assert one.ends.tolist() == [6.0, 6.0, 6.0]


def test_what_is_a_sequence_and_what_an_event_type(tmp_path):
    path = write(tmp_path, HEADER.replace("_id", "") + "a,7,0,0,1\n\nb,7,1,1,1\na,10,1,1,1\n")
    by_item = load_events(path, sequence="item_id")
    assert [own.tolist() for own in by_item.times] == [[0.0, 1.0], [1.0]]
    assert by_item.event_type_names == ("a", "b")
    labels = load_jodie(path, event_type="state_label")
    assert [own.tolist() for own in labels.event_types] == [[0, 1], [1]]
    assert load_jodie(path).event_type_names == ("7", "10")
    with pytest.raises(ValueError, match="sequence must be one of user_id, item_id, got 'user'"):
        load_jodie(path, sequence="user")
    message = "event_type and sequence must be different, got 'user_id'"
    with pytest.raises(ValueError, match=message):
        load_jodie(path, event_type="user_id")
    message = r"txt:1: expected a header .*choose another event type"
    with pytest.raises(DataFormatError, match=message):
        load_jodie(write(tmp_path, "a b 1\n", "toy.txt"), event_type="state_label")


def test_rows_may_be_sorted(tmp_path):
    path = write(tmp_path, "1 5 3\n2 5 2.5\n1 6 0\n", "toy.txt")
    message = r"toy\.txt:2: expected rows sorted by time, from 3\.0 on, got 2\.5; sort"
    with pytest.raises(DataFormatError, match=message) as refused:
        load_events(path)
    assert refused.value.options == ("sort",)
    events = load_events(path, sort=True)
    assert [own.tolist() for own in events.times] == [[0.0, 3.0], [2.5]]
    assert events.lines is not None and events.lines[0].tolist() == [3, 1]
    assert [own.tolist() for own in events.event_types] == [[1, 0], [0]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"toy\.csv:1: expected rows of events after the header, got none"),
        (HEADER, r"toy\.csv:1: expected rows of events after the header, got none"),
        ("user,time,x\n1,2,3\n", r"toy\.csv:1: expected a header that begins with user_id,item_id"),
        ("1,2,3,0,0\n", r"toy\.csv:1: expected a header that begins with user_id"),
        (HEADER + "1,2,3\n", r"toy\.csv:2: expected user, item, timestamp, .* got '1,2,3'"),
        (HEADER + "1,2,soon,0,0\n", r"toy\.csv:2: expected a number, or a date .* got 'soon'"),
        (HEADER + "1,2,3,0,0\n1,2,2024-01-01,0,0\n", r"csv:3: expected a number, as in the first"),
        (HEADER + "1,2,inf,0,0\n", r"got 'inf'"),
        (HEADER + "1,-2,3,0,0\n", r"toy\.csv:2: expected item_id as an integer .* got '-2'"),
        (HEADER + "1.5,2,3,0,0\n", r"toy\.csv:2: expected user_id as an integer .* got '1\.5'"),
        (HEADER + ",2,3,0,0\n", r"toy\.csv:2: expected user_id as .* got ''"),
        (HEADER + "nan,2,3,0,0\n", r"got 'nan'"),
        ("1 2 3\n1 2\n", r"toy\.csv:2: expected user, item and timestamp, separated by blanks"),
    ],
)
def test_bad_files_are_named(tmp_path, text, message):
    with pytest.raises(DataFormatError, match=message):
        load_jodie(write(tmp_path, text))
