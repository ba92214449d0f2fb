"""Random changes of training pictures, as DeiT's and for small pictures, and batches of them.

A changed picture depends on nothing but the seed, the epoch and the example, so that a resumed run
sees the same ones. Pillow computes the operations, as it does in timm, whose values we follow:
dm-pix lacks most of RandAugment's and compiles a program for each size of crop, grain has none, and
albumentations, no longer maintained, would bring OpenCV and SciPy with it.
"""

from flax_linattn.data.augment.augmentation import DEIT, LIGHT, NONE, Augmentation
from flax_linattn.data.augment.batches import IMAGENET_MEAN, IMAGENET_STD, ImageBatches
from flax_linattn.data.augment.mix import Mix

__all__ = [
    "DEIT",
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "LIGHT",
    "NONE",
    "Augmentation",
    "ImageBatches",
    "Mix",
]
