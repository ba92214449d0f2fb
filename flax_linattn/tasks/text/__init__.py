"""Language models on text: training, bits per byte, generation, and scores of streamed text."""

from flax_linattn.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__)
