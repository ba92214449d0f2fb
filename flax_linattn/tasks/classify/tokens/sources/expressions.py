"""Files of ListOps, to test on."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from flax_linattn import data
from flax_linattn.data.sets.listops import read_listops
from flax_linattn.tasks.classify.tokens.options import SequenceConfig
from flax_linattn.tasks.classify.tokens.problem import SequenceProblem

LENGTHS = 4
"""Most lengths that batches are padded to, each a program to compile."""


def expression_batches(
    path: Path, config: SequenceConfig, problem: SequenceProblem
) -> data.BucketBatches:
    """Batches of the expressions of a file.

    Raises:
        ValueError: a line is no expression; or one is longer than the run's model has positions.
        FileNotFoundError: there is no such file.
    """
    expressions = read_listops(path)
    lengths = np.array([len(tokens) for tokens in expressions.tokens])
    longest = int(lengths.max())
    if config.model.position == "learned" and longest > problem.max_length:
        raise ValueError(
            f"{path} has an expression of {longest:,} tokens, and the run's model positions for "
            f"{problem.max_length:,}; give shorter ones, or train with sinusoidal positions."
        )
    tokens = np.zeros((len(lengths), longest), np.int32)
    for row, own in zip(tokens, expressions.tokens, strict=True):
        row[: len(own)] = own
    mask = np.arange(longest) < lengths[:, None]
    arrays = {"tokens": tokens, "mask": mask, "labels": expressions.labels}
    shares = np.quantile(lengths, np.linspace(0, 1, LENGTHS + 1)[1:])
    return data.BucketBatches(
        arrays,
        config.fit.batch_size,
        lengths=np.ceil(shares).astype(int).tolist(),
        time_arrays=("tokens",),
        seed=None,
    )
