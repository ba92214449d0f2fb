"""Attention for JAX and Flax that trains in parallel and runs as a recurrent network."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = ["__version__"]

if not TYPE_CHECKING:  # type checkers resolve packages themselves and report unknown names

    def __getattr__(name: str) -> Any:
        """Imports a package on first use, as in ``flax_linattn.ops``."""
        from flax_linattn.lazy import import_submodule

        return import_submodule(__name__, name)
