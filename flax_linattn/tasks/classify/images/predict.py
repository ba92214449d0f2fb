"""What a classifier of images says of those whose classes are not known."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from flax_linattn.data.file_tree import FileTree
from flax_linattn.data.images import ImageBatches, LabelledImages
from flax_linattn.data.images.decode import decode_images, is_image
from flax_linattn.tasks.classify.images.model import logits_of
from flax_linattn.tasks.classify.predictions import class_table, probabilities_of
from flax_linattn.tasks.predicted import Table
from flax_linattn.tasks.run_types import Run


def predict(run: Run, file: Path | None) -> Table:
    """A row an image: of a file, of all below a folder or in an archive, by name.

    Without any, or where the folder holds an official format, those that are tested on.

    Raises:
        ValueError: a damaged file, or one of another shape than the run was trained on.
        FileNotFoundError: there is nothing.
    """
    classes = run.problem.classes
    names = [] if file is None else _images_of(file)
    if file is None or not names:
        batches = run.task.test_batches(run, file)
        return class_table(probabilities_of(run.model, batches, logits_of), classes)
    images = _read(run, file, names)
    batches = ImageBatches(
        images,
        run.config.fit.batch_size,
        seed=None,
        mean=run.problem.mean,
        std=run.problem.deviation,
    )
    return class_table(probabilities_of(run.model, batches, logits_of), classes, names)


def _images_of(file: Path) -> list[str]:
    if file.is_file() and is_image(file.name):
        return [file.name]
    return sorted(name for name in FileTree(file).sizes if is_image(name))


def _read(run: Run, file: Path, names: list[str]) -> LabelledImages:
    """Brought to the run's size, where it has one."""
    tree = FileTree(file.parent if file.is_file() and is_image(file.name) else file)
    shape = run.problem.image_shape
    size = run.config.data.image_size or None
    pixels, _ = decode_images(tree, names, size, mode="L" if shape[2] == 1 else "RGB")
    if pixels.shape[1:] != shape:
        raise ValueError(
            f"{file}: expected images of {' x '.join(map(str, shape))}, as the run was trained "
            f"on, got {' x '.join(map(str, pixels.shape[1:]))}; bring them to that size."
        )
    labels = np.zeros(len(names), np.int32)
    return LabelledImages(tree.name, run.problem.classes, labels, pixels)
