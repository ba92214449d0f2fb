"""Exchange with Flax's attention layers: their weights, and mechanisms inside of them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.core import meta
from flax.nnx.nn.dtypes import promote_dtype
from jax.typing import DTypeLike

from flax_linattn import ops
from flax_linattn.checks import check_choice
from flax_linattn.nn.attention import Attention
from flax_linattn.nn.linear import PositionLinear
from flax_linattn.nn.projected import resolve_mechanism
from flax_linattn.ops.contract.checks import check_pair_input
from flax_linattn.typing import Array

_PROJECTIONS = {
    "query": "query_projection",
    "key": "key_projection",
    "value": "value_projection",
    "out": "out_projection",
}
"""Names of Flax's projections, and of ours."""

_QK_NORMS = {"query_ln": "query_norm", "key_ln": "key_norm"}
"""Names of Flax's norms of queries and keys, and of ours."""

_NO_EQUIVALENT = {
    **dict.fromkeys(("qkv_dot_general", "out_dot_general"), None),
    **dict.fromkeys(("qkv_dot_general_cls", "out_dot_general_cls"), None),
    **dict.fromkeys(("qkv_promote_dtype", "out_promote_dtype", "ln_promote_dtype"), promote_dtype),
}
"""Options of ``nnx.MultiHeadAttention`` that change its outputs and that ``Attention`` lacks, with
their defaults."""


@dataclasses.dataclass(frozen=True)  # a value: equal layers have equal graphs
class AttentionFunction:
    """Mechanism with the signature of ``nnx.dot_product_attention``: ``attention_function``.

    Attributes:
        mechanism: Mechanism that computes the outputs.
        is_causal: Whether every call is causal.
    """

    mechanism: ops.Mechanism
    is_causal: bool = False

    def __post_init__(self) -> None:
        name, can = self.mechanism.name, self.mechanism.capabilities
        reasons = {
            "has one learned query instead of one query per token": can.learned_query,
            "computes queries and keys by one projection": can.shared_query_key,
            "needs per-token inputs that the layer projects": self.mechanism.token_arguments,
        }
        for reason, applies in reasons.items():
            if applies:
                raise ValueError(
                    f"{name!r} {reason}, which an attention_fn does not receive; use nn.Attention, "
                    "or choose another mechanism, such as linear."
                )
        if not (can.causal if self.is_causal else can.noncausal or can.causal):
            raise ValueError(f"{name!r} does not support is_causal={self.is_causal}.")

    def __call__(
        self,
        query: Array,
        key: Array,
        value: Array,
        bias: Array | None = None,
        mask: Array | None = None,
        broadcast_dropout: bool = True,
        dropout_rng: Array | None = None,
        dropout_rate: float = 0.0,
        deterministic: bool = False,
        dtype: DTypeLike | None = None,
        precision: Any = None,
        module: nnx.Module | None = None,
        *,
        is_causal: bool = False,
        force_fp32_for_softmax: bool = False,
        qk_attn_weights_einsum: Any = None,
        attn_weights_value_einsum: Any = None,
    ) -> Array:
        """Attends as ``nnx.dot_product_attention`` does, by the mechanism.

        Mechanisms compute in at least float32 and at the highest precision, so ``precision`` and
        ``force_fp32_for_softmax`` change nothing.

        Args:
            query: Queries of shape [*B, T, H, K].
            key: Keys of shape [*B, S, H, K].
            value: Values of shape [*B, S, H, V].
            bias: Bias of the scores, broadcastable to [*B, H, T, S], if ``capabilities.bias``.
            mask: Mask of the valid keys, broadcastable to [*B, 1, 1, S]; with
                ``capabilities.pair_mask`` any mask broadcastable to [*B, H, T, S].
            broadcast_dropout: Without effect: every sequence and head drops its own weights.
            dropout_rng: Random key of the dropout.
            dropout_rate: Dropout rate of attention weights, if ``capabilities.weight_dropout``.
            deterministic: Whether dropout is off.
            dtype: Dtype of the computation; inferred from the inputs if None.
            precision: Precision of matrix products.
            module: Module that collects attention weights; not supported.
            is_causal: Whether the call is causal, if the function is not.
            force_fp32_for_softmax: Option of Linen's layers, without effect.
            qk_attn_weights_einsum: Option of Linen's layers; not supported.
            attn_weights_value_einsum: Option of Linen's layers; not supported.

        Returns:
            Outputs of shape [*B, T, H, V]. As in Flax, padded queries have outputs, too; a query
            that attends to no key has the output 0.

        Raises:
            ValueError: If an argument is not supported, or the mechanism rejects the call.
        """
        name, can = self.mechanism.name, self.mechanism.capabilities
        pairs: dict[str, Any] = {}
        if not deterministic and dropout_rate > 0:
            check_pair_input(name, can, "dropout_rate")
            pairs |= {"dropout_rate": dropout_rate, "dropout_key": dropout_rng}
        if module is not None:
            raise ValueError(
                f"{name!r} does not sow attention weights; call the layer without sow_weights, "
                "and compute the weights of short sequences by ops.weights."
            )
        if qk_attn_weights_einsum is not None or attn_weights_value_einsum is not None:
            raise ValueError(f"{name!r} does not call the layer's einsum classes; remove them.")

        q, k, v = promote_dtype((query, key, value), dtype=dtype)
        *batch, num_queries, _, _ = q.shape
        source = k.shape[-3]
        causal = self.is_causal or is_causal

        def flatten(x: Array, *sizes: int) -> Array:
            """Broadcasts [..., H, T, S] to all sequences and the last axes, as [B, ...]."""
            x = x.reshape((1,) * (len(batch) + 3 - x.ndim) + x.shape)
            x = jnp.broadcast_to(x, (*batch, *x.shape[len(batch) : -len(sizes)], *sizes))
            return x.reshape(math.prod(batch), *x.shape[len(batch) :])

        key_mask = every = None
        if mask is not None:
            mask = jnp.asarray(mask).astype(bool)
            if mask.shape[-3:-1] in ((1, 1), (1,), ()):  # of keys alone
                key_mask = flatten(mask, source)[:, 0, 0]
                # Flax's masks are of keys, whether or not these are the tokens of the queries.
                every = jnp.ones((math.prod(batch), num_queries), bool)
            else:
                self._check_pair_mask(mask, causal)
                pairs["pair_mask"] = flatten(mask, num_queries, source)
        if bias is not None:
            check_pair_input(name, can, "bias")
            pairs["bias"] = flatten(bias, num_queries, source)
        if key_mask is not None and not can.recurrent:
            raise ValueError(
                f"{name!r} mixes the queries of a sequence, and a mask of keys does not say which "
                "queries are padding; use nn.Attention(...)(x, mask=...)."
            )
        if causal and num_queries == 1 and source > 1 and key_mask is not None:
            causal = False  # one token and a cache, whose mask hides the slots of later tokens
        q, k, v = (x.reshape(math.prod(batch), *x.shape[-3:]) for x in (q, k, v))
        y = self.mechanism.attend(
            q, k, v, is_causal=causal, mask=key_mask, query_mask=every, **pairs
        )
        return y.reshape(*batch, *y.shape[1:])

    def _check_pair_mask(self, mask: Array, causal: bool) -> None:
        """Refuses a mask [..., H, T, S] of a mechanism that cannot hide single pairs."""
        if self.mechanism.capabilities.pair_mask:
            return
        hint = ""
        is_known = not isinstance(mask, jax.core.Tracer) and mask.shape[-2] == mask.shape[-1]
        if is_known and not causal and not np.triu(np.asarray(mask), 1).any():
            hint = " This mask is causal; make the function with is_causal=True."
        raise ValueError(
            f"{self.mechanism.name!r} takes a mask of the valid keys, [B, 1, 1, S], got shape "
            f"{mask.shape}, in which heads or queries have masks of their own. Pass "
            f"is_valid[:, None, None, :], and is_causal=True for causality.{hint}"
        )


def attention_function(
    mechanism: str | ops.Mechanism, *, is_causal: bool = False
) -> AttentionFunction:
    """Returns a mechanism as the ``attention_fn`` of a Flax attention layer.

    It replaces ``dot_product_attention`` in ``nnx.MultiHeadAttention`` and
    ``linen.MultiHeadDotProductAttention``, so that an existing Flax model trains with a mechanism
    that has one query per token. Parameters that ``nn.Attention`` learns for a mechanism
    (TaylorShift's temperature) have their default values. ``attention_from_flax`` makes the trained
    layer recurrent.

    Args:
        mechanism: Name of the mechanism, or the mechanism itself.
        is_causal: Whether every call is causal. Set it instead of passing a causal mask, whose
            values are unknown under ``jax.jit``.

    Raises:
        ValueError: If the mechanism is unknown, has a learned query, or needs per-token inputs.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> from flax_linattn import nn
        >>> layer = nnx.MultiHeadAttention(
        ...     4, 32, attention_fn=nn.attention_function("linear", is_causal=True),
        ...     decode=False, rngs=nnx.Rngs(0))
        >>> x, is_valid = jnp.ones((2, 10, 32)), jnp.ones((2, 10), bool)
        >>> layer(x, mask=is_valid[:, None, None, :]).shape
        (2, 10, 32)
    """
    return AttentionFunction(resolve_mechanism(mechanism), is_causal)


def attention_from_flax(
    source: nnx.MultiHeadAttention | Mapping[str, Any],
    *,
    mechanism: str | ops.Mechanism | None = None,
    is_causal: bool | None = None,
    dtype: DTypeLike | None = None,
    rngs: nnx.Rngs | None = None,
) -> Attention:
    """Makes an ``Attention`` with the weights of a Flax attention layer.

    With the same mechanism its outputs are equal, except at padded positions: Flax's layer masks
    keys only, and ``Attention`` returns the bias of the output projection there.

    Args:
        source: An ``nnx.MultiHeadAttention``, or the parameters of a
            ``linen.MultiHeadDotProductAttention``, a dict of ``query``, ``key``, ``value`` and
            ``out``. Only the values are used; shardings in their metadata are not.
        mechanism: Mechanism of the new layer. Default: the mechanism of the ``attention_function``
            that the source has as ``attention_fn``, else softmax. With another mechanism the
            weights are only initial values, and the source's dropout of attention weights is left
            out if the mechanism does not support it.
        is_causal: As in ``Attention``; Flax's layers have no such option. Default: as in the
            ``attention_function`` of the source, else None.
        dtype: Dtype of the computation. Default: the dtype of an ``nnx`` source.
        rngs: Random number generators for parameters that the source does not have, such as a
            learned query, and with a stream "dropout" for dropout during training. The new layer
            drops weights of each head independently, as Flax does with ``broadcast_dropout=False``.

    Raises:
        ValueError: If the source has options or parameters that ``Attention`` does not support, or
            lacks some; the message names them.
        TypeError: If the source is neither an ``nnx.MultiHeadAttention`` nor a dict.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from flax import nnx
        >>> from flax_linattn import nn
        >>> theirs = nnx.MultiHeadAttention(4, 32, decode=False, rngs=nnx.Rngs(0))
        >>> ours = nn.attention_from_flax(theirs, is_causal=True)
        >>> x = jax.random.normal(jax.random.key(1), (2, 10, 32))
        >>> bool(jnp.allclose(ours(x), theirs(x, is_causal=True), atol=1e-6))
        True
        >>> y, state = ours.step(x[:, 0], ours.init_state(2, max_length=10))
    """
    precision, dropout_rate, is_training = None, 0.0, False
    params: Any
    if isinstance(source, nnx.MultiHeadAttention):
        function = _check_module(source, mechanism)
        dropout_rate, is_training = source.dropout_rate, source.deterministic is False
        if function is not None:
            mechanism = function.mechanism if mechanism is None else mechanism
            if is_causal is None and function.is_causal:
                is_causal = True
        dtype, precision = source.dtype if dtype is None else dtype, source.precision
        params = nnx.to_pure_dict(nnx.state(source, nnx.Param))
    elif isinstance(source, Mapping):
        params = meta.unbox(source["params"] if set(source) == {"params"} else source)
    else:
        raise TypeError(
            "expected an nnx.MultiHeadAttention, or the parameters of a "
            f"linen.MultiHeadDotProductAttention as a dict, got {type(source).__name__}."
        )
    _check_params(params)
    kernel = params["query"]["kernel"]
    features, heads, head_dim = kernel.shape
    context_features, kv_heads, _ = params["key"]["kernel"].shape
    mechanism = resolve_mechanism("softmax" if mechanism is None else mechanism)
    layer = Attention(
        features,
        heads,
        mechanism=mechanism,
        num_kv_heads=None if kv_heads == heads else kv_heads,
        context_features=context_features,
        normalize_qk="layer" if set(_QK_NORMS) <= set(params) else None,
        weight_dropout_rate=dropout_rate if mechanism.capabilities.weight_dropout else 0.0,
        qkv_features=heads * head_dim,
        out_features=params["out"]["kernel"].shape[-1],
        is_causal=is_causal,
        use_bias="bias" in params["out"],
        dtype=dtype,
        param_dtype=kernel.dtype,
        rngs=nnx.Rngs(0) if rngs is None else rngs,
    )
    others = [*layer.mechanism_parameters, *layer.token_projections]
    others += [] if layer.query is None else ["query"]
    if layer.query_projection is None or (others and rngs is None):
        reason = f"learns {', '.join(others)}, too; pass rngs, which initialize them"
        if layer.query_projection is None:
            reason = "has one projection for queries and keys, the source has two"
        raise ValueError(f"{layer.mechanism.name!r} {reason}.")
    for name, ours in _PROJECTIONS.items():
        projection = getattr(layer, ours)
        projection.precision = precision
        for each, values in params[name].items():
            parameter = getattr(projection, each)
            parameter[...] = jnp.asarray(values).reshape(parameter.shape)
    if layer.normalize_qk is not None:
        for name, ours in _QK_NORMS.items():
            getattr(layer, ours).scale[...] = jnp.asarray(params[name]["scale"])
    if is_training:
        layer.train()
    return layer


def attention_to_flax(
    layer: Attention, api: Literal["nnx", "linen"] = "nnx", *, rngs: nnx.Rngs | None = None
) -> Any:
    """Makes a Flax attention layer with the weights of an ``Attention``.

    Calls of Flax's layer are causal only with ``is_causal=True``, or a causal mask in Linen,
    regardless of ``layer.is_causal``; an ``attention_fn`` keeps it.

    Args:
        layer: Layer without a position encoding. With a mechanism other than softmax, the result
            has it as its ``attention_fn``.
        api: "nnx" for an ``nnx.MultiHeadAttention``; "linen" for the parameters of a
            ``linen.MultiHeadDotProductAttention``, which do not hold a rate of dropout.
        rngs: Random number generators of the module, which a layer with dropout needs.

    Returns:
        The module, or a dict of ``query``, ``key``, ``value`` and ``out``, with ``query_ln`` and
        ``key_ln`` if queries and keys are normalized.

    Raises:
        ValueError: If Flax's layer does not support an option of the layer, or rngs is missing.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax import linen, nnx
        >>> from flax_linattn import nn
        >>> ours = nn.Attention(32, 4, rngs=nnx.Rngs(0))
        >>> theirs = nn.attention_to_flax(ours)
        >>> x = jnp.ones((2, 10, 32))
        >>> bool(jnp.allclose(theirs(x), ours(x), atol=1e-6))
        True
        >>> params = nn.attention_to_flax(ours, "linen")
        >>> y = linen.MultiHeadDotProductAttention(4).apply({"params": params}, x)
    """
    check_choice(("nnx", "linen"), api=api)
    function = _check_layer(layer)
    params: dict[str, dict[str, Array]] = {}
    for name, ours in _PROJECTIONS.items():
        projection = getattr(layer, ours)
        kernel = projection.kernel[...]
        kv = name in ("key", "value")
        heads = (layer.num_kv_heads if kv else layer.num_heads, layer.head_dim)
        shape = (*heads, -1) if name == "out" else (-1, *heads)
        params[name] = {"kernel": kernel.reshape(shape)}
        if projection.bias is not None:
            bias = projection.bias[...]
            params[name]["bias"] = bias if name == "out" else bias.reshape(heads)
    if layer.normalize_qk is not None:
        for name, ours in _QK_NORMS.items():
            params[name] = {"scale": getattr(layer, ours).scale[...]}
    if api == "linen":
        if function is not None:
            raise ValueError(
                f"parameters for Linen do not hold the mechanism {layer.mechanism.name!r}; convert "
                "a layer with softmax, or to 'nnx'."
            )
        if layer.num_kv_heads != layer.num_heads:
            raise ValueError(
                "linen.MultiHeadDotProductAttention has no grouped queries, got "
                f"num_kv_heads={layer.num_kv_heads} and num_heads={layer.num_heads}; convert to "
                "'nnx'."
            )
        return params
    dropout = layer.weight_dropout
    if dropout is not None and rngs is None:  # with equal keys all layers would drop the same
        raise ValueError(
            f"the layer has weight_dropout_rate={dropout.rate}; pass rngs for the dropout of "
            "Flax's layer, such as nnx.Rngs(0)."
        )
    first = layer.key_projection
    module = nnx.MultiHeadAttention(
        layer.num_heads,
        layer.in_features,
        layer.num_heads * layer.head_dim,
        params["out"]["kernel"].shape[-1],
        num_kv_heads=layer.num_kv_heads,
        in_kv_features=layer.context_features,
        normalize_qk=layer.normalize_qk is not None,
        broadcast_dropout=False,
        dropout_rate=0.0 if dropout is None else dropout.rate,
        deterministic=None if dropout is None else dropout.deterministic,
        dtype=first.dtype,
        param_dtype=first.param_dtype,
        precision=first.precision,
        use_bias=first.bias is not None,
        attention_fn=nnx.dot_product_attention if function is None else function,
        decode=False,
        rngs=nnx.Rngs(0) if rngs is None else rngs,
    )
    for name, values in params.items():
        for each, value in values.items():
            getattr(getattr(module, name), each)[...] = value
    return module


def _check_module(source: Any, mechanism: object) -> AttentionFunction | None:
    """Refuses options of a module that ``Attention`` lacks; returns its ``attention_function``."""
    refused = [
        name
        for name, default in _NO_EQUIVALENT.items()
        if getattr(source, name, default) is not default
    ]
    if refused:
        raise ValueError(
            f"nn.Attention has no option {refused[0]}; make the Flax layer without it."
        )
    function = source.attention_fn
    if isinstance(function, AttentionFunction):
        return function
    if function is not nnx.dot_product_attention and mechanism is None:
        raise ValueError(
            "the layer has an attention_fn of its own, whose outputs nn.Attention cannot repeat; "
            "pass the mechanism that replaces it."
        )
    return None


def _check_params(params: Mapping[str, Any]) -> None:
    """Refuses names and shapes that an attention layer of Flax does not have."""
    norms = set(_QK_NORMS) & set(params)
    if set(params) - norms != set(_PROJECTIONS) or len(norms) == 1:
        raise ValueError(
            f"expected the parameters {', '.join(_PROJECTIONS)} of one attention layer, got "
            f"{', '.join(map(str, params)) or 'none'}."
        )
    biased = [name for name, each in params.items() if "bias" in each]
    if biased and set(biased) != set(_PROJECTIONS):
        raise ValueError(
            "nn.Attention has a bias in all projections or in none, got a bias of "
            f"{', '.join(biased)} only; add biases of zeros to the others."
        )
    shapes = {name: np.shape(params[name]["kernel"]) for name in _PROJECTIONS}
    features, *heads = shapes["query"]
    context, *kv_heads = shapes["key"]
    want = {"query": (features, *heads), "key": (context, *kv_heads)}
    want |= {"value": want["key"], "out": (*heads, shapes["out"][-1])}
    if len(heads) != 2 or shapes != want or kv_heads[1:] != heads[1:] or heads[0] % kv_heads[0]:
        raise ValueError(
            "expected kernels [C, H, K] of query, [context_features, G, K] of key and value, where "
            f"G divides H, and [H, K, out_features] of out, got {shapes}."
        )


def _check_layer(layer: Attention) -> AttentionFunction | None:
    """Refuses a layer that Flax cannot hold; returns its ``attention_fn`` unless it is softmax."""
    if layer.position is not None or layer.position_bias is not None:
        raise ValueError("Flax's attention layers have no position encoding, but the layer has.")
    if isinstance(layer.key_projection, PositionLinear):
        raise ValueError("Flax's attention layers have no separate weights for each position.")
    if layer.normalize_qk not in (None, "layer"):
        raise ValueError(
            "Flax's attention layers normalize queries and keys by LayerNorm only, got "
            f"normalize_qk={layer.normalize_qk!r}."
        )
    function = AttentionFunction(layer.mechanism, bool(layer.is_causal))
    others = layer.mechanism_parameters or set(nnx.state(layer, nnx.Param)) - {
        *_PROJECTIONS.values(),
        *_QK_NORMS.values(),
    }
    if others:
        raise ValueError(
            f"the layer learns {', '.join(map(str, others))}, for which Flax's attention layers "
            "have no place."
        )
    if not isinstance(layer.mechanism, ops.SoftmaxAttention):
        return function
    plain = ops.SoftmaxAttention()
    scales = (None, layer.head_dim**-0.5)
    like: dict[str, Any] = {"implementation": None, "chunk_size": plain.chunk_size}
    if layer.mechanism.scale in scales:
        like["scale"] = None
    return None if dataclasses.replace(layer.mechanism, **like) == plain else function
