"""Baselines of language models: compressors primed with the training text, byte frequencies."""

from __future__ import annotations

import gzip
import importlib.util
import lzma
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import format_bytes
from flax_linattn.tasks.baselines import Baselines, read_or_note
from flax_linattn.tasks.spec import Run
from flax_linattn.tasks.text.data import load

BASELINES = Baselines(
    "bits_per_byte",
    ("ppmd", "xz", "zstd", "gzip", "unigram"),
    title="bits per byte",
    num_train="num_train_bytes",
)

MAX_TRAIN_BYTES = 2**23
"""Maximum number of bytes at the end of the training text that baselines use."""
PPMD_ORDER = 6
PPMD_MEMORY = 2**28


def _gzip(text: bytes) -> int:
    return len(gzip.compress(text, 9))


def _xz(text: bytes) -> int:
    return len(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME))


def _zstd(text: bytes) -> int:
    import zstandard

    parameters = zstandard.ZstdCompressionParameters.from_level(19, window_log=27)
    return len(zstandard.ZstdCompressor(compression_params=parameters).compress(text))


def _ppmd(text: bytes) -> int:
    import pyppmd

    encoder = pyppmd.Ppmd8Encoder(PPMD_ORDER, PPMD_MEMORY)
    return len(encoder.encode(text)) + len(encoder.flush())


COMPRESSORS: Mapping[str, tuple[Callable[[bytes], int], str]] = {
    "gzip": (_gzip, "gzip"),
    "xz": (_xz, "lzma"),
    "zstd": (_zstd, "zstandard"),
    "ppmd": (_ppmd, "pyppmd"),
}
"""Function from a text to its compressed size in bytes, and the required package, by baseline."""


def test_baselines(run: Run, tokens: NDArray[np.integer]) -> dict[str, Any]:
    """Computes the bits per byte of each baseline on the text of tokens."""
    tokenizer = run.data_spec.make_tokenizer()
    corpus = read_or_note(lambda: load(run.config, tokenizer))
    test = tokenizer.decode(np.asarray(tokens[1:]))
    if corpus is None or not test:
        return {}
    # Tokens have at least one byte each, except for the few tokens that begin documents.
    text = tokenizer.decode(np.asarray(corpus.train[-MAX_TRAIN_BYTES:]))
    train = text[-MAX_TRAIN_BYTES:]
    values: dict[str, Any] = {"unigram_bits_per_byte": unigram_bits(train, test)}
    missing = []
    for name, (compress, package) in COMPRESSORS.items():
        if importlib.util.find_spec(package) is None:
            missing.append(package)
        else:
            values[f"{name}_bits_per_byte"] = bits_per_byte(compress, train, test)
    if missing:
        print(
            f"note: some baselines are skipped, because {' and '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} not installed: pip install "
            "'flax-linattn[text]'",
            file=sys.stderr,
        )
    if max(len(corpus.train), len(text)) > MAX_TRAIN_BYTES:
        print(
            f"note: the baselines use only the last {format_bytes(len(train))} of the training "
            "text",
            file=sys.stderr,
        )
    return values


def bits_per_byte(compress: Callable[[bytes], int], train: bytes, test: bytes) -> float:
    """Bits per byte of a compressor on the test text, primed with the training text."""
    return 8 * (compress(train + test) - compress(train)) / len(test)


def unigram_bits(train: bytes, test: bytes) -> float:
    """Bits per byte under the byte frequencies of the training text, with add-one smoothing."""
    counts = np.bincount(np.frombuffer(train, np.uint8), minlength=256) + 1
    bits = -np.log2(counts / counts.sum())
    return float(np.mean(bits[np.frombuffer(test, np.uint8)]))
