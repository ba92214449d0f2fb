"""Loading of images, with the format inferred from the folder or archive."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from flax_linattn.checks import check_integers
from flax_linattn.data.errors import DataFormatError
from flax_linattn.data.files.file_tree import FileTree
from flax_linattn.data.images.cifar10 import has_cifar10, read_cifar10
from flax_linattn.data.images.decode import MAX_SIDE, decode_images
from flax_linattn.data.images.folders import find_image_folders
from flax_linattn.data.images.idx import has_idx, read_idx
from flax_linattn.data.images.images import LabeledImages


def load_images(
    path: str | Path, *, size: int | None = None
) -> tuple[LabeledImages, LabeledImages]:
    """Loads training and test images; the format is inferred from the files.

    - ``data_batch_*.bin`` and ``test_batch.bin``: CIFAR-10's binary version;
    - ``data_batch_*`` and ``test_batch``: its Python version, whose pickles cannot execute code;
    - ``{train,t10k}-{images-idx3,labels-idx1}-ubyte``, plain or ``.gz``: MNIST, Fashion-MNIST;
    - ``train/CLASS`` and ``val/val_annotations.txt``: Tiny ImageNet, tested on ``val``, since its
      official test images have no labels;
    - ``train/CLASS`` with ``test/CLASS``, ``val/CLASS``, ``valid/CLASS`` or ``validation/CLASS``:
      image files at any depth below, tested on the first of these that has the classes.

    These files may be in a folder, at its top or below, or in a ``.tar``, ``.tar.gz``, ``.tar.xz``
    or ``.zip``, which is read without unpacking to disk. Image files are converted to RGB, turned
    upright by their EXIF metadata, and sorted by class and name. Hidden files are skipped, and so
    are other files, which ``notes`` count.

    Args:
        path: The folder or the archive.
        size: Height and width of the loaded images: the shorter side of image files is resized to
            it (bicubic), and the center is cropped. None if all images have the same shape.

    Returns:
        Training set and test set, with the same classes.

    Raises:
        FileNotFoundError: If ``path`` does not exist.
        OptionError: If the size is out of range.
        ValueError: If Pillow is needed and not installed.
        DataFormatError: If there are no such files, one is damaged or has another shape than the
            first, or all of them take more than 8 GiB.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> folder = Path(tempfile.mkdtemp())
        >>> for name in ("train/cat/1.png", "train/dog/1.png", "test/cat/2.png", "test/dog/2.png"):
        ...     (folder / name).parent.mkdir(parents=True)
        ...     Image.new("RGB", (6, 4)).save(folder / name)
        >>> train, test = load_images(folder, size=4)
        >>> train.classes, train.labels.tolist(), test.image_shape
        (('cat', 'dog'), [0, 1], (4, 4, 3))
    """
    check_integers(1, MAX_SIDE, size=size)
    tree = FileTree(path)
    if has_cifar10(tree) or has_idx(tree):
        train, test = read_cifar10(tree) if has_cifar10(tree) else read_idx(tree)
        height, width, _ = train.image_shape
        if size not in (None, height) or size not in (None, width):
            raise DataFormatError(
                f"{tree.path}: the data set has {height} x {width} pixels, so size must be "
                f"None or {height}, got {size}; omit size",
                "size",
            )
        return train, test
    folders = find_image_folders(tree)
    pixels, notes = decode_images(tree, [*folders.train.names, *folders.test.names], size)
    middle = len(folders.train.names)
    notes = (*folders.notes, *notes)
    train, test = (
        LabeledImages(tree.name, folders.classes, np.array(split.labels, np.int32), part, notes)
        for split, part in ((folders.train, pixels[:middle]), (folders.test, pixels[middle:]))
    )
    return train, test
