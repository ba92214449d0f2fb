"""The attention layer: projections and heads around any mechanism."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from einops import rearrange
from flax import nnx
from jax.typing import DTypeLike

from flax_linattn import ops
from flax_linattn.nn.linear import linear
from flax_linattn.ops.contract.masks import zero_padding
from flax_linattn.typing import Array, Features, FeaturesStep, Mask, SegmentIds, State

QUERY_INIT = nnx.initializers.normal(0.02)


class Attention(nnx.Module):
    """Multi-head attention by any mechanism, with one set of parameters for both forms.

    Where ``mechanism.capabilities.learned_query`` (Aaren, section 3.3) the query is one
    learned token [C] of the layer, projected as the inputs would be: W_q and its bias stay,
    which is what the paper's parameter count implies. What else a mechanism learns
    (``ops.Mechanism.learned_parameters``: TaylorShift's temperature, Linformer's projections)
    is in ``mechanism_parameters``, by name.

    Args:
        in_features: C, features of the inputs.
        num_heads: H.
        mechanism: what ``ops.get_mechanism`` takes as a name ("elementwise_series:order=2"), or
            a mechanism.
        qkv_features: H * K = H * V, default ``in_features``.
        out_features: features of the outputs, default ``in_features``.
        use_bias: whether the four projections have a bias.
        dtype: dtype of the computation, default that of inputs and parameters together.
        param_dtype: dtype of the parameters.
        query_init: initialiser of the learned query token (the paper names none).
        rngs: holds the stream "params".

    Raises:
        ValueError: the heads do not divide ``qkv_features``, or the mechanism is unknown.

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

    def __init__(
        self,
        in_features: int,
        num_heads: int,
        *,
        mechanism: str | ops.Mechanism = "softmax",
        qkv_features: int | None = None,
        out_features: int | None = None,
        use_bias: bool = True,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        query_init: nnx.Initializer = QUERY_INIT,
        rngs: nnx.Rngs,
    ) -> None:
        qkv_features = in_features if qkv_features is None else qkv_features
        out_features = in_features if out_features is None else out_features
        if num_heads < 1 or qkv_features % num_heads:
            raise ValueError(
                f"the features of queries, keys and values ({qkv_features}) must be a multiple "
                f"of num_heads, got num_heads={num_heads}."
            )
        self.mechanism = resolve_mechanism(mechanism)
        self.in_features = in_features
        self.num_heads = num_heads
        self.head_dim = qkv_features // num_heads

        options: dict[str, Any] = {
            "use_bias": use_bias,
            "dtype": dtype,
            "param_dtype": param_dtype,
            "rngs": rngs,
        }
        self.query_projection = linear(in_features, qkv_features, **options)
        self.key_projection = linear(in_features, qkv_features, **options)
        self.value_projection = linear(in_features, qkv_features, **options)
        self.out_projection = linear(qkv_features, out_features, **options)
        learned = self.mechanism.capabilities.learned_query
        self.query = (
            nnx.Param(query_init(rngs.params(), (in_features,), param_dtype)) if learned else None
        )
        learned_parameters = self.mechanism.learned_parameters(num_heads, self.head_dim)
        self.mechanism_parameters = nnx.Dict(
            {
                name: nnx.Param(parameter.init(rngs.params(), parameter.shape, param_dtype))
                for name, parameter in learned_parameters.items()
            }
        )

    def __call__(
        self,
        x: Features,
        context: Features | None = None,
        *,
        is_causal: bool = False,
        mask: Mask | None = None,
        context_mask: Mask | None = None,
        segment_ids: SegmentIds | None = None,
        state: State | None = None,
        return_state: bool = False,
        form: str = "auto",
    ) -> Any:
        """Attends over whole sequences.

        Args:
            x: [B, T, C].
            context: [B, S, C] to take keys and values from (cross-attention); default ``x``.
            is_causal: each position sees itself and the past.
            mask: bool [B, T], True = a real token of ``x``.
            context_mask: bool [B, S], True = a real token of ``context``.
            segment_ids: int [B, T], packed sequences.
            state: what an earlier call returned.
            return_state: return ``(y, state)``.
            form: see ``ops.Mechanism.attend``.

        Returns:
            y [B, T, out_features], and the state if asked for. At masked positions y is the
            output projection's bias.

        Raises:
            ValueError: a shape or combination that the mechanism does not offer.
        """
        if context is not None and not self.mechanism.capabilities.cross:
            raise ValueError(
                f"{self.mechanism.name!r} offers no cross-attention; leave context out."
            )
        if context is None and context_mask is not None:
            raise ValueError("context_mask marks tokens of context: pass context, or use mask.")
        for name, features in (("x", x), ("context", context)):
            if features is not None and (
                features.ndim != 3 or features.shape[2] != self.in_features
            ):
                raise ValueError(
                    f"expected {name} as [B, T, {self.in_features}], got shape {features.shape}."
                )
        x = zero_padding(x, mask)
        source = x if context is None else zero_padding(context, context_mask)
        k = self._heads(self.key_projection(source))
        y = self.mechanism.attend(
            self._queries(x, k.dtype),
            k,
            self._heads(self.value_projection(source)),
            is_causal=is_causal,
            mask=mask if context is None else context_mask,
            query_mask=mask if context is None or mask is not None else jnp.ones(x.shape[:2], bool),
            segment_ids=segment_ids,
            initial_state=state,
            return_state=return_state,
            form=form,
            **self._parameters(),
        )
        if isinstance(y, tuple):
            y, state = y
            return self._out(y), state
        return self._out(y)

    def init_state(self, batch_size: int, max_length: int | None = None) -> State:
        """The state before the first token; ``max_length`` sizes the cache of those that need one.

        It has the accumulation dtype of the layer's computation.
        """
        projection = self.key_projection
        dtype = projection.dtype if projection.dtype is not None else projection.param_dtype
        return self.mechanism.init_state(
            batch_size, self.num_heads, self.head_dim, self.head_dim, max_length, dtype=dtype
        )

    def step(
        self, x: FeaturesStep, state: State, *, mask: Array | None = None
    ) -> tuple[FeaturesStep, State]:
        """Takes in one token a row: x [B, C] -> y [B, out_features] and the new state.

        ``mask`` bool [B]: where False the state stays as it is.
        """
        if x.ndim != 2 or x.shape[1] != self.in_features:
            raise ValueError(f"expected x as [B, {self.in_features}], got shape {x.shape}.")
        x = zero_padding(x, mask)
        k = self._heads(self.key_projection(x))
        y, state = self.mechanism.step(
            self._queries(x, k.dtype),
            k,
            self._heads(self.value_projection(x)),
            state,
            mask,
            **self._parameters(),
        )
        return self._out(y), state

    def _parameters(self) -> dict[str, Array]:
        return {name: parameter[...] for name, parameter in self.mechanism_parameters.items()}

    def _queries(self, x: Array, dtype: DTypeLike) -> Array:
        source = x if self.query is None else self.query[...]
        # The learned query knows nothing of x's dtype; the keys do.
        return self._heads(self.query_projection(source)).astype(dtype)

    def _heads(self, x: Array) -> Array:
        return rearrange(x, "... (h k) -> ... h k", h=self.num_heads)

    def _out(self, y: Array) -> Array:
        return self.out_projection(rearrange(y, "... h v -> ... (h v)"))


def resolve_mechanism(mechanism: str | ops.Mechanism) -> ops.Mechanism:
    """A mechanism from its name, or the mechanism itself.

    Raises:
        ValueError: the name is unknown.
        TypeError: neither a name nor a mechanism.

    Example:
        >>> resolve_mechanism("aaren").name
        'aaren'
    """
    if isinstance(mechanism, str):
        return ops.get_mechanism(mechanism)
    if isinstance(mechanism, ops.Mechanism):
        return mechanism
    raise TypeError(
        "mechanism must be a name or what ops.get_mechanism returns, "
        f"got {type(mechanism).__name__}."
    )
