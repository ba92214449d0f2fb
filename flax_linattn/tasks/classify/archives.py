"""Folders and archives of examples with classes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flax_linattn.checks import OptionError
from flax_linattn.data.file_tree import FileTree
from flax_linattn.data.images import LabelledImages, load_images
from flax_linattn.data.images.decode import is_image


def data_path(path: Path) -> Path:
    """The path, or the only file of a folder, as ``data fetch`` leaves an archive.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / "texts.tar.gz").write_bytes(b"")
        >>> data_path(folder).name
        'texts.tar.gz'
    """
    if not path.is_dir():
        return path
    inside = [entry for entry in path.iterdir() if not entry.name.startswith(".")]
    return inside[0] if len(inside) == 1 and inside[0].is_file() else path


def read_images(path: Path, image_size: int) -> tuple[LabelledImages, LabelledImages]:
    """Images to learn from and to test on, of two classes or more.

    Args:
        path: the folder or archive.
        image_size: height and width that they are brought to; 0 = as they are.

    Raises:
        ValueError: a damaged file, images of several shapes, or a single class.
        FileNotFoundError: there is nothing.
    """
    try:
        train, test = load_images(data_path(path), size=image_size or None)
    except OptionError as error:
        if "size" not in error.options:
            raise
        raise OptionError(str(error), "image_size") from error
    check_classes(path, train.classes)
    return train, test


def check_classes(path: Path, classes: Sequence[str]) -> None:
    """Refuses a single class.

    Raises:
        ValueError: there is nothing to tell apart.
    """
    if len(classes) < 2:
        raise ValueError(
            f"{path}: expected at least two classes to tell apart, got {', '.join(classes)}; add "
            "folders of others."
        )


def holds_texts(path: Path) -> bool:
    """Whether texts lie below a folder named train, and no images."""
    train = [n for n in FileTree(path).sizes if "train" in n.lower().split("/")[:-1]]
    return any(n.lower().endswith(".txt") for n in train) and not any(map(is_image, train))
