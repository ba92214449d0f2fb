"""Labelled images, and the official files that hold them: CIFAR-10, MNIST, folders of classes."""

from flax_linattn.data.images.batches import ImageBatches, shift_and_flip
from flax_linattn.data.images.images import LabelledImages
from flax_linattn.data.images.load import load_images
from flax_linattn.data.images.pathfinder import Difficulty, load_pathfinder

__all__ = [
    "Difficulty",
    "ImageBatches",
    "LabelledImages",
    "load_images",
    "load_pathfinder",
    "shift_and_flip",
]
