"""Labeled images, and the official files that hold them: CIFAR-10, MNIST, folders of classes."""

from flax_linattn.data.images.batches import ImageBatches, shift_and_flip
from flax_linattn.data.images.images import LabeledImages
from flax_linattn.data.images.load import load_images

__all__ = [
    "ImageBatches",
    "LabeledImages",
    "load_images",
    "shift_and_flip",
]
