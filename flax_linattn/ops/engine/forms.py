"""Choice of forms and block sizes: the one place where ``form="auto"`` is decided."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import jax

MAX_PARALLEL_LENGTH = 256
"""Longest sequence that a streaming mechanism scans as one block.

Beyond it a scan's gradient needs several times the memory of the chunks' (3 times at 4,096
tokens, 8 heads of 16 a row, on a CPU) at the same speed."""

MAX_ONE_CHUNK_LENGTH = 128
"""Longest sequence that a gated mechanism, whose chunks are T x T products, works off as one block.

On a CPU, with 8 heads of 64, that trained up to 1.4 times as fast as chunks at 128 tokens; at 256
chunks were as fast or faster, up to 3 times forward in 8 rows, with a third of the memory."""

MAX_PARALLEL_FLOATS = 1 << 24
"""Most numbers that the tokens of a streaming mechanism may lift to in one block: 64 MiB in
float32, a few times that in a gradient."""

MAX_PARALLEL_SCORES = {"scored": 1 << 18, "given": 1 << 20}
"""Most scores that a mechanism of a kind (``choose_form``) materializes at once: 4 MiB in float32
at most. On a CPU the blocks of scored attention were as fast up to there, and trained 1.7 times as
fast with four times the scores; external queries trained half as fast in blocks."""

MAX_BLOCK_SCORES = {"cpu": 1 << 17, "accelerator": 1 << 24}
"""Most scores of a block of queries and keys, of all its heads.

A CPU's second cache holds about a megabyte, and heads and batches are processed one after another
there: with heads of 16 or 64 blocks of 128 to 176 tokens trained 1.1 to 1.3 times as fast as those
of 256, and up to 2 times as fast as those of all batches. Accelerators work blocks off in parallel:
fewer and larger ones (64 MiB in float32), not measured yet."""

MAX_BLOCK_TOKENS = 176
"""Queries of a block on a CPU, and keys, where both are many."""


Choice = TypeVar("Choice")


class PerPlatform(NamedTuple, Generic[Choice]):
    """Pair of choices, one for CPUs and one for accelerators."""

    cpu: Choice
    accelerator: Choice

    def run(self, function: Callable[..., Any], *arrays: Any) -> Any:
        """Calls ``function(choice, *arrays)`` with the choice of the platform compiled for."""
        if self.cpu == self.accelerator:
            return function(self.cpu, *arrays)
        return jax.lax.platform_dependent(
            *arrays,
            cpu=partial(function, self.cpu),
            default=partial(function, self.accelerator),
        )


def choose_form(kind: str, num_queries: int, num_keys: int, size: int = 1) -> str:
    """Chooses the form that ``form="auto"`` stands for, on every platform alike.

    Args:
        kind: Kind of mechanism: "streaming" (a state of constant size), "scored" (keys and values
            are stored) or "given" (a state, and external queries that read all tokens).
        num_queries: Number of queries T.
        num_keys: Number of keys S, cached tokens included.
        size: Numbers in the whole batch. For "streaming" the numbers that one token lifts to;
            otherwise the scores of one query and one key (B * H, times K if channels have their
            own). A symbolic size, as in an export for any batch, counts as large.

    Returns:
        "parallel" or "chunked".

    Example:
        >>> choose_form("streaming", 29, 29), choose_form("streaming", 4096, 4096)
        ('parallel', 'chunked')
    """
    if kind == "streaming":
        length = max(num_queries, num_keys)
        fits = length <= MAX_PARALLEL_LENGTH and _is_within(size * length, MAX_PARALLEL_FLOATS)
    else:
        fits = _is_within(size * num_queries * num_keys, MAX_PARALLEL_SCORES[kind])
    return "parallel" if fits else "chunked"


def _is_within(number: Any, limit: int) -> bool:
    return isinstance(number, int) and number <= limit


MAX_CACHED_FEATURES = 1 << 20
"""Most features of a chunk that kernel mechanisms make at once on a CPU: 4 MiB in float32. Beyond,
TaylorShift of 64 channels was 1.6 times as fast with one head after another."""


class BlockSizes(NamedTuple):
    """Size of a block of scores: batches, heads (or single channels), queries and keys."""

    batches: Any
    heads: int
    queries: int
    keys: int


def block_sizes(
    batch: Any, heads: int, limit: int, queries: int, keys: int
) -> PerPlatform[BlockSizes]:
    """Chooses the block sizes of each platform.

    Args:
        batch: Batch size B, symbolic in an export for any batch.
        heads: Number of heads H.
        limit: Maximum number of queries, and of keys, per block.
        queries: Number of queries T.
        keys: Number of keys S.

    Example:
        >>> sizes = block_sizes(16, 8, 512, 4096, 4096)
        >>> sizes.cpu
        BlockSizes(batches=1, heads=4, queries=176, keys=176)
        >>> sizes.accelerator
        BlockSizes(batches=16, heads=8, queries=256, keys=256)
    """
    rows = even_chunk_size(queries, min(limit, MAX_BLOCK_TOKENS))
    columns = even_chunk_size(keys, min(limit, MAX_BLOCK_TOKENS**2 // rows))
    some = _greatest_divisor(heads, MAX_BLOCK_SCORES["cpu"] // (rows * columns))
    # All heads of some batches, or some heads of one; of an unknown number of batches all.
    batches = _greatest_divisor(batch, MAX_BLOCK_SCORES["cpu"] // (heads * rows * columns))
    cpu = BlockSizes(batches, some, rows, columns)
    all_rows = (batch if isinstance(batch, int) else 8) * heads
    sizes = (_double_block_size(all_rows, limit, length) for length in (queries, keys))
    return PerPlatform(cpu, BlockSizes(batch, heads, *sizes))


def even_chunk_size(length: int, limit: int) -> int:
    """Returns the size of the fewest, almost equally long chunks of at most ``limit`` tokens.

    Blocks are a multiple of 8 tokens, as vectors are, where there are several.

    Args:
        length: Number of tokens T.
        limit: Maximum number of tokens per chunk.

    Example:
        >>> even_chunk_size(320, 256), even_chunk_size(100, 256)
        (160, 100)
    """
    number = -(-length // limit) or 1
    size = max(1, -(-length // number))
    return size if number == 1 else min(limit, -(-size // 8) * 8)


def _greatest_divisor(number: Any, limit: int) -> Any:
    """Returns the greatest divisor up to ``limit``; symbolic numbers are returned unchanged."""
    if not isinstance(number, int):
        return number
    return next(size for size in range(max(1, min(limit, number)), 0, -1) if number % size == 0)


def _double_block_size(rows: int, limit: int, length: int) -> int:
    """Doubles a block's size while it reduces work: filling an eighth of a block does not."""
    size = min(32, limit)
    while 2 * size <= limit and rows * (2 * size) ** 2 <= MAX_BLOCK_SCORES["accelerator"]:
        if size >= length or -length % (2 * size) > max(-length % size, length / 8):
            break
        size *= 2
    return min(size, length)


MAX_CHUNK_TOKENS = {"kernel": 64, "gated": 32}
"""Most tokens of a chunk on a CPU, of heads of 16 and 64. Kernel attention trained up to 1.8 times
as fast as by 256 of TaylorShift and 1.2 times as fast as by 128 of linear attention, gated
attention 1.3 to 1.6 times as fast as by 64."""


def chunk_sizes(
    kind: str, length: int, chunk_size: int | None, limit: int
) -> PerPlatform[int | None]:
    """Returns the chunk sizes of ``form="auto"`` for causal attention.

    Args:
        kind: Key of ``MAX_CHUNK_TOKENS``.
        length: Number of tokens T.
        chunk_size: Tokens per chunk on accelerators; None means one chunk.
        limit: Maximum number of tokens per chunk on CPUs.

    Example:
        >>> chunk_sizes("kernel", 152, None, 128)
        PerPlatform(cpu=56, accelerator=None)
    """
    size = even_chunk_size(length, min(MAX_CHUNK_TOKENS[kind], limit))
    return PerPlatform(None if size >= length else size, chunk_size)


MAX_TILE_TOKENS = {"cpu": 32, "accelerator": 64}
"""Tokens a tile where all tiles are processed at once."""

AUTO_SCAN_FORMS = {
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


def loops_over_tokens(scan: str) -> PerPlatform[bool]:
    """Returns where "auto" runs a scan as a loop over tokens, if nothing is differentiated.

    Example:
        >>> loops_over_tokens("series")
        PerPlatform(cpu=True, accelerator=False)
    """
    chosen = AUTO_SCAN_FORMS[scan]["inference"]
    return PerPlatform(*(chosen[platform] == "recurrent" for platform in PerPlatform._fields))


def scan_form(
    scan: str,
    pass_name: str,
    form: str,
    functions: Mapping[str, Callable[..., Any]],
    chunk_size: int,
) -> Callable[..., Any]:
    """Returns the function for one pass of a scan; "auto" chooses by platform when compiled.

    Args:
        scan: Key of ``AUTO_SCAN_FORMS``.
        pass_name: Name of the pass, a key of ``AUTO_SCAN_FORMS[scan]``.
        form: Name of the form: "parallel", "chunked", "recurrent" or "auto".
        functions: Function (tokens per tile, *arrays) of each form.
        chunk_size: Maximum number of tokens per tile.
    """

    def chosen_form(name: str, platform: str) -> Callable[..., Any]:
        size = min(chunk_size, MAX_TILE_TOKENS[platform]) if name == "parallel" else chunk_size
        return partial(functions[name], size)

    if form != "auto":
        return chosen_form(form, "cpu")
    chosen = {
        platform: chosen_form(name, platform)
        for platform, name in AUTO_SCAN_FORMS[scan][pass_name].items()
    }
    return partial(jax.lax.platform_dependent, cpu=chosen["cpu"], default=chosen["accelerator"])
