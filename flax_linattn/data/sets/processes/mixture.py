"""Mixtures of log-normal distributions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import special

from flax_linattn.data.sets.processes.marks import log

FLOOR = 0.01
"""Smallest deviation that is fitted, in standard deviations of all logarithms.

Gaps that repeat exactly would else have a component of their own, of infinite density.
"""

_STARTS = 3  # one from quantiles, the others from values at random
_FEW = 20_000  # values on which they are compared
_MOST_STEPS = 500
_LEAST_GAIN = 1e-6  # of the mean log density, in one step


def log_density(
    values: NDArray[np.float64],
    weights: NDArray[np.float64],
    means: NDArray[np.float64],
    deviations: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Log density of a mixture of log-normal distributions at values above 0.

    Args:
        values: Float64 [n].
        weights: Of the components, float64 [K], of sum 1.
        means: Of the logarithms, float64 [K].
        deviations: Of the logarithms, float64 [K].

    Returns:
        Float64 [n].
    """
    logs = np.log(values)
    joint = _log_joint(logs, weights, means, deviations)
    return np.logaddexp.reduce(joint, axis=0) - logs


def log_survival(
    values: NDArray[np.float64],
    weights: NDArray[np.float64],
    means: NDArray[np.float64],
    deviations: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Log probability of more than such a value; arguments and result as ``log_density``.

    Values may be 0, and the result is exact far out in the tails.
    """
    z = (log(values) - means[:, None]) / deviations[:, None]
    tails = np.logaddexp.reduce(log(weights)[:, None] + special.log_ndtr(-z), axis=0)
    return np.minimum(tails, 0)  # rounding of the weights must not make it a gain


def fit_mixture(
    values: NDArray[np.float64], num_components: int, seed: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Fits a mixture of log-normal distributions by expectation maximisation.

    Three starts, from quantiles and from values at random, are compared on at most 20,000 of the
    values, drawn at random. The best is then followed on all, until the mean log density gains less
    than 1e-6 in a step, for at most 500 steps.

    Args:
        values: Above 0, float64 [n].
        num_components: K.
        seed: Of NumPy's generator.

    Returns:
        Weights, means and deviations of the logarithms, each float64 [K]. A deviation is at least
        ``FLOOR`` standard deviations of all logarithms; 0.01 if all are the same.
    """
    rng = np.random.default_rng(seed)
    logs = np.log(values)
    spread = float(logs.std())
    if not spread > 1e-9 * max(1.0, float(np.abs(logs).max())):  # all the same, but for rounding
        spread = 1.0
    few = rng.choice(logs, _FEW, replace=False) if len(logs) > _FEW else logs
    best, most = _follow(few, _start(few, num_components, spread, None), FLOOR * spread)
    for _ in range(_STARTS - 1):
        start = _start(few, num_components, spread, rng)
        other, reached = _follow(few, start, FLOOR * spread)
        if reached > most:
            best, most = other, reached
    if few is not logs:
        best, _ = _follow(logs, best, FLOOR * spread)
    return best


_Mixture = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]


def _start(
    logs: NDArray[np.float64], K: int, spread: float, rng: np.random.Generator | None
) -> _Mixture:
    means = np.quantile(logs, (np.arange(K) + 0.5) / K) if rng is None else rng.choice(logs, K)
    return np.full(K, 1 / K), means, np.full(K, spread / np.sqrt(K))


def _follow(logs: NDArray[np.float64], start: _Mixture, floor: float) -> tuple[_Mixture, float]:
    """Where a start leads to, and the mean log density of the logarithms there."""
    x, counts = np.unique(logs, return_counts=True)
    mixture, before = start, -np.inf
    for _ in range(_MOST_STEPS):
        mixture, reached = em_step(x, counts, mixture, floor)
        if reached - before < _LEAST_GAIN:
            break
        before = reached
    return mixture, reached


def em_step(
    x: NDArray[np.float64], counts: NDArray[np.int64], mixture: _Mixture, floor: float
) -> tuple[_Mixture, float]:
    """One step of expectation maximisation, under the bound on deviations, which it never crosses.

    Args:
        x: Different logarithms, float64 [n].
        counts: How often each occurs, int64 [n].
        mixture: Weights, means and deviations, float64 [K].
        floor: Of the deviations.

    Returns:
        The next mixture, and the mean log density of the logarithms under the one before.
    """
    weights, means, deviations = mixture
    shares = _log_joint(x, weights, means, deviations)
    top = shares.max(axis=0)
    shares = np.exp(shares - top)
    total = shares.sum(axis=0)
    reached = float(np.sum(counts * (top + np.log(total))) / counts.sum())
    shares *= counts / total
    size = shares.sum(axis=1)
    lives = size > 1e-12 * counts.sum()  # a component that owns nothing stays where it is
    divisor = np.where(lives, size, 1)
    # Sums without BLAS, whose threads would wait for each other ten times as long as this takes
    # where others compute beside it.
    means = np.where(lives, (shares * x).sum(axis=1) / divisor, means)
    squares = (shares * (x - means[:, None]) ** 2).sum(axis=1)
    deviations = np.where(lives, np.maximum(np.sqrt(squares / divisor), floor), deviations)
    return (size / size.sum(), means, deviations), reached


def _log_joint(
    logs: NDArray[np.float64],
    weights: NDArray[np.float64],
    means: NDArray[np.float64],
    deviations: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Of component and logarithm, [K, n]."""
    z = (logs - means[:, None]) / deviations[:, None]
    return (log(weights / deviations) - 0.5 * np.log(2 * np.pi))[:, None] - 0.5 * z * z
