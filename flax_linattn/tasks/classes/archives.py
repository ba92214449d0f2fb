"""Folders and archives of examples with classes."""

from __future__ import annotations

from pathlib import Path

from flax_linattn.data.file_tree import FileTree
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


def holds_texts(path: Path) -> bool:
    """Whether texts lie below a folder named train, and no images."""
    train = [n for n in FileTree(path).sizes if "train" in n.lower().split("/")[:-1]]
    return any(n.lower().endswith(".txt") for n in train) and not any(map(is_image, train))
