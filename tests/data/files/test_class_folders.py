"""Which files are of which class, of training and of test."""

import pytest

from flax_linattn.data.errors import DataFormatError
from flax_linattn.data.files.class_folders import find_class_folders
from flax_linattn.data.files.file_tree import FileTree


def found(tmp_path, names, **options):
    for name in names:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    tree = FileTree(tmp_path)
    return find_class_folders(tree, lambda name: name.endswith(".txt"), "texts", **options)


def test_files_are_sorted_by_class_then_name(tmp_path):
    names = ["train/b/1.txt", "train/a/2.txt", "train/a/deep/1.txt", "train/a/x.csv"]
    folders = found(tmp_path, [*names, "train/0.txt", "test/a/1.txt", "test/b/1.txt"])
    assert folders.classes == ("a", "b")
    assert folders.train.names == ("train/a/2.txt", "train/a/deep/1.txt", "train/b/1.txt")
    assert folders.train.labels == (0, 0, 1) and folders.test.labels == (0, 1)
    assert folders.notes == (
        "texts outside of the folders of classes, left out: 1",
        "files that are no texts, left out: 1",
    )


def test_classes_that_are_numbers_are_in_their_order(tmp_path):
    folders = found(tmp_path, [f"{part}/{n}/1.txt" for part in ("train", "test") for n in (10, 9)])
    assert folders.classes == ("9", "10") and folders.train.names[0] == "train/9/1.txt"


@pytest.mark.parametrize("top", ["", "set/", "a/b/"])
def test_the_tree_may_stand_below(top, tmp_path):
    names = [f"{top}{part}/{label}/1.txt" for part in ("train", "test") for label in "ab"]
    folders = found(tmp_path, [*names, "other/readme.txt", f"{top}train/a/train/2.txt"])
    assert folders.train.names[0] == f"{top}train/a/1.txt" and len(folders.train.names) == 3


def test_what_is_tested_on(tmp_path):
    names = [f"{part}/{label}/1.txt" for part in ("train", "val", "validation") for label in "ab"]
    folders = found(tmp_path, [*names, "test/all/1.txt"])  # which has no classes
    assert folders.test.names == ("val/a/1.txt", "val/b/1.txt")
    assert folders.notes == (
        "tested on the texts of val",
        *("the texts of test are left out", "the texts of validation are left out"),
    )
    folders = found(tmp_path, ["test/a/1.txt"], no_class={"all": "all is left out"})
    assert folders.test.names == ("test/a/1.txt",)
    assert folders.notes[:3] == (
        *("all is left out", "the texts of val are left out"),
        "the texts of validation are left out",
    )
    assert folders.notes[3] == "no texts of b to test on"


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "expected texts in folders train/CLASS and test/CLASS .*, got none"),
        (["a/1.txt", "b/1.txt"], "got a/1.txt, b/1.txt; name the folders so"),
        (["x/train/a/1.txt", "y/train/a/1.txt"], "got several: x/, y/; "),
        (["train/a/1.txt"], "train: expected texts to test on"),
        (["train/a/1.txt", "test/b/1.txt"], "test: expected the classes of train, got b besides"),
        (["a.tar.gz"], "got none; name .* data set, or of an archive, such as a.tar.gz"),
        (["train/1.txt"], "train: expected a folder for each class"),
    ],
)
def test_other_trees_are_refused(names, message, tmp_path):
    with pytest.raises(DataFormatError, match=message) as caught:
        found(tmp_path, names)
    assert str(caught.value).startswith(str(tmp_path))
