"""Augmentation of training series, for the experiment on the UEA and UCR archives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flax_linattn import data

Batch = dict[str, NDArray[Any]]
Change = Callable[[Batch, np.random.Generator], Batch]

MIN_FRACTION = 0.75
"""Smallest fraction of a series that a crop keeps."""
STRETCH = 1.25
"""Largest factor by which a series becomes longer or shorter."""
NUM_SPEEDS = 4
SPEED_STD = 0.3
"""Number of stretches of a series with a speed of their own, and the deviation of its logarithm."""
SCALE_STD, NOISE_STD = 0.1, 0.05
"""Deviations of a channel's factor around 1, and of the noise, for standardized series."""
MIXUP_ALPHA = 0.2
"""Parameter of the beta distribution of the weights, as for ImageNet in Zhang et al., 2018."""


class ChangedBatches(data.BucketBatches):
    """Batches that are changed at each step, in another way each time.

    The attribute ``arrays`` has the unchanged series, for models that are fitted in closed form.
    """

    def __init__(self, batches: data.BucketBatches, change: Change, seed: int) -> None:
        vars(self).update(vars(batches))
        self._change, self._seed = change, seed

    def batch(self, step: int, rows: slice = slice(None)) -> Batch:
        rng = np.random.default_rng((self._seed, step))
        return self._change(dict(super().batch(step, rows)), rng)


def distort(batch: Batch, rng: np.random.Generator) -> Batch:
    """Crops each series, changes its speed along time and the scale of its channels, adds noise."""
    values, mask = np.zeros_like(batch["values"]), np.zeros_like(batch["mask"])
    longest = mask.shape[1]
    for row, (series, real) in enumerate(zip(batch["values"], batch["mask"], strict=True)):
        series = series[: int(real.sum())]
        if len(series) > 1:
            series = warp(crop(series, rng), longest, rng)
        shape = series.shape
        series = series * (1 + SCALE_STD * rng.normal(size=(1, shape[1])))
        series = series + NOISE_STD * rng.normal(size=shape)
        values[row, : len(series)], mask[row, : len(series)] = series, True
    return {**batch, "values": values, "mask": mask}


def crop(series: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
    """A part [N', channels] of a series [N, channels], of at least two observations."""
    length = max(2, round(len(series) * rng.uniform(MIN_FRACTION, 1)))
    start = rng.integers(len(series) - length + 1)
    return series[start : start + length]


def warp(series: NDArray[Any], longest: int, rng: np.random.Generator) -> NDArray[Any]:
    """A series of another length and with other speeds along time, interpolated linearly."""
    stretch = np.exp(rng.uniform(-1, 1) * np.log(STRETCH))
    length = int(np.clip(round(len(series) * stretch), 2, longest))
    places = np.cumsum(np.exp(SPEED_STD * rng.normal(size=NUM_SPEEDS)))
    places = np.concatenate([[0.0], places / places[-1]])
    even = np.linspace(0, 1, NUM_SPEEDS + 1)
    times = np.interp(np.linspace(0, 1, length), even, places) * (len(series) - 1)
    observed = np.arange(len(series))
    return np.stack([np.interp(times, observed, channel) for channel in series.T], axis=1)


def mix(batch: Batch, rng: np.random.Generator) -> Batch:
    """Mixup (Zhang et al., "mixup: Beyond Empirical Risk Minimization", ICLR 2018).

    A series is the weighted mean of two. The loss of a mean is the weighted mean of the losses by
    both labels, so it stands twice in the batch, with these weights.
    """
    size = len(batch["labels"])
    other = rng.permutation(size)
    ratio = rng.beta(MIXUP_ALPHA, MIXUP_ALPHA, size).astype(np.float32)
    first = ratio[:, None, None]
    values = first * batch["values"] + (1 - first) * batch["values"][other]
    mixed = {"values": values, "mask": batch["mask"] | batch["mask"][other]}
    whole = batch["weight"] * batch["weight"][other]
    weight = np.concatenate([whole * ratio, whole * (1 - ratio)])
    labels = np.concatenate([batch["labels"], batch["labels"][other]])
    others = {
        name: np.concatenate([array, array[other]])
        for name, array in batch.items()
        if name not in mixed
    }
    return {**others, "labels": labels, "weight": weight} | {
        name: np.concatenate([array, array]) for name, array in mixed.items()
    }
