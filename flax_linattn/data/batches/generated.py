"""Generated batches: a pure function of the step and the seed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import MAX_SEED, check_integers
from flax_linattn.data.batches.batches import ALL_ROWS


class ExampleGenerator(Protocol):
    """Protocol of tasks that generate their examples, such as ``NextSymbol`` or ``Parity``."""

    def sample(self, rng: np.random.Generator, rows: int) -> Mapping[str, NDArray]:
        """Samples arrays of ``rows`` examples from ``rng`` alone."""


class GeneratedBatches:
    """Batches of generated examples, without a data set and without state to save.

    The batch of a step depends only on the task, the options and the step.

    Args:
        task: Generator of the examples.
        batch_size: Number B of examples of a batch.
        num_batches: Number of batches in an epoch.
        seed: Random seed of all streams.
        stream: Index of the seed's independent stream to sample from: one each for training,
            validation and test.
        fixed: Whether every epoch has the same batches, as for validation and test. Otherwise no
            batch repeats.
        num_examples: Number of examples in an epoch, if the last batch is not full: "weight",
            float32 ``[B]``, then marks real examples (1) and filler (0). Default: all batches are
            full.

    Raises:
        OptionError: If a number is out of range.

    Example:
        >>> from flax_linattn.data import Parity
        >>> batches = GeneratedBatches(Parity(4), 2, num_batches=10, seed=0, stream=0)
        >>> len(batches), batches.batch(57)["tokens"].shape
        (10, (2, 4))
        >>> np.array_equal(batches.batch(57)["tokens"], batches.batch(57)["tokens"])
        True
    """

    def __init__(
        self,
        task: ExampleGenerator,
        batch_size: int,
        num_batches: int,
        *,
        seed: int,
        stream: int,
        fixed: bool = False,
        num_examples: int | None = None,
    ) -> None:
        check_integers(1, batch_size=batch_size, num_batches=num_batches)
        check_integers(0, MAX_SEED, seed=seed)
        check_integers(0, stream=stream)
        self.task = task
        self.batch_size = batch_size
        self.seed = seed
        self.stream = stream
        self.fixed = fixed
        self._num_batches = num_batches
        self._num_examples = num_examples

    def __len__(self) -> int:
        """Number of batches in an epoch."""
        return self._num_batches

    def batch(self, step: int, rows: slice = ALL_ROWS) -> dict[str, NDArray]:
        """Returns the batch of a step, counted from 0 over all epochs.

        Args:
            step: Training step, of epoch ``step // len(self)``.
            rows: Examples of the batch to return, such as the examples of one process. All B
                examples are generated.

        Raises:
            OptionError: If the step is negative.
        """
        check_integers(0, step=step)
        number = step % len(self) if self.fixed else step
        sequence = np.random.SeedSequence(self.seed, spawn_key=(self.stream, number))
        arrays = self.task.sample(np.random.default_rng(sequence), self.batch_size)
        if self._num_examples is not None:
            left = self._num_examples - step % len(self) * self.batch_size
            arrays = {**arrays, "weight": (np.arange(self.batch_size) < left).astype(np.float32)}
        return {name: array[rows] for name, array in arrays.items()}
