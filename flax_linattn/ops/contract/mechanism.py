"""The contract that every attention mechanism keeps.

A mechanism is a frozen, hashable dataclass, hence static under ``jax.jit``. Its public
methods live here, once: they check what comes in, make padding harmless, and hand clean
arrays to the two families, :mod:`flax_linattn.ops.engine.streaming` (a monoid, state of constant
size) and :mod:`flax_linattn.ops.engine.cache` (keys and values kept).
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Int

from flax_linattn.ops.contract import masks
from flax_linattn.typing import (
    Array,
    Keys,
    KeyStep,
    LearnedQuery,
    Mask,
    Outputs,
    OutputStep,
    Queries,
    QueryStep,
    SegmentIds,
    State,
    Values,
    ValueStep,
    Visible,
)


@dataclasses.dataclass(frozen=True)
class Capabilities:
    """What a mechanism can do.

    Attributes:
        constant_memory: the state's size does not depend on the number of tokens.
        causal: ``is_causal=True`` is offered.
        noncausal: ``is_causal=False`` is offered.
        cross: keys and values may have another length than the queries.
        packed: ``segment_ids`` is offered.
        learned_query: ``q`` is one learned query [H, K] instead of one query a token.
        channelwise: every channel attends by itself, so that V = K.
        recurrent: there is a state: ``init_state``, ``step``, ``initial_state`` and
            ``return_state`` are offered.
        mergeable: ``merge`` joins the states of two spans.
        forms: the values of ``form`` beside "auto".
    """

    constant_memory: bool
    causal: bool = True
    noncausal: bool = True
    cross: bool = True
    packed: bool = True
    learned_query: bool = False
    channelwise: bool = False
    recurrent: bool = True
    mergeable: bool = False
    forms: tuple[str, ...] = ("parallel", "chunked", "recurrent")


class Learned(NamedTuple):
    """An argument of a mechanism that a layer learns.

    Attributes:
        shape: of the array.
        init: (key, shape, dtype) -> its first value, as in ``jax.nn.initializers``.
    """

    shape: tuple[int, ...]
    init: Callable[[Array, tuple[int, ...], Any], Array]


class PackedState(NamedTuple):
    """A state that also knows in which packed segment it ended.

    ``attend`` returns it when it was given ``segment_ids``; the next call takes it as
    ``initial_state`` and starts afresh in every row whose first id is another one.

    Attributes:
        state: the mechanism's own state.
        segment_id: int32 [B]; -2**31 where no real token has come with an id yet.
    """

    state: State
    segment_id: Int[Array, "B"]


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("q", "k", "v", "mask", "query_mask", "runs", "state", "parameters"),
    meta_fields=("is_causal", "form", "return_state"),
)
@dataclasses.dataclass(frozen=True)
class Call:
    """One checked call of ``attend``: padding is zeroed, shapes and dtypes agree."""

    q: Array
    k: Keys
    v: Values
    mask: Mask | None
    query_mask: Array | None
    runs: masks.Runs | None
    state: State | None
    parameters: dict[str, Any]
    is_causal: bool
    form: str
    return_state: bool

    @property
    def num_queries(self) -> int:
        return _num_queries(self.q, self.k)

    @property
    def starts(self) -> Array | None:
        """Bool [B, S], True = a packed segment begins here; None = nothing is packed."""
        return None if self.runs is None else self.runs.starts


@dataclasses.dataclass(frozen=True)
class Mechanism(abc.ABC):
    """Maps queries and their visible (key, value) pairs to outputs.

    Subclasses give ``name``, ``capabilities``, ``parameters`` (the extra keyword arguments
    of ``attend``, ``step`` and ``reference``) and the underscored methods.
    """

    name: ClassVar[str]
    capabilities: ClassVar[Capabilities]
    parameters: ClassVar[tuple[str, ...]] = ()

    # -- the public contract -------------------------------------------------------

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
        **parameters: Any,
    ) -> Any:
        """Attends over whole sequences, in parallel.

        Args:
            q: queries [B, T, H, K]; the learned query [H, K] where
                ``capabilities.learned_query``.
            k: keys [B, S, H, K].
            v: values [B, S, H, V].
            is_causal: each position sees itself and what came before; needs T = S.
            mask: bool [B, S], True = a real token, padding anywhere. A masked token adds
                nothing, whatever its values, NaN included.
            query_mask: bool [B, T], True = a position whose output is wanted, the others
                give 0. Default: ``mask`` in self-attention, that is where T = S; in
                cross-attention of equal lengths pass it.
            segment_ids: int [B, T], packed sequences (T = S): tokens see each other inside
                a run of equal ids.
            initial_state: what an earlier call returned; its tokens come first. With
                ``segment_ids`` a plain state belongs to the first run, a
                :class:`PackedState` to its own id.
            return_state: return ``(y, state)``.
            form: "auto" or one of ``capabilities.forms``; all give the same numbers.
            **parameters: the mechanism's own, see ``parameters``.

        Returns:
            y [B, T, H, V] in the dtype of the inputs; 0 where nothing is seen. With
            ``return_state`` also the state after the last token, a :class:`PackedState` if
            ``segment_ids`` was given.

        Raises:
            ValueError: shapes, form, a state or a combination that the mechanism does not offer.
            TypeError: dtypes, or unknown parameters.
        """
        mask, query_mask = self._check_call(
            q, k, v, is_causal, mask, query_mask, segment_ids, form, parameters
        )
        if (initial_state is not None or return_state) and not self.capabilities.recurrent:
            raise ValueError(no_state(self.name))
        carried = None
        if isinstance(initial_state, PackedState):
            initial_state, carried = initial_state
        if initial_state is not None:
            self._check_state(initial_state, q, k, v)
        runs = None
        if segment_ids is not None:
            runs = self._runs(segment_ids, mask, carried)

        call = Call(
            q=_zero_queries(q, query_mask),
            k=masks.zero_padding(k, mask),
            v=masks.zero_padding(v, mask),
            mask=mask,
            query_mask=query_mask,
            runs=runs,
            state=initial_state,
            parameters=parameters,
            is_causal=is_causal,
            form=form,
            return_state=return_state,
        )
        y, state = _attend(self, call)
        y = masks.zero_padding(y.astype(v.dtype), query_mask)
        if not return_state:
            return y
        self._check_room(state, parameters)
        if runs is not None:
            state = PackedState(state, runs.last)
        elif carried is not None:
            state = PackedState(state, carried)
        return y, state

    def step(
        self,
        q: QueryStep | LearnedQuery,
        k: KeyStep,
        v: ValueStep,
        state: State,
        mask: Array | None = None,
        **parameters: Any,
    ) -> tuple[OutputStep, State]:
        """Takes in one token and gives its output: the recurrent network.

        Args:
            q: [B, H, K]; the learned query [H, K] where ``capabilities.learned_query``.
            k: [B, H, K].
            v: [B, H, V].
            state: from ``init_state``, ``attend`` or ``step``.
            mask: bool [B]; where False the state stays as it is and the output is 0.
            **parameters: as in ``attend``.

        Returns:
            y [B, H, V] and the new state, of the same structure and shapes.

        Raises:
            ValueError: shapes that do not fit each other or the state.
            TypeError: dtypes, or unknown parameters.
        """
        if not self.capabilities.recurrent:
            raise ValueError(no_state(self.name))
        self._check_parameters(parameters)
        _check_arrays(self, q, k, v, time=False)
        mask = _check_mask("mask", mask, (k.shape[0],))
        packed = state if isinstance(state, PackedState) else None
        inner = state.state if packed else state
        self._check_state(inner, q, k, v)
        y, inner = _step(
            self,
            _zero_queries(q, mask),
            masks.zero_padding(k, mask),
            masks.zero_padding(v, mask),
            inner,
            mask,
            parameters,
        )
        self._check_room(inner, parameters)
        y = masks.zero_padding(y.astype(v.dtype), mask)
        return y, PackedState(inner, packed.segment_id) if packed else inner

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
        check_state_like(self, state_b, state_a)
        return self._merge(state_a, state_b)

    @abc.abstractmethod
    def init_state(
        self,
        batch_size: int,
        num_heads: int,
        key_dim: int,
        value_dim: int,
        max_length: int | None = None,
        *,
        dtype: Any = jnp.float32,
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
        """

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
        **parameters: Any,
    ) -> Outputs:
        """The paper's equations over the dense visibility matrix: slow, plain, trusted.

        It shares neither the engine nor the accumulation dtype with ``attend``: it
        computes in the dtype that it is given. Arguments as in ``attend``.
        """
        mask, query_mask = self._check_call(
            q, k, v, is_causal, mask, query_mask, segment_ids, "auto", parameters
        )
        length = k.shape[1]
        queries = _num_queries(q, k)
        runs = masks.segment_runs(segment_ids, mask) if segment_ids is not None else None
        visible = masks.visibility(queries, length, is_causal=is_causal, mask=mask, runs=runs)
        if query_mask is not None and not self.capabilities.recurrent:
            # Where sequences are mixed as a whole, a padded query must not count either.
            visible = visible & query_mask[:, :, None]
        k, v = masks.zero_padding(k, mask), masks.zero_padding(v, mask)
        y = self._reference(_zero_queries(q, query_mask), k, v, visible, **parameters)
        return masks.zero_padding(y, query_mask)

    def learned_parameters(self, num_heads: int, key_dim: int) -> dict[str, Learned]:
        """Those of ``parameters`` that a layer of H heads of K channels learns, by name."""
        return {}

    # -- what a family or a mechanism gives ----------------------------------------

    @abc.abstractmethod
    def _attend(self, call: Call) -> tuple[Outputs, State]: ...

    @abc.abstractmethod
    def _step(
        self,
        q: Array,
        k: KeyStep,
        v: ValueStep,
        state: State,
        mask: Array | None,
        parameters: dict[str, Any],
    ) -> tuple[OutputStep, State]: ...

    @abc.abstractmethod
    def _reference(
        self, q: Array, k: Keys, v: Values, visible: Visible, **parameters: Any
    ) -> Outputs: ...

    def _merge(self, state_a: State, state_b: State) -> State:
        raise NotImplementedError  # only where capabilities.mergeable

    @abc.abstractmethod
    def _check_state(self, state: State, q: Array, k: Array, v: Array) -> None: ...

    def _runs(
        self, segment_ids: SegmentIds, mask: Mask | None, carried: Array | None
    ) -> masks.Runs:
        """Where packed segments begin; an earlier call ended in the id ``carried`` [B]."""
        return masks.segment_runs(segment_ids, mask, carried)

    def _check_room(self, state: State, parameters: dict[str, Any]) -> None:  # noqa: B027  (only caches run out of room)
        """Refuses a state that lost tokens, where its values are known (outside ``jit``)."""

    # -- checks --------------------------------------------------------------------

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
        parameters: dict[str, Any],
    ) -> tuple[Mask | None, Array | None]:
        """Checks whole sequences; returns the two masks, ``query_mask`` by its default."""
        self._check_parameters(parameters)
        _check_arrays(self, q, k, v)
        batch, length = k.shape[:2]
        queries = _num_queries(q, k)
        self._check_options(queries, length, is_causal, segment_ids, form)
        mask = _check_mask("mask", mask, (batch, length))
        query_mask = _check_mask("query_mask", query_mask, (batch, queries))
        if segment_ids is not None:
            _check_segments(segment_ids, (batch, length))
        if segment_ids is None:
            self._check_length(length, mask, parameters)
        return mask, mask if query_mask is None and queries == length else query_mask

    def _check_length(  # noqa: B027
        self, length: int, mask: Array | None, parameters: dict[str, Any]
    ) -> None:
        """Refuses sequences longer than what a mechanism was made for; see ``longest``.

        Rows of several segments are not checked: they may be longer than any of these.
        """

    def _check_parameters(self, parameters: dict[str, Any]) -> None:
        unknown = sorted(set(parameters) - set(self.parameters))
        if unknown:
            takes = ", ".join(self.parameters) or "none"
            raise TypeError(
                f"{self.name!r} got the unknown argument {unknown[0]!r}; "
                f"its own arguments are: {takes}."
            )

    def _check_options(
        self, queries: int, length: int, is_causal: bool, segment_ids: Any, form: str
    ) -> None:
        can = self.capabilities
        if form != "auto" and form not in can.forms:
            raise ValueError(
                f"{self.name!r} has no form {form!r}; it has: auto, {', '.join(can.forms)}."
            )
        if is_causal and not can.causal:
            raise ValueError(f"{self.name!r} has no causal form; use is_causal=False.")
        if not is_causal and not can.noncausal:
            raise ValueError(f"{self.name!r} is causal only; use is_causal=True.")
        if queries != length:
            if not can.cross:
                raise ValueError(
                    f"{self.name!r} needs as many queries as keys, got T={queries}, S={length}."
                )
            if is_causal or segment_ids is not None:
                what = "is_causal=True" if is_causal else "segment_ids"
                raise ValueError(
                    f"{what} needs queries and keys of one sequence (T = S), got T={queries}, "
                    f"S={length}; for earlier tokens pass initial_state."
                )
        if segment_ids is not None and not can.packed:
            raise ValueError(f"{self.name!r} does not offer segment_ids; pad and mask instead.")


# Compiled here, so that calls outside ``jit`` do not compile their loops anew each time.
@partial(jax.jit, static_argnums=0)
def _attend(mechanism: Mechanism, call: Call) -> tuple[Outputs, State]:
    y, state = mechanism._attend(call)
    return y, state if call.return_state else None


@partial(jax.jit, static_argnums=0)
def _step(
    mechanism: Mechanism,
    q: Array,
    k: Array,
    v: Array,
    state: State,
    mask: Array | None,
    parameters: dict[str, Any],
) -> tuple[OutputStep, State]:
    return mechanism._step(q, k, v, state, mask, parameters)


def _zero_queries(q: Array, query_mask: Array | None) -> Array:
    """Zeroes padded queries; a learned query [H, K] has no padding, whatever its shape."""
    return q if q.ndim == 2 else masks.zero_padding(q, query_mask)


def no_state(name: str) -> str:
    """Why a mechanism has no state, for error messages."""
    return (
        f"{name!r} needs the whole sequence at once: it has no state and no step; call attend on "
        "whole sequences, or choose a mechanism whose capabilities.recurrent is True."
    )


def _num_queries(q: Array, k: Array) -> int:
    """T; a learned query [H, K] stands for one at every key."""
    return k.shape[1] if q.ndim == 2 else q.shape[1]


def _check_arrays(mechanism: Mechanism, q: Array, k: Array, v: Array, time: bool = True) -> None:
    axes = {"q": "[B, T, H, K]", "k": "[B, S, H, K]", "v": "[B, S, H, V]"}
    if not time:
        axes = {name: layout.replace(", T", "").replace(", S", "") for name, layout in axes.items()}
    if mechanism.capabilities.learned_query:
        axes["q"] = "[H, K] (one learned query, shared by batch and time)"
    ranks = {name: layout.split("]")[0].count(",") + 1 for name, layout in axes.items()}
    for name, array in (("q", q), ("k", k), ("v", v)):
        if not isinstance(array, jax.Array) and not hasattr(array, "dtype"):
            raise TypeError(f"{name} must be an array {axes[name]}, got {type(array).__name__}.")
        if not jnp.issubdtype(array.dtype, jnp.floating):
            raise TypeError(
                f"{name} must have a floating dtype, got {array.dtype}; cast it, "
                f"for example {name}.astype(jnp.float32)."
            )
        if array.ndim != ranks[name]:
            raise ValueError(
                f"{mechanism.name!r} expects {name} as {axes[name]}, got shape {array.shape}."
            )
    if not q.dtype == k.dtype == v.dtype:
        raise TypeError(
            f"q, k and v must have one dtype, got {q.dtype}, {k.dtype} and {v.dtype}; cast them."
        )
    if k.shape[:-1] != v.shape[:-1]:
        raise ValueError(
            f"k {axes['k']} and v {axes['v']} must agree in all but the last axis, "
            f"got {k.shape} and {v.shape}."
        )
    if mechanism.capabilities.channelwise and k.shape[-1] != v.shape[-1]:
        raise ValueError(
            f"{mechanism.name!r} attends in every channel by itself, so that v must have as many "
            f"channels as k, got {v.shape[-1]} and {k.shape[-1]}."
        )
    if q.shape[-2:] != k.shape[-2:]:
        raise ValueError(
            f"q {axes['q']} and k {axes['k']} must agree in heads and key dimension, "
            f"got {q.shape} and {k.shape}."
        )
    if q.ndim > 2 and q.shape[0] != k.shape[0]:
        raise ValueError(f"q and k must have one batch size, got {q.shape[0]} and {k.shape[0]}.")


def _check_mask(name: str, mask: Array | None, shape: tuple[int, ...]) -> Array | None:
    if mask is None:
        return None
    mask = jnp.asarray(mask)
    if mask.dtype != jnp.bool_:
        raise TypeError(
            f"{name} must be bool, True = a real token, got {mask.dtype}; "
            "write mask.astype(bool) if 1 means real."
        )
    if mask.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, got {mask.shape}.")
    return mask


def _check_segments(segment_ids: Array, shape: tuple[int, ...]) -> None:
    if not hasattr(segment_ids, "dtype"):
        raise TypeError(f"segment_ids must be an array, got {type(segment_ids).__name__}.")
    if not jnp.issubdtype(segment_ids.dtype, jnp.integer):
        raise TypeError(f"segment_ids must be of an integer dtype, got {segment_ids.dtype}.")
    if segment_ids.shape != shape:
        raise ValueError(f"segment_ids must have shape {shape}, got {segment_ids.shape}.")


def check_state_like(mechanism: Mechanism, state: State, expected: State) -> None:
    """Compares structure, shapes and dtypes of a state with those of ``expected``.

    Raises:
        ValueError: structures or shapes differ; the message names the first differing leaf.
        TypeError: dtypes differ.
    """
    hint = f"make one with init_state(...) or attend(..., return_state=True) of {mechanism.name!r}"
    if jax.tree.structure(state) != jax.tree.structure(expected):  # type: ignore[operator]
        raise ValueError(
            f"the state does not belong to {mechanism.name!r}: expected "
            f"{type(expected).__name__}, got {type(state).__name__}; {hint}."
        )
    leaves = zip(jax.tree_util.tree_leaves_with_path(expected), jax.tree.leaves(state), strict=True)
    for (path, want), got in leaves:
        if jnp.shape(got) != want.shape:
            raise ValueError(
                f"the state's {jax.tree_util.keystr(path)} should have shape {want.shape} for "
                f"these inputs, got {jnp.shape(got)}; {hint}."
            )
        if got.dtype != want.dtype:
            raise TypeError(
                f"the state's {jax.tree_util.keystr(path)} should be {want.dtype} for these "
                f"inputs, got {got.dtype}; make it with init_state(..., dtype=...) of the inputs."
            )
