"""Data: official file formats, embedded and synthetic data sets, transforms, splits, batches."""

from flax_linattn.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__)
