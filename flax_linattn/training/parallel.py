"""The devices that a training asks for."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal, get_args

import jax
from jax.sharding import AxisType

from flax_linattn.checks import OptionError, at_least
from flax_linattn.training.placement import DATA, ONE_DEVICE, SEQUENCE, Placement, mesh_text

Strategy = Literal["auto", "none", "jit", "pmap"]


@dataclasses.dataclass(frozen=True)
class Parallel:
    """The devices of a training, and what is split over them.

    Args:
        strategy: "jit" splits each batch over a mesh of devices and lets XLA place the rest;
            "pmap" runs the same program on each device with its share of the batch, and sums the
            gradients; "none" uses one device; "auto" is "jit" where there is more than one device
            and the batch divides evenly over some of them, else "none".
        mesh: names and sizes of the mesh's axes, as a mapping or as text, ``"data=4,seq=2"``:
            "data" splits the batch, "seq" the time of ``time_arrays``. Default: all devices along
            "data".
        shard_parameters: split parameters and optimizer state over "data" too, each along its
            longest axis that divides evenly (FSDP, ZeRO 3); "jit" only. They are made on one
            device first.
        accumulate: number of parts in which the gradient of a batch is computed, one after another,
            for batches whose gradient does not fit the memory.
        time_arrays: arrays of a batch [B, T, ...] that "seq" splits along T.
        runs_at_once: of several runs (``fit`` with several models) the number that each device
            trains at once, one group after another. Default: all of them; on CPUs as many as keep
            their largest arrays in a core's cache. Other groups change results by rounding.

    Raises:
        OptionError: a setting out of range.

    Example:
        >>> Parallel("jit", "data=4,seq=2").mesh
        (('data', 4), ('seq', 2))
    """

    strategy: Strategy = "auto"
    mesh: Any = None
    shard_parameters: bool = False
    accumulate: int = 1
    time_arrays: tuple[str, ...] = ("values", "mask", "segment_ids")
    runs_at_once: int | None = None

    def __post_init__(self) -> None:
        if self.strategy not in get_args(Strategy):
            raise OptionError(
                f"Parallel.strategy must be one of {', '.join(get_args(Strategy))}, got "
                f"{self.strategy!r}.",
                "strategy",
            )
        at_least(1, accumulate=self.accumulate, runs_at_once=self.runs_at_once)
        if self.mesh is not None:
            object.__setattr__(self, "mesh", _axes(self.mesh))
        if self.strategy == "none" and (self.mesh is not None or self.shard_parameters):
            raise OptionError(
                "a mesh and shard_parameters are for several devices; strategy 'none' uses one.",
                "strategy",
                "mesh",
                "shard_parameters",
            )
        if self.strategy == "pmap" and (self.shard_parameters or SEQUENCE in dict(self.mesh or ())):
            raise OptionError(
                "strategy 'pmap' splits batches only; use 'jit' to split parameters or sequences.",
                "strategy",
                "mesh",
                "shard_parameters",
            )

    def place(self, batch_size: int, *other_sizes: int, num_runs: int | None = None) -> Placement:
        """The devices for batches of a size.

        Args:
            batch_size: rows of a training batch.
            *other_sizes: rows of other batches that are split over the same devices.
            num_runs: the number of runs that are trained at once, which the devices split in place
                of batches; None for a single model.

        Raises:
            OptionError: more devices than there are, a batch or a number of runs that does not
                divide evenly, or what runs are not split by.
        """
        if num_runs is not None:
            return self._place_runs(batch_size, num_runs)
        if batch_size % self.accumulate:
            raise OptionError(
                f"a batch of {batch_size} rows cannot be taken in {self.accumulate} equal parts; "
                "choose a batch size that is a multiple of Parallel.accumulate.",
                "batch_size",
                "accumulate",
            )
        rows = math.gcd(batch_size // self.accumulate, *other_sizes)
        axes = self.mesh
        if axes is None:
            count = 1 if self.strategy == "none" else jax.device_count()
            if self.strategy == "auto":
                count = max(n for n in range(1, count + 1) if rows % n == 0)
            axes = ((DATA, count),)
        sizes = dict(axes)
        if rows % sizes.get(DATA, 1):
            parts = f" in {self.accumulate} parts" if self.accumulate > 1 else ""
            counts = " and ".join(map(str, dict.fromkeys((batch_size, *other_sizes))))
            raise OptionError(
                f"batches of {counts} rows{parts} cannot be split evenly over {sizes[DATA]} "
                "devices; change the batch size, or Parallel.mesh.",
                "batch_size",
                "mesh",
            )
        needed = math.prod(sizes.values())
        if needed > jax.device_count():
            raise OptionError(
                f"the mesh {mesh_text(axes)} needs {needed} devices, but there are "
                f"{jax.device_count()}.",
                "mesh",
            )
        if self.strategy in ("none", "pmap") and jax.process_count() > 1:
            raise OptionError(
                f"strategy {self.strategy!r} is for one process, but there are "
                f"{jax.process_count()}; use 'jit'.",
                "strategy",
            )
        if needed < jax.device_count() and jax.process_count() > 1:
            raise OptionError(
                f"all processes take part, but of their {jax.device_count()} devices only {needed} "
                f"do ({mesh_text(axes)}); choose a batch size that all divide, or another mesh.",
                "batch_size",
                "mesh",
            )
        strategy = self.strategy
        if strategy == "auto":
            strategy = "jit" if needed > 1 or self.shard_parameters else "none"
        if strategy == "none":
            return dataclasses.replace(ONE_DEVICE, accumulate=self.accumulate)
        mesh = jax.make_mesh(
            tuple(sizes.values()),
            tuple(sizes),
            axis_types=(AxisType.Auto,) * len(sizes),
            devices=jax.devices()[:needed],
        )
        split_time = self.time_arrays if SEQUENCE in sizes else ()
        return Placement(strategy, mesh, self.shard_parameters, self.accumulate, split_time)

    def _place_runs(self, batch_size: int, num_runs: int) -> Placement:
        if jax.process_count() > 1:
            raise OptionError(
                "several runs at once are trained by one process, but there are "
                f"{jax.process_count()}.",
                "runs",
            )
        if self.strategy == "pmap" or self.shard_parameters or SEQUENCE in dict(self.mesh or ()):
            raise OptionError(
                "several runs at once are split over devices by runs alone, with strategy 'jit'; "
                "remove pmap, shard_parameters and a mesh with seq.",
                "strategy",
                "shard_parameters",
                "mesh",
            )
        every = jax.device_count() if self.strategy == "jit" else 1
        devices = dict(self.mesh or ()).get(DATA, every)
        if num_runs % devices:
            raise OptionError(
                f"{num_runs} runs cannot be split evenly over {devices} devices; change their "
                "number, or the mesh.",
                "runs",
                "mesh",
            )
        placement = dataclasses.replace(self, accumulate=1).place(num_runs)
        of_run = Parallel("none", accumulate=self.accumulate).place(batch_size)
        return dataclasses.replace(
            placement,
            accumulate=of_run.accumulate,
            num_runs=num_runs,
            runs_at_once=self.runs_at_once,
        )


def _axes(mesh: Any) -> tuple[tuple[str, int], ...]:
    """Names and sizes from a mapping, from pairs, or from ``"data=4,seq=2"``."""
    given = mesh
    try:
        if isinstance(mesh, str):
            mesh = [part.split("=") for part in mesh.split(",")]
        pairs = mesh.items() if isinstance(mesh, Mapping) else mesh
        axes = tuple((str(name).strip(), int(size)) for name, size in pairs)
    except (TypeError, ValueError):
        raise OptionError(
            f"expected a mesh as names and sizes of its axes, such as data=4,seq=2, got {given!r}.",
            "mesh",
        ) from None
    names = [name for name, _ in axes]
    if set(names) - {DATA, SEQUENCE} or len(set(names)) < len(names):
        raise OptionError(
            f"a mesh has the axes {DATA} and {SEQUENCE}, each once, got {mesh_text(axes)}.",
            "mesh",
        )
    if not axes or any(size < 1 for _, size in axes):
        raise OptionError(
            f"the axes of a mesh have at least one device, got {mesh_text(axes)}.", "mesh"
        )
    return axes
