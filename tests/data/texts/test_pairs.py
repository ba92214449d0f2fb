"""Pairs of texts: Long Range Arena's files of papers."""

import gzip
import lzma

import pytest

from flax_linattn.data.files import DataFormatError
from flax_linattn.data.texts import load_pairs, pairs

LINES = (
    b'1.0\tP05-1018\tN04-1015\tOn "trees"\tcaf\xc3\xa9 \xff\n'
    b"0.0\tN04-1015\tP99-0001\tcaf\xc3\xa9 \xff\tOn \\n graphs\r\n"
    b'1\tP99-0001\tP05-1018\tOn \\n graphs\tOn "trees"'
)


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_pairs_are_the_bytes_of_the_file(suffix, tmp_path):
    path = tmp_path / f"new_aan_pairs.train.tsv{suffix}"
    wrap = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}[suffix]
    path.write_bytes(wrap(LINES))
    found = load_pairs(path)
    assert found.name == "new_aan_pairs.train" and found.classes == ("apart", "linked")
    assert found.labels.tolist() == [1, 0, 1] and found.num_examples == 3
    assert found.first == (b'On "trees"', b"caf\xc3\xa9 \xff", b"On \\n graphs")
    assert found.second == (b"caf\xc3\xa9 \xff", b"On \\n graphs", b'On "trees"')
    assert found.ids[0] == ("P05-1018", "N04-1015")
    assert found.first[0] is found.second[2]  # in memory once


def test_where_the_label_is_in_quotation_marks_all_cells_are(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_bytes(b'"0.0"\t"A"\t"B"\t"said ""yes"""\t"one"\n1.0\tA\tB\t"one"\ttwo\n')
    found = load_pairs(path)
    assert found.labels.tolist() == [0, 1] and found.ids == (("A", "B"), ("A", "B"))
    assert found.first == (b'said "yes"', b'"one"') and found.second == (b"one", b"two")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", ":1: expected a line for each pair, got none"),
        (b"1.0\tA\tB\ttext\n", ":1: expected a label, two names and two texts .* got 4 cells"),
        (b"1.0\tA\tB\tx\ty\n\n2.0\tA\tB\tx\ty\n", ":3: expected a label 0.0 or 1.0, got '2.0'"),
        (b"label\tA\tB\tx\ty\n", ":1: expected a label 0.0 or 1.0, got 'label'"),
        (b"1.0\tA\tB\t\ty\n", ":1: expected two texts, got an empty one"),
        (gzip.compress(LINES, mtime=0)[:-9], ":.: expected a whole compressed stream"),
        (gzip.compress(LINES, mtime=0)[:-8] + b"\0" * 8, ":.: expected a whole compressed stream"),
    ],
)
def test_damaged_files_are_named(content, message, tmp_path):
    path = tmp_path / "a.tsv"
    path.write_bytes(content)
    with pytest.raises(DataFormatError, match=rf"a\.tsv{message}"):
        load_pairs(path)


def test_bounds(tmp_path, monkeypatch):
    path = tmp_path / "a.tsv"
    path.write_bytes(LINES)
    monkeypatch.setattr(pairs, "MOST_BYTES", 20)
    with pytest.raises(DataFormatError, match=":2: expected different texts of at most 20 bytes"):
        load_pairs(path)
    monkeypatch.setattr(pairs, "LONGEST_LINE", 10)
    with pytest.raises(DataFormatError, match=":1: expected lines of at most 10 bytes"):
        load_pairs(path)
    with pytest.raises(FileNotFoundError):
        load_pairs(tmp_path / "none.tsv")
