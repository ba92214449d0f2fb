"""Attention for JAX and Flax that trains in parallel and runs as a recurrent network."""

from flax_linattn.lazy import attach_stub

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = attach_stub(__name__)
__all__ += ["__version__"]
