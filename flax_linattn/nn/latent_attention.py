"""Latents that read a stream: attention of a few learned queries to all tokens."""

from __future__ import annotations

from typing import Any, Literal, Unpack, cast, overload

from flax import nnx
from jaxtyping import Float

from flax_linattn import ops
from flax_linattn.checks import OptionError, at_least
from flax_linattn.nn.call import Call
from flax_linattn.nn.meshes import automatic
from flax_linattn.nn.projected import AttentionOptions, ProjectedAttention, resolve_mechanism
from flax_linattn.ops.contract.masks import zero_padding
from flax_linattn.typing import Array, Features, FeaturesStep, Mask, SequenceOptions, State


class LatentCallOptions(SequenceOptions, total=False):
    """Options of a call of ``LatentAttention``, see there."""

    is_causal: bool
    latents: Array | None


class LatentAttention(ProjectedAttention):
    """L latents, each of which attends to all tokens of a sequence, however long it grows.

    A Perceiver's cross-attention (Jaegle et al., "Perceiver", 2021, section 3.1) as Feng et al.,
    "Attention as an RNN", 2024, section 3.1, compute attention for a given query: in value it is
    softmax cross-attention, while tokens come one by one or block by block (appendix A) and what is
    kept of them, a state [B, L, H, ...], does not grow. With ``mechanism="forgetting_aaren"``
    latents forget, by a decay that the layer makes of every token.

    Args:
        in_features: C, features of the tokens and of the latents.
        num_heads: Number of attention heads H.
        num_latents: L.
        mechanism: One with ``capabilities.given_queries``, by name or itself.
        rngs: Random number generators; "params" initializes the parameters.
        **options: ``qkv_features``, ``out_features``, ``use_bias``, ``dtype``, ``query_init`` (of
            the latents [L, C]) and how parameters are made, as in ``Attention``.

    Raises:
        ValueError: No latent, heads that do not divide the features, or a mechanism that takes no
            given queries.

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
        at_least(1, num_latents=num_latents)
        mechanism = resolve_mechanism(mechanism)
        if not mechanism.capabilities.given_queries:
            able = [
                name
                for name in ops.list_mechanisms()
                if ops.get_mechanism(name).capabilities.given_queries
            ]
            raise OptionError(
                f"{mechanism.name!r} keeps no state for given queries; latents read by "
                f"{' or '.join(able)}.",
                "mechanism",
            )
        self.num_queries = num_latents
        super().__init__(in_features, num_heads, mechanism=mechanism, rngs=rngs, **options)

    @property
    def latents(self) -> Float[Array, "L C"]:
        """The learned ones."""
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
        """Reads tokens.

        Args:
            x: Tokens [B, T, C].
            latents: [L, C] or, of each row, [B, L, C], in place of the learned ones; all calls that
                share a state take the same.
            is_causal: Give what has been read after each token instead of after all.
            mask: Boolean array of shape [B, T]; True marks valid tokens.
            segment_ids: Integer array of shape [B, T]; ids of packed sequences, where
                ``is_causal``.
            state: State returned by an earlier call, whose tokens precede these.
            return_state: Whether to return ``(y, state)`` instead of ``y``.
            form: Form of the computation; see ``ops.Mechanism.attend``.

        Returns:
            y [B, L, out_features], or [B, T, L, out_features] where ``is_causal``, and the state if
            ``return_state``. Before the first valid token y is the output projection's bias.

        Raises:
            ValueError: Shapes that do not fit, or packed sequences that are read as one.
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
        """Reads tokens [B, T, C] that are 0 at padding: y, as the call has it, and the state."""
        k = self._split_heads(self.key_projection(x))
        return self._attend(self._latents(latents, k), k, x, call)

    @automatic(1)
    def step(
        self,
        x: FeaturesStep,
        state: State,
        *,
        latents: Array | None = None,
        mask: Array | None = None,
    ) -> tuple[Float[Array, "B L C"], State]:
        """Reads one token a row.

        Args:
            x: Input features of shape [B, C], one token per row.
            state: State from ``init_state``, ``__call__`` or ``step``.
            latents: As in the call.
            mask: Boolean array of shape [B]; where False, the row's state is unchanged.

        Returns:
            y [B, L, out_features] and the new state.

        Raises:
            ValueError: Shapes that do not fit.
        """
        self._check_inputs("B", x=x)
        x = zero_padding(x, mask)
        k = self._split_heads(self.key_projection(x))
        return self._attend_step(self._latents(latents, k), k, x, state, mask)

    def _latents(self, latents: Array | None, k: Array) -> Array:
        if latents is None:
            return self._queries(k, k)
        expected = (self.num_queries, self.in_features)
        if latents.shape not in (expected, (k.shape[0], *expected)):
            raise ValueError(
                f"expected latents as [L, C] = {expected}, or of each row "
                f"{(k.shape[0], *expected)}, got {latents.shape}."
            )
        return self._project_queries(latents, k)
