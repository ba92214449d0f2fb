"""The contract that every attention mechanism keeps.

A mechanism is a frozen, hashable dataclass, hence static under ``jax.jit``. Its public methods are
implemented here, once: they check their arguments, zero the padding, and call the families
:mod:`flax_linattn.ops.engine.streaming` (a monoid with a state of constant size),
:mod:`flax_linattn.ops.engine.cache` (stored keys and values) and
:mod:`flax_linattn.ops.engine.stateless` (whole sequences).
"""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Iterator
from functools import partial
from typing import Any, Literal, overload

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike

from flax_linattn.checks import check_integers
from flax_linattn.ops.contract import checks, masks, meshes, output_sharding
from flax_linattn.ops.contract.call import (
    Call,
    StepCall,
    attend_by_group,
    broadcast_queries,
    count_latents,
    num_queries,
    pools_sequence,
    zero_queries,
)
from flax_linattn.ops.contract.capabilities import Capabilities, LearnedParameter
from flax_linattn.ops.contract.forward_mode import explain_forward_mode_error
from flax_linattn.ops.contract.non_finite import (
    NonFinite,
    attends_to_marked,
    poison_state,
    replace_non_finite,
    replace_state,
)
from flax_linattn.ops.contract.numerics import accumulation_dtype
from flax_linattn.ops.contract.state import PackedState, StateSizes, pack_state, unpack_state
from flax_linattn.ops.contract.token_arguments import TokenArgument, check_token_arguments
from flax_linattn.typing import (
    Array,
    Keys,
    KeyStep,
    Latents,
    LearnedQuery,
    Mask,
    Outputs,
    OutputStep,
    Parameters,
    Queries,
    QueryStep,
    SegmentIds,
    State,
    Values,
    ValueStep,
    Visible,
)


@dataclasses.dataclass(frozen=True)
class Mechanism(abc.ABC):
    """Maps queries and their visible (key, value) pairs to outputs.

    Subclasses give ``name``, ``about``, ``capabilities``, ``parameters`` and the underscored
    methods; a class variable gives each of the first four.
    """

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """Name by which ``ops.get_mechanism`` makes the mechanism."""

    @property
    @abc.abstractmethod
    def about(self) -> str:
        """Description of the mechanism and its source, in one line."""

    @property
    @abc.abstractmethod
    def capabilities(self) -> Capabilities:
        """Features that the mechanism supports."""

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the mechanism's own keyword arguments of ``attend`` and ``step``."""
        return ()

    @property
    def token_arguments(self) -> tuple[TokenArgument, ...]:
        """Per-token inputs (gates, decays) that ``attend`` and ``step`` take by keyword."""
        return ()

    @property
    def merge_field(self) -> str | None:
        """Name of the state field that only ``merge`` reads, or None if there is no such field.

        An example is the total log-decay of a chunk.
        """
        return None

    # -- the public contract -------------------------------------------------------

    @overload
    def attend(
        self,
        q: Queries | LearnedQuery | None,
        k: Keys,
        v: Values,
        *,
        latents: Latents | None = ...,
        is_causal: bool = ...,
        mask: Mask | None = ...,
        query_mask: Array | None = ...,
        segment_ids: SegmentIds | None = ...,
        initial_state: State | None = ...,
        return_state: Literal[False] = ...,
        form: str = ...,
        **parameters: ArrayLike | None,
    ) -> Outputs: ...

    @overload
    def attend(
        self,
        q: Queries | LearnedQuery | None,
        k: Keys,
        v: Values,
        *,
        latents: Latents | None = ...,
        return_state: Literal[True],
        is_causal: bool = ...,
        mask: Mask | None = ...,
        query_mask: Array | None = ...,
        segment_ids: SegmentIds | None = ...,
        initial_state: State | None = ...,
        form: str = ...,
        **parameters: ArrayLike | None,
    ) -> tuple[Outputs, State]: ...

    @overload
    def attend(
        self,
        q: Queries | LearnedQuery | None,
        k: Keys,
        v: Values,
        *,
        latents: Latents | None = ...,
        return_state: bool,
        is_causal: bool = ...,
        mask: Mask | None = ...,
        query_mask: Array | None = ...,
        segment_ids: SegmentIds | None = ...,
        initial_state: State | None = ...,
        form: str = ...,
        **parameters: ArrayLike | None,
    ) -> Outputs | tuple[Outputs, State]: ...

    def attend(
        self,
        q: Queries | LearnedQuery | None,
        k: Keys,
        v: Values,
        *,
        latents: Latents | None = None,
        is_causal: bool = False,
        mask: Mask | None = None,
        query_mask: Array | None = None,
        segment_ids: SegmentIds | None = None,
        initial_state: State | None = None,
        return_state: bool = False,
        form: str = "auto",
        **parameters: ArrayLike | None,
    ) -> Outputs | tuple[Outputs, State]:
        """Attends over whole sequences in parallel.

        Args:
            q: Queries of shape [B, T, H, K]; the learned query [H, K] if
                ``capabilities.learned_query``; None with ``latents``.
            k: Keys of shape [B, S, H, K]; or [B, S, G, K] with H a multiple of G (grouped-query
                attention) if ``capabilities.grouped_queries``: query head h attends to key head
                h // (H // G). Per-token inputs, the mechanism's own parameters and states then have
                G heads.
            v: Values of shape [B, S, H, V], with as many heads as k.
            latents: External queries instead of the learned one, [L, H, K] for all sequences or
                [B, L, H, K] for each, if ``capabilities.latents``.
            is_causal: Whether each position attends only to itself and earlier positions; needs T =
                S. Then no output depends on what later tokens hold, NaN included.
            mask: Boolean array of shape [B, S]; True marks valid tokens. Padding may stand
                anywhere. A masked token contributes nothing, whatever its values, NaN included.
            query_mask: Boolean array of shape [B, T]; True marks positions whose output is wanted,
                and the others return 0. Defaults to ``mask`` in self-attention (T = S); pass it in
                cross-attention of equal lengths. For latents its shape is [B, L], or [B,
                T] with ``mask`` as the default if ``is_causal``.
            segment_ids: Integer array of shape [B, T] for packed sequences (T = S): tokens attend
                to each other within a segment of equal ids.
            initial_state: State returned by an earlier call, whose tokens come first. With
                ``segment_ids`` a plain state belongs to the first segment, a :class:`PackedState`
                to the segment of its id.
            return_state: Whether to return ``(y, state)`` instead of ``y``.
            form: Name of the form, "auto" or one of ``capabilities.forms``. All forms return the
                same numbers up to rounding.
            **parameters: The mechanism's own arguments (see ``parameters``); None means not passed.
                Also its per-token inputs (``token_arguments``) of shape [B, S, ...], padded and
                packed like k, and the inputs per pair in ``capabilities.pair_inputs``:
                ``pair_mask`` (Boolean) and ``bias`` (added to the scaled scores; -inf hides a key)
                of shape [B or 1, H or 1, T, S], ``dropout_rate`` and ``dropout_key`` of the
                weights. With ``initial_state`` S counts its slots, then the tokens of the call.

        Returns:
            Outputs of shape [B, T, H, V] in the dtype of the inputs, 0 where no token is visible.
            For latents [B, L, H, V], or [B, T, L, H, V] after each token if ``is_causal``.
            With ``return_state`` also the state after the last token, a :class:`PackedState` if
            ``segment_ids`` was passed.

        Raises:
            ValueError: If a shape, form, state or combination of arguments is not supported.
            TypeError: If a dtype or an argument name is wrong, or the form has no forward mode.
        """
        queries: Any = checks.resolve_queries(self.name, self.capabilities, q, latents)

        def split(results: Any) -> Any:
            y = self._output_axes(queries, k, v, is_pooled=not is_causal)
            if not return_state:
                return y
            new_state = partial(
                self.init_state,
                1,
                key_dim=k.shape[-1],
                value_dim=v.shape[-1],
                max_length=1,
                num_latents=count_latents(self.capabilities, queries),
            )
            return y, output_sharding.state_axes(results[1], initial_state, k, new_state)

        return meshes.run_on_automatic_axes(
            lambda arrays: self._checked_attend(
                **arrays, is_causal=is_causal, form=form, return_state=return_state
            ),
            [
                {
                    "q": queries,
                    "k": k,
                    "v": v,
                    "mask": mask,
                    "query_mask": query_mask,
                    "segment_ids": segment_ids,
                    "initial_state": initial_state,
                    "parameters": parameters,
                }
            ],
            split,
        )

    def _checked_attend(
        self,
        *,
        q: Array,
        k: Keys,
        v: Values,
        mask: Mask | None,
        query_mask: Array | None,
        segment_ids: SegmentIds | None,
        initial_state: State | None,
        parameters: dict[str, ArrayLike | None],
        is_causal: bool,
        form: str,
        return_state: bool,
    ) -> Any:
        """Checks the arguments and attends, on automatic mesh axes."""
        own, given = self._split_parameters(parameters)
        mask, query_mask = self._check_call(
            q, k, v, is_causal, mask, query_mask, segment_ids, form, own
        )
        q, k, v = map(jnp.asarray, (q, k, v))
        per_token = check_token_arguments(self.name, self.token_arguments, given, k, v, mask)
        if initial_state is not None or return_state:
            self._check_recurrent()
        state, carried = unpack_state(initial_state)
        if state is not None:
            self._check_state(state, q, k, v)
            checks.check_carried_segment(carried, k.shape[0])
        segments = self._find_segments(segment_ids, mask, carried)
        # Causal outputs of latents belong to tokens, so their mask zeroes no query.
        has_token_outputs = count_latents(self.capabilities, q) is not None and is_causal
        q = broadcast_queries(self.capabilities, q, k)

        call = Call(
            q=zero_queries(q, None if has_token_outputs else query_mask),
            k=masks.zero_padding(k, mask),
            v=masks.zero_padding(v, mask),
            mask=mask,
            query_mask=query_mask,
            segments=segments,
            state=state,
            parameters=own,
            per_token=per_token,
            is_causal=is_causal,
            form=form,
            return_state=return_state,
            group_size=max(1, q.shape[-2] // max(1, k.shape[-2])),
        )
        with explain_forward_mode_error(self.name, form):
            y, state = _attend(self, call)
        y = masks.zero_padding(y.astype(v.dtype), query_mask)
        if not return_state:
            return y
        self._check_overflow(state, own)
        return y, pack_state(state, carried if segments is None else segments.last)

    def step(
        self,
        q: QueryStep | LearnedQuery | None,
        k: KeyStep,
        v: ValueStep,
        state: State,
        mask: Array | None = None,
        *,
        latents: Latents | None = None,
        **parameters: ArrayLike | None,
    ) -> tuple[OutputStep, State]:
        """Processes one token and returns its output, as a recurrent network does.

        Args:
            q: Query of shape [B, H, K]; the learned query [H, K]; None with ``latents``.
            k: Key of shape [B, H, K]; or [B, G, K] as in ``attend``.
            v: Value of shape [B, H, V], with as many heads as k.
            state: State from ``init_state``, ``attend`` or ``step``.
            mask: Boolean array of shape [B]; where False, the state is unchanged and the output is
                0.
            latents: As in ``attend``.
            **parameters: As in ``attend``; per-token inputs have shape [B, ...], inputs per pair [B
                or 1, H or 1, L] over the slots of the returned cache in the order of time.

        Returns:
            Output of shape [B, H, V] ([B, L, H, V] for latents), and the new state, of
            the same structure and shapes.

        Raises:
            ValueError: If shapes do not fit each other or the state.
            TypeError: If a dtype or an argument name is wrong.
        """
        queries: Any = checks.resolve_queries(self.name, self.capabilities, q, latents)

        def split(results: Any) -> Any:
            y = self._output_axes(queries, k, v, is_pooled=False)
            return y, jax.tree.map(meshes.partition_axes, state)

        return meshes.run_on_automatic_axes(
            lambda arrays: self._checked_step(**arrays),
            [
                {
                    "q": queries,
                    "k": k,
                    "v": v,
                    "state": state,
                    "mask": mask,
                    "parameters": parameters,
                }
            ],
            split,
        )

    def _checked_step(
        self,
        *,
        q: Array,
        k: KeyStep,
        v: ValueStep,
        state: State,
        mask: Array | None,
        parameters: dict[str, ArrayLike | None],
    ) -> tuple[OutputStep, State]:
        """Checks the arguments and steps, on automatic mesh axes."""
        self._check_recurrent()
        own, given = self._split_parameters(parameters)
        checks.check_arrays(self.name, self.capabilities, q, k, v, time=False)
        q, k, v = map(jnp.asarray, (q, k, v))
        mask = checks.check_mask("mask", mask, (k.shape[0],))
        per_token = check_token_arguments(self.name, self.token_arguments, given, k, v, mask)
        state, segment_id = unpack_state(state)
        self._check_state(state, q, k, v)
        checks.check_carried_segment(segment_id, k.shape[0])
        k, v = masks.zero_padding(k, mask), masks.zero_padding(v, mask)
        q = zero_queries(broadcast_queries(self.capabilities, q, k), mask)
        call = StepCall(q, k, v, state, mask, own, per_token)
        y, state = _step(self, call)
        self._check_overflow(state, own)
        return masks.zero_padding(y.astype(v.dtype), mask), pack_state(state, segment_id)

    def merge(self, state_a: State, state_b: State) -> State:
        """Merges the states of two consecutive chunks, if ``capabilities.mergeable``.

        Args:
            state_a: State of the earlier chunk.
            state_b: Mergeable state of the later chunk (see ``init_state``), of the same structure
                and shapes. If ``state_a`` is not mergeable, the result is not mergeable.

        Raises:
            ValueError: If the mechanism cannot merge states, or the states do not belong together.
            TypeError: If the states differ in dtype.
        """
        self._check_recurrent()
        if not self.capabilities.mergeable:
            raise ValueError(
                f"{self.name!r} stores all tokens and cannot merge states; pass the state "
                "of the first chunk as initial_state of the second."
            )
        for state in (state_a, state_b):
            if isinstance(state, PackedState):
                raise ValueError(
                    "a PackedState belongs to the last segment of its row; merge its .state "
                    "with a state of the same segment, or pass it as initial_state."
                )
        expected = _small_state(self)
        if type(state_a) is not type(expected):  # sizes of both states are compared below
            checks.check_state_like(self.name, state_a, expected)
        if self._lacks_merge_field(state_b):
            raise ValueError(
                f"state_b cannot be merged, because it has no {self.merge_field}. Compute it "
                "without initial_state, or with an initial_state from init_state(..., "
                "mergeable=True). States of layers cannot be merged as state_b."
            )
        later = self._drop_merge_field(state_b) if self._lacks_merge_field(state_a) else state_b
        checks.check_state_like(self.name, later, state_a)

        return meshes.run_on_automatic_axes(
            self._merge,
            (state_a, state_b),
            lambda _: output_sharding.merged_state_axes(state_a, later),
        )

    def init_state(
        self,
        batch_size: int,
        num_heads: int,
        key_dim: int,
        value_dim: int,
        max_length: int | None = None,
        *,
        dtype: DTypeLike = jnp.float32,
        num_latents: int | None = None,
        mergeable: bool = True,
    ) -> State:
        """Returns the state before the first token.

        Args:
            batch_size: Number of sequences B.
            num_heads: Number of heads H of keys and values.
            key_dim: Channels of a key, K.
            value_dim: Channels of a value, V.
            max_length: Maximum number of tokens that a cache can hold; streaming mechanisms need
                none.
            dtype: Dtype of the inputs. The state has its accumulation dtype: float32, or float64
                for float64.
            num_latents: Number of latents L, if ``capabilities.latents``.
            mergeable: Whether states computed from this state can be passed to ``merge`` as
                ``state_b``. If False, their ``merge_field`` is None, as in layers: ``gated_delta``
                then stores K V numbers per head, not K (K + V).

        Raises:
            ValueError: If the mechanism has no state, or none for this length or for latents.
        """
        self._check_recurrent()
        check_integers(1, num_latents=num_latents)
        if num_latents is not None and not self.capabilities.latents:
            raise ValueError(
                f"{self.name!r} does not support latents, got num_latents={num_latents}; omit "
                "num_latents."
            )
        sums = accumulation_dtype(dtype)
        state = self._init_state(
            StateSizes(batch_size, num_heads, key_dim, value_dim, max_length, sums, num_latents)
        )
        return state if mergeable else self._drop_merge_field(state)

    def reference(
        self,
        q: Queries | LearnedQuery | None,
        k: Keys,
        v: Values,
        *,
        latents: Latents | None = None,
        is_causal: bool = False,
        mask: Mask | None = None,
        query_mask: Array | None = None,
        segment_ids: SegmentIds | None = None,
        **parameters: ArrayLike | None,
    ) -> Outputs:
        """Evaluates the paper's equations over the dense visibility matrix: slow, plain, trusted.

        It shares neither the engine nor the accumulation dtype with ``attend``: it computes in the
        dtype of its inputs. It takes the arguments of ``attend``.
        """
        queries: Any = checks.resolve_queries(self.name, self.capabilities, q, latents)
        return meshes.run_on_automatic_axes(
            lambda arrays: self._checked_reference(**arrays, is_causal=is_causal),
            [
                {
                    "q": queries,
                    "k": k,
                    "v": v,
                    "mask": mask,
                    "query_mask": query_mask,
                    "segment_ids": segment_ids,
                    "parameters": parameters,
                }
            ],
            lambda _: self._output_axes(queries, k, v, is_pooled=not is_causal),
        )

    def _checked_reference(
        self,
        *,
        q: Array,
        k: Keys,
        v: Values,
        mask: Mask | None,
        query_mask: Array | None,
        segment_ids: SegmentIds | None,
        parameters: dict[str, ArrayLike | None],
        is_causal: bool,
    ) -> Outputs:
        """Checks the arguments and evaluates the reference, on automatic mesh axes."""
        own, given = self._split_parameters(parameters)
        mask, query_mask = self._check_call(
            q, k, v, is_causal, mask, query_mask, segment_ids, "auto", own
        )
        per_token = check_token_arguments(self.name, self.token_arguments, given, k, v, mask)
        segments = masks.find_packed_segments(segment_ids, mask, None)
        many = count_latents(self.capabilities, q) is not None
        is_pooled = pools_sequence(self.capabilities, q, is_causal)
        rows = 1 if is_pooled else num_queries(self.capabilities, q, k)
        visible = masks.visibility(
            rows, k.shape[1], is_causal=is_causal, mask=mask, segments=segments
        )
        if query_mask is not None and not self.capabilities.recurrent:
            # Mechanisms that mix whole sequences must ignore padded queries, too.
            visible = visible & query_mask[:, :, None]
        k, v = masks.zero_padding(k, mask), masks.zero_padding(v, mask)
        if many:
            q = broadcast_queries(self.capabilities, q, k)
            y = self._reference_per_query(q, k, v, visible, own, per_token)
            y = y[:, 0] if is_pooled else y
        else:
            y, _ = attend_by_group(
                lambda q, own: (self._reference(q, k, v, visible, {**own, **per_token}), None),
                *(zero_queries(q, query_mask), k, own),
                has_state=False,
            )
        return masks.zero_padding(y, query_mask)

    def _reference_per_query(
        self,
        q: Array,
        k: Keys,
        v: Values,
        visible: Visible,
        own: Parameters,
        per_token: Parameters,
    ) -> Array:
        """Evaluates the reference with each latent in turn as the learned query."""

        def reference_one(q: Array, *row: Any) -> Array:
            k, v, visible, per_token = jax.tree.map(lambda x: x[None], row)
            return self._reference(q, k, v, visible, {**own, **per_token})[0]

        per_example = jax.vmap(reference_one, in_axes=(0, None, None, None, None), out_axes=1)
        visible = jnp.broadcast_to(visible, (k.shape[0], *visible.shape[1:]))
        return jax.vmap(per_example)(q, k, v, visible, per_token)

    def check_heads(self, num_heads: int) -> None:  # noqa: B027  (optional)
        """Raises a ValueError if the mechanism does not support H heads."""

    def learned_parameters(self, num_heads: int, key_dim: int) -> dict[str, LearnedParameter]:
        """Returns the parameters that a layer of H heads of K channels learns."""
        return {}

    def has_state(self, key_dim: int) -> bool:
        """Returns whether heads of K channels have a state; without one, layers do not stream."""
        return self.capabilities.recurrent

    # -- what a family or a mechanism gives ----------------------------------------

    @abc.abstractmethod
    def _attend(self, call: Call) -> tuple[Outputs, State]: ...

    def _attend_causal_call(self, call: Call) -> tuple[Outputs, State]:
        """Attends causally, whatever later tokens hold (``contract.non_finite``)."""
        if call.k.shape[1] == 0:
            return self._attend(call)
        call, non_finite = self._replace_non_finite(call)
        call, marked_before = self._replace_state(call)
        y, state = self._attend(call)
        attended = attends_to_marked(non_finite.tokens, call.starts, before=marked_before)
        if call.return_state:
            state = self._poison_state(call, state, attended[:, -1])
        return non_finite.poison_outputs(y, attended), state

    def _replace_non_finite(self, call: Call) -> tuple[Call, NonFinite]:
        """Replaces by zeros the tokens and queries that are not finite, and marks them."""
        return replace_non_finite(call, self.capabilities, self.token_arguments)

    def _replace_state(self, call: Call) -> tuple[Call, Array | None]:
        """Replaces what is not finite in a state that later segments do not continue.

        Returns:
            The call, and a Boolean array of shape [B, H] that marks the heads replaced; None
            without such a state.
        """
        if call.state is None or call.segments is None:
            return call, None
        empty = self._empty_state(call, call.k.shape[0], call.k.shape[2])
        decays = [each.name for each in self.token_arguments if each.accepts_negative_infinity]
        state, marked = replace_state(call.state, empty, decays, *self._head_shapes(call))
        return dataclasses.replace(call, state=state), marked

    def _poison_state(self, call: Call, state: State, marked: Array) -> State:
        """Overwrites a state with NaN in the heads of ``marked`` [B, H]."""
        return poison_state(state, marked, *self._head_shapes(call))

    def _empty_state(self, call: Call, batch_size: int, num_heads: int) -> State:
        """Returns the state of no tokens, for the channels, queries and state of a call."""
        sizes = (call.k.shape[-1], call.v.shape[-1], None, accumulation_dtype(call.v.dtype))
        latents = count_latents(self.capabilities, call.q)
        state = self._init_state(StateSizes(batch_size, num_heads, *sizes, latents))
        return self._drop_merge_field(state) if self._lacks_merge_field(call.state) else state

    def _lacks_merge_field(self, state: State | None) -> bool:
        if self.merge_field is None or state is None:
            return False
        return getattr(state, self.merge_field, state) is None

    def _drop_merge_field(self, state: State) -> State:
        return state if self.merge_field is None else state._replace(**{self.merge_field: None})

    def _head_shapes(self, call: Call) -> Iterator[State]:
        """Yields the shapes of the states of one head and of two."""
        for heads in (1, 2):
            yield jax.eval_shape(partial(self._empty_state, call, 1, heads))

    @abc.abstractmethod
    def _step(self, call: StepCall) -> tuple[OutputStep, State]: ...

    @abc.abstractmethod
    def _reference(
        self, q: Array, k: Keys, v: Values, visible: Visible, parameters: Parameters
    ) -> Outputs: ...

    @abc.abstractmethod
    def _init_state(self, sizes: StateSizes) -> State: ...

    def _merge(self, state_a: State, state_b: State) -> State:
        raise NotImplementedError  # only where capabilities.mergeable

    @abc.abstractmethod
    def _check_state(self, state: State, q: Array, k: Array, v: Array) -> None: ...

    def _find_segments(
        self, segment_ids: SegmentIds | None, mask: Mask | None, carried: Array | None
    ) -> masks.Segments | None:
        """Finds packed segments; ``carried`` [B] is the id in which an earlier call ended."""
        return masks.find_packed_segments(segment_ids, mask, carried)

    def _check_parameters(self, parameters: Parameters) -> None:  # noqa: B027  (optional)
        """Checks the mechanism's own arguments as far as they depend on no other argument."""

    def _check_length(  # noqa: B027  (optional)
        self, length: int, mask: Array | None, parameters: Parameters
    ) -> None:
        """Rejects sequences that are too long for the mechanism (``masks.static_max_length``).

        Packed sequences are not checked: together they may be longer than any single one.
        """

    def _causal_alternative(self) -> str:
        """Returns the advice of error messages if there is no causal form."""
        return "use is_causal=False"

    def _check_overflow(self, state: State, parameters: Parameters) -> None:  # noqa: B027  (optional)
        """Rejects a state that lost tokens, where its values are known (outside ``jit``)."""

    def _output_axes(self, q: Array, k: Array, v: Array, *, is_pooled: bool) -> Any:
        """Returns the mesh axes of the outputs (``output_sharding.latent_output_axes``)."""
        if count_latents(self.capabilities, q) is None:
            return output_sharding.output_axes(q, k, v)
        return output_sharding.latent_output_axes(q, k, v, is_pooled=is_pooled)

    # -- checks --------------------------------------------------------------------

    def _split_parameters(
        self, parameters: dict[str, ArrayLike | None]
    ) -> tuple[Parameters, dict[str, ArrayLike | None]]:
        """Splits keyword arguments into the mechanism's own and unchecked per-token inputs."""
        names = {argument.name for argument in self.token_arguments}
        given = {name: parameters[name] for name in names & set(parameters)}
        rest = {name: value for name, value in parameters.items() if name not in names}
        own = checks.check_parameters(
            self.name, self.capabilities, (*self.parameters, *sorted(names)), rest
        )
        self._check_parameters(own)
        return own, given

    def _check_recurrent(self) -> None:
        if not self.capabilities.recurrent:
            raise ValueError(checks.no_state_message(self.name))

    def _check_call(
        self,
        q: Array,
        k: Keys,
        v: Values,
        is_causal: bool,
        mask: Mask | None,
        query_mask: Array | None,
        segment_ids: SegmentIds | None,
        form: str,
        parameters: Parameters,
    ) -> tuple[Mask | None, Array | None]:
        """Checks a call on whole sequences; returns both masks, ``query_mask`` with its default."""
        checks.check_arrays(self.name, self.capabilities, q, k, v)
        self.check_heads(k.shape[2])
        batch, length = k.shape[:2]
        is_pooled = pools_sequence(self.capabilities, q, is_causal)
        if is_pooled and segment_ids is not None:
            raise ValueError(
                "latents pool all tokens of a row, so packed segments would be "
                "mixed; put each sequence into its own row, or pass is_causal=True for an "
                "output after each token of a segment."
            )
        queries = num_queries(self.capabilities, q, k)
        checks.check_options(
            self.name,
            self.capabilities,
            queries,
            length,
            is_causal=is_causal,
            is_packed=segment_ids is not None,
            form=form,
            causal_alternative=self._causal_alternative(),
        )
        mask = checks.check_mask("mask", mask, (batch, length))
        outputs = q.shape[-3] if is_pooled else queries
        query_mask = checks.check_mask("query_mask", query_mask, (batch, outputs))
        if segment_ids is None:
            self._check_length(length, mask, parameters)
        else:
            checks.check_segments(segment_ids, (batch, length))
        has_token_outputs = queries == length and not is_pooled
        return mask, mask if query_mask is None and has_token_outputs else query_mask


# Jitted here, so that calls outside ``jit`` do not compile their loops each time.
@partial(jax.jit, static_argnums=0)
def _attend(mechanism: Mechanism, call: Call) -> tuple[Outputs, State]:
    attend = mechanism._attend_causal_call if call.is_causal else mechanism._attend
    return attend_by_group(
        lambda q, own: attend(dataclasses.replace(call, q=q, parameters=own)),
        *(call.q, call.k, call.parameters),
        has_state=call.return_state,
    )


@partial(jax.jit, static_argnums=0)
def _step(mechanism: Mechanism, call: StepCall) -> tuple[OutputStep, State]:
    return attend_by_group(
        lambda q, own: mechanism._step(call._replace(q=q, parameters=own)),
        *(call.q, call.k, call.parameters),
        has_state=True,
    )


@functools.cache  # merges in a loop compare many states
def _small_state(mechanism: Mechanism) -> State:
    """Returns the shapes of a state with sizes of 1."""
    return jax.eval_shape(partial(mechanism.init_state, 1, 1, 1, 1))
