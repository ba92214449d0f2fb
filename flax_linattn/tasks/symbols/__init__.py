"""Symbols: the next one of a series (the expressive-attention paper's ladder), and recall."""

from flax_linattn.tasks.symbols.data import SymbolsSpec
from flax_linattn.tasks.symbols.options import (
    SymbolsConfig,
    SymbolsData,
    SymbolsFit,
    SymbolsModel,
    recall,
)
from flax_linattn.tasks.symbols.stream import SymbolsStream, SymbolsStreamOptions

__all__ = [
    "SymbolsConfig",
    "SymbolsData",
    "SymbolsFit",
    "SymbolsModel",
    "SymbolsSpec",
    "SymbolsStream",
    "SymbolsStreamOptions",
    "recall",
]
