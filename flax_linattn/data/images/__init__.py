"""Labeled images and readers of their files: CIFAR-10, MNIST, one folder per class."""

from flax_linattn.data.images.batches import ImageBatches, shift_and_flip
from flax_linattn.data.images.images import LabeledImages
from flax_linattn.data.images.load import load_images

__all__ = [
    "ImageBatches",
    "LabeledImages",
    "load_images",
    "shift_and_flip",
]
