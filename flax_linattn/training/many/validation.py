"""The validation metrics of each of many runs."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flax_linattn.training.diagnosis import NonFiniteLossError
from flax_linattn.training.many.state import ManyState
from flax_linattn.training.metrics import Metrics, mean_metrics, zero_metrics
from flax_linattn.training.signals import StopRequest
from flax_linattn.training.state import TrainState
from flax_linattn.training.validation import Validation


def means_of_runs(total: Metrics) -> list[dict[str, float]]:
    """Each run's weighted means, from sums ``[R]``."""
    host: Any = jax.device_get(total)
    num_runs = len(next(iter(host.values()))[0])
    return [mean_metrics(jax.tree.map(lambda x, r=r: x[r], host)) for r in range(num_runs)]


@dataclasses.dataclass(frozen=True)
class ManyValidation(Validation):
    """As ``Validation``, for all runs at once; ``Objective.validate`` is asked for each."""

    def of_runs(self, state: ManyState, stop: StopRequest) -> list[dict[str, float]] | None:
        """Returns each run's validation metrics; None if asked to stop.

        Raises:
            ValueError: As ``Validation.metrics``.
            TypeError: As there.
        """
        num_runs = state.active.shape[0]
        zeros = jax.tree.map(
            lambda x: jnp.zeros((num_runs, *x.shape), x.dtype), zero_metrics(state.metrics)
        )
        total = self._sums(self.loader.placement.state(zeros), state, stop)
        if total is None:
            return None
        means = means_of_runs(total)
        if self.objective.validate is None:
            return means
        active = np.asarray(state.active)
        for r in np.flatnonzero(active):
            if stop.signum is not None:
                return None
            one: TrainState = jax.tree.map(lambda x, r=r: x[r], state.runs)
            try:
                means[r] = self._joined(means[r], one)
            except NonFiniteLossError:  # it fails alone: its monitor is NaN
                means[r] = {}
        every = {self.objective.monitor: None} | {name: None for own in means for name in own}
        return [{name: own.get(name, float("nan")) for name in every} for own in means]
