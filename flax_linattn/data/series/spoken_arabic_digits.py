"""Reader of Spoken Arabic Digits: blocks of text whose order gives the labels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import quote
from flax_linattn.data.errors import REPAIR_ADVICE
from flax_linattn.data.files.text_files import LineReader
from flax_linattn.data.series.dataset import TimeSeriesDataset
from flax_linattn.data.tables.cells import BadCellError, parse_numbers

NUM_COEFFICIENTS = 13
DIGITS = tuple(str(digit) for digit in range(10))
FRAMES = {6600: 263_256, 2200: 87_063}
"""Number of frames by number of utterances, of the training and the test file.

Each digit has a tenth of the utterances, in order.
"""


def load_spoken_arabic_digits(path: str | Path) -> TimeSeriesDataset:
    """Loads ``Train_Arabic_Digit.txt`` or ``Test_Arabic_Digit.txt``, plain, ``.gz`` or ``.xz``.

    A blank line begins an utterance; each of its lines is a frame of 13 cepstral coefficients. The
    file has no labels: the first tenth of the utterances are zeros, the next tenth ones, and so on.

    Source: N. Hammami and M. Bedda, "Improved tree model for Arabic speech recognition", 2010. UCI
    Machine Learning Repository.

    Args:
        path: The file.

    Raises:
        FileNotFoundError: If the file does not exist.
        DataFormatError: If a line is not a frame, or the file has another number of frames or of
            blocks, from which the digits follow.
    """
    with LineReader(path) as reader:
        blocks: list[list[NDArray[np.float64]]] = []
        begins = True
        for text in reader:
            if not text.strip():
                begins = True
                continue
            if begins:
                blocks.append([])
                begins = False
            blocks[-1].append(_frame(reader, text))
            reader.check_count(reader.line)
        sizes = len(blocks), sum(map(len, blocks))
        if sizes not in FRAMES.items() or not reader.terminated:
            (train, train_frames), (test, test_frames) = FRAMES.items()
            raise reader.error(
                f"{train:,} blocks of {train_frames:,} lines (training) or {test:,} of "
                f"{test_frames:,} (test), and a newline at the end",
                "{:,} of {:,}".format(*sizes) + " and none" * (not reader.terminated),
                "the file is cut short or not the original: fetch it again",
            )
        name = "SpokenArabicDigits"
    labels = np.repeat(np.arange(len(DIGITS)), len(blocks) // len(DIGITS)).astype(np.int32)
    channels = tuple(f"mfcc_{i}" for i in range(NUM_COEFFICIENTS))
    series = tuple(np.stack(block) for block in blocks)
    return TimeSeriesDataset(name, series, labels, DIGITS, channels)


def _frame(reader: LineReader, text: str) -> NDArray[np.float64]:
    try:
        values = parse_numbers(text.split())
    except BadCellError:
        values = np.full(0, np.nan)
    if values.shape != (NUM_COEFFICIENTS,) or np.isnan(values).any():
        raise reader.error(
            f"{NUM_COEFFICIENTS} finite numbers, separated by blanks",
            quote(text),
            REPAIR_ADVICE,
        )
    return values
