"""Sequence parallelism: streaming mechanisms over sequences that are sharded over devices.

Every device holds a shard of consecutive tokens and summarizes it in a state. The devices exchange
these states, and each merges the states of earlier shards (and of later ones, if attention is not
causal) into one state of all that its tokens attend to outside their shard. Then it attends as if
an earlier call had returned that state. The amount exchanged does not grow with the sequence: one
state per device, and with packed segments one id.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, PartitionSpec

from flax_linattn.ops.contract import masks
from flax_linattn.ops.contract.call import Call, StepCall, pools_sequence
from flax_linattn.ops.contract.capabilities import Capabilities, LearnedParameter
from flax_linattn.ops.contract.mechanism import Mechanism
from flax_linattn.ops.contract.non_finite import attends_to_marked, replace_non_finite
from flax_linattn.ops.contract.numerics import match_varying_axes
from flax_linattn.ops.contract.state import StateSizes
from flax_linattn.ops.contract.token_arguments import TokenArgument
from flax_linattn.ops.engine import prefix
from flax_linattn.ops.engine.streaming import StreamingMechanism
from flax_linattn.ops.engine.tiles import shift_right, take_position, take_token
from flax_linattn.typing import (
    Array,
    Keys,
    Mask,
    Outputs,
    OutputStep,
    Parameters,
    SegmentIds,
    State,
    Values,
    Visible,
)


def sequence_parallel(mechanism: Mechanism, mesh: Mesh, axis: str) -> SequenceParallel:
    """Makes a mechanism whose ``attend`` takes sequences sharded over the devices of a mesh.

    Its outputs, states and gradients equal those from ``mechanism``, and it is used the same way,
    also in ``nn.Attention``. Each device attends to its own shard of consecutive tokens;
    communication, forward and backward, does not grow with the length of the sequence. Steps and
    states are not sharded.

    Args:
        mechanism: A streaming mechanism, with ``capabilities.mergeable``.
        mesh: Mesh of devices; its other axes shard as they do outside, for example the batch.
        axis: Mesh axis over which time is sharded. The number of tokens must be a multiple of its
            devices.

    Raises:
        ValueError: If the mechanism cannot merge states, or the mesh has no such axis.
        TypeError: If the first argument is not a mechanism.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from flax_linattn import ops
        >>> mesh = jax.make_mesh((jax.device_count(),), ("seq",))
        >>> series = ops.get_mechanism("elementwise_series")
        >>> q, k, v = jax.random.normal(jax.random.key(0), (3, 2, 64, 4, 8))
        >>> y = ops.sequence_parallel(series, mesh, "seq").attend(q, k, v, is_causal=True)
        >>> bool(jnp.allclose(y, series.attend(q, k, v, is_causal=True), atol=1e-5))
        True
    """
    if not isinstance(mechanism, Mechanism):
        raise TypeError(f"expected what ops.get_mechanism returns, got {type(mechanism).__name__}.")
    if isinstance(mechanism, SequenceParallel):
        raise ValueError(f"{mechanism.name!r} is split over {mechanism.axis!r} already.")
    if not isinstance(mechanism, StreamingMechanism):
        raise ValueError(
            f"{mechanism.name!r} has no state of constant size that devices could merge; split "
            "its batch or its heads instead, or choose a mechanism whose "
            "capabilities.mergeable is True."
        )
    if axis not in mesh.axis_names:
        raise ValueError(f"the mesh has no axis {axis!r}; it has {', '.join(mesh.axis_names)}.")
    # ``attend`` runs on automatic axes (``contract.meshes``).
    mesh = Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * len(mesh.axis_names))
    return SequenceParallel(mechanism, mesh, axis)


@dataclasses.dataclass(frozen=True)
class SequenceParallel(Mechanism):
    """Mechanism with sharded sequences, made by ``sequence_parallel``.

    Attributes:
        inner: Mechanism that every device runs.
        mesh: Mesh of devices.
        axis: Mesh axis over which time is sharded.
    """

    inner: StreamingMechanism
    mesh: Mesh
    axis: str

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def about(self) -> str:
        return self.inner.about

    @property
    def capabilities(self) -> Capabilities:
        engine = ("parallel", "chunked", "recurrent")
        return dataclasses.replace(self.inner.capabilities, forms=engine)

    @property
    def parameters(self) -> tuple[str, ...]:
        return self.inner.parameters

    @property
    def token_arguments(self) -> tuple[TokenArgument, ...]:
        return self.inner.token_arguments

    @property
    def merge_field(self) -> str | None:
        return self.inner.merge_field

    def _init_state(self, sizes: StateSizes) -> State:
        return self.inner._init_state(sizes)

    def learned_parameters(self, num_heads: int, key_dim: int) -> dict[str, LearnedParameter]:
        return self.inner.learned_parameters(num_heads, key_dim)

    def check_heads(self, num_heads: int) -> None:
        self.inner.check_heads(num_heads)

    def _merge(self, state_a: State, state_b: State) -> State:
        return self.inner._merge(state_a, state_b)

    def _check_state(self, state: State, q: Array, k: Array, v: Array) -> None:
        self.inner._check_state(state, q, k, v)

    def _check_parameters(self, parameters: Parameters) -> None:
        self.inner._check_parameters(parameters)

    def _step(self, call: StepCall) -> tuple[OutputStep, State]:
        return self.inner._step(call)

    def _reference(
        self, q: Array, k: Keys, v: Values, visible: Visible, parameters: Parameters
    ) -> Outputs:
        return self.inner._reference(q, k, v, visible, parameters)

    def _attend_causal_call(self, call: Call) -> tuple[Outputs, State]:
        return self._attend(call)  # every device replaces what is not finite in its shard

    def _attend(self, call: Call) -> tuple[Outputs, State]:
        whole, split = self._specs()
        is_pooled = pools_sequence(self.capabilities, call.q, call.is_causal)
        learned = self.capabilities.learned_query
        self._check_split(call.k.shape[1], *(() if learned else (call.num_queries,)))
        segments = None if call.segments is None else masks.Segments(split, whole)
        specs = dataclasses.replace(
            call,
            q=whole if learned else split,
            k=split,
            v=split,
            mask=split,
            query_mask=whole if is_pooled else split,
            segments=segments,
            state=whole,
            parameters=whole,
            per_token=split,
        )
        outputs = whole if is_pooled else split
        return self._on_devices(self._attend_to_shard, (specs,), (outputs, whole))(call)

    def _attend_to_shard(self, call: Call) -> tuple[Outputs, State]:
        """Attends on one device; returns its outputs and the state after all devices."""
        inner = self.inner
        # They vary before the broadcast to tokens, so gradients are summed over tokens first, then
        # over devices.
        _, parameters = match_varying_axes((call.k, call.parameters))
        call = dataclasses.replace(call, parameters=parameters)
        non_finite = None
        if call.is_causal:
            call, non_finite = replace_non_finite(call, inner.capabilities, inner.token_arguments)
            call, marked_before = inner._replace_state(call)
        q, tokens = inner._prepare(call)
        identity = inner._call_identity(call)
        monoid, chunk_size = inner._make_monoid(q, identity), inner._chunk_size(call, identity)
        span = prefix.Span(tokens, call.mask, call.starts)
        initial = identity if call.state is None else call.state
        before, end = self._state_before(monoid, span, initial, chunk_size)
        if pools_sequence(self.capabilities, call.q, call.is_causal):
            return inner.read(None, end), end
        call = dataclasses.replace(call, state=before, return_state=False)
        if non_finite is not None:
            y = inner._attend(call)[0]
            if call.k.shape[1] == 0:
                return y, end
            attended = attends_to_marked(non_finite.tokens, call.starts)
            attended_before, marked = self._scan_marked(attended[:, -1], span, marked_before)
            in_first = (span.segment_index == 0)[..., None]
            attended = attended | (attended_before[:, None] & in_first)
            end = inner._poison_state(call, end, marked)
            return non_finite.poison_outputs(y, attended), end
        following = self._state_following(monoid, span, chunk_size)
        return inner._attend_with_engine(call, q, tokens, following)[0], end

    def _state_before(
        self, monoid: prefix.Monoid, span: prefix.Span, initial: State, chunk_size: int | None
    ) -> tuple[State, State]:
        """Returns the state before this device's shard, and the state after all shards."""
        own = prefix.final_state(monoid, span, monoid.identity, chunk_size)
        states = self._gather(own)
        after = prefix.scan(monoid.merge, states, initial, self._gather_starts(span))
        return self._take_own(shift_right(initial, after)), self._replicate(
            take_position(after, -1)
        )

    def _scan_marked(
        self, marked: Array, span: prefix.Span, initial: Array | None
    ) -> tuple[Array, Array]:
        """Returns whether the segments before this shard and at the end are marked, each [B, H].

        ``marked`` [B, H] says it of the last segment of this device's shard, and ``initial`` of the
        state before all shards.
        """
        initial = jnp.zeros_like(marked) if initial is None else initial
        after = prefix.scan(
            jnp.logical_or, self._gather(marked), initial, self._gather_starts(span)
        )
        end = self._replicate(take_position(after, -1).astype(jnp.int32))
        return self._take_own(shift_right(initial, after)), end > 0

    def _state_following(
        self, monoid: prefix.Monoid, span: prefix.Span, chunk_size: int | None
    ) -> State:
        """Returns the state of the rest of the segment in which this shard ends."""
        in_first = span.segment_mask(jnp.zeros(span.size[0], jnp.int32))
        first = prefix.Span(span.tokens, in_first, None)
        states = self._gather(prefix.final_state(monoid, first, monoid.identity, chunk_size))
        starts = self._gather_starts(span)
        states, starts = jax.tree.map(lambda x: jnp.flip(x, axis=1), (states, starts))
        following = prefix.scan(
            lambda later, earlier: monoid.merge(earlier, later), states, monoid.identity, starts
        )
        nearest_last = jax.tree.map(
            lambda x: jnp.flip(x, axis=1), shift_right(monoid.identity, following)
        )
        return self._take_own(nearest_last)

    def _gather_starts(self, span: prefix.Span) -> Array | None:
        """Returns whether segments start in each device's shard, [B, devices], or None."""
        return None if span.starts is None else self._gather(jnp.any(span.starts, axis=1))

    def _find_segments(
        self, segment_ids: SegmentIds | None, mask: Mask | None, carried: Array | None
    ) -> masks.Segments | None:
        if segment_ids is None:
            return None
        self._check_split(segment_ids.shape[1])
        if carried is None:
            carried = jnp.full(segment_ids.shape[0], masks.NO_SEGMENT, jnp.int32)
        if segment_ids.shape[1] == 0:
            return self.inner._find_segments(segment_ids, mask, carried)
        return masks.Segments(*_find_segments(self, segment_ids, mask, carried))

    def _find_shard_segments(
        self, segment_ids: SegmentIds, mask: Mask | None, carried: Array
    ) -> tuple[Array, Array]:
        def latest(earlier: Array, later: Array) -> Array:
            return jnp.where(later == masks.NO_SEGMENT, earlier, later)

        last = self._gather(masks.find_segments(segment_ids, mask).last)
        after = prefix.scan(latest, last, carried, None)
        segments = masks.find_segments(
            segment_ids, mask, self._take_own(shift_right(carried, after))
        )
        return segments.starts, self._replicate(take_position(after, -1))

    def _specs(self) -> tuple[Any, Any]:
        """Returns the partition specs of replicated arrays and of sharded arrays [B, T, ...]."""
        return PartitionSpec(), PartitionSpec(None, self.axis)

    def _on_devices(self, function: Callable[..., Any], specs: Any, out_specs: Any) -> Any:
        names = {self.axis}
        return jax.shard_map(
            function, mesh=self.mesh, in_specs=specs, out_specs=out_specs, axis_names=names
        )

    def _gather(self, tree: Any) -> Any:
        """Gathers leaves [B, ...] of this device to [B, devices, ...] of all."""
        return jax.tree.map(lambda x: jax.lax.all_gather(x, self.axis, axis=1), tree)

    def _take_own(self, tree: Any) -> Any:
        """Takes this device's leaves [B, ...] of [B, devices or more, ...]."""
        index = jax.lax.axis_index(self.axis)
        return jax.tree.map(lambda x: take_token(x, index), tree)

    def _replicate(self, tree: Any) -> Any:
        """Marks leaves that are equal on all devices as replicated, for ``jax.shard_map``."""
        first = jax.lax.axis_index(self.axis) == 0

        def from_first_device(x: Array) -> Array:
            return jax.lax.psum(jnp.where(first, x, jnp.zeros_like(x)), self.axis)

        return jax.tree.map(from_first_device, tree)

    def _check_split(self, *lengths: int) -> None:
        devices = self.mesh.shape[self.axis]
        for length in lengths:
            if length % devices:
                raise ValueError(
                    f"{length} tokens cannot be split evenly over the {devices} devices of the "
                    f"mesh axis {self.axis!r}; pad the sequences, and mask the padding."
                )


# Compiled here, so that calls outside ``jit`` do not compile it again each time.
@partial(jax.jit, static_argnums=0)
def _find_segments(
    split: SequenceParallel, segment_ids: SegmentIds, mask: Mask | None, carried: Array
) -> tuple[Array, Array]:
    whole, shards = split._specs()
    find = split._on_devices(split._find_shard_segments, (shards, shards, whole), (shards, whole))
    starts, last = find(segment_ids, mask, carried)
    return starts, last
