"""Small files that unpack to far more are refused, at the cost of little memory."""

import gzip
import io
import lzma
import struct
import subprocess
import sys
import tarfile
import tracemalloc
import zipfile

import numpy as np
import openpyxl
import pyarrow as pa
import pytest
from pyarrow import feather, parquet

from flax_linattn.data.episodes import load_episodes
from flax_linattn.data.events import load_events
from flax_linattn.data.files import unpacking
from flax_linattn.data.files.unpacking import UnpackedSizeError
from flax_linattn.data.images import load_images
from flax_linattn.data.series.load import load_dataset, load_series
from flax_linattn.data.tables import arrow_files
from flax_linattn.data.texts import load_texts

LIMIT = 2**21
SIZE = 2**25
"""Bytes to which the files below unpack."""


def compressed_arrays(folder, key, **others):
    np.savez_compressed(folder / "a.npz", **{key: np.zeros(SIZE // 8)}, **others)
    return folder / "a.npz"


def narrow_arrays(folder):
    """One byte a value in the file, eight in memory."""
    np.savez_compressed(folder / "a.npz", times=np.zeros(LIMIT // 2, np.int8), lengths=[1])
    return folder / "a.npz"


def zipped_texts(folder):
    with zipfile.ZipFile(folder / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("train/neg/1", "train/pos/1", "test/neg/1", "test/pos/1"):
            archive.writestr(f"{name}.txt", bytes(SIZE // 4))
    return folder / "a.zip"


def tarred_texts(folder):
    (folder / "1.txt").write_bytes(bytes(SIZE))
    with tarfile.open(folder / "a.tar.gz", "w:gz") as archive:
        for name in ("train/neg/1", "test/neg/1"):
            archive.add(folder / "1.txt", f"{name}.txt")
    return folder / "a.tar.gz"


def digits(folder):
    for part in ("train", "t10k"):
        with gzip.open(folder / f"{part}-images-idx3-ubyte.gz", "wb") as file:
            file.write(struct.pack(">4I", 0x803, SIZE // 2**10, 32, 32) + bytes(SIZE))
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 0x801, 1) + b"\0")
    return folder


def text(name, head, row):
    def write(folder):
        opened = lzma.open if name.endswith("xz") else gzip.open
        with opened(folder / name, "wb") as file:
            file.write(head + row * (SIZE // len(row)))
        return folder / name

    return write


def sheet(folder, cells):
    book = openpyxl.Workbook()
    for cell in cells:
        book.active[cell] = 1
    book.save(folder / "a.xlsx")
    return folder / "a.xlsx"


def hdf5(folder):
    h5py = pytest.importorskip("h5py")
    with h5py.File(folder / "a.hdf5", "w") as file:
        for key in ("observations", "actions", "rewards", "terminals"):
            file.create_dataset(key, data=np.zeros((SIZE // 64, 2), "f4"), compression="gzip")
    return folder / "a.hdf5"


EPISODES = {key: [0] for key in ("actions", "rewards", "terminals")}


def arrow_table(folder, name, values, repeats, kind=None):
    column = pa.array([values], kind).take(pa.array(np.zeros(repeats, np.int32)))
    table = pa.table({"a": column, "b": np.zeros(repeats, np.int8)})
    if name.endswith("parquet"):
        parquet.write_table(table, folder / name, compression="zstd")
    else:
        feather.write_feather(table, str(folder / name), compression="zstd")
    return folder / name


def zigzag(value, length):
    """An integer as Thrift writes it, in more bytes than it takes."""
    return bytes((2 * value >> 7 * i) & 127 | (i < length - 1) << 7 for i in range(length))


@pytest.mark.parametrize(
    "content",
    [b"\x19\xf1" + zigzag(2**40, 6) + b"\x01", b"\x15" + b"\xff" * 64, b"\x17\x00"],
    ids=["a list without end", "an integer without end", "half a number"],
)
def test_damaged_headers_of_pages_end(content):
    with pytest.raises((EOFError, ValueError)):
        arrow_files._thrift_struct(io.BytesIO(content))


def false_count(folder):
    """A Parquet file whose metadata, but not its pages, say that its row groups have one row."""
    path = arrow_table(folder, "a.parquet", [1.0], SIZE // 8)
    content = path.read_bytes()
    count = zigzag(2**20, 4)
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    assert content.count(count, footer) >= 3
    path.write_bytes(content[:footer] + content[footer:].replace(count, zigzag(1, 4)))
    return path


def images(folder, size):
    """Images that are far larger than their files."""
    pillow = pytest.importorskip("PIL.Image")
    for place in ("train/a", "test/a"):
        (folder / place).mkdir(parents=True)
        pillow.new("RGB", (size, size)).save(folder / place / "1.png")
    return folder


FILES = {
    "parquet": (lambda folder: arrow_table(folder, "a.parquet", 1.0, SIZE // 8), load_series),
    "parquet with a false count": (false_count, load_series),
    "parquet of texts": (
        lambda folder: arrow_table(folder, "a.parquet", "x" * 2**10, SIZE // 2**10),
        load_series,
    ),
    **{
        f"parquet of {kind}": (
            lambda folder, kind=kind: arrow_table(
                folder,
                "a.parquet",
                [b"x" * 2**10] if "<" in str(kind) else b"x" * 2**10,
                SIZE // 2**10,
                kind,
            ),
            load_series,
        )
        for kind in (
            pa.binary(),
            pa.large_binary(),
            pa.large_string(),
            pa.list_(pa.binary()),
        )
    },
    "feather": (lambda folder: arrow_table(folder, "a.feather", 1.0, SIZE // 8), load_series),
    "feather of texts": (
        lambda folder: arrow_table(folder, "a.feather", "x" * 2**10, SIZE // 2**10),
        load_series,
    ),
    "png": (lambda folder: images(folder, 1000), load_images),
    "npz": (lambda folder: compressed_arrays(folder, "times"), load_events),
    "npz of int8": (narrow_arrays, load_events),
    "npz of episodes": (
        lambda folder: compressed_arrays(folder, "observations", **EPISODES),
        load_episodes,
    ),
    "hdf5": (hdf5, load_episodes),
    "zip": (zipped_texts, load_texts),
    "tar.gz": (tarred_texts, load_texts),
    "idx": (digits, load_images),
    "csv.gz": (text("a.csv.gz", b"a,b\n", b"1,2\n"), load_series),
    "csv.xz": (text("a.csv.xz", b"a,b\n", b"1,2\n"), load_series),
    "csv.gz in quotes": (text("a.csv.gz", b"a,b\n", b'"1", "2"\n'), load_series),
    "ts.gz": (text("a.ts.gz", b"@classLabel true a\n@data\n", b"1:a\n"), load_dataset),
    "tsf.gz": (text("a.tsf.gz", b"@attribute n numeric\n@data\n", b"1:1\n"), load_series),
    "tsf.gz of times": (
        text(
            "a.tsf.gz",
            b"@attribute start date\n@frequency daily\n@data\n",
            b"2024-01-01 00-00-00:1\n",
        ),
        load_series,
    ),
    "jodie.gz": (text("a.csv.gz", b"", b"1 1 1\n"), load_events),
    "xlsx, a wide row": (lambda folder: sheet(folder, ["A1", "XFD2", "A400"]), load_series),
    "xlsx, a low row": (lambda folder: sheet(folder, ["A1", "A1000000"]), load_series),
}


@pytest.mark.parametrize("kind", FILES)
def test_small_files_that_unpack_to_much_are_refused(tmp_path, monkeypatch, kind):
    write, load = FILES[kind]
    path = write(tmp_path)
    monkeypatch.setattr(unpacking, "MAX_UNPACKED_BYTES", LIMIT)
    monkeypatch.setattr(unpacking, "MAX_RATIO", 1)
    tracemalloc.start()
    try:
        with pytest.raises(UnpackedSizeError, match=r"expected at most .* unpacked from .*; ") as e:
            load(path)
        assert tracemalloc.get_traced_memory()[1] < 12 * LIMIT  # xz alone takes 8
    finally:
        tracemalloc.stop()
    assert str(e.value).startswith(str(path))


SMALL = {
    *("png", "npz of int8", "xlsx, a wide row", "xlsx, a low row"),
    "parquet with a false count",  # PyArrow reads one page of a row group, of 20,000 rows
}
"""Kinds that the limits of the package allow."""
WRITE = """
import pathlib, sys
from tests.data.files import test_unpacking
test_unpacking.SIZE = int(sys.argv[3])
print(test_unpacking.FILES[sys.argv[1]][0](pathlib.Path(sys.argv[2])))
"""
READ = """
import pathlib, resource, sys
from tests.data.files import test_unpacking
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    test_unpacking.FILES[sys.argv[1]][1](pathlib.Path(sys.argv[2]))
except test_unpacking.UnpackedSizeError:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in FILES if kind not in SMALL])
def test_files_beyond_the_limits_take_less_than_a_gigabyte(tmp_path, kind):
    """Of memory, before they are refused; each takes at most a few megabytes on the disk."""
    is_text = kind.partition(" ")[0] in ("csv.gz", "csv.xz", "ts.gz", "tsf.gz", "jodie.gz")
    size = 2**28 if is_text else 2**30 + 2**28

    def run(program, *arguments):
        command = [sys.executable, "-c", program, kind, *map(str, arguments)]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    path = run(WRITE, tmp_path, size)
    assert int(run(READ, path)) < 2**20  # kilobytes


def test_the_largest_ratio_of_a_file_counts_from_a_gigabyte_on():
    limit = unpacking.max_unpacked_bytes
    assert limit(10**6) == 2**30
    assert limit(10**6, unpacking.TEXT_EXPANSION) == 2**27
    assert limit(10**9) == limit(10**9, unpacking.TEXT_EXPANSION) == 10**11


def test_arrays_without_compression_may_take_any_size(tmp_path, monkeypatch):
    monkeypatch.setattr(unpacking, "MAX_UNPACKED_BYTES", 0)
    np.savez(tmp_path / "a.npz", times=np.arange(100, dtype=np.int8), lengths=[100])
    assert load_events(tmp_path / "a.npz").num_events == 100
