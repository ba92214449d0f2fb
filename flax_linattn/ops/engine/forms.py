"""Choice of forms and block sizes: the one place where ``form="auto"`` is decided."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import jax

MAX_PARALLEL_LENGTH = 256
"""Maximum number of tokens that a streaming mechanism scans as one chunk.

Beyond it the gradient of a scan needs several times the memory of chunks (3 times at 4,096 tokens
with 8 heads of 16, on a CPU) at the same speed."""

MAX_ONE_CHUNK_LENGTH = 128
"""Maximum number of tokens that a gated mechanism (T x T products) processes as one chunk.

On a CPU, with 8 heads of 64, one chunk trained up to 1.4 times as fast at 128 tokens. At 256 tokens
several chunks were as fast or faster (up to 3 times forward at batch size 8) in a third of the
memory."""

MAX_PARALLEL_FLOATS = 1 << 24
"""Maximum number of floats to which a streaming mechanism lifts the tokens of one chunk: 64 MiB in
float32, a few times that in a gradient."""

MAX_PARALLEL_SCORES = {"scored": 1 << 18, "given": 1 << 20}
"""Maximum number of scores that a kind of mechanism (``choose_form``) materializes at once: at most
4 MiB in float32. On a CPU blocks of scored attention were as fast up to that number, and trained
1.7 times as fast with four times as many scores; external queries trained half as fast in
blocks."""

MAX_BLOCK_SCORES = {"cpu": 1 << 17, "accelerator": 1 << 24}
"""Maximum number of scores in a block of queries and keys, over all its heads.

A CPU's L2 cache holds about a megabyte, and a CPU processes heads and batches one after another:
with heads of 16 or 64, blocks of 128 to 176 tokens trained 1.1 to 1.3 times as fast as blocks of
256, and up to 2 times as fast as blocks of all batches. Accelerators process a block in parallel,
so theirs are fewer and larger (64 MiB in float32; not measured yet)."""

MAX_BLOCK_TOKENS = 176
"""Maximum number of queries per block on a CPU, and of keys if there are as many queries."""


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
"""Maximum number of features of a chunk that kernel mechanisms hold at once on a CPU: 4 MiB in
float32. Beyond it, TaylorShift of 64 channels was 1.6 times as fast with one head after another."""


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

    If there are several chunks, their size is a multiple of 8 tokens, as of vector registers.

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
"""Maximum number of tokens per chunk on a CPU. With heads of 16 and 64 TaylorShift trained up to
1.8 times as fast as with chunks of 256, linear attention 1.2 times as fast as with 128, and gated
attention 1.3 to 1.6 times as fast as with 64."""


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
"""Maximum number of tokens per tile where all tiles are processed at once."""

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
"""Form that ``auto`` chooses for each pass of a scan with a hand-derived gradient.

"inference" is the pass without differentiation; "forward" and "backward" are the passes of
training, if they have a choice. On CPUs loops over tokens in place are at least as fast as tiles
and need no further memory; an accelerator would launch a kernel for each token. "chunks" are gated
mechanisms, whose loop over tokens was 2 to 3 times as fast forward on one core, but slower to
train. "channels" is RWKV, whose loop reads each state at once instead of storing all."""


def loops_over_tokens(scan: str) -> PerPlatform[bool]:
    """Returns on which platforms "auto" runs a scan as a loop over tokens for inference.

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
