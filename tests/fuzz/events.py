"""Files of sequences of events."""

import io
import json
import random
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from flax_linattn.data.errors import DataFormatError
from flax_linattn.data.events import EventSequences, load_events
from tests.fuzz.damage import mutated
from tests.fuzz.subject import Case, TextSubject

HEADER = "user_id,item_id,timestamp,state_label,comma_separated_list_of_features\n"
OBJECTS = [
    {"dim_process": 5, "seq_idx": n, "seq_len": 3, "time_since_start": [0, 1.5, 4],
     "time_since_last_event": [0, 1.5, 2.5], "type_event": [n, 4, 0]}
    for n in range(4)
]  # fmt: skip
DAYS = [f"2015-{1 + n:02}-08 {2 * n:02}:30:00.{n}" for n in range(8)]
EVENT_TYPES = b"1 2 1\n9 0\n22\n"
"""Of ``paired.txt``, in a file of their own."""
OPTIONS: dict[str, dict[str, Any]] = {
    "rmtpp.txt": {"format": "rmtpp"},
    "numbers.csv": {"end": 9},
    "dates.csv": {"timezone": "America/New_York", "begin": "2015-01-01"},
    "sorted.csv": {"sort": True},
}
VALUES = (np.nan, np.inf, -1.0, 1e300, 0.5, 2.0**63, 3.0)
DTYPES = ("<f4", ">f8", "<i8", "<u8", "?", "<c16", "<U4", "|S3", "<f2", "<g", "<M8[s]", "|u1")


class Events(TextSubject):
    """What ``load_events`` reads."""

    counts = (400, 10_000)
    outcomes: ClassVar = {"refused with its place", "refused", "valid"} | {
        ("toy.npz", found) for found in ("refused with its place", "valid")
    }
    texts: ClassVar = {
        "rmtpp.txt": "0.5 1.5 4\n1e3 2000\n-3\n",
        "paired.txt": "0.5 1.5 4\n1e3 2000\n-3\n",
        "jodie.csv": HEADER + "".join(f"{n % 3},a{n % 2},{n / 4},0,0.1,-2\n" for n in range(9)),
        "plain.txt": "".join(f"{n % 3} {n % 2} {n / 4}\n" for n in range(9)),
        "lines.json": "\n".join(json.dumps(value) for value in OBJECTS),
        "array.json": json.dumps(OBJECTS, indent=1),
        "numbers.csv": "time,mark\n" + "".join(f"{n * 0.5},m{n % 3}\n" for n in range(9)),
        "dates.csv": "id,sequence,time\n"
        + "".join(f"{n},s{n % 2},{day}\n" for n, day in enumerate(DAYS)),
        "sorted.csv": "time,mark\n" + "".join(f"{-n},{n % 3}\n" for n in range(9)),
    }

    def samples(self) -> Iterator[Case]:
        yield from super().samples()
        for padded in (False, True):
            path = self.folder / "toy.npz"
            np.savez(path, **whole_arrays(padded=padded))
            yield self.read(path, {})

    def damage(self, draw: random.Random) -> Case:
        if draw.random() < 0.2:
            path = self.write("toy.npz", npz(draw))
            return self.read(path, {"gaps": draw.choice((None, None, True, False))})
        return super().damage(draw)

    def case(self, path: Path, draw: random.Random | None = None) -> Case:
        name = path.name.removesuffix(".gz").removesuffix(".xz")
        options = dict(OPTIONS.get(name, {}))
        if name == "paired.txt":
            event_types = (
                mutated(EVENT_TYPES, draw) if draw and draw.random() < 0.3 else EVENT_TYPES
            )
            options["event_types_file"] = self.write("marks.txt", event_types)
        if draw and draw.random() < 0.1:
            options["end"] = draw.choice((5, -5, "7.5", "2016-01-01", "soon"))
        return self.read(path, options)

    def read(self, path: Path, options: dict[str, Any]) -> Case:
        return Case(path.name, path, lambda: check_valid(load_events(path, **options)))

    def refusal(self, error: Exception, case: Case) -> str:
        if not isinstance(error, DataFormatError):
            assert case.path.name in str(error) or "end must be" in str(error), error
            return "refused"
        names = "|".join(re.escape(str(p)) for p in (case.path, self.folder / "marks.txt"))
        assert re.match(rf"({names})(:[^ ]+( \d+\])?)?: expected ", str(error), re.DOTALL), error
        assert len(str(error)) < len(str(case.path)) + self.longest
        return "refused with its place"


def whole_arrays(*, padded: bool) -> dict[str, np.ndarray]:
    """Arrays of one of both forms."""
    if not padded:
        return {"times": np.array([0.5, 1, 2, 1, 3]), "lengths": np.array([3, 2]),
                "marks": np.arange(5), "t_max": np.array(4.0)}  # fmt: skip
    times = np.array([[0.5, 1, 2, 0], [1, 1, 3, 4]])
    return {"times": times, "marks": np.ones((2, 4)), "masks": (times > 0).astype(np.float32)}


def arrays(draw: random.Random) -> dict[str, np.ndarray]:
    """The same, valid or with something of another value, shape or dtype."""
    named = whole_arrays(padded=draw.random() >= 0.5)
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


def check_valid(events: EventSequences) -> None:
    count = len(events.event_type_names)
    assert len(events) >= 1 and count >= 1 and len(set(events.event_type_names)) == count
    for times, event_types in zip(events.times, events.event_types, strict=True):
        assert times.dtype == np.float64 and event_types.dtype == np.int32
        assert times.shape == event_types.shape and times.ndim == 1 and times.size
        assert np.isfinite(times).all() and (np.diff(times) >= 0).all()
        assert event_types.min() >= 0 and event_types.max() < count
    assert all(np.isfinite(gaps).all() and (gaps >= 0).all() for gaps in events.gaps())
    assert np.isfinite(events.ends).all()
    if events.lines is not None:
        assert all(lines.dtype == np.int64 and lines.min() >= 1 for lines in events.lines)
