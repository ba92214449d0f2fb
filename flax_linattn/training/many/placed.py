"""Runs on devices: each on one of them, with its batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from flax_linattn.checks import OptionError
from flax_linattn.training.batches import Batch, BatchSource
from flax_linattn.training.parallel import Parallel
from flax_linattn.training.placement import DATA, SEQUENCE, Placement


@dataclasses.dataclass(frozen=True)
class RunsPlacement(Placement):
    """A placement that splits what it is given by runs, the first axis of every array.

    Attributes:
        runs_at_once: as in ``Parallel``.
    """

    runs_at_once: int | None = None

    @property
    def devices(self) -> int:
        """Over how many the runs are split."""
        return 1 if self.mesh is None else self.mesh.shape[DATA]

    @property
    def platform(self) -> str:
        """Of the devices: "cpu", "gpu" or "tpu"."""
        if self.mesh is None:
            return jax.default_backend()
        platform: str = self.mesh.devices.flat[0].platform
        return platform

    def _of_leaf(self, leaf: Any) -> NamedSharding:
        assert self.mesh is not None
        return NamedSharding(self.mesh, PartitionSpec(DATA) if leaf.ndim else PartitionSpec())


def place_runs(
    parallel: Parallel, num_runs: int, batch_size: int
) -> tuple[RunsPlacement, Placement]:
    """Where runs go, and how each computes there.

    Raises:
        OptionError: More is asked for than splitting runs over devices, or they do not split
            evenly.
    """
    if jax.process_count() > 1:
        raise OptionError(
            f"many runs at once are trained by one process, but there are {jax.process_count()}.",
            "runs",
        )
    if (
        parallel.strategy == "pmap"
        or parallel.shard_parameters
        or SEQUENCE in dict(parallel.mesh or ())
    ):
        raise OptionError(
            "many runs at once are split over devices by runs alone, with strategy 'jit'; leave "
            "out pmap, shard_parameters and a mesh with seq.",
            "strategy",
            "shard_parameters",
            "mesh",
        )
    every = jax.device_count() if parallel.strategy == "jit" else 1
    devices = dict(parallel.mesh or ()).get(DATA, every)
    if num_runs % devices:
        raise OptionError(
            f"{num_runs} runs cannot be split evenly over {devices} devices; change their number, "
            "or the mesh.",
            "runs",
            "mesh",
        )
    placement = dataclasses.replace(parallel, accumulate=1).place(num_runs)
    names = [field.name for field in dataclasses.fields(Placement)]
    of_all = {name: getattr(placement, name) for name in names}
    runs = RunsPlacement(**of_all, runs_at_once=parallel.runs_at_once)
    return runs, Parallel("none", accumulate=parallel.accumulate).place(batch_size)


class StackedBatches:
    """The batches of many runs as one: arrays ``[R, B, ...]``, whose rows are runs.

    Args:
        sources: of each run; equally many batches of equal shapes.

    Raises:
        ValueError: They have different numbers of batches.
    """

    def __init__(self, sources: Sequence[BatchSource]) -> None:
        if len(set(map(len, sources))) > 1:
            raise ValueError(
                "the runs need equally many batches an epoch, got "
                f"{', '.join(str(len(source)) for source in sources)}."
            )
        self._sources = tuple(sources)

    def __len__(self) -> int:
        return len(self._sources[0])

    def batch(self, step: int, rows: slice = slice(None)) -> Batch:
        """The batches of a step, of the runs that ``rows`` names."""
        sources = self._sources[rows]
        drawn = {id(source): source.batch(step) for source in sources}  # once where they share it
        batches = [drawn[id(source)] for source in sources]
        names = set(batches[0])
        shapes = [{name: np.shape(x) for name, x in batch.items()} for batch in batches]
        if any(shape != shapes[0] for shape in shapes):
            raise ValueError(
                f"the runs need batches of one shape in a step, got {shapes[0]} and "
                f"{next(shape for shape in shapes if shape != shapes[0])} in step {step}."
            )
        return {name: np.stack([np.asarray(b[name]) for b in batches]) for name in sorted(names)}


def seeds_of(seed: int, num_runs: int) -> np.ndarray:
    """The seed of each run, uint32 [R]: one after another."""
    if seed + num_runs > 2**32:
        raise OptionError(f"seed {seed} is too large for {num_runs} runs.", "seed")
    return np.arange(seed, seed + num_runs, dtype=np.int64).astype(jnp.uint32)
