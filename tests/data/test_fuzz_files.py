"""Damaged files of every format: each is refused by its name and line, or is a valid data set.

``python -m tests.data.test_fuzz_files 10000 SEED`` counts what came of so many of each seed.
"""

import gzip
import lzma
import random
import re
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from flax_linattn import data
from flax_linattn.data import digits

ROWS = [(f"2024-01-{1 + i // 8:02} {i % 8:02}:00:00", i * 0.25, 7 - i) for i in range(12)]
FRAME = " ".join(["0.5", "-1.25"] * 6 + ["3"])
SAMPLES = {
    "toy.ts": (
        "# c\n@problemName Toy\n@timeStamps false\n@missing true\n@univariate false\n"
        "@dimensions 2\n@equalLength false\n@classLabel true 1.0 2.0 10.0\n@data\n"
        "1,2,3:4,?,6:1.0\n-1,2e1:0.5,0:10.0\n1:2:2.0\n"
    ),
    "one.ts": "@univariate true\n@classLabel true up down\n@data\n1,2,3:up\n3,2.5,1:down\n",
    "one.arff": (
        "% c\n@relation toy\n@attribute t0 numeric\n@attribute t1 real\n@attribute c {up, 'a, b'}\n"
        "@data\n1,2,up\n3,?,'a, b'\n-1,0.5,up\n"
    ),
    "toy.arff": (
        "@relation 'a toy'\n@attribute steps relational\n@attribute t0 numeric\n"
        "@attribute t1 numeric\n@attribute t2 numeric\n@end steps\n@attribute c {down,up}\n@data\n"
        "'3,2,1\\n0,0,1',down\n'4,5,?\\n1,1,?',up\n"
    ),
    "toy.tsf": (
        "# c\n@relation toy\n@attribute series_name string\n@attribute start date\n"
        "@frequency daily\n@missing true\n@equallength false\n@data\n"
        "T1:2024-01-01 00-00-00:1,2,3\nT2:2024-01-01 00-00-00:4,?,6\n"
    ),
    "bare.tsf": "@relation toy\n@attribute name string\n@data\na:1,2.5,3\nb:4,5,6\n",
    "timed.csv": "date,load,OT\n" + "".join(f"{t},{a},{b}\n" for t, a, b in ROWS),
    "named.csv": 'load,"O, T"\n' + "".join(f"{a},{b}\n" for _, a, b in ROWS) + "?,\n",
    "headless.csv": "".join(f"{t},{a},{b}\n" for t, a, b in ROWS),
    "headless.txt": "".join(f"{a},{b}\n" for _, a, b in ROWS),
    "Test_Arabic_Digit.txt": "".join(f"  \n{FRAME}\n{FRAME}\n" for _ in range(10)),
}
WRAPPED: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lambda content: lzma.compress(content, preset=0),
}
NUMBER = re.compile(rb"-?\d+(\.\d+)?")
NUMBERS = (
    *(b"1e30", b"-1e39", b"1e308", b"1e999", b"nan", b"inf", b"1_0", b"0x10", b"1.x6", b""),
    *(b"9" * 5000, b"99999999999999999999", b"-0", b"?", b"0", "\u0661".encode(), b"1e-999"),
)
PIECES = (
    *(
        b"\xef\xbb\xbf",
        b"\0",
        b"\r",
        b"\n",
        b",",
        b":",
        b";",
        b"'",
        b'"',
        b"\\",
        b"\\n",
        b" ",
        b"@",
    ),
    *(b"#", b"%", b"{", b"}", b"@data\n", b"?", b"\xff", b"\xc3\xa9", b"\x1a", b"\xe2\x80\xa8"),
)
SECONDS = 2.0
"""Of a core, for one file; most take a thousandth."""
MEGABYTES = 300
"""By which memory may grow over all files."""


def mutated(content: bytes, draw: random.Random) -> bytes:
    """The content with one change."""
    at, lines = draw.randrange(len(content) + 1), content.splitlines(keepends=True)
    line = draw.randrange(len(lines)) if lines else 0
    match draw.randrange(12):
        case 0 if content:
            at = min(at, len(content) - 1)
            return content[:at] + bytes([content[at] ^ 1 << draw.randrange(8)]) + content[at + 1 :]
        case 1:
            return content[:at] + draw.randbytes(draw.randint(1, 4)) + content[at:]
        case 2 | 3:
            return content[:at] + draw.choice(PIECES) + content[at:]
        case 4:
            return content[:at] + content[at + draw.randint(1, 8) :]
        case 5:
            return content[:at]
        case 6 if lines:
            return b"".join([*lines[: line + 1], *lines[line:]])
        case 7 if lines:
            return b"".join([*lines[:line], *lines[line + 1 :]])
        case 8:
            draw.shuffle(lines)
            return b"".join(lines) if draw.random() < 0.2 else content + content
        case 9 | 10:
            places = list(NUMBER.finditer(content))
            if places:
                place = draw.choice(places)
                return content[: place.start()] + draw.choice(NUMBERS) + content[place.end() :]
        case 11:
            if draw.random() < 0.8:
                return content[:at] + draw.choice(PIECES) * draw.randint(2, 20_000) + content[at:]
            text = content.decode(errors="replace")
            encoding = draw.choice(("utf-16", "utf-16-le", "utf-32", "cp037", "utf-8-sig"))
            return text.encode(encoding, errors="replace")
    return content


def damaged(draw: random.Random) -> tuple[str, bytes, bytes]:
    """A file name of a sample, the sample with up to four changes, and what stands on disk."""
    name = draw.choice(list(SAMPLES))
    content = SAMPLES[name].encode()
    for _ in range(draw.randint(1, 4)):
        content = mutated(content, draw)
    suffix = draw.choice(("", "", "", ".gz", ".xz"))
    stored = WRAPPED[suffix](content)
    if suffix and draw.random() < 0.5:
        stored = mutated(stored, draw)
    return name + suffix, content, stored


def load(path: Path) -> data.TimeSeriesDataset | data.TimeSeries:
    is_table = any(part in path.name for part in (".csv", ".tsf", "headless"))
    return data.load_series(path) if is_table else data.load_dataset(path)


def check_loaded(loaded: data.TimeSeriesDataset | data.TimeSeries, path: Path) -> None:
    """Whether it is what the types promise; and whether a table has lost no row."""
    if isinstance(loaded, data.TimeSeriesDataset):
        assert loaded.num_examples and set(loaded.labels.tolist()) <= set(
            range(len(loaded.classes))
        )
        assert len(set(loaded.classes)) == len(loaded.classes)
        values = list(loaded.series)
        assert all(len(x) and x.shape[1:] == (loaded.num_channels,) for x in values)
    else:
        values = [loaded.values]
        assert loaded.values.shape == (loaded.num_steps, len(set(loaded.channels)))
        if loaded.times is not None:
            assert (np.diff(loaded.times) >= np.timedelta64(0, "s")).all()
            assert -1 < loaded.times[-1].astype("M8[Y]").astype(int) + 1969 < 9999
    assert all(x.dtype == np.float64 and not np.isinf(x).any() for x in values)
    if "headless" in path.name and path.suffix not in (".gz", ".xz"):
        assert isinstance(loaded, data.TimeSeries)
        lines = re.split("\r\n|\r|\n", path.read_text("utf-8-sig", errors="replace"))
        assert loaded.num_steps == sum(
            bool(line.strip(" \t\f\v\x1c\x1d\x1e\x1f\x85\xa0\u2028")) and not line.startswith("#")
            for line in lines
        )


def outcome(path: Path) -> str:
    """What became of the file; anything but a valid set or an error that names it fails."""
    begin = time.process_time()
    try:
        loaded = load(path)
    except data.DataFormatError as error:
        place = re.match(rf"{re.escape(str(path))}:(\d+): expected ", str(error))
        assert place, error
        assert len(str(error)) < len(str(path)) + 3000
        found = "refused with its line"
    except ValueError as error:
        assert path.name in str(error), error
        found = "refused"
    else:
        check_loaded(loaded, path)
        found = "valid"
    assert time.process_time() - begin < SECONDS
    return found


def fuzz(count: int, seed: int, folder: Path) -> Counter[tuple[str, str]]:
    """What became of so many files, by kind and outcome."""
    draw, counts = random.Random(seed), Counter[tuple[str, str]]()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for index in range(count):
        name, _, stored = damaged(draw)
        path = folder / name
        path.write_bytes(stored)
        try:
            counts[name, outcome(path)] += 1
        except BaseException as error:
            error.add_note(f"file {index} of seed {seed}: {name}, {stored[:500]!r}"[:1000])
            raise
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory
    assert grown < MEGABYTES * 1024
    return counts


@pytest.fixture(autouse=True)
def few_digits(monkeypatch):
    monkeypatch.setattr(digits, "FRAMES", {10: 20, 20: 40})


@pytest.mark.parametrize("name", SAMPLES)
def test_the_samples_are_valid(name, tmp_path):
    for suffix, wrap in WRAPPED.items():
        path = tmp_path / (name + suffix)
        path.write_bytes(wrap(SAMPLES[name].encode()))
        assert outcome(path) == "valid"


@pytest.mark.parametrize(
    ("count", "seed"), [(300, 0), pytest.param(10_000, 1, marks=pytest.mark.slow)]
)
def test_damaged_files_are_refused_or_valid(count, seed, tmp_path):
    counts = fuzz(count, seed, tmp_path)
    assert {found for _, found in counts} >= {"refused with its line", "valid"}


if __name__ == "__main__":
    digits.FRAMES = {10: 20, 20: 40}
    with tempfile.TemporaryDirectory() as folder:
        found = fuzz(int(sys.argv[1]), int(sys.argv[2]), Path(folder))
    for (name, what), number in sorted(found.items()):
        print(f"{name:<26}{what:<24}{number:>6}")
    for what in sorted({what for _, what in found}):
        print(f"{what}: {sum(n for (_, w), n in found.items() if w == what)}")
