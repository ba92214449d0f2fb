"""Damaged files of every format: each is refused with a message that names it, or is valid.

``python -m tests.data.events.test_fuzz_events 10000 SEED`` counts what came of so many.
"""

import io
import json
import random
import re
import sys
import tempfile
import time
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from flax_linattn.data.events import EventSequences, load_events
from flax_linattn.data.files import DataFormatError
from tests.data.test_fuzz_files import PIECES, WRAPPED, mutated

HEADER = "user_id,item_id,timestamp,state_label,comma_separated_list_of_features\n"
OBJECTS = [
    {"dim_process": 5, "seq_idx": n, "seq_len": 3, "time_since_start": [0, 1.5, 4],
     "time_since_last_event": [0, 1.5, 2.5], "type_event": [n, 4, 0]}
    for n in range(4)
]  # fmt: skip
DAYS = [f"2015-{1 + n:02}-08 {2 * n:02}:30:00.{n}" for n in range(8)]
SAMPLES: dict[str, tuple[str, dict]] = {
    "rmtpp.txt": ("0.5 1.5 4\n1e3 2000\n-3\n", {"format": "rmtpp"}),
    "paired.txt": ("0.5 1.5 4\n1e3 2000\n-3\n", {"marks": "1 2 1\n9 0\n22\n"}),
    "jodie.csv": (HEADER + "".join(f"{n % 3},a{n % 2},{n / 4},0,0.1,-2\n" for n in range(9)), {}),
    "plain.txt": ("".join(f"{n % 3} {n % 2} {n / 4}\n" for n in range(9)), {}),
    "lines.json": ("\n".join(json.dumps(value) for value in OBJECTS), {}),
    "array.json": (json.dumps(OBJECTS, indent=1), {}),
    "numbers.csv": ("time,mark\n" + "".join(f"{n * 0.5},m{n % 3}\n" for n in range(9)), {"end": 9}),
    "dates.csv": (
        "id,sequence,time\n" + "".join(f"{n},s{n % 2},{day}\n" for n, day in enumerate(DAYS)),
        {"timezone": "America/New_York", "begin": "2015-01-01"},
    ),
    "sorted.csv": ("time,mark\n" + "".join(f"{-n},{n % 3}\n" for n in range(9)), {"sort": True}),
}
SECONDS = 2.0
"""Of a core, for one file; most take a thousandth."""

VALUES = (np.nan, np.inf, -1.0, 1e300, 0.5, 2.0**63, 3.0)
DTYPES = ("<f4", ">f8", "<i8", "<u8", "?", "<c16", "<U4", "|S3", "<f2", "<g", "<M8[s]", "|u1")


def arrays(draw: random.Random) -> dict[str, np.ndarray]:
    """Arrays of one of both forms, valid or with something of another value, shape or dtype."""
    if draw.random() < 0.5:
        named = {"times": np.array([0.5, 1, 2, 1, 3]), "lengths": np.array([3, 2]),
                 "marks": np.arange(5), "t_max": np.array(4.0)}  # fmt: skip
    else:
        times = np.array([[0.5, 1, 2, 0], [1, 1, 3, 4]])
        named = {"times": times, "marks": np.ones((2, 4)), "masks": (times > 0).astype(np.float32)}
    for _ in range(draw.randint(0, 2)):
        key = draw.choice(list(named))
        array = named[key]
        match draw.randrange(5):
            case 0:
                del named[key]
                if not named:
                    return {"other": array}
            case 1 if array.dtype.kind in "fiu":
                with np.errstate(all="ignore"):
                    named[key] = array.astype(draw.choice(DTYPES))
            case 2:
                named[key] = draw.choice((array[:1], array[..., None], array.T) if array.ndim else
                                         (array[None],))  # fmt: skip
            case 3 if array.size and array.dtype.kind == "f":
                with np.errstate(all="ignore"):
                    array.reshape(-1)[draw.randrange(array.size)] = draw.choice(VALUES)
            case 4:
                named[key] = np.concatenate([np.atleast_1d(array)] * 2)
    return named


def npz(draw: random.Random) -> bytes:
    """An .npz file, its arrays' own bytes damaged, or the bytes of the whole, or neither."""
    store = io.BytesIO()
    np.savez(store, **arrays(draw))
    if draw.random() < 0.5:
        whole = zipfile.ZipFile(store)
        members = {name: whole.read(name) for name in whole.namelist()}
        key = draw.choice(list(members))
        members[key] = mutated(members[key], draw)
        store = io.BytesIO()
        kind = draw.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA))
        with zipfile.ZipFile(store, "w", kind) as archive:
            for name, content in members.items():
                archive.writestr(name, content)
    content = store.getvalue()
    if draw.random() < 0.5:
        return content
    for _ in range(draw.randint(1, 3)):
        content = mutated(content, draw)
    return content


def damaged(draw: random.Random, folder: Path) -> tuple[Path, dict]:
    """A file with up to four changes, and the options to read it with."""
    name = draw.choice([*SAMPLES, "toy.npz", "toy.npz"])
    if name == "toy.npz":
        path = folder / name
        path.write_bytes(npz(draw))
        return path, {"gaps": draw.choice((None, None, True, False))}
    text, options = SAMPLES[name]
    options = dict(options)
    content = text.encode()
    for _ in range(draw.randint(1, 4)):
        content = mutated(content, draw)
    suffix = draw.choice(("", "", "", ".gz", ".xz"))
    stored = WRAPPED[suffix](content)
    if suffix and draw.random() < 0.5:
        stored = mutated(stored, draw)
    path = folder / (name + suffix)
    path.write_bytes(stored)
    if "marks" in options:
        marks = options["marks"].encode()
        options["marks"] = folder / "marks.txt"
        options["marks"].write_bytes(mutated(marks, draw) if draw.random() < 0.3 else marks)
    if draw.random() < 0.1:
        options["end"] = draw.choice((5, -5, "7.5", "2016-01-01", "soon"))
    return path, options


def check_valid(events: EventSequences) -> None:
    count = len(events.mark_names)
    assert len(events) >= 1 and count >= 1 and len(set(events.mark_names)) == count
    for times, marks in zip(events.times, events.marks, strict=True):
        assert times.dtype == np.float64 and marks.dtype == np.int32
        assert times.shape == marks.shape and times.ndim == 1 and times.size
        assert np.isfinite(times).all() and (np.diff(times) >= 0).all()
        assert marks.min() >= 0 and marks.max() < count
    assert all(np.isfinite(gaps).all() and (gaps >= 0).all() for gaps in events.gaps())
    assert np.isfinite(events.ends).all()
    if events.lines is not None:
        assert all(lines.dtype == np.int64 and lines.min() >= 1 for lines in events.lines)


def outcome(path: Path, options: dict) -> str:
    """What became of the file; anything but valid events or an error that names it fails."""
    begin = time.process_time()
    try:
        events = load_events(path, **options)
    except DataFormatError as error:
        names = (path, options.get("marks", path))
        assert any(
            re.match(rf"{re.escape(str(name))}(:[^ ]+( \d+\])?)?: expected ", str(error), re.DOTALL)
            for name in names
        ), error
        assert len(str(error)) < len(str(path)) + 3000
        found = "refused with its place"
    except ValueError as error:
        assert path.name in str(error) or "end must be" in str(error), error
        found = "refused"
    else:
        check_valid(events)
        found = "valid"
    assert time.process_time() - begin < SECONDS
    return found


def fuzz(count: int, seed: int, folder: Path) -> Counter[tuple[str, str]]:
    """What became of so many files, by kind and outcome."""
    draw, counts = random.Random(seed), Counter[tuple[str, str]]()
    for index in range(count):
        path, options = damaged(draw, folder)
        try:
            counts[path.name, outcome(path, options)] += 1
        except BaseException as error:
            error.add_note(f"file {index} of seed {seed}: {path.name}, {path.read_bytes()[:500]!r}")
            raise
    return counts


@pytest.mark.parametrize("name", SAMPLES)
def test_the_samples_are_valid(name, tmp_path):
    text, options = SAMPLES[name]
    options = dict(options)
    if "marks" in options:
        (tmp_path / "marks.txt").write_text(options["marks"])
        options["marks"] = tmp_path / "marks.txt"
    path = tmp_path / name
    path.write_text(text)
    assert outcome(path, options) == "valid"


@pytest.mark.parametrize(
    ("count", "seed"), [(400, 0), pytest.param(10_000, 1, marks=pytest.mark.slow)]
)
def test_damaged_files_are_refused_or_valid(count, seed, tmp_path):
    counts = fuzz(count, seed, tmp_path)
    assert {found for _, found in counts} == {"refused with its place", "refused", "valid"}
    npz_counts = [found for name, found in counts if name == "toy.npz"]
    assert {"refused with its place", "valid"} <= set(npz_counts)


@pytest.mark.parametrize("name", SAMPLES)
def test_every_byte_may_be_wrong(name, tmp_path):
    """One piece at each place of a file."""
    text, options = SAMPLES[name]
    options = dict(options)
    if "marks" in options:
        (tmp_path / "marks.txt").write_text(options["marks"])
        options["marks"] = tmp_path / "marks.txt"
    path, content = tmp_path / name, text.encode()
    for at in range(0, len(content), 7):
        path.write_bytes(content[:at] + PIECES[at // 7 % len(PIECES)] + content[at:])
        outcome(path, options)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        found = fuzz(int(sys.argv[1]), int(sys.argv[2]), Path(folder))
    for (name, what), number in sorted(found.items()):
        print(f"{name:<26}{what:<24}{number:>6}")
