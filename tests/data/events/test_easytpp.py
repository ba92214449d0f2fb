"""Sequences as JSON."""

import gzip
import json
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flax_linattn.data import DataFormatError
from flax_linattn.data.events import load_events

load_easytpp = partial(load_events, format="easytpp")

GOOD = {"time_since_start": [0, 1.5], "time_since_last_event": [0, 1.5], "type_event": [2, 0]}


def write(folder, *objects):
    path = folder / "toy.json"
    path.write_text("\n".join(json.dumps(value) for value in objects))
    return path


def sequence(draw):
    gaps = draw(st.lists(st.floats(0, 1e6), min_size=1, max_size=6))
    types = draw(st.lists(st.integers(0, 4), min_size=len(gaps), max_size=len(gaps)))
    return gaps, types


@given(st.lists(st.composite(sequence)(), min_size=1, max_size=4), st.sampled_from("lda"))
def test_what_is_written_is_read(tmp_path_factory, sequences, form):
    path = tmp_path_factory.mktemp("easytpp") / "toy.json.gz"
    objects = [
        {
            "dim_process": 5,
            "seq_len": len(gaps),
            "seq_idx": index,
            # EasyTPP's own files hold float32.
            "time_since_start": np.cumsum(gaps).astype(np.float32).tolist(),
            "time_since_last_event": np.float32(gaps).tolist(),
            "type_event": types,
        }
        for index, (gaps, types) in enumerate(sequences)
    ]
    text = {
        "l": "\n".join(json.dumps(value) for value in objects),
        "d": "\n\n".join(json.dumps(value, indent=1) for value in objects) + "\n",
        "a": json.dumps(objects, indent=2),
    }[form]
    path.write_bytes(gzip.compress(text.encode()))
    events = load_events(path)
    assert events.event_type_names == ("0", "1", "2", "3", "4") and events.begin is None
    starts = [n for n, line in enumerate(text.split("\n"), 1) if line.strip(" ")[:1] == "{"]
    assert events.lines is not None and [own[0] for own in events.lines] == starts
    for value, times, types in zip(objects, events.times, events.event_types, strict=True):
        assert times.tolist() == value["time_since_start"]
        assert types.tolist() == value["type_event"]


def test_without_what_need_not_be_there(tmp_path):
    path = write(tmp_path, {"time_since_start": [1], "type_event": [10]},
                 {"time_since_start": [2, 2], "type_event": [9, 10]})  # fmt: skip
    events = load_easytpp(path, begin=0, end=3)
    assert events.event_type_names == ("9", "10") and events.event_types[1].tolist() == [0, 1]
    assert events.num_forecast == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"type_event": [1]}, "type_event with 2 values, like time_since_start, got 1"),
        ({"type_event": [1, -1]}, r"type_event as integers from 0 .* got -1 as event 2"),
        ({"type_event": [1, 1.5]}, r"got 1\.5 as event 2"),
        ({"type_event": [True, 1]}, r"got True as event 1"),
        ({"type_event": [1, 10**16]}, r"got 10000000000000000 as event 2"),
        ({"type_event": "ab"}, r"type_event as a list of at least one event, got 'ab'"),
        ({"type_event": [1, 2], "dim_process": 2}, r"from 0 to 1, as dim_process is 2, got 2 as"),
        ({"dim_process": 0}, r"dim_process, the number of event types, from 1 to 1048576, got 0"),
        ({"dim_process": 10**9}, r"dim_process, .* got 1000000000"),
        ({"seq_len": 3}, r"3 times, as declared by seq_len, got 2"),
        ({"time_since_start": [0, None]}, r"time_since_start as finite .* got None as event 2"),
        ({"time_since_start": [0, float("nan")]}, r"got nan as event 2"),
        ({"time_since_start": [0, float("inf")]}, r"got inf as event 2"),
        ({"time_since_start": [0, 10**400]}, r"got 1000000000.* as event 2"),
        ({"time_since_start": [0, [1]]}, r"got \[1\] as event 2"),
        ({"time_since_start": [1.5, 0], "time_since_last_event": [0, -1.5]},
         r"never decrease in sequence 0, got 0\.0 after 1\.5"),
        ({"time_since_start": [], "type_event": []}, r"at least one event, got \[\]"),
        ({"time_since_last_event": [0, 3]}, r"time_since_last_event as differences of "
         r"time_since_start, got 3\.0 as event 2, and times 0\.0 and 1\.5"),
        ({"time_since_last_event": [0]}, r"time_since_last_event with 2 values, .* got 1"),
    ],
)  # fmt: skip
def test_bad_objects_are_named(tmp_path, change, message):
    path = tmp_path / "toy.json"
    path.write_text("\n" + json.dumps({**GOOD, **change}))
    with pytest.raises(DataFormatError, match=r"toy\.json:2: expected .*" + message):
        load_easytpp(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"toy\.json:1: expected at least one value, got none"),
        ("[]", r"toy\.json:1: expected at least one value, got none"),
        ("{}\n", r"toy\.json:1: expected an object with time_since_start and type_event .* got {}"),
        ('{"train": []}', r"got one of train; save the sequences of one split"),
        ("[1, 2]", r"toy\.json:1: expected an object with .* got 1"),
        ("{}{", r"toy\.json:1: expected an object"),
        (
            '\n{"time_since_start": [1,',
            r"toy\.json:2: expected a value as JSON, got Expect",
        ),
        ("[" * 100_000, r"toy\.json:1: expected a value as JSON, got maximum recursion depth"),
        ("[" + "9" * 5000, r"toy\.json:1: expected a value as JSON, got Exceeds the limit"),
        ("[{}", r"toy\.json:1: expected an object"),
    ],
)
def test_bad_files_are_named(tmp_path, text, message):
    path = tmp_path / "toy.json"
    path.write_text(text)
    with pytest.raises(DataFormatError, match=message):
        load_easytpp(path)


@pytest.mark.parametrize(
    ("end", "message"),
    [
        ("", r"toy\.json:2: expected ',' or '\]' after a value, got nothing"),
        (",", r"toy\.json:2: expected '\]' at the end, got the end of the file"),
        (" 1]", r"expected ',' or '\]' after a value, got '1\]'"),
        ("]\n]", r"toy\.json:3: expected the end of the file after '\]', got '\]'"),
    ],
)
def test_arrays_that_do_not_end(tmp_path, end, message):
    path = tmp_path / "toy.json"
    path.write_text(f"[\n{json.dumps(GOOD)}{end}")
    with pytest.raises(DataFormatError, match=message):
        load_easytpp(path)


def test_event_types_differ_in_number(tmp_path):
    path = write(tmp_path, {**GOOD, "dim_process": 3}, {**GOOD, "dim_process": 4})
    with pytest.raises(DataFormatError, match=r":2: expected dim_process 3, as .* got 4"):
        load_easytpp(path)
