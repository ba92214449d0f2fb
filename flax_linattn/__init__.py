"""Attention for JAX and Flax that trains in parallel and runs as a recurrent network."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = ["__version__"]

if not TYPE_CHECKING:  # checkers know the packages, and report any other name

    def __getattr__(name: str) -> Any:
        """Imports a package on its first use: ``import flax_linattn``, ``flax_linattn.ops``."""
        from flax_linattn.lazy import import_submodule

        return import_submodule(__name__, name)
