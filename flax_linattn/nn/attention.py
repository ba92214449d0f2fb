"""The attention layer: projections and heads around any mechanism."""

from __future__ import annotations

from typing import Literal, NamedTuple, Unpack, overload

import jax.numpy as jnp
from jaxtyping import Int

from flax_linattn.nn.call import Call
from flax_linattn.nn.linear import PositionLinear
from flax_linattn.nn.meshes import automatic
from flax_linattn.nn.projected import ProjectedAttention
from flax_linattn.ops.contract.masks import zero_padding
from flax_linattn.ops.contract.state import register_state
from flax_linattn.typing import (
    Array,
    Features,
    FeaturesStep,
    Keys,
    Mask,
    SegmentIds,
    SequenceOptions,
    State,
    Values,
)


class AttentionCallOptions(SequenceOptions, total=False):
    """Options of a call of ``Attention``, see there."""

    is_causal: bool
    positions: Int[Array, "B T"] | None
    context_mask: Mask | None


@register_state
class Context(NamedTuple):
    """What attention takes keys and values from, projected once for many calls.

    Attributes:
        k: keys [B, S, H, K].
        v: values [B, S, H, V].
        mask: bool [B, S], True = a real token; None = all are.
    """

    k: Keys
    v: Values
    mask: Mask | None


class Attention(ProjectedAttention):
    """Multi-head attention by any mechanism, with one set of parameters for both forms.

    Where ``mechanism.capabilities.learned_query`` (Aaren, section 3.3) the query is one
    learned token [C] of the layer, projected as the inputs would be: W_q and its bias stay,
    which is what the paper's parameter count implies. What else a mechanism learns
    (``ops.Mechanism.learned_parameters``: TaylorShift's temperature, Linformer's projections)
    is in ``mechanism_parameters``, by name. What it wants of every token beside queries, keys and
    values (``token_arguments``: decays, gates) is made of the inputs by ``token_projections``, by
    name, each with a bias and the activation that the mechanism names. Queries and keys get length
    1 where it is meant for such (``capabilities.unit_vectors``). Where one vector is both
    (``capabilities.shared_query_key``) there is one projection, ``key_projection``.

    Args:
        in_features: C, features of the inputs.
        num_heads: H.
        mechanism: what ``ops.get_mechanism`` takes as a name ("elementwise_series:order=2"), or
            a mechanism.
        qkv_features: H * K = H * V, default ``in_features``.
        out_features: features of the outputs, default ``in_features``.
        use_bias: whether the four projections have a bias.
        position: what queries and keys learn of their positions, such as ``RotaryPosition()``;
            default nothing.
        dtype: dtype of the computation, default that of inputs and parameters together.
        param_dtype: dtype of the parameters.
        kernel_init: initialiser of the kernels; see ``ParameterOptions``.
        bias_init: of the biases.
        out_kernel_init: of the output projection's kernel; default ``kernel_init``.
        out_bias_init: of its bias; default ``bias_init``.
        query_init: initialiser of the learned query token (the paper names none).
        rngs: holds the stream "params".

    Raises:
        ValueError: the heads do not divide ``qkv_features``, the mechanism is unknown, or
            positions are to reach a learned query, which has none.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from flax import nnx
        >>> from flax_linattn import nn
        >>> attention = nn.Attention(32, 4, mechanism="aaren", rngs=nnx.Rngs(0))
        >>> x = jax.random.normal(jax.random.key(1), (2, 10, 32))
        >>> y = attention(x, is_causal=True)                      # in parallel
        >>> state = attention.init_state(2)
        >>> for t in range(10):                                   # as a recurrent network
        ...     y_t, state = attention.step(x[:, t], state)
        >>> bool(jnp.allclose(y[:, -1], y_t, atol=1e-5))
        True
    """

    @overload
    def __call__(
        self,
        x: Features,
        context: Features | None = None,
        *,
        return_state: Literal[False] = False,
        **options: Unpack[AttentionCallOptions],
    ) -> Features: ...

    @overload
    def __call__(
        self,
        x: Features,
        context: Features | None = None,
        *,
        return_state: Literal[True],
        **options: Unpack[AttentionCallOptions],
    ) -> tuple[Features, State]: ...

    @automatic(2)
    def __call__(
        self,
        x: Features,
        context: Features | None = None,
        *,
        is_causal: bool = False,
        mask: Mask | None = None,
        context_mask: Mask | None = None,
        segment_ids: SegmentIds | None = None,
        positions: Int[Array, "B T"] | None = None,
        state: State | None = None,
        return_state: bool = False,
        form: str = "auto",
    ) -> Features | tuple[Features, State]:
        """Attends over whole sequences.

        Args:
            x: [B, T, C].
            context: [B, S, C] to take keys and values from (cross-attention); default ``x``.
            is_causal: each position sees itself and the past.
            mask: bool [B, T], True = a real token of ``x``.
            context_mask: bool [B, S], True = a real token of ``context``.
            segment_ids: int [B, T], packed sequences.
            positions: int [B, T], for a layer with a ``position``; default the number of real
                tokens before, in this call.
            state: what an earlier call returned.
            return_state: return ``(y, state)``.
            form: see ``ops.Mechanism.attend``.

        Returns:
            y [B, T, out_features], and the state if asked for. At masked positions y is the
            output projection's bias.

        Raises:
            ValueError: a shape or combination that the mechanism does not offer.
            TypeError: x or context is no array.
        """
        call = Call(
            mask=mask,
            segment_ids=segment_ids,
            positions=positions,
            state=state,
            is_causal=is_causal,
            return_state=return_state,
            form=form,
        )
        if context is not None:
            y, after = self._attend_across(x, context, context_mask, call)
        elif context_mask is not None:
            raise ValueError("context_mask marks tokens of context: pass context, or use mask.")
        else:
            y, after = self._map(x, self._checked(x, call))
        return (y, after) if return_state else y

    def _checked(self, x: Features, call: Call) -> Call:
        """The call of x [B, T, C], with positions counted where the layer needs them.

        Raises:
            ValueError: another shape, or positions that are missing or not asked for.
            TypeError: x is no array.
        """
        self._check_inputs("B, T", x=x)
        self._check_positions(call.positions)
        if self.position is not None and call.positions is None:
            if call.state is not None:
                raise ValueError(_POSITIONS)
            call = call.counted(x)
        return call

    def _map(self, x: Features, call: Call) -> tuple[Features, State | None]:
        """Self-attention once the call is checked: y [B, T, out_features], and the state."""
        # In a block, too, which makes something of the zeros at padding. So gradients of queries,
        # keys and values are added up before they meet that of the residual, padded or not.
        x = zero_padding(x, call.mask)
        k = self._heads(self.key_projection(x))
        q = self._queries(x, k)
        if self.position is not None and call.positions is not None:
            q, k = self.position(q, call.positions), self.position(k, call.positions)
        return self._attend(q, k, x, call, query_mask=call.mask)

    def _attend_across(
        self, x: Features, context: Features, context_mask: Mask | None, call: Call
    ) -> tuple[Features, State | None]:
        self._check_cross()
        self._check_inputs("B, T", x=x, context=context)
        self._check_positions(call.positions)
        if self.position is not None:
            raise ValueError(
                "positions of two sequences do not compare; make a layer for cross-attention "
                "without position."
            )
        context = zero_padding(context, context_mask)
        k = self._heads(self.key_projection(context))
        q = self._queries(zero_padding(x, call.mask), k)
        real = jnp.ones(x.shape[:2], bool) if call.mask is None else call.mask
        return self._attend(q, k, context, call.replace(mask=context_mask), query_mask=real)

    @automatic(1)
    def project(self, context: Features, mask: Mask | None = None) -> Context:
        """Keys and values of a context, for ``attend_to``.

        Args:
            context: [B, S, C].
            mask: bool [B, S], True = a real token.

        Raises:
            ValueError: the mechanism offers no cross-attention, or wants arguments of tokens, which
                a projected context does not hold.
        """
        self._check_cross()
        if self.mechanism.token_arguments:
            raise ValueError(
                f"{self.mechanism.name!r} wants arguments of every token, which a projected "
                "context does not hold; call the layer with context instead."
            )
        context = zero_padding(context, mask)
        return Context(
            self._heads(self.key_projection(context)),
            self._heads(self.value_projection(context)),
            mask,
        )

    @automatic(2)
    def attend_to(self, x: Features, context: Context, *, mask: Mask | None = None) -> Features:
        """Cross-attention of x [B, T, C] to a context projected before, as the call has it.

        Args:
            x: [B, T, C].
            context: of ``project``.
            mask: bool [B, T], True = a real token of ``x``.

        Returns:
            y [B, T, out_features].
        """
        y = self.mechanism.attend(
            self._queries(zero_padding(x, mask), context.k),
            context.k,
            context.v,
            mask=context.mask,
            query_mask=jnp.ones(x.shape[:2], bool) if mask is None else mask,
            **self._parameters(),
        )
        return self._out(y)

    def _check_cross(self) -> None:
        if not self.mechanism.capabilities.cross:
            raise ValueError(
                f"{self.mechanism.name!r} offers no cross-attention; leave context out."
            )

    @automatic(1)
    def step(
        self,
        x: FeaturesStep,
        state: State,
        *,
        mask: Array | None = None,
        positions: Int[Array, "B"] | None = None,
    ) -> tuple[FeaturesStep, State]:
        """Takes in one token a row.

        Args:
            x: [B, C].
            state: from ``init_state``, the call or ``step``.
            mask: bool [B]; where False the state stays as it is.
            positions: int [B], for a layer with a ``position``.

        Returns:
            y [B, out_features] and the new state.

        Raises:
            ValueError: shapes that do not fit, positions are missing, or each position has weights
                of its own.
        """
        if isinstance(self.key_projection, PositionLinear):
            raise ValueError(
                "each position of this layer has weights of its own, so that it takes whole "
                "windows alone; step the model around it."
            )
        self._check_inputs("B", x=x)
        x = zero_padding(x, mask)
        k = self._heads(self.key_projection(x))
        q = self._queries(x, k)
        self._check_positions(positions)
        if self.position is not None:
            if positions is None:
                raise ValueError(_POSITIONS)
            q, k = self.position(q, positions), self.position(k, positions)
        return self._attend_step(q, k, x, state, mask)

    def _check_positions(self, positions: Array | None) -> None:
        if self.position is None and positions is not None:
            raise ValueError(
                "this layer makes no use of positions: make it with position, such as "
                "RotaryPosition(), or leave them out."
            )


_POSITIONS = (
    "a layer with positions has to be told which a later token has: pass positions, the number "
    "of tokens before each."
)
