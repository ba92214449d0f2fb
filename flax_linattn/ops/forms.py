"""The one place where ``form="auto"`` is decided."""

from __future__ import annotations

PARALLEL_LENGTH = 256
"""Longest sequence that a streaming mechanism scans as one block.

Beyond it a scan's gradient needs several times the memory of the chunks' (3 times at 4,096
tokens, 8 heads of 16 a row, on a CPU) at the same speed."""

PARALLEL_SCORES = 1 << 26
"""Most scores that a cache mechanism materialises at once: 256 MiB in float32."""


def choose_form(kind: str, num_queries: int, num_keys: int, scores: int = 1) -> str:
    """Chooses the form that ``form="auto"`` stands for, on every platform alike.

    Args:
        kind: "streaming" (a state of constant size) or "cache" (keys and values kept).
        num_queries: T.
        num_keys: S, cached tokens included.
        scores: of each pair of a query and a key: B * H, times K where channels have their own.

    Returns:
        "parallel" or "chunked".

    Example:
        >>> choose_form("streaming", 29, 29), choose_form("streaming", 4096, 4096)
        ('parallel', 'chunked')
    """
    if kind == "streaming":
        return "parallel" if num_keys <= PARALLEL_LENGTH else "chunked"
    return "parallel" if scores * num_queries * num_keys <= PARALLEL_SCORES else "chunked"
