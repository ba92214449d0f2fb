"""Latent attention: learned queries that attend to a stream of tokens, in parallel or by steps."""

from __future__ import annotations

from typing import Any, Literal, Unpack, cast, overload

from flax import nnx
from jaxtyping import Float

from flax_linattn import ops
from flax_linattn.checks import OptionError, check_integers
from flax_linattn.nn.call import Call
from flax_linattn.nn.linear import check_options
from flax_linattn.nn.meshes import automatic
from flax_linattn.nn.projected import (
    AttentionOptions,
    ProjectedAttention,
    Projections,
    resolve_mechanism,
)
from flax_linattn.ops.contract.masks import zero_padding
from flax_linattn.typing import Array, Features, FeaturesStep, Mask, SequenceOptions, State


class LatentCallOptions(SequenceOptions, total=False):
    """Keyword options of a call of ``LatentAttention``."""

    is_causal: bool
    latents: Array | None


class LatentAttention(ProjectedAttention):
    """L learned latents that attend to all tokens of a sequence, with a state of constant size.

    It is the cross-attention of a Perceiver (Jaegle et al., "Perceiver", 2021, section 3.1),
    computed as Feng et al., "Attention as an RNN", 2024, section 3.1, compute attention for a given
    query: its outputs equal softmax cross-attention, while tokens arrive one by one or in
    blocks (appendix A) and the state [B, L, H, ...] does not grow. With
    ``mechanism="forgetting_aaren"`` old tokens are discounted by a decay that the layer computes
    from every token.

    Args:
        in_features: Number of features C of the tokens and of the latents.
        num_heads: Number of attention heads H.
        num_latents: Number of latents L.
        mechanism: Name of a mechanism with ``capabilities.latents``, or the mechanism itself.
        rngs: Random number generators; "params" initializes the parameters.
        **options: ``qkv_features``, ``out_features``, ``use_bias``, ``normalize_qk``,
            ``output_norm``, ``dtype``, ``query_init`` (of the latents [L, C]) and the initializers
            of the parameters, as in ``Attention``.

    Raises:
        ValueError: If there is no latent, ``num_heads`` does not divide the features, or the
            mechanism does not support latents.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from flax import nnx
        >>> from flax_linattn import nn
        >>> read = nn.LatentAttention(32, 4, num_latents=5, rngs=nnx.Rngs(0))
        >>> x = jax.random.normal(jax.random.key(1), (2, 10, 32))
        >>> y = read(x)                                           # all tokens at once
        >>> y.shape
        (2, 5, 32)
        >>> state = read.init_state(2)
        >>> for t in range(10):                                   # or one after another
        ...     y_t, state = read.step(x[:, t], state)
        >>> bool(jnp.allclose(y, y_t, atol=1e-5))
        True
    """

    def __init__(
        self,
        in_features: int,
        num_heads: int,
        num_latents: int,
        *,
        mechanism: str | ops.Mechanism = "aaren",
        rngs: nnx.Rngs,
        **options: Unpack[AttentionOptions],
    ) -> None:
        check_options(self, AttentionOptions, options)
        check_integers(1, num_latents=num_latents)
        mechanism = resolve_mechanism(mechanism)
        if not mechanism.capabilities.latents:
            able = [
                name
                for name in ops.list_mechanisms()
                if ops.get_mechanism(name).capabilities.latents
            ]
            raise OptionError(
                f"{mechanism.name!r} does not support latents; choose one of: {', '.join(able)}.",
                "mechanism",
            )
        self.num_latents = num_latents
        super().__init__(in_features, num_heads, mechanism=mechanism, rngs=rngs, **options)

    @property
    def latents(self) -> Float[Array, "L C"]:
        """The learned latents, of shape [L, C]."""
        latents: Array = cast(Any, self.query)[...]
        return latents

    @overload
    def __call__(
        self,
        x: Features,
        *,
        return_state: Literal[False] = False,
        **options: Unpack[LatentCallOptions],
    ) -> Array: ...

    @overload
    def __call__(
        self, x: Features, *, return_state: Literal[True], **options: Unpack[LatentCallOptions]
    ) -> tuple[Array, State]: ...

    @automatic(1)
    def __call__(
        self,
        x: Features,
        *,
        latents: Array | None = None,
        is_causal: bool = False,
        mask: Mask | None = None,
        segment_ids: Array | None = None,
        state: State | None = None,
        return_state: bool = False,
        form: str = "auto",
    ) -> Array | tuple[Array, State]:
        """Attends from the latents to whole sequences of tokens.

        Args:
            x: Tokens of shape [B, T, C].
            latents: Queries of shape [L, C] or, for each row, [B, L, C] instead of the learned
                ones; calls that share a state must use the same.
            is_causal: Whether to return outputs after every token instead of after the last.
            mask: Boolean array of shape [B, T]; True marks valid tokens.
            segment_ids: Integer array of shape [B, T]; ids of packed sequences, if ``is_causal``.
            state: State returned by an earlier call, whose tokens precede these.
            return_state: Whether to return ``(y, state)`` instead of ``y``.
            form: Form of the computation; see ``ops.Mechanism.attend``.

        Returns:
            Outputs of shape [B, L, out_features], or [B, T, L, out_features] if ``is_causal``, and
            the state if ``return_state``. Before the first valid token, outputs are the output
            projection's bias.

        Raises:
            ValueError: If shapes do not match, or packed sequences come without ``is_causal``.
        """
        self._check_inputs("B, T", x=x)
        call = Call(
            mask=mask,
            segment_ids=segment_ids,
            state=state,
            is_causal=is_causal,
            return_state=return_state,
            form=form,
        )
        y, after = self._map(zero_padding(x, mask), call, latents)
        return (y, after) if return_state else y

    def _map(
        self, x: Features, call: Call, latents: Array | None = None
    ) -> tuple[Array, State | None]:
        """Attends to tokens [B, T, C] that are 0 at padding; returns outputs and the state."""
        k, v = self._keys_and_values(x)
        per_token = self._token_arguments(x)
        y, state = self._attend(Projections(self._latents(latents, k), k, v, per_token, None, call))
        return self._project_out(y, x), state

    @automatic(1)
    def step(
        self,
        x: FeaturesStep,
        state: State,
        *,
        latents: Array | None = None,
        mask: Array | None = None,
    ) -> tuple[Float[Array, "B L C"], State]:
        """Processes one token per row.

        Args:
            x: Tokens of shape [B, C].
            state: State from ``init_state``, ``__call__`` or ``step``.
            latents: Queries instead of the learned ones, as in ``__call__``.
            mask: Boolean array of shape [B]; where False, the row's state is unchanged.

        Returns:
            Outputs of shape [B, L, out_features], and the new state.

        Raises:
            ValueError: If shapes do not match.
        """
        self._check_inputs("B", x=x)
        x = zero_padding(x, mask)
        k, v = self._keys_and_values(x)
        y, state = self._attend_step(self._latents(latents, k), k, v, x, state, mask)
        return self._project_out(y, x), state

    def _latents(self, latents: Array | None, k: Array) -> Array:
        if latents is None:
            return self._queries(k, k)
        expected = (self.num_latents, self.in_features)
        if latents.shape not in (expected, (k.shape[0], *expected)):
            raise ValueError(
                f"expected latents of shape [L, C] = {expected}, or one set per row, "
                f"{(k.shape[0], *expected)}, got {latents.shape}."
            )
        return self._project_queries(latents, k)
