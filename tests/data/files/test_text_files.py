"""Reading lines: compression, damage, encodings, missing files."""

import gzip
import lzma
import re
import tracemalloc

import pytest

from flax_linattn.data import DataFormatError
from flax_linattn.data.files import text_files
from flax_linattn.data.files.text_files import LineReader

TEXT = "first\nsecond \u00e9\n"
WRITERS = {"a.txt": bytes, "a.txt.gz": gzip.compress, "a.txt.xz": lzma.compress}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *((name, write(TEXT.encode())) for name, write in WRITERS.items()),
        ("a.csv", gzip.compress(TEXT.encode())),
        ("a.csv", TEXT.encode("utf-16")),
        ("a.csv", b"\xef\xbb\xbf" * 2 + TEXT.encode()),  # as some editors put another one first
    ],
    ids=["plain", "gzip", "xz", "gzip by its content", "utf-16", "two byte-order marks"],
)
def test_lines_are_the_same_in_any_form(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    with LineReader(path) as reader:
        assert list(reader) == ["first", "second \u00e9"]
        assert (reader.line, reader.terminated) == (2, True)


@pytest.mark.parametrize("name", ["a.txt.gz", "a.txt.xz"])
def test_every_truncation_of_a_compressed_file_is_refused(tmp_path, name):
    path = tmp_path / name
    whole = WRITERS[name](TEXT.encode())
    for size in range(1, len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(DataFormatError) as caught, LineReader(path) as reader:
            list(reader)
        assert re.match(rf"{re.escape(str(path))}:[123]: ", str(caught.value))
        assert "damaged or truncated" in str(caught.value)
        assert "fetch the file again" in str(caught.value)


@pytest.mark.parametrize("name", ["a.txt.gz", "a.txt.xz"])
def test_damage_inside_a_compressed_file_is_refused(tmp_path, name):
    path = tmp_path / name
    damaged = bytearray(WRITERS[name](TEXT.encode()))
    damaged[len(damaged) // 2] ^= 0xFF
    path.write_bytes(damaged)
    with LineReader(path) as reader, pytest.raises(DataFormatError, match="damaged or truncated"):
        list(reader)


def test_plain_text_under_a_compressed_name_is_refused(tmp_path):
    path = tmp_path / "a.ts.gz"
    path.write_text(TEXT, encoding="utf-8")
    with pytest.raises(DataFormatError, match=r"a whole \.gz stream.*leave out the suffix"):
        LineReader(path)


def test_a_nul_byte_is_no_text(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b"a,b\n1,\x002\n")
    with LineReader(path) as reader, pytest.raises(DataFormatError, match=r"csv:2: .* a NUL byte"):
        list(reader)


@pytest.mark.parametrize("name", WRITERS)
def test_a_line_without_end_is_not_read_whole(tmp_path, name, monkeypatch):
    monkeypatch.setattr(text_files, "MAX_LINE_LENGTH", 2**16)
    path = tmp_path / name
    path.write_bytes(WRITERS[name](b"a,b\n" + b"1" * 2**16 + b"\n" + b"1" * 2**25))
    tracemalloc.start()
    try:
        with LineReader(path) as reader:
            assert next(reader) == "a,b"
            with pytest.raises(DataFormatError, match=r":2: expected lines of at most 65,536 char"):
                list(reader)
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()


def test_line_ends_byte_order_mark_and_latin_1(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbffirst\r\ncaf\xe9")
    with LineReader(path) as reader:
        assert list(reader) == ["first", "caf\\xe9"]
        assert not reader.terminated


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"found nothing there; check the path") as caught:
        LineReader(tmp_path / "none.ts")
    assert str(tmp_path / "none.ts") in str(caught.value)
    with pytest.raises(FileNotFoundError, match="found a folder there"):
        LineReader(tmp_path)
