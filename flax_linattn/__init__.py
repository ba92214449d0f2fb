"""Attention for JAX and Flax that trains in parallel and runs as a recurrent network."""

__version__ = "0.1.0"

__all__ = ["__version__"]
