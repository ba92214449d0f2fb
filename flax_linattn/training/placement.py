"""Devices of a training run: one interface over ``jax.jit`` on a mesh and ``jax.pmap``."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, TypeVar, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from flax_linattn import ops
from flax_linattn.checks import OptionError, check_integers

DATA = "data"
SEQUENCE = "seq"
Tree = TypeVar("Tree")


def mesh_text(axes: Iterable[tuple[str, int]]) -> str:
    """Names and sizes of a mesh's axes, such as "data=4,seq=2"."""
    return ",".join(f"{name}={size}" for name, size in axes)


PEAK_FLOPS = {
    "NVIDIA A100": 312e12,
    "NVIDIA B200": 2250e12,
    "NVIDIA GH200": 989e12,
    "NVIDIA H100 NVL": 835e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H100": 989e12,
    "NVIDIA H200 NVL": 835e12,
    "NVIDIA H200": 989e12,
    "NVIDIA L4": 121e12,
    "NVIDIA L40S": 362e12,
    "Tesla T4": 65e12,
    "Tesla V100-SXM2": 125e12,
    # A device is one of the two cores of a chip of TPU v2 and v3, and a whole chip from v4 on.
    "TPU v2": 22.5e12,
    "TPU v3": 61.5e12,
    "TPU v4 lite": 138e12,
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5e": 197e12,
    "TPU v5": 459e12,
    "TPU v5p": 459e12,
    "TPU v6 lite": 918e12,
    "TPU v6e": 918e12,
}
"""Nominal peak FLOP/s of devices, by the first words of their kind: dense matrix products in
bfloat16, or in float16 on T4 and V100. A100, H100 (SXM and PCIe), H200, L4, L40S, T4 and V100 were
compared with published copies of data sheets, the others were not. A longer name comes before a
shorter one."""


def peak_flops(device_kind: str) -> float | None:
    """Peak FLOP/s of a device of this kind; None if it is not known.

    Example:
        >>> peak_flops("NVIDIA A100-SXM4-80GB"), peak_flops("cpu")
        (312000000000000.0, None)
    """
    names = (name for name in PEAK_FLOPS if re.match(rf"{re.escape(name)}\b", device_kind))
    return PEAK_FLOPS.get(next(names, ""))


@dataclasses.dataclass(frozen=True)
class Placement:
    """The devices of a training run, and the sharding of its arrays; made by ``Parallel.place``.

    Attributes:
        strategy: "none", "jit" or "pmap".
        mesh: The devices; None for "none".
        shard_parameters: As in ``Parallel``.
        accumulate: As in ``Parallel``.
        time_arrays: Names of the arrays of a batch that are split along time.
        num_runs: Size of the axis of runs in front of every array, which is split over the devices
            instead of the batches; None without that axis.
        runs_at_once: As in ``Parallel``.
    """

    strategy: str
    mesh: Mesh | None
    shard_parameters: bool
    accumulate: int
    time_arrays: tuple[str, ...]
    num_runs: int | None = None
    runs_at_once: int | None = None

    @property
    def axis_name(self) -> str | None:
        """The axis of ``jax.pmap`` to sum over inside a step; None for other strategies."""
        return DATA if self.strategy == "pmap" else None

    @property
    def sequence_shards(self) -> int:
        """Number of devices that a sequence is split over; its length must be a multiple."""
        return 1 if self.mesh is None else self.mesh.shape.get(SEQUENCE, 1)

    @property
    def num_shards(self) -> int:
        """Number of devices that batches, or runs, are split over."""
        return 1 if self.mesh is None else self.mesh.shape.get(DATA, 1)

    @property
    def platform(self) -> str:
        """The platform of the devices: "cpu", "gpu" or "tpu"."""
        if self.mesh is None:
            return jax.default_backend()
        platform: str = self.mesh.devices.flat[0].platform
        return platform

    @property
    def peak_flops(self) -> float | None:
        """Peak FLOP/s of all devices together; None if the peak of a device is not known."""
        devices = jax.devices()[:1] if self.mesh is None else self.mesh.devices.ravel().tolist()
        peaks = [peak_flops(device.device_kind) for device in devices]
        return None if None in peaks else sum(filter(None, peaks))

    @property
    def run_placement(self) -> Placement:
        """The placement of a single run: with several runs, each is on one device."""
        if self.num_runs is None:
            return self
        return dataclasses.replace(ONE_DEVICE, accumulate=self.accumulate)

    def __str__(self) -> str:
        available = jax.device_count()
        used = 1 if self.mesh is None else self.mesh.size
        count = "one" if used == 1 else str(used)
        count = count if used == available else f"{count} of {available}"
        noun = "device" if available == 1 else "devices"
        if self.mesh is None:
            return f"{count} {noun}"
        return f"{count} {noun} ({self.strategy}, {mesh_text(self.mesh.shape.items())})"

    def context(self) -> AbstractContextManager[Any]:
        """A context with ``mesh`` instead of a mesh that the caller has set by ``jax.set_mesh``.

        A program accepts arrays of one mesh only, with axes of one type.
        """
        if self.mesh is None or jax.sharding.get_abstract_mesh().empty:
            return nullcontext()
        return jax.set_mesh(self.mesh)

    def mechanism(self, mechanism: ops.Mechanism) -> ops.Mechanism:
        """The mechanism for a model on these devices: split over "seq" if the mesh has that axis.

        Raises:
            ValueError: If the mechanism cannot be split.
        """
        if self.mesh is None or self.sequence_shards == 1:
            return mechanism
        return ops.sequence_parallel(mechanism, self.mesh, SEQUENCE)

    def rows(self, batch_size: int) -> slice:
        """The examples of a batch that the devices of this process need."""
        if self.mesh is None or jax.process_count() == 1:
            return slice(0, batch_size)
        sharding = NamedSharding(self.mesh, PartitionSpec(self._data_axis))
        parts: Any = sharding.addressable_devices_indices_map((batch_size,)).values()
        begins, ends, _ = zip(*(part.indices(batch_size) for (part,) in parts), strict=True)
        return slice(min(begins), max(ends))

    def batch(
        self, batch: Mapping[str, np.ndarray], batch_size: int, *, whole: bool = False
    ) -> Any:
        """Places a batch on the devices.

        Args:
            batch: Arrays [B, ...] with the ``rows(batch_size)`` of this process; for several runs,
                arrays [R, ...].
            batch_size: Number of examples in the whole batch; for several runs, the number of runs.
            whole: Whether to keep the batch whole, as for evaluation, instead of splitting it for
                gradient accumulation.

        Raises:
            ValueError: If the examples or the time steps cannot be split evenly.
        """
        parts = self.num_shards
        if not whole and self.num_runs is None:
            parts *= self.accumulate
        own = self.rows(batch_size)
        if self.mesh is not None or parts > 1:
            _check_rows(batch, batch_size, own.stop - own.start, parts)
        if self.mesh is None:
            return batch
        if self.strategy == "pmap":
            devices = self.mesh.shape[DATA]
            return {k: np.reshape(x, (devices, -1, *x.shape[1:])) for k, x in batch.items()}

        def place(name: str, array: np.ndarray) -> jax.Array:
            def part(index: Any) -> np.ndarray:
                begin, end, _ = index[0].indices(batch_size)
                return array[(slice(begin - own.start, end - own.start), *index[1:])]

            shape = (batch_size, *array.shape[1:])
            return jax.make_array_from_callback(shape, self._batch_sharding(name, array), part)

        return {name: place(name, array) for name, array in batch.items()}

    @property
    def _data_axis(self) -> str | None:
        assert self.mesh is not None
        return DATA if DATA in self.mesh.shape else None

    def _batch_sharding(self, name: str, array: np.ndarray) -> NamedSharding:
        assert self.mesh is not None
        if name in self.time_arrays and array.shape[1] % self.sequence_shards:
            raise ValueError(
                f"{array.shape[1]} time steps of {name!r} cannot be split evenly over "
                f"{self.sequence_shards} devices; pad the sequences, and mask the padding."
            )
        axes = (self._data_axis, SEQUENCE) if name in self.time_arrays else (self._data_axis,)
        return NamedSharding(self.mesh, PartitionSpec(*axes))

    def state(self, state: Tree) -> Tree:
        """Places the state of a training step on the devices."""
        if self.mesh is None:
            return state
        return jax.tree.map(lambda x: jax.device_put(x, self._state_sharding(x)), state)

    def keep(self, state: Tree) -> Tree:
        """Constrains the state that a compiled step returns to the sharding of ``state``."""
        if self.mesh is None or self.strategy == "pmap":
            return state
        return jax.tree.map(
            lambda x: jax.lax.with_sharding_constraint(x, self._state_sharding(x)), state
        )

    def _state_sharding(self, leaf: Any) -> NamedSharding:
        assert self.mesh is not None
        spec = PartitionSpec()
        if self.num_runs is not None:
            spec = PartitionSpec(DATA) if leaf.ndim else spec
        elif self.shard_parameters and not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            devices = self.num_shards
            axes = [i for i, size in enumerate(leaf.shape) if size and size % devices == 0]
            if axes:
                longest = max(axes, key=lambda i: leaf.shape[i])
                spec = PartitionSpec(*[None] * longest, DATA)
        return NamedSharding(self.mesh, spec)

    def compile(
        self, step: Callable[..., Any], num_arguments: int, donate: int
    ) -> Callable[..., Any]:
        """Compiles a step whose last argument is a batch; the argument ``donate`` is donated."""
        if self.strategy != "pmap":
            return jax.jit(step, donate_argnums=donate)
        assert self.mesh is not None
        compiled: Callable[..., Any] = jax.pmap(
            step,
            axis_name=DATA,
            in_axes=(*[None] * (num_arguments - 1), 0),
            out_axes=None,
            devices=self.mesh.devices.ravel().tolist(),
            donate_argnums=donate,
        )
        return compiled


def _check_rows(batch: Mapping[str, np.ndarray], batch_size: int, own: int, parts: int) -> None:
    for name, array in batch.items():
        if not np.ndim(array) or len(array) != own or batch_size % parts:
            raise ValueError(
                f"expected {name!r} with {own} rows, of a batch of {batch_size} that can be split "
                f"into {parts} equal parts, got shape {np.shape(array)}; all batches need the same "
                'size: drop the last, smaller batch, or pad it with rows whose "weight" is 0.'
            )


ONE_DEVICE = Placement("none", None, False, 1, ())
"""The placement on the default device."""


Strategy = Literal["auto", "none", "jit", "pmap"]


@dataclasses.dataclass(frozen=True)
class Parallel:
    """Devices to train on, and how batches and parameters are split over them.

    Args:
        strategy: "jit" splits each batch over a mesh of devices and lets XLA place the rest;
            "pmap" runs the same program on each device with its part of the batch, and sums the
            gradients; "none" uses one device; "auto" is "jit" if more than one device divides the
            batch evenly, else "none".
        mesh: Names and sizes of the mesh's axes, as a mapping or as a string such as
            ``"data=4,seq=2"``: "data" splits the batch, "seq" the time of ``time_arrays``. Default:
            all devices along "data".
        shard_parameters: Whether to split parameters and optimizer state over "data" as well, each
            along its longest axis that divides evenly (FSDP, ZeRO 3); "jit" only. They are created
            on one device first.
        accumulate: Number of gradient accumulation steps: equal parts of a batch whose gradients
            are computed in sequence, to use less memory.
        time_arrays: Names of the arrays [B, T, ...] of a batch that "seq" splits along T.
        runs_at_once: For several runs (``fit`` with several models), the number of runs that each
            device trains at once. Default: all of them; on CPUs, as many as keep their largest
            arrays in a core's cache. Other numbers change results by rounding.

    Raises:
        OptionError: If a setting is out of range.

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
        check_integers(1, accumulate=self.accumulate, runs_at_once=self.runs_at_once)
        if self.mesh is not None:
            object.__setattr__(self, "mesh", _axes(self.mesh))
        if self.strategy == "none" and (self.mesh is not None or self.shard_parameters):
            raise OptionError(
                "mesh and shard_parameters are for several devices, but strategy 'none' uses one; "
                "remove them, or choose strategy 'jit'.",
                "strategy",
                "mesh",
                "shard_parameters",
            )
        if self.strategy == "pmap" and (self.shard_parameters or SEQUENCE in dict(self.mesh or ())):
            raise OptionError(
                "strategy 'pmap' splits batches only; 'jit' also splits parameters and sequences.",
                "strategy",
                "mesh",
                "shard_parameters",
            )

    def place(self, batch_size: int, *other_sizes: int, num_runs: int | None = None) -> Placement:
        """Chooses the devices for batches of a given size.

        Args:
            batch_size: Number of examples in a training batch.
            *other_sizes: Sizes of other batches that are split over the same devices.
            num_runs: Number of runs, which are split over the devices instead of the batches; None
                for a single model.

        Raises:
            OptionError: If there are too few devices, batches or runs cannot be split evenly, or
                the settings do not apply to several runs.
        """
        if num_runs is not None:
            return self._place_runs(batch_size, num_runs)
        if batch_size % self.accumulate:
            raise OptionError(
                f"a batch of {batch_size} rows cannot be split into accumulate={self.accumulate} "
                "equal parts; choose a batch size that is a multiple of it.",
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
                "devices; change the batch size, or choose a mesh that divides it.",
                "batch_size",
                "mesh",
            )
        needed = math.prod(sizes.values())
        if needed > jax.device_count():
            raise OptionError(
                f"the mesh {mesh_text(axes)} needs {needed} devices, but there are "
                f"{jax.device_count()}; choose a smaller mesh.",
                "mesh",
            )
        if self.strategy in ("none", "pmap") and jax.process_count() > 1:
            raise OptionError(
                f"strategy {self.strategy!r} is for one process, but there are "
                f"{jax.process_count()}; choose 'jit'.",
                "strategy",
            )
        if needed < jax.device_count() and jax.process_count() > 1:
            raise OptionError(
                f"with several processes all {jax.device_count()} devices must be used, but the "
                f"mesh {mesh_text(axes)} has only {needed}; choose a batch size that is a multiple "
                "of their number, or another mesh.",
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
                "several runs at once need a single process, but there are "
                f"{jax.process_count()}; start one process, or train one run.",
                "runs",
            )
        if self.strategy == "pmap" or self.shard_parameters or SEQUENCE in dict(self.mesh or ()):
            raise OptionError(
                "several runs at once are split over devices by runs only; remove strategy 'pmap', "
                "shard_parameters and the axis seq of the mesh.",
                "strategy",
                "shard_parameters",
                "mesh",
            )
        every = jax.device_count() if self.strategy == "jit" else 1
        devices = dict(self.mesh or ()).get(DATA, every)
        if num_runs % devices:
            raise OptionError(
                f"{num_runs} runs cannot be split evenly over {devices} devices; change the number "
                "of runs, or the mesh.",
                "runs",
                "mesh",
            )
        placement = dataclasses.replace(self, accumulate=1).place(num_runs)
        run_placement = Parallel("none", accumulate=self.accumulate).place(batch_size)
        return dataclasses.replace(
            placement,
            accumulate=run_placement.accumulate,
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
            f"mesh must be names and sizes of axes, such as data=4,seq=2, got {given!r}.",
            "mesh",
        ) from None
    names = [name for name, _ in axes]
    if set(names) - {DATA, SEQUENCE} or len(set(names)) < len(names):
        raise OptionError(
            f"mesh must have the axes {DATA} and {SEQUENCE}, each at most once, got "
            f"{mesh_text(axes)}.",
            "mesh",
        )
    if not axes or any(size < 1 for _, size in axes):
        raise OptionError(
            f"each axis of mesh must have at least one device, got {mesh_text(axes)!r}.", "mesh"
        )
    return axes
