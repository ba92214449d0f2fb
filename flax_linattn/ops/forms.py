"""The one place where ``form="auto"`` is decided."""

from __future__ import annotations

PARALLEL_LENGTH = 256
"""Longest sequence that a streaming mechanism scans as one block.

A scan's memory and compile time grow with its length; those of a chunk do not."""

PARALLEL_SCORES = 1 << 20
"""Most scores per batch item and head that a cache mechanism materialises at once."""


def choose_form(kind: str, num_queries: int, num_keys: int) -> str:
    """Chooses the form that ``form="auto"`` stands for.

    Args:
        kind: "streaming" (a state of constant size) or "cache" (keys and values kept).
        num_queries: T.
        num_keys: S, cached tokens included.

    Returns:
        "parallel" or "chunked".

    Example:
        >>> choose_form("streaming", 29, 29), choose_form("streaming", 4096, 4096)
        ('parallel', 'chunked')
    """
    if kind == "streaming":
        return "parallel" if num_keys <= PARALLEL_LENGTH else "chunked"
    return "parallel" if num_queries * num_keys <= PARALLEL_SCORES else "chunked"
