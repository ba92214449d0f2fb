"""How a run uses several devices: one interface over ``jax.jit`` on a mesh and ``jax.pmap``."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from flax_linattn import ops
from flax_linattn.checks import at_least

DATA = "data"
SEQUENCE = "seq"
Strategy = Literal["auto", "none", "jit", "pmap"]
Tree = TypeVar("Tree")


@dataclasses.dataclass(frozen=True)
class Parallel:
    """The devices of a run, and what is split over them.

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
        accumulate: take the gradient of a batch in so many parts, one after another, for batches
            whose gradient does not fit the memory.
        time_arrays: arrays of a batch [B, T, ...] that "seq" splits along T.

    Raises:
        ValueError: a setting out of range.

    Example:
        >>> Parallel("jit", "data=4,seq=2").mesh
        (('data', 4), ('seq', 2))
    """

    strategy: Strategy = "auto"
    mesh: Any = None
    shard_parameters: bool = False
    accumulate: int = 1
    time_arrays: tuple[str, ...] = ("values", "mask", "segment_ids")

    def __post_init__(self) -> None:
        if self.strategy not in get_args(Strategy):
            raise ValueError(
                f"Parallel.strategy must be one of {', '.join(get_args(Strategy))}, got "
                f"{self.strategy!r}."
            )
        at_least(1, accumulate=self.accumulate)
        if self.mesh is not None:
            object.__setattr__(self, "mesh", _axes(self.mesh))
        if self.strategy == "none" and (self.mesh is not None or self.shard_parameters):
            raise ValueError(
                "a mesh and shard_parameters are for several devices; strategy 'none' uses one."
            )
        if self.strategy == "pmap" and (self.shard_parameters or SEQUENCE in dict(self.mesh or ())):
            raise ValueError(
                "strategy 'pmap' splits batches only; use 'jit' to split parameters or sequences."
            )

    def place(self, batch_size: int, *other_sizes: int) -> Placement:
        """The devices for batches of a size.

        Args:
            batch_size: rows of a training batch.
            *other_sizes: rows of other batches that are split over the same devices.

        Raises:
            ValueError: more devices than there are, or a batch that does not divide evenly.
        """
        if batch_size % self.accumulate:
            raise ValueError(
                f"a batch of {batch_size} rows cannot be taken in {self.accumulate} equal parts; "
                "choose a batch size that is a multiple of Parallel.accumulate."
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
            taken = f" in {self.accumulate} parts" if self.accumulate > 1 else ""
            shown = " and ".join(map(str, dict.fromkeys((batch_size, *other_sizes))))
            raise ValueError(
                f"batches of {shown} rows{taken} cannot be split evenly over {sizes[DATA]} "
                "devices; change the batch size, or the mesh (Parallel.mesh, --mesh)."
            )
        needed = math.prod(sizes.values())
        if needed > jax.device_count():
            raise ValueError(
                f"the mesh {_text(axes)} needs {needed} devices, but there are "
                f"{jax.device_count()}."
            )
        if self.strategy in ("none", "pmap") and jax.process_count() > 1:
            raise ValueError(
                f"strategy {self.strategy!r} is for one process, but there are "
                f"{jax.process_count()}; use 'jit'."
            )
        if needed < jax.device_count() and jax.process_count() > 1:
            raise ValueError(
                f"all processes take part, but of their {jax.device_count()} devices only {needed} "
                f"do ({_text(axes)}); choose a batch size that all divide, or another mesh."
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


def _axes(mesh: Any) -> tuple[tuple[str, int], ...]:
    """Names and sizes from a mapping, from pairs, or from ``"data=4,seq=2"``."""
    given = mesh
    try:
        if isinstance(mesh, str):
            mesh = [part.split("=") for part in mesh.split(",")]
        pairs = mesh.items() if isinstance(mesh, Mapping) else mesh
        axes = tuple((str(name).strip(), int(size)) for name, size in pairs)
    except (TypeError, ValueError):
        raise ValueError(
            f"expected a mesh as names and sizes of its axes, such as data=4,seq=2, got {given!r}."
        ) from None
    names = [name for name, _ in axes]
    if set(names) - {DATA, SEQUENCE} or len(set(names)) < len(names):
        raise ValueError(
            f"a mesh has the axes {DATA} and {SEQUENCE}, each once, got {_text(axes)}."
        )
    if not axes or any(size < 1 for _, size in axes):
        raise ValueError(f"the axes of a mesh have at least one device, got {_text(axes)}.")
    return axes


def _text(axes: tuple[tuple[str, int], ...]) -> str:
    return ",".join(f"{name}={size}" for name, size in axes)


@dataclasses.dataclass(frozen=True)
class Placement:
    """Where the arrays of a run live; hashable, made by ``Parallel.place``.

    Attributes:
        strategy: "none", "jit" or "pmap".
        mesh: the devices; None for "none".
        shard_parameters: as in ``Parallel``.
        accumulate: as in ``Parallel``.
        time_arrays: arrays of a batch that are split along time.
    """

    strategy: str
    mesh: Mesh | None
    shard_parameters: bool
    accumulate: int
    time_arrays: tuple[str, ...]

    @property
    def axis_name(self) -> str | None:
        """The axis to sum over inside a step: one of ``jax.pmap``."""
        return DATA if self.strategy == "pmap" else None

    @property
    def spans(self) -> int:
        """Devices that a sequence is split over: its length has to be a multiple."""
        return 1 if self.mesh is None else self.mesh.shape.get(SEQUENCE, 1)

    def __str__(self) -> str:
        there = jax.device_count()
        used = 1 if self.mesh is None else self.mesh.size
        count = "one" if used == 1 else str(used)
        count = count if used == there else f"{count} of {there}"
        noun = "device" if there == 1 else "devices"
        if self.mesh is None:
            return f"{count} {noun}"
        return f"{count} {noun} ({self.strategy}, {_text(tuple(self.mesh.shape.items()))})"

    def mechanism(self, mechanism: ops.Mechanism) -> ops.Mechanism:
        """The mechanism for a model of this run: split over "seq" if the mesh has that axis.

        Raises:
            ValueError: the mechanism cannot be split.
        """
        if self.mesh is None or self.spans == 1:
            return mechanism
        return ops.sequence_parallel(mechanism, self.mesh, SEQUENCE)

    def rows(self, batch_size: int) -> slice:
        """The rows of a batch that this process has to load: those of its own devices."""
        if self.mesh is None or jax.process_count() == 1:
            return slice(0, batch_size)
        sharding = NamedSharding(self.mesh, PartitionSpec(self._data_axis))
        parts: Any = sharding.addressable_devices_indices_map((batch_size,)).values()
        begins, ends, _ = zip(*(part.indices(batch_size) for (part,) in parts), strict=True)
        return slice(min(begins), max(ends))

    def batch(
        self, batch: Mapping[str, np.ndarray], batch_size: int, *, whole: bool = False
    ) -> Any:
        """The batch on its devices.

        Args:
            batch: arrays ``[rows, ...]``, with the ``rows(batch_size)`` of this process.
            batch_size: rows of the whole batch.
            whole: it is not taken in parts, as for evaluation.

        Raises:
            ValueError: its rows, or time steps, do not divide evenly.
        """
        parts = 1 if self.mesh is None else self.mesh.shape.get(DATA, 1)
        parts *= 1 if whole else self.accumulate
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
            return jax.make_array_from_callback(shape, self._of_array(name, array), part)

        return {name: place(name, array) for name, array in batch.items()}

    @property
    def _data_axis(self) -> str | None:
        assert self.mesh is not None
        return DATA if DATA in self.mesh.shape else None

    def _of_array(self, name: str, array: np.ndarray) -> NamedSharding:
        assert self.mesh is not None
        if name in self.time_arrays and array.shape[1] % self.spans:
            raise ValueError(
                f"{array.shape[1]} time steps of {name!r} cannot be split evenly over "
                f"{self.spans} devices; pad the sequences, and mask the padding."
            )
        axes = (self._data_axis, SEQUENCE) if name in self.time_arrays else (self._data_axis,)
        return NamedSharding(self.mesh, PartitionSpec(*axes))

    def state(self, state: Tree) -> Tree:
        """Parameters, optimizer state and all else that a step carries, on its devices."""
        if self.mesh is None:
            return state
        return jax.tree.map(lambda x: jax.device_put(x, self._of_leaf(x)), state)

    def keep(self, state: Tree) -> Tree:
        """The same inside a compiled step: what it returns lies where it lay."""
        if self.mesh is None or self.strategy == "pmap":
            return state
        return jax.tree.map(lambda x: jax.lax.with_sharding_constraint(x, self._of_leaf(x)), state)

    def _of_leaf(self, leaf: Any) -> NamedSharding:
        assert self.mesh is not None
        spec = PartitionSpec()
        if self.shard_parameters and not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            devices = self.mesh.shape.get(DATA, 1)
            axes = [i for i, size in enumerate(leaf.shape) if size and size % devices == 0]
            if axes:
                longest = max(axes, key=lambda i: leaf.shape[i])
                spec = PartitionSpec(*[None] * longest, DATA)
        return NamedSharding(self.mesh, spec)

    def compile(
        self, step: Callable[..., Any], num_arguments: int, donate: int
    ) -> Callable[..., Any]:
        """A step whose last argument is a batch; the argument ``donate`` gives its memory."""
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
                f"expected {name!r} with {own} rows of a batch of {batch_size} that {parts} parts "
                f"share evenly, got shape {np.shape(array)}; batches need one size: drop what is "
                'left over, or fill it up with rows whose "weight" is 0.'
            )


ONE_DEVICE = Placement("none", None, False, 1, ())
"""The placement of a run that asks for no devices."""
