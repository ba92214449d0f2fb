"""Where arrays live: one interface over ``jax.jit`` on a mesh and ``jax.pmap``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from flax_linattn import ops

DATA = "data"
SEQUENCE = "seq"
Tree = TypeVar("Tree")


def mesh_text(axes: Iterable[tuple[str, int]]) -> str:
    """Names and sizes of a mesh's axes, such as "data=4,seq=2"."""
    return ",".join(f"{name}={size}" for name, size in axes)


@dataclasses.dataclass(frozen=True)
class Placement:
    """Where the arrays of a training live; hashable, made by ``Parallel.place``.

    Attributes:
        strategy: "none", "jit" or "pmap".
        mesh: the devices; None for "none".
        shard_parameters: as in ``Parallel``.
        accumulate: as in ``Parallel``.
        time_arrays: arrays of a batch that are split along time.
        num_runs: size of the axis of runs in front of every array, which the devices split in
            place of batches; None without that axis.
        runs_at_once: as in ``Parallel``.
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
        """The axis to sum over inside a step: one of ``jax.pmap``."""
        return DATA if self.strategy == "pmap" else None

    @property
    def spans(self) -> int:
        """Devices that a sequence is split over: its length has to be a multiple."""
        return 1 if self.mesh is None else self.mesh.shape.get(SEQUENCE, 1)

    @property
    def num_shards(self) -> int:
        """Devices that batches, or runs, are split over."""
        return 1 if self.mesh is None else self.mesh.shape.get(DATA, 1)

    @property
    def platform(self) -> str:
        """Of the devices: "cpu", "gpu" or "tpu"."""
        if self.mesh is None:
            return jax.default_backend()
        platform: str = self.mesh.devices.flat[0].platform
        return platform

    @property
    def of_run(self) -> Placement:
        """Where each run computes: of several runs each on one device."""
        if self.num_runs is None:
            return self
        return dataclasses.replace(ONE_DEVICE, accumulate=self.accumulate)

    def __str__(self) -> str:
        there = jax.device_count()
        used = 1 if self.mesh is None else self.mesh.size
        count = "one" if used == 1 else str(used)
        count = count if used == there else f"{count} of {there}"
        noun = "device" if there == 1 else "devices"
        if self.mesh is None:
            return f"{count} {noun}"
        return f"{count} {noun} ({self.strategy}, {mesh_text(self.mesh.shape.items())})"

    def context(self) -> AbstractContextManager[Any]:
        """Where it trains: ``mesh`` in place of one that the caller has set with ``jax.set_mesh``.

        A program takes arrays of one mesh, with axes of one type.
        """
        if self.mesh is None or jax.sharding.get_abstract_mesh().empty:
            return nullcontext()
        return jax.set_mesh(self.mesh)

    def mechanism(self, mechanism: ops.Mechanism) -> ops.Mechanism:
        """The mechanism for a model there: split over "seq" if the mesh has that axis.

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
            batch: arrays ``[rows, ...]``, with the ``rows(batch_size)`` of this process; of several
                runs a row is a run.
            batch_size: rows of the whole batch.
            whole: it is not taken in parts, as for evaluation.

        Raises:
            ValueError: its rows, or time steps, do not divide evenly.
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
"""The placement where no devices are asked for."""
