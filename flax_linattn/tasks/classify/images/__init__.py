"""Classes of images, by a vision transformer: files of your own, or drawn ones."""

from flax_linattn.tasks.classify.images.data import ImageProblem
from flax_linattn.tasks.classify.images.options import (
    ImageConfig,
    ImageData,
    ImageFit,
    ImageModel,
)
from flax_linattn.tasks.classify.images.task import ImageTask

__all__ = ["ImageConfig", "ImageData", "ImageFit", "ImageModel", "ImageProblem", "ImageTask"]
