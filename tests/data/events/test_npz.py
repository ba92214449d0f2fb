"""Arrays of events."""

import pickle
import zipfile
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flax_linattn.data import DataFormatError
from flax_linattn.data.events import SINGLE_EVENT_TYPE, load_events
from flax_linattn.data.files import unpacking

load_event_npz = partial(load_events, format="npz")


def save(folder, compressed=False, **named):
    path = folder / "toy.npz"
    (np.savez_compressed if compressed else np.savez)(path, **named)
    return path


def test_reddit_as_it_is(data_dir):
    path = data_dir / "tpp_unmarked" / "reddit_askscience_comments.npz"
    events = load_events(path)
    with np.load(path) as file:
        times, lengths = file["times"], file["lengths"]
    assert len(events) == 1356 and events.num_events == events.num_forecast == 400_935
    assert events.event_type_names == SINGLE_EVENT_TYPE and events.lines is None
    assert [len(own) for own in events.times] == lengths.tolist()
    np.testing.assert_array_equal(np.concatenate(events.times), times)
    assert set(events.begins) == {0.0} and set(events.ends) == {24.0}


SEQUENCES = st.lists(
    st.lists(st.tuples(st.floats(0, 1e6, width=32), st.integers(0, 120)), min_size=1, max_size=6),
    min_size=1,
    max_size=4,
)


@given(SEQUENCES, st.sampled_from(["<f8", ">f8", "<f4"]), st.sampled_from("fba"), st.booleans())
def test_what_is_written_is_read(tmp_path_factory, sequences, dtype, pad, compressed):
    folder = tmp_path_factory.mktemp("npz")
    gaps = [np.array([gap for gap, _ in own], dtype) for own in sequences]
    types = [np.array([event_type for _, event_type in own], np.int8) for own in sequences]
    times = [np.cumsum(own.astype(np.float64)).astype(dtype) for own in gaps]

    def check(events, expected):
        for own, its, mine, named in zip(
            expected, events.times, types, events.event_types, strict=True
        ):
            np.testing.assert_array_equal(its, own.astype(np.float64))
            assert [events.event_type_names[at] for at in named] == [*map(str, mine)]

    lengths = np.array([len(own) for own in times])
    flat = {"times": np.concatenate(times), "marks": np.concatenate(types), "lengths": lengths}
    check(load_events(save(folder, compressed, **flat)), times)

    shape = (len(times), 8)
    masks, padded, gapped = (np.zeros(shape, kind) for kind in ("?", dtype, dtype))
    named = np.full(shape, 0, np.float32)
    gapped[:] = padded[:] = np.nan
    for row, own in enumerate(times):
        start = 8 - len(own) if pad == "b" else 0
        where = row, slice(start, start + len(own))
        masks[where], padded[where], gapped[where] = True, own, gaps[row]
        named[where] = types[row]
    if pad == "a":
        masks = masks.astype(np.float32)
    padded_file = save(folder, compressed, times=padded, marks=named, masks=masks)
    check(load_events(padded_file, gaps=False), times)
    check(load_events(padded_file), times)
    gap_file = save(folder, compressed, times=np.asfortranarray(gapped), marks=named, masks=masks)
    events = load_event_npz(gap_file, gaps=True)
    check(events, [np.cumsum(own.astype(np.float64)) for own in gaps])
    first = np.array([own[0] for own in gaps])
    np.testing.assert_array_equal(np.isnan(events.begins), first == 0)


def test_times_or_gaps(tmp_path):
    masks = np.ones((3, 3))
    falling = np.array([[0.0, 2, 1], [1, 1, 1], [2, 1, 3]])
    events = load_event_npz(save(tmp_path, times=falling, masks=masks), end=9)
    assert [own.tolist() for own in events.times] == [[0, 2, 3], [1, 2, 3], [2, 3, 6]]
    np.testing.assert_array_equal(events.begins, [np.nan, 0, 0])
    assert events.ends.tolist() == [9.0, 9.0, 9.0]
    with pytest.raises(DataFormatError, match=r"npz:times\[0, 2\]: .*or pass gaps=True") as refused:
        load_event_npz(save(tmp_path, times=falling, masks=masks), gaps=False)
    assert refused.value.options == ("gaps",)
    known = load_event_npz(save(tmp_path, times=falling, masks=masks, t_max=[5.0, 5, 6]))
    assert known.begins.tolist() == [0.0] * 3 and known.ends.tolist() == [5.0, 5.0, 6.0]
    rising = load_event_npz(save(tmp_path, times=np.cumsum(falling, 1), masks=masks))
    assert rising.times[2].tolist() == [2, 3, 6] and rising.begin is None
    summed = load_event_npz(save(tmp_path, times=falling, masks=masks), gaps=True, begin=-1)
    assert summed.begins.tolist() == [-1.0] * 3

    one = np.tile(np.arange(4.0), (9, 1))
    one[5, 2] = 0.5  # one bad time makes no file of gaps
    with pytest.raises(DataFormatError, match=r"npz:times\[5, 2\]: .* got 0\.5 after 1\.0"):
        load_event_npz(save(tmp_path, times=one, masks=np.ones((9, 4))))
    negative = np.array([[-1.0, 2, 1]] * 3)
    with pytest.raises(DataFormatError, match=r"npz:times\[0, 2\]: expected times that never de"):
        load_event_npz(save(tmp_path, times=negative, masks=masks))
    with pytest.raises(DataFormatError, match=r"npz:times\[0, 0\]: expected gaps .* got -1\.0"):
        load_event_npz(save(tmp_path, times=negative, masks=masks), gaps=True)
    flat = load_event_npz(save(tmp_path, times=np.array([1.0, 1, 2]), lengths=[2, 1]), gaps=True)
    assert [own.tolist() for own in flat.times] == [[1, 2], [2]]


ONE = np.array([1.0, 2, 3])
TWO = np.array([[1.0, 2, 0], [1, 2, 3]])
MASKS = np.array([[1, 1, 0], [1, 1, 1]])


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"x": ONE}, r"npz: expected arrays times, marks, masks, lengths, t_max, got x; save"),
        ({"\x1b[1m": ONE}, r"t_max, got \\x1b\[1m; save"),
        ({"lengths": [3]}, r"npz: expected an array times, got lengths"),
        ({"times": ONE}, r"npz:times: expected shape \[n\] .* got \[3\] with neither; save"),
        ({"times": ONE, "masks": ONE}, r"npz:times: expected .* got \[3\] with masks"),
        ({"times": TWO, "lengths": [3, 3]}, r"npz:times: expected .* got \[2, 3\] with lengths"),
        ({"times": TWO[None], "masks": MASKS[None]}, r"npz:times: .* got \[1, 2, 3\] with masks"),
        ({"times": 1.0, "lengths": [1]}, r"npz:times: .* got \[\] with lengths"),
        ({"times": np.array(["a"]), "lengths": [1]}, r"npz:times: expected numbers, got <U1"),
        ({"times": np.array([1j]), "lengths": [1]}, r"npz:times: expected numbers, got complex128"),
        ({"times": ONE.astype("M8[s]"), "lengths": [3]}, r"expected numbers, got datetime64\[s\]"),
        ({"times": np.array([1, np.nan, 2]), "lengths": [1, 2]},
         r"npz:times\[1\]: expected a finite number of at most 1e\+100, got nan"),
        ({"times": np.array([1, 2, 1e101]), "lengths": [3]}, r"npz:times\[2\]: .* got 1e\+101"),
        ({"times": ONE, "lengths": [2, 0, 1]}, r"npz:lengths\[1\]: expected 1 or more .* got 0"),
        ({"times": ONE, "lengths": [-1, 4]}, r"npz:lengths\[0\]: .* got -1"),
        ({"times": ONE, "lengths": [2**62]}, r"npz:lengths: expected a sum of 3, .* got 46116860"),
        ({"times": ONE, "lengths": [2]}, r"npz:lengths: expected a sum of 3, the number .*, got 2"),
        ({"times": ONE, "lengths": [1.0, 2]}, r"npz:lengths: expected integers, got float64"),
        ({"times": ONE, "lengths": 3}, r"npz:lengths: expected shape \[N\], .* got shape \[\]"),
        ({"times": np.zeros(0), "lengths": np.zeros(0, int)}, "at least one sequence, got none"),
        ({"times": np.array([1.0, 3, 2]), "lengths": [1, 2]},
         r"npz:times\[2\]: expected times that never .* sequence 1, got 2\.0 after 3\.0"),
        ({"times": ONE, "lengths": [3], "marks": [1, 2]}, r"npz:marks: expected the shape of ti"),
        ({"times": ONE, "lengths": [3], "marks": [1, -2, 0]}, r"npz:marks\[1\]: .* got -2"),
        ({"times": ONE, "lengths": [3], "marks": [1, 0.5, 0]}, r"npz:marks\[1\]: .* got 0\.5"),
        ({"times": ONE, "lengths": [3], "marks": np.float16([1, 0.5, 0])}, r"marks\[1\]: .* 0\.5"),
        ({"times": ONE, "lengths": [3], "marks": [1, 0, np.nan]}, r"npz:marks\[2\]: .* got nan"),
        ({"times": ONE, "lengths": [3], "marks": np.uint64([1, 2**64 - 1, 0])},
         r"npz:marks\[1\]: expected an integer from 0 .* got 18446744073709551615"),
        ({"times": ONE, "lengths": [3], "marks": ["a", "b", "c"]}, r"npz:marks: expected integers"),
        ({"times": ONE, "lengths": [3], "t_max": 2.5},
         r"npz:times\[2\]: expected events at or before 2\.5, the end of .*, got one at 3"),
        ({"times": -ONE[::-1], "lengths": [3], "t_max": 2.5}, r"npz:times\[0\]: .* the begin of"),
        ({"times": ONE, "lengths": [3], "t_max": [3.0, 4]}, r"npz:t_max: expected one number, or"),
        ({"times": ONE, "lengths": [3], "t_max": np.inf}, r"npz:t_max: expected a finite number"),
        ({"times": ONE, "lengths": [3], "t_max": "a"}, r"npz:t_max: expected numbers, got <U1"),
        ({"times": TWO, "masks": MASKS[:1]}, r"npz:masks: expected the shape of times, \[2, 3\]"),
        ({"times": TWO, "masks": MASKS * 2}, r"npz:masks\[0, 0\]: expected 0 or 1, got 2"),
        ({"times": TWO, "masks": MASKS * 0}, r"npz:masks\[0\]: expected 1 at .* got 0 everywhere"),
        ({"times": TWO, "masks": [[1, 1, 1], [1, 0, 1]]}, r"npz:masks\[1\]: .* got 0 between"),
        ({"times": TWO, "masks": MASKS.astype(str)}, r"npz:masks: expected 1 at events and 0 else"),
        ({"times": TWO, "masks": MASKS, "marks": TWO / np.array([1, 1, np.nan])},
         r"npz:marks\[1, 2\]: .* got nan"),
    ],
)  # fmt: skip
def test_bad_arrays_are_named(tmp_path, named, message):
    with pytest.raises(DataFormatError, match=message):
        load_event_npz(save(tmp_path, **named))


class Trap:
    def __reduce__(self):
        return (pytest.fail, ("unpickled",))


def test_nothing_is_unpickled(tmp_path):
    objects = np.array([Trap(), Trap()], object)
    path = save(tmp_path, times=objects, lengths=[2])
    with pytest.raises(DataFormatError, match=r"npz:times: expected numbers, got Python objects"):
        load_event_npz(path)
    ragged = np.array([np.arange(2.0), np.arange(3.0)], object)
    with pytest.raises(DataFormatError, match="pad sequences of different lengths and add masks"):
        load_event_npz(save(tmp_path, times=ragged, masks=ragged))
    path.write_bytes(pickle.dumps(Trap()))
    with pytest.raises(DataFormatError, match=r"toy\.npz: expected a whole \.npz file, got a d"):
        load_event_npz(path)


def rewrite(path, name, content):
    """The file with one member in place of its own."""
    with zipfile.ZipFile(path) as archive:
        members = {key: archive.read(key) for key in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for key, own in {**members, name: content}.items():
            archive.writestr(key, own)


def test_sizes_are_bounded_before_anything_is_read(tmp_path, monkeypatch):
    path = save(tmp_path, True, times=np.zeros(10_000), lengths=[10_000])
    assert path.stat().st_size < 2000
    monkeypatch.setattr(unpacking, "MAX_UNPACKED_BYTES", 400_000)
    monkeypatch.setattr(unpacking, "MAX_RATIO", 40)
    monkeypatch.setattr(zipfile.ZipFile, "open", lambda *_: pytest.fail("read"))
    with pytest.raises(DataFormatError, match=r"at most 50 kB unpacked .* got 80.3 kB; save"):
        load_event_npz(path)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"(3,)", b"(9,)"),
        (b"(3,), }        ", b"(999999999999,)}"),
        (b"(3,)", b"(-3)"),
        (b"'<f8'", b"'<f9'"),
        (b"'<f8'", b"'|O8'"),
        (b"{'descr'", b"{{{{{{{{"),
        (b"NUMPY\x01", b"NUMPY\x09"),
        (b"NUMPY\x01", b"NUMPX\x01"),
    ],
)
def test_headers_of_arrays_that_lie(tmp_path, old, new):
    path = save(tmp_path, times=ONE, lengths=[3])
    with zipfile.ZipFile(path) as archive:
        content = archive.read("times.npy")
    assert old in content
    rewrite(path, "times.npy", content.replace(old, new))
    with pytest.raises(DataFormatError, match=r"toy\.npz(: expected a whole|:times: expected n)"):
        load_event_npz(path)


def test_damaged_zips(tmp_path):
    path = save(tmp_path, True, times=np.arange(1000.0), lengths=[1000])
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], whole[:100] + b"?" * 50 + whole[150:], b"PK", b""):
        path.write_bytes(content)
        with pytest.raises(DataFormatError, match=r"toy\.npz: expected a whole \.npz file, .* fet"):
            load_event_npz(path)
    with pytest.raises(FileNotFoundError, match="found a folder there"):
        load_event_npz(tmp_path)
