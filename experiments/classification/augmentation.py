"""Augmentation of training series, for the experiment on the UEA and UCR archives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flax_linattn import data

Batch = dict[str, NDArray[Any]]
Augment = Callable[[Batch, np.random.Generator], Batch]

MIN_FRACTION = 0.75
"""Smallest fraction of a series that a crop keeps."""
NUM_SPEEDS = 4
SPEED_STD = 0.3
"""Number of segments of a series, each with a speed, and standard deviation of the logarithm of a
speed."""
SCALE_STD, NOISE_STD = 0.1, 0.05
"""Standard deviations of the factor of a channel, whose mean is 1, and of the noise; series are
standardized."""
MIXUP_ALPHA = 0.2
"""Parameter of the beta distribution of the weights, as for ImageNet in Zhang et al., 2018."""


class AugmentedBatches(data.BucketBatches):
    """Batches with a new random augmentation at each step.

    ``arrays`` holds the original series, on which the linear maps are fitted.
    """

    def __init__(self, batches: data.BucketBatches, augment: Augment, seed: int) -> None:
        vars(self).update(vars(batches))
        self._augment, self._seed = augment, seed

    def batch(self, step: int, rows: slice = slice(None)) -> Batch:
        rng = np.random.default_rng((self._seed, step))
        return self._augment(dict(super().batch(step, rows)), rng)


def crop_warp_scale(batch: Batch, rng: np.random.Generator) -> Batch:
    """Augments each series by a random crop, time warping, channel scaling and Gaussian noise."""
    values = np.zeros_like(batch["values"])
    for row, (series, real) in enumerate(zip(batch["values"], batch["mask"], strict=True)):
        series = series[: int(real.sum())]
        if len(series) > 1:
            series = warp(crop(series, rng), len(series), rng)
        shape = series.shape
        series = series * (1 + SCALE_STD * rng.normal(size=(1, shape[1])))
        series = series + NOISE_STD * rng.normal(size=shape)
        values[row, : len(series)] = series
    return {**batch, "values": values}


def crop(series: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
    """Returns a random crop [N', channels] of a series [N, channels], with N' >= 2."""
    length = max(2, round(len(series) * rng.uniform(MIN_FRACTION, 1)))
    start = rng.integers(len(series) - length + 1)
    return series[start : start + length]


def warp(series: NDArray[Any], length: int, rng: np.random.Generator) -> NDArray[Any]:
    """Returns the series with a length and a warped time axis, by linear interpolation."""
    positions = np.cumsum(np.exp(SPEED_STD * rng.normal(size=NUM_SPEEDS)))
    positions = np.concatenate([[0.0], positions / positions[-1]])
    even = np.linspace(0, 1, NUM_SPEEDS + 1)
    times = np.interp(np.linspace(0, 1, length), even, positions) * (len(series) - 1)
    observed = np.arange(len(series))
    return np.stack([np.interp(times, observed, channel) for channel in series.T], axis=1)


def mixup(batch: Batch, rng: np.random.Generator) -> Batch:
    """Mixup (Zhang et al., "mixup: Beyond Empirical Risk Minimization", ICLR 2018).

    A mixed series is r a + (1 - r) b for two series a and b. Its loss is r times the loss with the
    label of a, plus 1 - r times the loss with the label of b. The batch therefore contains each
    mixed series twice, with both labels and these weights.
    """
    size = len(batch["labels"])
    other, real = np.arange(size), np.flatnonzero(batch["weight"])
    other[real] = rng.permutation(real)  # padding examples are not mixed and have no weight
    ratio = rng.beta(MIXUP_ALPHA, MIXUP_ALPHA, size).astype(np.float32)
    first = ratio[:, None, None]
    values = first * batch["values"] + (1 - first) * batch["values"][other]
    mixed = {"values": values, "mask": batch["mask"] | batch["mask"][other]}
    weight = np.concatenate([batch["weight"] * ratio, batch["weight"] * (1 - ratio)])
    labels = np.concatenate([batch["labels"], batch["labels"][other]])
    others = {
        name: np.concatenate([array, array[other]])
        for name, array in batch.items()
        if name not in mixed
    }
    return {**others, "labels": labels, "weight": weight} | {
        name: np.concatenate([array, array]) for name, array in mixed.items()
    }
