"""The contract that every attention mechanism keeps.

A mechanism is a frozen, hashable dataclass, hence static under ``jax.jit``. Its public
methods live here, once: they check what comes in, make padding harmless, and hand clean
arrays to the two families, :mod:`flax_linattn.ops.engine.streaming` (a monoid, state of constant
size) and :mod:`flax_linattn.ops.engine.cache` (keys and values kept).
"""

from __future__ import annotations

import abc
import dataclasses
from functools import partial
from typing import Any, Literal, overload

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike

from flax_linattn.checks import at_least
from flax_linattn.ops.contract import checks, masks, meshes, output_sharding
from flax_linattn.ops.contract.call import (
    Call,
    StepCall,
    num_given,
    num_queries,
    of_each_row,
    reads_at_once,
    zero_queries,
)
from flax_linattn.ops.contract.capabilities import Capabilities, LearnedParameter
from flax_linattn.ops.contract.forward_mode import explained
from flax_linattn.ops.contract.numerics import accumulation_dtype
from flax_linattn.ops.contract.state import PackedState, StateSizes, packed, unpacked
from flax_linattn.ops.contract.token_arguments import TokenArgument, check_token_arguments
from flax_linattn.typing import (
    Array,
    Keys,
    KeyStep,
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
        """What ``ops.get_mechanism`` makes it by."""

    @property
    @abc.abstractmethod
    def about(self) -> str:
        """What it is and where it comes from, in a line of text."""

    @property
    @abc.abstractmethod
    def capabilities(self) -> Capabilities:
        """What it can do."""

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of its own keyword arguments of ``attend``, ``step`` and ``reference``."""
        return ()

    @property
    def token_arguments(self) -> tuple[TokenArgument, ...]:
        """What it wants of every token beside k and v, as keyword arguments of the same three."""
        return ()

    # -- the public contract -------------------------------------------------------

    @overload
    def attend(
        self,
        q: Queries | LearnedQuery,
        k: Keys,
        v: Values,
        *,
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
        q: Queries | LearnedQuery,
        k: Keys,
        v: Values,
        *,
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
        q: Queries | LearnedQuery,
        k: Keys,
        v: Values,
        *,
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
        q: Queries | LearnedQuery,
        k: Keys,
        v: Values,
        *,
        is_causal: bool = False,
        mask: Mask | None = None,
        query_mask: Array | None = None,
        segment_ids: SegmentIds | None = None,
        initial_state: State | None = None,
        return_state: bool = False,
        form: str = "auto",
        **parameters: ArrayLike | None,
    ) -> Outputs | tuple[Outputs, State]:
        """Attends over whole sequences, in parallel.

        Args:
            q: queries [B, T, H, K]; the learned query [H, K] where
                ``capabilities.learned_query``; where ``capabilities.given_queries`` also L
                queries, those of all rows [L, H, K] or of each [B, L, H, K].
            k: keys [B, S, H, K].
            v: values [B, S, H, V].
            is_causal: each position sees itself and what came before; needs T = S.
            mask: bool [B, S], True = a real token, padding anywhere. A masked token adds
                nothing, whatever its values, NaN included.
            query_mask: bool [B, T], True = a position whose output is wanted, the others
                give 0. Default: ``mask`` in self-attention, that is where T = S; in
                cross-attention of equal lengths pass it. Of given queries bool [B, L], or
                [B, T] and by default ``mask`` where ``is_causal``.
            segment_ids: int [B, T], packed sequences (T = S): tokens see each other inside
                a run of equal ids.
            initial_state: what an earlier call returned; its tokens come first. With
                ``segment_ids`` a plain state belongs to the first run, a
                :class:`PackedState` to its own id.
            return_state: return ``(y, state)``.
            form: "auto" or one of ``capabilities.forms``; all give the same numbers.
            **parameters: the mechanism's own, see ``parameters``; None = not given. Also its
                ``token_arguments``, [B, S, ...], which are padded and packed as k is.

        Returns:
            y [B, T, H, V] in the dtype of the inputs; 0 where nothing is seen. Of given queries
            [B, L, H, V], or [B, T, L, H, V] after each token where ``is_causal``. With
            ``return_state`` also the state after the last token, a :class:`PackedState` if
            ``segment_ids`` was given.

        Raises:
            ValueError: shapes, form, a state or a combination that the mechanism does not offer.
            TypeError: dtypes, unknown parameters, or forward mode where the form has none.
        """

        def split(results: Any) -> Any:
            y = self._output_axes(q, k, v, at_once=not is_causal)
            if not return_state:
                return y
            new_state = partial(
                self.init_state,
                1,
                key_dim=k.shape[-1],
                value_dim=v.shape[-1],
                max_length=1,
                num_queries=num_given(self.capabilities, q),
            )
            return y, output_sharding.of_state(results[1], initial_state, k, new_state)

        return meshes.run_on_automatic_axes(
            lambda arrays: self._attend_to(
                **arrays, is_causal=is_causal, form=form, return_state=return_state
            ),
            [
                {
                    "q": q,
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

    def _attend_to(
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
        """``attend`` where no mesh axis is explicit."""
        own, given = self._given(parameters)
        mask, query_mask = self._check_call(
            q, k, v, is_causal, mask, query_mask, segment_ids, form, own
        )
        q, k, v = map(jnp.asarray, (q, k, v))
        per_token = check_token_arguments(self.name, self.token_arguments, given, k, v, mask)
        if initial_state is not None or return_state:
            self._check_recurrent()
        state, carried = unpacked(initial_state)
        if state is not None:
            self._check_state(state, q, k, v)
            checks.check_carried(carried, k.shape[0])
        runs = self._runs(segment_ids, mask, carried)
        # A mask of tokens says nothing of queries that are given for all of them.
        of_tokens = num_given(self.capabilities, q) is not None and is_causal
        q = of_each_row(self.capabilities, q, k)

        call = Call(
            q=zero_queries(q, None if of_tokens else query_mask),
            k=masks.zero_padding(k, mask),
            v=masks.zero_padding(v, mask),
            mask=mask,
            query_mask=query_mask,
            runs=runs,
            state=state,
            parameters=own,
            per_token=per_token,
            is_causal=is_causal,
            form=form,
            return_state=return_state,
        )
        with explained(self.name, form):
            y, state = _attend(self, call)
        y = masks.zero_padding(y.astype(v.dtype), query_mask)
        if not return_state:
            return y
        self._check_room(state, own)
        return y, packed(state, carried if runs is None else runs.last)

    def step(
        self,
        q: QueryStep | LearnedQuery,
        k: KeyStep,
        v: ValueStep,
        state: State,
        mask: Array | None = None,
        **parameters: ArrayLike | None,
    ) -> tuple[OutputStep, State]:
        """Takes in one token and gives its output: the recurrent network.

        Args:
            q: [B, H, K]; the learned query [H, K] where ``capabilities.learned_query``, or the
                given ones of ``attend``.
            k: [B, H, K].
            v: [B, H, V].
            state: from ``init_state``, ``attend`` or ``step``.
            mask: bool [B]; where False the state stays as it is and the output is 0.
            **parameters: as in ``attend``; ``token_arguments`` are [B, ...].

        Returns:
            y [B, H, V], of given queries [B, L, H, V], and the new state, of the same structure
            and shapes.

        Raises:
            ValueError: shapes that do not fit each other or the state.
            TypeError: dtypes, or unknown parameters.
        """

        def split(results: Any) -> Any:
            y = self._output_axes(q, k, v, at_once=False)
            return y, jax.tree.map(meshes.partition_axes, state)

        return meshes.run_on_automatic_axes(
            lambda arrays: self._step_to(**arrays),
            [{"q": q, "k": k, "v": v, "state": state, "mask": mask, "parameters": parameters}],
            split,
        )

    def _step_to(
        self,
        *,
        q: Array,
        k: KeyStep,
        v: ValueStep,
        state: State,
        mask: Array | None,
        parameters: dict[str, ArrayLike | None],
    ) -> tuple[OutputStep, State]:
        """``step`` where no mesh axis is explicit."""
        self._check_recurrent()
        own, given = self._given(parameters)
        checks.check_arrays(self.name, self.capabilities, q, k, v, time=False)
        q, k, v = map(jnp.asarray, (q, k, v))
        mask = checks.check_mask("mask", mask, (k.shape[0],))
        per_token = check_token_arguments(self.name, self.token_arguments, given, k, v, mask)
        state, segment_id = unpacked(state)
        self._check_state(state, q, k, v)
        checks.check_carried(segment_id, k.shape[0])
        k, v = masks.zero_padding(k, mask), masks.zero_padding(v, mask)
        q = zero_queries(of_each_row(self.capabilities, q, k), mask)
        call = StepCall(q, k, v, state, mask, own, per_token)
        y, state = _step(self, call)
        self._check_room(state, own)
        return masks.zero_padding(y.astype(v.dtype), mask), packed(state, segment_id)

    def merge(self, state_a: State, state_b: State) -> State:
        """The state of span a followed by span b, where ``capabilities.mergeable``.

        Args:
            state_a: of the earlier span.
            state_b: of the later span, of the same structure and shapes.

        Raises:
            ValueError: the mechanism has no state of constant size to merge, or the states do
                not belong together.
            TypeError: the states differ in dtype.
        """
        self._check_recurrent()
        if not self.capabilities.mergeable:
            raise ValueError(
                f"{self.name!r} keeps all tokens and cannot merge states; pass the first span's "
                "state as initial_state of the second."
            )
        for state in (state_a, state_b):
            if isinstance(state, PackedState):
                raise ValueError(
                    "a PackedState belongs to the segment that its row ended in; merge its .state "
                    "with that of the same segment, or pass it as initial_state."
                )
        checks.check_state_like(self.name, state_b, state_a)

        return meshes.run_on_automatic_axes(
            self._merge,
            (state_a, state_b),
            lambda _: output_sharding.of_merged(state_a, state_b),
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
        num_queries: int | None = None,
    ) -> State:
        """The state before the first token.

        Args:
            batch_size: B.
            num_heads: H.
            key_dim: K.
            value_dim: V.
            max_length: most tokens that a cache is to hold; streaming mechanisms need none.
            dtype: dtype of the inputs; the state has its accumulation dtype (float32, or
                float64 for float64).
            num_queries: L, for given queries (``capabilities.given_queries``).

        Raises:
            ValueError: the mechanism has no state, or none for so many tokens or for queries.
        """
        self._check_recurrent()
        at_least(1, num_queries=num_queries)
        if num_queries is not None and not self.capabilities.given_queries:
            raise ValueError(
                f"a state of {self.name!r} is made for no number of queries: leave num_queries out."
            )
        sums = accumulation_dtype(dtype)
        return self._init_state(
            StateSizes(batch_size, num_heads, key_dim, value_dim, max_length, sums, num_queries)
        )

    def reference(
        self,
        q: Queries | LearnedQuery,
        k: Keys,
        v: Values,
        *,
        is_causal: bool = False,
        mask: Mask | None = None,
        query_mask: Array | None = None,
        segment_ids: SegmentIds | None = None,
        **parameters: ArrayLike | None,
    ) -> Outputs:
        """The paper's equations over the dense visibility matrix: slow, plain, trusted.

        It shares neither the engine nor the accumulation dtype with ``attend``: it
        computes in the dtype that it is given. Arguments as in ``attend``.
        """
        return meshes.run_on_automatic_axes(
            lambda arrays: self._reference_of(**arrays, is_causal=is_causal),
            [
                {
                    "q": q,
                    "k": k,
                    "v": v,
                    "mask": mask,
                    "query_mask": query_mask,
                    "segment_ids": segment_ids,
                    "parameters": parameters,
                }
            ],
            lambda _: self._output_axes(q, k, v, at_once=not is_causal),
        )

    def _reference_of(
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
        """``reference`` where no mesh axis is explicit."""
        own, given = self._given(parameters)
        mask, query_mask = self._check_call(
            q, k, v, is_causal, mask, query_mask, segment_ids, "auto", own
        )
        per_token = check_token_arguments(self.name, self.token_arguments, given, k, v, mask)
        runs = masks.find_packed_segments(segment_ids, mask, None)
        many = num_given(self.capabilities, q) is not None
        at_once = reads_at_once(self.capabilities, q, is_causal)
        rows = 1 if at_once else num_queries(self.capabilities, q, k)
        visible = masks.visibility(rows, k.shape[1], is_causal=is_causal, mask=mask, runs=runs)
        if query_mask is not None and not self.capabilities.recurrent:
            # Where sequences are mixed as a whole, a padded query must not count either.
            visible = visible & query_mask[:, :, None]
        k, v = masks.zero_padding(k, mask), masks.zero_padding(v, mask)
        if many:
            q = of_each_row(self.capabilities, q, k)
            y = self._reference_of_each(q, k, v, visible, own, per_token)
            y = y[:, 0] if at_once else y
        else:
            y = self._reference(zero_queries(q, query_mask), k, v, visible, {**own, **per_token})
        return masks.zero_padding(y, query_mask)

    def _reference_of_each(
        self,
        q: Array,
        k: Keys,
        v: Values,
        visible: Visible,
        own: Parameters,
        per_token: Parameters,
    ) -> Array:
        """Given queries [B, L, H, K] -> [B, T, L, H, V]: each as if it were the learned one."""

        def of_one(q: Array, *row: Any) -> Array:
            k, v, visible, per_token = jax.tree.map(lambda x: x[None], row)
            return self._reference(q, k, v, visible, {**own, **per_token})[0]

        of_row = jax.vmap(of_one, in_axes=(0, None, None, None, None), out_axes=1)
        visible = jnp.broadcast_to(visible, (k.shape[0], *visible.shape[1:]))
        return jax.vmap(of_row)(q, k, v, visible, per_token)

    def check_heads(self, num_heads: int) -> None:  # noqa: B027  (optional)
        """Raises a ValueError where a mechanism cannot have H heads; layers ask before any call."""

    def learned_parameters(self, num_heads: int, key_dim: int) -> dict[str, LearnedParameter]:
        """Those of ``parameters`` that a layer of H heads of K channels learns, by name."""
        return {}

    def has_state(self, key_dim: int) -> bool:
        """Whether heads of K channels have a state; layers that have none do not stream."""
        return self.capabilities.recurrent

    # -- what a family or a mechanism gives ----------------------------------------

    @abc.abstractmethod
    def _attend(self, call: Call) -> tuple[Outputs, State]: ...

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

    def _runs(
        self, segment_ids: SegmentIds | None, mask: Mask | None, carried: Array | None
    ) -> masks.Segments | None:
        """Where packed segments begin; an earlier call ended in the id ``carried`` [B]."""
        return masks.find_packed_segments(segment_ids, mask, carried)

    def _check_parameters(self, parameters: Parameters) -> None:  # noqa: B027  (optional)
        """Refuses values of its own arguments, such as shapes, that need no other argument."""

    def _check_length(  # noqa: B027  (optional)
        self, length: int, mask: Array | None, parameters: Parameters
    ) -> None:
        """Refuses sequences longer than what a mechanism was made for; see ``longest``.

        Rows of several segments are not checked: they may be longer than any of these.
        """

    def _instead_of_causal(self) -> str:
        """What to do where there is no causal form, for error messages."""
        return "use is_causal=False"

    def _check_room(self, state: State, parameters: Parameters) -> None:  # noqa: B027  (optional)
        """Refuses a state that lost tokens, where its values are known (outside ``jit``)."""

    def _output_axes(self, q: Array, k: Array, v: Array, *, at_once: bool) -> Any:
        """What outputs are split over; ``at_once`` as in ``output_sharding.of_given_outputs``."""
        if num_given(self.capabilities, q) is None:
            return output_sharding.of_outputs(q, k, v)
        return output_sharding.of_given_outputs(q, k, v, at_once=at_once)

    # -- checks --------------------------------------------------------------------

    def _given(
        self, parameters: dict[str, ArrayLike | None]
    ) -> tuple[Parameters, dict[str, ArrayLike | None]]:
        """The arguments of its own that were given, checked, and those of tokens, not yet."""
        names = {argument.name for argument in self.token_arguments}
        given = {name: parameters[name] for name in names & set(parameters)}
        rest = {name: value for name, value in parameters.items() if name not in names}
        own = checks.check_parameters(self.name, (*self.parameters, *sorted(names)), rest)
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
        """Checks whole sequences; returns the two masks, ``query_mask`` by its default."""
        checks.check_arrays(self.name, self.capabilities, q, k, v)
        self.check_heads(k.shape[2])
        batch, length = k.shape[:2]
        at_once = reads_at_once(self.capabilities, q, is_causal)
        if at_once and segment_ids is not None:
            raise ValueError(
                "given queries read all tokens of a row, so that packed segments would be mixed; "
                "give each sequence a row of its own, or pass is_causal=True for what they have "
                "read after each token of its segment."
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
            instead_of_causal=self._instead_of_causal(),
        )
        mask = checks.check_mask("mask", mask, (batch, length))
        outputs = q.shape[-3] if at_once else queries
        query_mask = checks.check_mask("query_mask", query_mask, (batch, outputs))
        if segment_ids is None:
            self._check_length(length, mask, parameters)
        else:
            checks.check_segments(segment_ids, (batch, length))
        of_tokens = queries == length and not at_once
        return mask, mask if query_mask is None and of_tokens else query_mask


# Compiled here, so that calls outside ``jit`` do not compile their loops anew each time.
@partial(jax.jit, static_argnums=0)
def _attend(mechanism: Mechanism, call: Call) -> tuple[Outputs, State]:
    y, state = mechanism._attend(call)
    return y, state if call.return_state else None


@partial(jax.jit, static_argnums=0)
def _step(mechanism: Mechanism, call: StepCall) -> tuple[OutputStep, State]:
    return mechanism._step(call)
