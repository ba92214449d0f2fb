"""Models: a backbone of transformer blocks on an embedding, with task-specific heads."""

from flax_linattn.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__)
