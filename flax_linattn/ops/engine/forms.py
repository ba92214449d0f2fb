"""The one place where ``form="auto"`` is decided."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax

PARALLEL_LENGTH = 256
"""Longest sequence that a streaming mechanism scans as one block.

Beyond it a scan's gradient needs several times the memory of the chunks' (3 times at 4,096
tokens, 8 heads of 16 a row, on a CPU) at the same speed."""

PRODUCTS_LENGTH = 128
"""Longest sequence that a gated mechanism, whose chunks are T x T products, works off as one block.

On a CPU, with 8 heads of 64, that trained up to 1.4 times as fast as chunks at 128 tokens; at 256
chunks were as fast or faster, up to 3 times forward in 8 rows, with a third of the memory."""

PARALLEL_FLOATS = 1 << 24
"""Most numbers that the tokens of a streaming mechanism may lift to in one block: 64 MiB in
float32, a few times that in a gradient."""

PARALLEL_SCORES = 1 << 20
"""Most scores that a cache mechanism materialises at once: 4 MiB in float32. On a CPU blocks were
as fast up to there, and faster beyond."""

BLOCK_SCORES = {
    "forward": {"cpu": 1 << 21, "accelerator": 1 << 24},
    "backward": {"cpu": 1 << 20, "accelerator": 1 << 24},
}
"""Most scores of a block of queries and keys, for each pass. On a CPU, with 8 heads, blocks of
512 x 512 were 1.4 times as fast as 256 x 256 forward at 4,096 tokens, and slower backward, which
holds four of them. Accelerators work blocks off in parallel: fewer and larger ones (64 MiB in
float32), not measured yet."""


def choose_form(kind: str, num_queries: int, num_keys: int, size: int = 1) -> str:
    """Chooses the form that ``form="auto"`` stands for, on every platform alike.

    Args:
        kind: "streaming" (a state of constant size) or "cache" (keys and values kept).
        num_queries: T.
        num_keys: S, cached tokens included.
        size: numbers in all rows of the batch: streaming, those that a token lifts to; cache,
            the scores of a pair of a query and a key (B * H, times K where channels have their
            own). One that is symbolic, as in an export for any batch, counts as large.

    Returns:
        "parallel" or "chunked".

    Example:
        >>> choose_form("streaming", 29, 29), choose_form("streaming", 4096, 4096)
        ('parallel', 'chunked')
    """
    if kind == "streaming":
        length = max(num_queries, num_keys)
        fits = length <= PARALLEL_LENGTH and _at_most(size * length, PARALLEL_FLOATS)
    else:
        fits = _at_most(size * num_queries * num_keys, PARALLEL_SCORES)
    return "parallel" if fits else "chunked"


def _at_most(number: Any, most: int) -> bool:
    return isinstance(number, int) and number <= most


CACHED_FEATURES = 1 << 20
"""Most features of a chunk that kernel mechanisms make at once on a CPU: 4 MiB in float32. Beyond,
TaylorShift of 64 channels was 1.6 times as fast with one head after another."""


def block_sizes(rows: Any, most: int, length: int) -> dict[str, dict[str, int]]:
    """Queries a block, or keys, for each pass and platform: of few enough scores.

    Args:
        rows: batches times heads; 64 is assumed where it is not known yet, in symbolic shapes.
        most: queries a block at most.
        length: T; T, filled up to a multiple of the largest size, is one of every size.

    Example:
        >>> sizes = block_sizes(8, 512, 4096)
        >>> sizes["forward"], sizes["backward"]
        ({'cpu': 512, 'accelerator': 512}, {'cpu': 256, 'accelerator': 512})
        >>> block_sizes(8, 512, 100)["forward"]
        {'cpu': 100, 'accelerator': 100}
    """
    rows = rows if isinstance(rows, int) else 64
    least = min(limit for limits in BLOCK_SCORES.values() for limit in limits.values())

    def grow(size: int, limit: int, filling: float) -> int:
        while 2 * size <= most and rows * (2 * size) ** 2 <= limit:
            if -length % (2 * size) > filling:
                break
            size *= 2
        return size

    smallest = min(grow(min(32, most), least, math.inf), length)
    # Larger blocks are not worth more than an eighth of filling.
    return {
        which: {platform: grow(smallest, limit, length / 8) for platform, limit in limits.items()}
        for which, limits in BLOCK_SCORES.items()
    }


TILE = {"cpu": 32, "accelerator": 64}
"""Tokens a tile where all tiles are worked off at once."""

SCANS = {
    "exponential": {
        "inference": {"cpu": "recurrent", "accelerator": "parallel"},
        "forward": {"cpu": "recurrent", "accelerator": "parallel"},
        "backward": {"cpu": "recurrent", "accelerator": "parallel"},
    },
    "series": {
        "inference": {"cpu": "recurrent", "accelerator": "parallel"},
        "forward": {"cpu": "recurrent", "accelerator": "parallel"},
        "backward": {"cpu": "recurrent", "accelerator": "parallel"},
    },
    "chunks": {"inference": {"cpu": "recurrent", "accelerator": "chunked"}},
    "channels": {"inference": {"cpu": "recurrent", "accelerator": "parallel"}},
}
"""What ``auto`` stands for in scans with a gradient of their own, for each pass: the only one of
inference, and the two of training where they have a choice. On CPUs loops over tokens in place are
as fast as tiles or faster, and need no memory; an accelerator would launch a kernel for each token.
"chunks" are those of gated mechanisms, whose loop was 2 to 3 times as fast forward on one core, of
short sequences too, and slower to train; "channels" those of RWKV, whose loop reads each state as
it comes."""


def scan_form(
    scan: str,
    which: str,
    form: str,
    functions: Mapping[str, Callable[..., Any]],
    chunk_size: int,
) -> Callable[..., Any]:
    """The function of a scan's pass; for "auto" one that chooses by platform when it is compiled.

    Args:
        scan: a key of ``SCANS``.
        which: the pass, a key of that.
        form: "parallel", "chunked", "recurrent" or "auto".
        functions: for each form a function of the tokens a tile, and of arrays.
        chunk_size: most tokens a tile.
    """

    def chosen_form(name: str, platform: str) -> Callable[..., Any]:
        size = min(chunk_size, TILE[platform]) if name == "parallel" else chunk_size
        return partial(functions[name], size)

    if form != "auto":
        return chosen_form(form, "cpu")
    chosen = {
        platform: chosen_form(name, platform) for platform, name in SCANS[scan][which].items()
    }
    return partial(jax.lax.platform_dependent, cpu=chosen["cpu"], default=chosen["accelerator"])
