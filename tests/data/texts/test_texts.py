"""Labeled texts and their trees: what is read is what was written."""

import numpy as np
import pytest

from flax_linattn.data.errors import DataFormatError
from flax_linattn.data.texts import LabeledTexts, load_texts, texts
from tests.data.images.samples import write_texts
from tests.data.images.test_load_images import packed


def toy(texts=(b"good", b"bad"), labels=(1, 0), classes=("neg", "pos")):
    return LabeledTexts("toy", classes, np.array(labels, np.int32), texts)


def test_texts_are_the_bytes_of_the_files_by_class_and_name(tmp_path):
    folder = write_texts(tmp_path / "aclImdb", per_class=12, unsup=3)
    odd = "caf\u00e9 \x00\r\n<br />".encode() + b"\xff"
    (folder / "train" / "pos" / "3_2.txt").write_bytes(odd)
    (folder / "train" / "urls_pos.txt").write_text("beside")
    (folder / "train" / "labeledBow.feat").write_text("0 1:2")
    (folder / "README").write_text("told")
    train, test = load_texts(folder)
    assert train.name == "aclImdb" and train.classes == test.classes == ("neg", "pos")
    assert train.notes == (
        "the texts of unsup, which have no labels, are left out",
        "texts outside of the folders of classes, left out: 1",
        "files that are no texts, left out: 2",
    )
    for part, found in (("train", train), ("test", test)):
        paths = [
            path for name in ("neg", "pos") for path in sorted((folder / part / name).iterdir())
        ]
        assert list(found.texts) == [path.read_bytes() for path in paths]
        assert [found.classes[label] for label in found.labels] == [p.parent.name for p in paths]
    assert odd in train.texts
    for kind in ("tar", "tar.gz", "tar.xz", "zip"):
        again = load_texts(packed(folder, kind))
        assert again[0].texts == train.texts and again[1].texts == test.texts
        assert again[0].notes == train.notes and again[0].labels.tolist() == train.labels.tolist()


def test_trees_that_are_refused(tmp_path, monkeypatch):
    folder = write_texts(tmp_path / "a")
    (folder / "test" / "neg" / "0_1.txt").write_bytes(b"")
    with pytest.raises(DataFormatError, match=r"0_1\.txt: expected a text of at least a byte, got"):
        load_texts(folder)
    (folder / "test" / "neg" / "0_1.txt").unlink()
    monkeypatch.setattr(texts, "MAX_BYTES", 10)
    with pytest.raises(DataFormatError, match="expected texts of at most 10 bytes, got"):
        load_texts(folder)
    with pytest.raises(DataFormatError, match="expected texts in folders train/CLASS"):
        load_texts(folder / "train")
    with pytest.raises(FileNotFoundError, match="expected a folder or an archive"):
        load_texts(tmp_path / "none")


def test_parts():
    texts = toy((b"good", b"bad", b"odd"), (1, 0, 0))
    assert texts.num_examples == 3 and texts.lengths.tolist() == [4, 3, 3]
    part = texts.subset([-1, 0])
    assert part.texts == (b"odd", b"good") and part.labels.tolist() == [0, 1]
    assert texts.subset(np.array([False, True, False])).texts == (b"bad",)
    assert texts.map(bytes.upper).texts == (b"GOOD", b"BAD", b"ODD")
    with pytest.raises(IndexError):
        texts.subset([3])


@pytest.mark.parametrize(
    ("texts", "options", "error", "message"),
    [
        ((b"a",), {}, ValueError, r"expected labels int32 \[1\]"),
        ((b"a", b""), {}, ValueError, "expected texts of at least a byte, got none in text 1"),
        ((b"a", "b"), {}, TypeError, "expected text 1 as bytes, got str; encode it"),
        ((b"a", b"b"), {"labels": (0, 2)}, ValueError, r"expected labels in 0\.\.1"),
        ((b"a", b"b"), {"classes": ("pos", "neg")}, ValueError, "in sorted order"),
    ],
)
def test_parts_that_do_not_go_together_are_refused(texts, options, error, message):
    with pytest.raises(error, match=message):
        toy(texts, **options)


@pytest.mark.slow
def test_imdb(data_dir):
    """The official numbers, and the longest review of each part."""
    train, test = load_texts(data_dir / "imdb" / "aclImdb_labeled.tar.xz")
    for found in (train, test):
        assert found.classes == ("neg", "pos") and found.notes == ()
        assert np.bincount(found.labels).tolist() == [12_500, 12_500]
    assert [int(x.lengths.max()) for x in (train, test)] == [13_704, 12_988]
    assert [int(x.lengths.sum()) for x in (train, test)] == [33_132_823, 32_350_685]
    assert train.texts[12_500].startswith(b"Bromwell High is a cartoon comedy.")
