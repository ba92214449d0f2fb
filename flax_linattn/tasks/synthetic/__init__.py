"""Synthetic sequence tasks: next symbol of a series (expressive-attention paper), recall."""

from flax_linattn.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__)
