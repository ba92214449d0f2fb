"""Base class of attention layers: projections and heads around a mechanism."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import jax
import jax.numpy as jnp
from einops import rearrange
from flax import nnx
from jax.typing import DTypeLike

from flax_linattn import ops
from flax_linattn.checks import OptionError, check_array, check_choice, check_integers
from flax_linattn.nn.call import Call
from flax_linattn.nn.linear import ParameterOptions, PositionLinear, linear
from flax_linattn.nn.norm import LayerNorm, Norm, RMSNorm
from flax_linattn.nn.position import QueryKeyPosition
from flax_linattn.ops.contract.numerics import accumulation_dtype
from flax_linattn.ops.engine.features import l2_normalize
from flax_linattn.typing import Array, Parameters, State

QUERY_INIT = nnx.initializers.normal(0.02)
QKNorm: TypeAlias = Literal["layer", "rms", "l2"]
"""Normalizations of queries and keys over the channels of each head."""
QK_LAYER_NORM_EPSILON = 1e-6
"""Default of Flax's attention layers, which normalize queries and keys by LayerNorm."""
OUTPUT_NORMS = ("rms",)
OUTPUT_GATES: dict[str, Callable[[Array], Array]] = {
    "sigmoid": jax.nn.sigmoid,
    "silu": jax.nn.silu,
}
"""Activations of the output gate by name."""


class AttentionOptions(ParameterOptions, total=False):
    """Options of ``Attention`` that other attention layers accept."""

    qkv_features: int | None
    out_features: int | None
    use_bias: bool
    normalize_qk: QKNorm | None
    output_norm: Literal["rms"] | None
    dtype: DTypeLike | None
    query_init: nnx.Initializer


class Projections(NamedTuple):
    """Validated inputs of a call, projected for the mechanism.

    Attributes:
        q: Queries of shape [B, T, H, K], or as the layer's learned queries have them.
        k: Keys of shape [B, S, G, K].
        v: Values of shape [B, S, G, V].
        per_token: Per-token inputs of the mechanism at the keys, by name.
        query_mask: Boolean array of shape [B, T]; True marks valid tokens of the queries. None if
            these are the tokens of the keys, or latents.
        call: The call; its mask and its segments belong to the keys.
    """

    q: Array
    k: Array
    v: Array
    per_token: Parameters
    query_mask: Array | None
    call: Call


class ProjectedAttention(nnx.Module):
    """Parameters of an attention layer, and the projections before and after its mechanism.

    Arguments are as in ``Attention``.

    Attributes:
        num_latents: Number L of learned queries that attend to all tokens, set by subclasses with
            latents before this constructor; None for one query per token, or one for all if the
            mechanism learns it.
    """

    num_latents: int | None = None

    def __init__(
        self,
        in_features: int,
        num_heads: int,
        *,
        mechanism: str | ops.Mechanism = "softmax",
        num_kv_heads: int | None = None,
        context_features: int | None = None,
        qkv_features: int | None = None,
        out_features: int | None = None,
        use_bias: bool = True,
        normalize_qk: QKNorm | None = None,
        output_norm: Literal["rms"] | None = None,
        output_gate: Literal["sigmoid", "silu"] | None = None,
        position: QueryKeyPosition | None = None,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        kernel_init: nnx.Initializer | None = None,
        bias_init: nnx.Initializer | None = None,
        out_kernel_init: nnx.Initializer | None = None,
        out_bias_init: nnx.Initializer | None = None,
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
        check_kv_heads(self.mechanism, num_heads, num_kv_heads)
        check_output_options(normalize_qk, output_norm, output_gate)
        check_integers(1, context_features=context_features)
        learned = self.mechanism.capabilities.learned_query
        if learned and position is not None:
            raise ValueError(
                f"{self.mechanism.name!r} has one learned query for all tokens, which has "
                "no position; add positional encodings to the inputs, or choose another "
                "mechanism."
            )
        self.in_features = in_features
        self.context_features = in_features if context_features is None else context_features
        self.num_heads = num_heads
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.head_dim = qkv_features // num_heads
        self.position = position
        self.normalize_qk, self.output_gate = normalize_qk, output_gate

        options: dict[str, Any] = {
            "use_bias": use_bias,
            "dtype": dtype,
            "param_dtype": param_dtype,
            "rngs": rngs,
        }
        init: dict[str, Any] = {"kernel_init": kernel_init, "bias_init": bias_init}
        shared = self.mechanism.capabilities.shared_query_key
        kv_features = self.num_kv_heads * self.head_dim
        self.query_projection = (
            None if shared else linear(in_features, qkv_features, **options, **init)
        )
        self.key_projection, self.value_projection = (
            linear(self.context_features, kv_features, **options, **init) for _ in range(2)
        )
        self.out_projection: nnx.Linear | None = linear(
            qkv_features,
            out_features,
            **options,
            kernel_init=out_kernel_init or kernel_init,
            bias_init=out_bias_init or bias_init,
        )
        self.query_norm, self.key_norm = (
            None
            if projection is None
            else make_qk_norm(normalize_qk, self.head_dim, param_dtype=param_dtype, rngs=rngs)
            for projection in (self.query_projection, self.key_projection)
        )
        self.output_norm = (
            None
            if output_norm is None
            else RMSNorm(self.head_dim, param_dtype=param_dtype, rngs=rngs)
        )
        shape = (in_features,) if self.num_latents is None else (self.num_latents, in_features)
        self.query = nnx.Param(query_init(rngs.params(), shape, param_dtype)) if learned else None
        self.mechanism.check_heads(self.num_kv_heads)
        learned_parameters = self.mechanism.learned_parameters(self.num_kv_heads, self.head_dim)
        arguments = self.mechanism.token_arguments
        self.token_projections = nnx.data(
            {
                argument.name: linear(
                    self.context_features,
                    math.prod(self._axes(argument)),
                    **{**options, "use_bias": True},
                    kernel_init=kernel_init,
                    bias_init=_FlatBias(argument.bias_init, self._axes(argument)),
                )
                for argument in arguments
            }
        )
        # Not nnx.Dict, into which nnx.tabulate puts a number of its own.
        self.mechanism_parameters = nnx.data(
            {
                name: nnx.Param(parameter.init(rngs.params(), parameter.shape, param_dtype))
                for name, parameter in learned_parameters.items()
            }
        )
        # Last, so that an option does not change the initial values of the other parameters.
        self.gate_projection = (
            None if output_gate is None else linear(in_features, qkv_features, **options, **init)
        )

    @property
    def streams(self) -> bool:
        """Whether ``step`` is available: the mechanism has a state, and positions share weights."""
        by_position = isinstance(self.key_projection, PositionLinear)
        return self.mechanism.has_state(self.head_dim) and not by_position

    def init_state(
        self, batch_size: int, max_length: int | None = None, *, dtype: DTypeLike | None = None
    ) -> State:
        """Returns the state before the first token.

        Args:
            batch_size: Batch size B.
            max_length: Maximum number of tokens, needed by mechanisms with a cache.
            dtype: Dtype of the inputs if wider than the parameters'; the state has the accumulation
                dtype of the layer's computation.
        """
        return self.mechanism.init_state(
            batch_size,
            self.num_kv_heads,
            self.head_dim,
            self.head_dim,
            max_length,
            dtype=self._compute_dtype(dtype),
            num_latents=self.num_latents,
            mergeable=False,
        )

    def _compute_dtype(self, dtype: DTypeLike | None) -> DTypeLike:
        """Dtype of the computation on inputs of this dtype, or of that of the parameters."""
        projection = self.key_projection
        if projection.dtype is not None:
            return projection.dtype
        return jnp.promote_types(projection.param_dtype, dtype or projection.param_dtype)

    def _attend(self, inputs: Projections) -> tuple[Array, State | None]:
        """Returns outputs of the heads [B, T, H, V], and the state if the call needs one."""
        call = inputs.call
        state = call.state
        if state is None and call.return_state and self.mechanism.merge_field is not None:
            # Without an initial state ``attend`` returns a mergeable one, which steps do not need.
            state = ProjectedAttention.init_state(self, len(inputs.v), dtype=inputs.v.dtype)
        attended = self.mechanism.attend(
            v=inputs.v,
            initial_state=state,
            return_state=call.return_state,
            form=call.form,
            **self._weight_arguments(inputs),
        )
        return attended if isinstance(attended, tuple) else (attended, None)

    def _weight_arguments(self, inputs: Projections) -> dict[str, Any]:
        """Arguments of the mechanism on which the attention weights of a call depend."""
        call = inputs.call
        return {
            "k": self._to_unit_length(inputs.k),
            "is_causal": call.is_causal,
            "mask": call.mask,
            "query_mask": inputs.query_mask,
            "segment_ids": call.segment_ids,
            **(call.pair_inputs or {}),
            **self._query_arguments(inputs.q),
            **self._parameters(),
            **inputs.per_token,
        }

    def _attend_step(
        self,
        q: Array,
        k: Array,
        v: Array,
        x: Array,
        state: State,
        mask: Array | None,
        pair_inputs: Parameters | None = None,
    ) -> tuple[Array, State]:
        """Attends from one token per row, x [B, C]; returns outputs of the heads [B, H, V]."""
        return self.mechanism.step(
            k=self._to_unit_length(k),
            v=v,
            state=state,
            mask=mask,
            **(pair_inputs or {}),
            **self._query_arguments(q),
            **self._parameters(),
            **self._token_arguments(x),
        )

    def _check_inputs(self, axes: str, features: int | None = None, **inputs: Any) -> None:
        """Raises unless each input is an array [axes, features]; the message names the input."""
        features = self.in_features if features is None else features
        layout = f"[{axes}, {features}]"
        check_array(layout, **inputs)
        for name, x in inputs.items():
            if x.ndim != axes.count(",") + 2 or x.shape[-1] != features:
                raise ValueError(f"expected {name} as {layout}, got shape {x.shape}.")

    def _query_arguments(self, q: Array) -> dict[str, Any]:
        q = self._to_unit_length(q)
        return {"q": q} if self.num_latents is None else {"q": None, "latents": q}

    def _parameters(self) -> dict[str, Any]:
        return {name: parameter[...] for name, parameter in self.mechanism_parameters.items()}

    def _token_arguments(self, x: Array) -> dict[str, Any]:
        """Per-token inputs of the mechanism in the accumulation dtype, [..., *axes] by name."""
        arguments = {}
        for argument in self.mechanism.token_arguments:
            projected = self.token_projections[argument.name](x)
            projected = projected.astype(accumulation_dtype(projected.dtype))
            axes = self._axes(argument)
            arguments[argument.name] = argument.activation(projected.reshape(*x.shape[:-1], *axes))
        return arguments

    def _axes(self, argument: ops.TokenArgument) -> tuple[int, ...]:
        return argument.shape(self.num_kv_heads, self.head_dim, self.head_dim)

    def _to_unit_length(self, x: Array) -> Array:
        return l2_normalize(x) if self.mechanism.capabilities.unit_vectors else x

    def _keys_and_values(self, source: Array) -> tuple[Array, Array]:
        """Projects tokens [..., C] to keys [..., H, K] and values [..., H, V]."""
        return self._split_keys(self.key_projection(source)), self._split_heads(
            self.value_projection(source)
        )

    def _split_keys(self, k: Array) -> Array:
        return self._normalize(self._split_heads(k), self.key_norm)

    def _split_queries(self, q: Array) -> Array:
        return self._normalize(self._split_heads(q), self.query_norm)

    def _queries(self, x: Array, k: Array) -> Array:
        return self._project_queries(x if self.query is None else self.query[...], k)

    def _project_queries(self, source: Array, k: Array) -> Array:
        if self.query_projection is None:
            return k
        # A learned query knows nothing of the inputs' dtype; the keys do.
        return self._split_queries(self.query_projection(source).astype(k.dtype))

    def _normalize(self, x: Array, norm: Norm | None) -> Array:
        """Normalizes queries or keys [..., H, K] over the channels of each head."""
        if self.normalize_qk == "l2":
            return l2_normalize(x.astype(accumulation_dtype(x.dtype))).astype(x.dtype)
        return x if norm is None else norm(x)

    def _split_heads(self, x: Array) -> Array:
        return rearrange(x, "... (h k) -> ... h k", k=self.head_dim)

    def _project_out(self, y: Array, x: Array) -> Array:
        """Normalizes and gates outputs of the heads [..., H, V] and projects them.

        The gate is computed from the inputs x [..., C] at the positions of the queries.
        """
        if self.output_norm is not None:
            y = self.output_norm(y)
        y = rearrange(y, "... h v -> ... (h v)")
        if self.gate_projection is not None and self.output_gate is not None:
            gate = self.gate_projection(x)
            gate = OUTPUT_GATES[self.output_gate](gate.astype(accumulation_dtype(gate.dtype)))
            y = y * gate.astype(y.dtype)
        return y if self.out_projection is None else self.out_projection(y)


@dataclasses.dataclass(frozen=True)  # a value: equal layers have equal graphs
class _FlatBias:
    """Initial bias of a per-token input, whose own axes are flattened for a linear layer."""

    init: nnx.Initializer
    axes: tuple[int, ...]

    def __call__(self, key: Array, shape: tuple[int, ...], dtype: DTypeLike = jnp.float32) -> Array:
        bias: Array = self.init(key, self.axes, dtype)
        return bias.reshape(shape)


def check_kv_heads(mechanism: ops.Mechanism, query_heads: int, num_kv_heads: int | None) -> None:
    """Checks that a mechanism supports G heads of keys and values for H query heads.

    Raises:
        ValueError: If ``num_kv_heads`` does not divide the number of query heads, or differs from
            it for a mechanism without a query for each token.

    Example:
        >>> check_kv_heads(resolve_mechanism("softmax"), 8, 2)
        >>> check_kv_heads(resolve_mechanism("softmax"), 8, 3)
        Traceback (most recent call last):
        ...
        flax_linattn.checks.OptionError: num_heads must be a multiple of num_kv_heads, got \
num_heads=8 and num_kv_heads=3.
    """
    if num_kv_heads is None or num_kv_heads == query_heads:
        return
    check_integers(1, num_kv_heads=num_kv_heads)
    if query_heads % num_kv_heads:
        raise OptionError(
            f"num_heads must be a multiple of num_kv_heads, got num_heads={query_heads} and "
            f"num_kv_heads={num_kv_heads}.",
            "num_kv_heads",
            "num_heads",
        )
    if not mechanism.capabilities.grouped_queries:
        raise OptionError(
            f"num_kv_heads={num_kv_heads} needs a mechanism with a query per token, but "
            f"{mechanism.name!r} has none; remove num_kv_heads, or choose a mechanism whose "
            "capabilities.grouped_queries is True.",
            "num_kv_heads",
            "mechanism",
        )


def make_qk_norm(
    normalize_qk: QKNorm | None, head_dim: int, *, param_dtype: DTypeLike, rngs: nnx.Rngs
) -> Norm | None:
    """Makes the norm of queries or of keys, or None where it has no parameters."""
    if normalize_qk == "rms":
        return RMSNorm(head_dim, param_dtype=param_dtype, rngs=rngs)
    if normalize_qk == "layer":
        return LayerNorm(
            head_dim,
            epsilon=QK_LAYER_NORM_EPSILON,
            use_bias=False,
            param_dtype=param_dtype,
            rngs=rngs,
        )
    return None


def check_output_options(
    normalize_qk: str | None, output_norm: str | None, output_gate: str | None
) -> None:
    """Checks that each option is one of its choices or None.

    Raises:
        OptionError: If an option is unknown; the message names it.
    """
    if normalize_qk is not None:
        check_choice(get_args(QKNorm), normalize_qk=normalize_qk)
    if output_norm is not None:
        check_choice(OUTPUT_NORMS, output_norm=output_norm)
    if output_gate is not None:
        check_choice(OUTPUT_GATES, output_gate=output_gate)


def resolve_mechanism(mechanism: object) -> ops.Mechanism:
    """Returns the mechanism of a name, or the given mechanism.

    Raises:
        ValueError: If the name is unknown.
        TypeError: If it is neither a name nor a mechanism.

    Example:
        >>> resolve_mechanism("aaren").name
        'aaren'
    """
    if isinstance(mechanism, str):
        return ops.get_mechanism(mechanism)
    if isinstance(mechanism, ops.Mechanism):
        return mechanism
    raise TypeError(
        "mechanism must be a name or a result of ops.get_mechanism, got "
        f"{type(mechanism).__name__}."
    )
