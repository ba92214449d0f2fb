"""Attention for JAX and Flax that trains in parallel and runs as a recurrent network."""

from flax_linattn import _moved

__version__ = "0.1.0"

__all__ = ["__version__"]

_moved.install()
