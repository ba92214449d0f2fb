"""Pairs of text files, of times and of event types."""

import gzip
import lzma
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flax_linattn.data import DataFormatError
from flax_linattn.data.events import SINGLE_EVENT_TYPE, load_events

load_rmtpp = partial(load_events, format="rmtpp")


def write(folder, times, types):
    paths = folder / "time.txt", folder / "event.txt"
    for path, text in zip(paths, (times, types), strict=True):
        path.write_text(text)
    return paths


@pytest.mark.parametrize("fold", [1, 2, 3, 4, 5])
def test_stack_overflow_as_it_is(fold, data_dir):
    folder = data_dir / "stackoverflow"
    paths = [folder / f"{kind}-{fold}-test.txt.gz" for kind in ("time", "event")]
    events = load_events(*paths)
    assert events.name == f"time-{fold}-test" and not events.dates
    assert events.begin is None and events.end is None
    assert events.event_type_names == tuple(str(event_type) for event_type in range(1, 23))
    times, types = (
        [line.split() for line in gzip.decompress(path.read_bytes()).decode().splitlines()]
        for path in paths
    )
    assert len(events) == len(times) == 1326 and events.lines is not None
    for index in range(len(events)):
        assert events.times[index].tolist() == [float(text) for text in times[index]]
        assert (1 + events.event_types[index]).tolist() == [int(text) for text in types[index]]
        assert set(events.lines[index]) == {index + 1}


SEQUENCES = st.lists(
    st.lists(
        st.tuples(st.floats(-1e9, 1e9), st.integers(0, 10**15)), min_size=1, max_size=5
    ),
    min_size=1,
    max_size=5,
)  # fmt: skip


@given(SEQUENCES, st.sampled_from(["", ".gz", ".xz"]))
def test_what_is_written_is_read(tmp_path_factory, sequences, suffix):
    folder = tmp_path_factory.mktemp("rmtpp")
    sequences = [sorted(own, key=lambda event: event[0]) for own in sequences]
    paths = []
    for part in (0, 1):
        text = "".join(" ".join(repr(event[part]) for event in own) + "\n" for own in sequences)
        opened = {"": open, ".gz": gzip.open, ".xz": lzma.open}[suffix]
        paths.append(folder / f"part{part}.txt{suffix}")
        with opened(paths[-1], "wt") as file:
            file.write(text)
    events = load_rmtpp(*paths)
    for own, times, types in zip(sequences, events.times, events.event_types, strict=True):
        assert times.dtype == np.float64 and types.dtype == np.int32
        assert times.tolist() == [time for time, _ in own]
        assert [int(events.event_type_names[event_type]) for event_type in types] == [
            event_type for _, event_type in own
        ]


def test_without_event_types_and_with_bounds(tmp_path):
    times, _ = write(tmp_path, "1 2\n3\n", "")
    events = load_rmtpp(times, begin=0.5, end="4")
    assert events.event_type_names == SINGLE_EVENT_TYPE and events.num_forecast == 3
    assert (events.begins.tolist(), events.ends.tolist()) == ([0.5, 0.5], [4.0, 4.0])
    assert load_rmtpp(times).num_forecast == 1
    for what, bound in (("begin", 1.5), ("end", 2.5)):
        line = {"begin": 1, "end": 2}[what]
        with pytest.raises(
            DataFormatError, match=rf"time\.txt:{line}: expected events .*, the {what} of sequence"
        ) as refused:
            load_rmtpp(times, **{what: bound})
        assert refused.value.options == (what,)
    with pytest.raises(ValueError, match=r"begin must be a number, like the times of .* got '2024"):
        load_rmtpp(times, begin="2024-01-01")


@pytest.mark.parametrize(
    ("times", "types", "message"),
    [
        ("1 2\n3 x\n", "1 2\n3 4\n", r"time\.txt:2: expected finite times .* 'x' as event 2 of"),
        ("1 nan\n", "1 2\n", r"time\.txt:1: expected finite times .* got 'nan' as event 2 of"),
        ("1 1e999\n", "1 2\n", r"time\.txt:1: .* got '1e999' as event 2 of"),
        ("1 2e100\n", "1 2\n", r"time\.txt:1: .* at most 1e\+100, got '2e100'"),
        ("1 1_0\n", "1 2\n", r"got '1_0'"),
        ("1,2\n", "1 2\n", r"time\.txt:1: .* separated by blanks, .* got '1,2'"),
        ("1 2\n5 4.5\n", "1 2\n3 4\n", r"time\.txt:2: expected times that never decrease in "
         r"sequence 1, got 4\.5 after 5\.0; sort"),
        ("1 2\n\n3\n", "1 2\n1\n3\n", r"time\.txt:2: expected a sequence .* got a blank line"),
        ("1 2\n3\n", "1 2\n\n", r"event\.txt:2: expected a sequence .* got a blank line"),
        ("", "", r"time\.txt:1: expected a sequence of times on each line, got none"),
        ("1 2\n", "1 2 3\n", r"event\.txt:1: expected 2 event types, one for each time on line 1 "
         r"of .*time\.txt, got 3"),
        ("1\n2\n", "1\n", r"event\.txt:1: expected 2 lines, as in .*time\.txt, got 1"),
        ("1\n", "1\n2\n", r"event\.txt:2: expected 1 lines, as in .*time\.txt, got more"),
        ("1 2\n", "1 -2\n", r"event\.txt:1: expected event types as integers from 0 "
         r".* got '-2'"),
        ("1 2\n", "1 2.5\n", r"got '2\.5'; correct it; check that the files .* are not swapped"),
        ("1 2\n", f"1 {2**31}{'0' * 9}\n", r"event\.txt:1: .* got '2147483648000000000'"),
        ("1 2\n", f"1 {'9' * 5000}\n", r"event\.txt:1: .* got '99999"),
        ("1 2\0\n", "1 2\n", r"time\.txt:1: expected text, got a NUL byte"),
    ],
)  # fmt: skip
def test_bad_files_are_named(tmp_path, times, types, message):
    with pytest.raises(DataFormatError, match=message):
        load_events(*write(tmp_path, times, types))


def test_a_file_that_was_cut(tmp_path):
    times, types = write(tmp_path, "1 2\n", "1 2\n")
    cut = tmp_path / "time.txt.gz"
    cut.write_bytes(gzip.compress(times.read_bytes() * 100)[:-12])
    with pytest.raises(DataFormatError, match=r"time\.txt\.gz:\d+: expected a whole \.gz stream"):
        load_rmtpp(cut, types)
    with pytest.raises(FileNotFoundError, match=r"expected a data file at .*none, found nothing"):
        load_rmtpp(times, tmp_path / "none")


def test_event_types_beyond_int32_are_names(tmp_path):
    events = load_rmtpp(*write(tmp_path, "1 2 3\n", f"{10**15} 0 {2**31}\n"))
    assert events.event_types[0].tolist() == [2, 0, 1]
    assert events.event_type_names == ("0", str(2**31), str(10**15))
