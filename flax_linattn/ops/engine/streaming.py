"""Streaming mechanisms: a monoid with a state of constant size."""

from __future__ import annotations

import abc
import dataclasses
from functools import partial
from typing import ClassVar

import jax

from flax_linattn.checks import check_integers
from flax_linattn.ops.contract import masks
from flax_linattn.ops.contract.call import Call, StepCall, count_latents
from flax_linattn.ops.contract.checks import check_state_like
from flax_linattn.ops.contract.mechanism import Mechanism
from flax_linattn.ops.contract.non_finite import NonFinite
from flax_linattn.ops.contract.numerics import accumulation_dtype, match_varying_axes
from flax_linattn.ops.engine import prefix
from flax_linattn.ops.engine.forms import choose_form, even_chunk_size, loops_over_tokens
from flax_linattn.ops.engine.primal_only import primal_only
from flax_linattn.typing import Array, Outputs, OutputStep, Parameters, State


@dataclasses.dataclass(frozen=True)
class StreamingMechanism(Mechanism):
    """Base class of mechanisms defined by ``lift``, ``merge``, ``read`` and ``init_state``.

    Attributes:
        reads_only_state: Whether a token's output is ``read`` of the state after it; otherwise
            ``attend`` and ``step`` add a part that depends on the token itself.
        scan: Key of ``forms.AUTO_SCAN_FORMS`` if such a scan computes causal outputs.
        chunk_size: Maximum number of tokens per chunk in the chunked form.
    """

    reads_only_state: ClassVar[bool] = True
    scan: ClassVar[str | None] = None

    chunk_size: int = 128

    def __post_init__(self) -> None:
        check_integers(1, chunk_size=self.chunk_size)

    @abc.abstractmethod
    def lift(self, k: Array, v: Array, query: Array | None = None) -> State:
        """Returns the states of single tokens; per-token inputs are further keyword arguments.

        Args:
            k: Keys of shape [..., H, K].
            v: Values of shape [..., H, V].
            query: Learned query [H, K] if ``capabilities.learned_query``, or external queries [B,
                L, H, K], which make states [..., L, H, ...].
        """

    def _merge(self, state_a: State, state_b: State) -> State:
        """Merges the states of two consecutive spans, without checks and on any leading axes."""
        return state_a.merge(state_b)

    @abc.abstractmethod
    def read(self, q: Array | None, state: State) -> Array:
        """Computes outputs [..., H, V] of queries [..., H, K]; 0 where the state is empty."""

    def _require_query(self, q: Array | None) -> Array:
        if q is None:
            raise ValueError(f"{self.name!r} reads its state by a query, got none.")
        return q

    def prepare(
        self, q: Array, k: Array, v: Array, parameters: Parameters
    ) -> tuple[Array, Array, Array]:
        """Applies the mechanism's parameters to single tokens, before ``lift`` and ``read``."""
        return q, k, v

    def fixed_token_arguments(self, k: Array, parameters: Parameters) -> dict[str, Array]:
        """Returns inputs of ``lift`` that no token brings, such as a fixed decay."""
        return {}

    def _identity_state(self, k: Array, v: Array, num_latents: int | None = None) -> State:
        batch, heads = k.shape[0], k.shape[-2]
        return self.init_state(
            batch, heads, k.shape[-1], v.shape[-1], dtype=v.dtype, num_latents=num_latents
        )

    def _initial_state(self, call: Call) -> State:
        """Returns the state before the first token."""
        return self._call_identity(call) if call.state is None else call.state

    def _call_identity(self, call: Call) -> State:
        """Returns the neutral state for the shapes of a call."""
        return self._identity_state(call.k, call.v, count_latents(self.capabilities, call.q))

    def _prepare(self, call: Call | StepCall) -> tuple[Array, dict[str, Array]]:
        """Returns the queries, and the tokens by name, in the accumulation dtype."""
        dtype = accumulation_dtype(call.v.dtype)
        q, k, v = (x.astype(dtype) for x in (call.q, call.k, call.v))
        q, k, v = self.prepare(q, k, v, call.parameters)
        fixed_token_arguments = jax.tree.map(
            lambda x: masks.zero_padding(x, call.mask),
            self.fixed_token_arguments(k, call.parameters),
        )
        return q, {"k": k, "v": v, **call.per_token, **fixed_token_arguments}

    def _floats_per_token(self, identity: State) -> int:
        """Returns how many numbers a chunk holds per token, for the whole batch."""
        return sum(leaf.size for leaf in jax.tree.leaves(identity))

    def _make_monoid(self, q: Array, identity: State) -> prefix.Monoid:
        """Binds the arguments of a call, with a prepared ``q``, to the engine's functions."""
        return prefix.scan_monoid(partial(self._lift_tokens, q), self._merge, self.read, identity)

    def _lift_tokens(self, q: Array, tokens: dict[str, Array]) -> State:
        return self.lift(**tokens, **({"query": q} if self.capabilities.learned_query else {}))

    def _attend(self, call: Call) -> tuple[Outputs, State]:
        q, tokens = self._prepare(call)
        return (self._attend_causal if call.is_causal else self._attend_with_engine)(
            call, q, tokens
        )

    def _replace_non_finite(self, call: Call) -> tuple[Call, NonFinite]:
        replace = super()._replace_non_finite
        if self.scan is None or call.form != "auto" or call.segments is not None:
            return replace(call)

        def skip_in_loop(is_loop: bool, call: Call) -> tuple[Call, NonFinite]:
            nowhere = NonFinite.nowhere(call, self.capabilities)
            return match_varying_axes((call, nowhere)) if is_loop else replace(call)

        # A loop over tokens never reads a later one, so that only gradients need the replacement,
        # which would take as long as the fastest of these loops.
        loops = loops_over_tokens(self.scan)
        finite: tuple[Call, NonFinite] = primal_only(
            partial(loops.run, skip_in_loop), replace, match_varying_axes(call)
        )
        return finite

    def _attend_causal(
        self, call: Call, q: Array, tokens: dict[str, Array]
    ) -> tuple[Outputs, State]:
        """Attends causally on prepared arrays; overridden where a faster scan is known."""
        return self._attend_with_engine(call, q, tokens)

    def _attend_with_engine(
        self, call: Call, q: Array, tokens: dict[str, Array], following: State | None = None
    ) -> tuple[Outputs, State]:
        """Attends on prepared arrays with ``prefix.attend``; ``following`` as there."""
        identity = self._call_identity(call)
        return prefix.attend(
            self._make_monoid(q, identity),
            None if self.capabilities.learned_query else q,
            tokens,
            is_causal=call.is_causal,
            mask=call.mask,
            starts=call.starts,
            initial=call.state,
            chunk_size=self._chunk_size(call, identity),
            following=following,
        )

    def _chunk_size(self, call: Call, identity: State) -> int | None:
        """Returns the tokens per chunk of the engine's loop; None means one chunk."""
        form = call.form
        if form == "auto":
            size = self._floats_per_token(identity)
            form = choose_form("streaming", call.num_queries, call.k.shape[1], size)
        sizes = {"parallel": None, "recurrent": 1}
        return sizes[form] if form in sizes else even_chunk_size(call.k.shape[1], self.chunk_size)

    def _step(self, call: StepCall) -> tuple[OutputStep, State]:
        q, token = self._prepare(call)
        merged = self._merge(call.state, self._lift_tokens(q, token))
        if call.mask is not None:
            merged = prefix.select(call.mask, merged, call.state)
        return self.read(None if self.capabilities.learned_query else q, merged), merged

    def _check_state(self, state: State, q: Array, k: Array, v: Array) -> None:
        latents = count_latents(self.capabilities, q)
        like = jax.eval_shape(lambda: self._identity_state(k, v, latents))
        lacks = self._lacks_merge_field(state)
        check_state_like(self.name, state, self._drop_merge_field(like) if lacks else like)
