"""Options of a stack of transformer blocks, declared once for all models and commands.

This module imports JAX and Flax only when a block is built, so that commands parse options quickly,
except where a mechanism checks options: its hyperparameters, ``rotary``, ``num_kv_heads``,
``position_bias`` and ``weight_dropout_rate``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    Protocol,
    Self,
    TypeAlias,
    Unpack,
    get_args,
    get_origin,
    runtime_checkable,
)

from flax_linattn.annotations import check_type, type_hints
from flax_linattn.checks import (
    OptionError,
    check_choice,
    check_integers,
    check_positive,
    check_rate,
)
from flax_linattn.registry import check_mechanism

if TYPE_CHECKING:
    from flax import nnx
    from jax.typing import DTypeLike

    from flax_linattn import nn, ops


@runtime_checkable
class NamedMechanism(Protocol):
    """The attributes of ``ops.Mechanism`` that options use."""

    @property
    def name(self) -> str:
        """Name of the mechanism in the registry."""

    @property
    def capabilities(self) -> ops.Capabilities:
        """Features that the mechanism supports."""


Mechanisms: TypeAlias = str | NamedMechanism | tuple[str | NamedMechanism, ...]
"""A mechanism (or its name) for all layers, or one for each layer."""

DTypeName: TypeAlias = Literal["float32", "bfloat16", "float16", "float64"]

MAX_FEATURES = 2**16
"""Maximum number of features of a token; no published model has more."""
MAX_LAYERS = 1000
"""Maximum depth of a stack: as deep as any published one, and built within seconds."""

OPTIONS_OF_ORDER = ("rotary", "short_conv", "position_bias")
"""Options of ``Layers`` that need tokens in an order."""


@dataclasses.dataclass(frozen=True)
class Layers:
    """Options of a stack of transformer blocks; frozen and hashable.

    Attributes:
        features: Model width C: number of features of each token.
        num_layers: Number of transformer blocks.
        num_heads: Number of attention heads of each block.
        hidden_features: Width of the feed-forward layers. Default: 4 C.
        mechanism: Attention mechanism by name, with optional hyperparameters, as in
            elementwise_series:order=2. Several names give one for each layer (a hybrid stack).
        norm: Position of norms: before ("pre") or after ("post") each sublayer, or around it
            ("sandwich").
        norm_type: Type of norms: LayerNorm ("layer") or RMSNorm ("rms").
        activation: Activation function of the feed-forward layers; "swiglu" and "geglu" are gated.
        use_bias: Give linear layers a bias.
        is_parallel: Let attention and feed-forward layer of a block read the same input, with norm
            "pre".
        residual_scale: Factor of each sublayer's output before it joins the residual.
        dropout_rate: Fraction of features dropped during training.
        rotary: Rotate queries and keys by their positions (RoPE), see ``nn.RotaryPosition``.
        num_kv_heads: Number of heads of keys and values, each shared by several attention heads
            (grouped-query attention; 1 is multi-query). Default: ``num_heads``.
        normalize_qk: Normalization of queries and keys of each head: "layer" or "rms" with a
            learned scale per channel (ViT-22B; Qwen3, Gemma 3), or "l2" to length 1. Default: none.
        output_norm: Normalization of the outputs of each attention head: "rms" with a learned scale
            per channel (Gated DeltaNet). Default: none.
        output_gate: Activation of a gate that multiplies the outputs of the attention heads: a
            linear map of the inputs, then "sigmoid" (Qwen3-Next) or "silu" (RetNet). Default: no
            gate.
        short_conv: Number of taps, at least 2, of a causal convolution of queries, keys and values
            over the last tokens (Gated DeltaNet has 4). Attention between channels and
            cross-attention have no convolution, because their tokens have no common order. Default:
            no convolution.
        position_bias: Bias of the attention scores by distance: "alibi" (a fixed slope for each
            head) or "relative" (learned for each layer, in T5's buckets), for mechanisms that form
            scores of single pairs, such as softmax. Attention between channels and cross-attention
            have no bias. Default: no bias.
        weight_dropout_rate: Fraction of attention weights dropped during training, for mechanisms
            that form weights of single pairs, such as softmax.
        dtype: Dtype of the computation. Parameters, sums and losses stay float32; float64 inputs
            stay float64 with "float32".
        remat: Rematerialization: what training stores of each block for the backward pass:
            everything ("none"), the results of matrix products ("dots"), or only the input
            ("blocks").
        scan_layers: Scan over equal blocks instead of unrolling them: deep models compile sooner,
            but training steps take longer and need more memory.
        drop_path_rate: Stochastic depth: probability that training skips a branch of the last
            block. It increases linearly from 0 in the first block, so a single block is never
            skipped.
        layer_scale: Initial value of the learned scale of every branch, see ``nn.LayerScale``.
            Default: no scale.

    Raises:
        ValueError: If an option is out of range, or a mechanism or hyperparameter is unknown.
        TypeError: If an option has another type than its annotation.

    Example:
        >>> layers = Layers(features=16, num_layers=3, mechanism=("aaren", "aaren", "softmax"))
        >>> [mechanism.name for mechanism in layers.mechanisms]
        ['aaren', 'aaren', 'softmax']
    """

    features: int = 128
    num_layers: int = 3
    num_heads: int = 8
    hidden_features: int | None = None
    mechanism: Mechanisms = "aaren"
    norm: Literal["pre", "post", "sandwich"] = "post"
    norm_type: Literal["layer", "rms"] = "layer"
    activation: Literal["gelu", "relu", "tanh", "silu", "swiglu", "geglu"] = "gelu"
    use_bias: bool = True
    is_parallel: bool = False
    residual_scale: float = 1.0
    dropout_rate: float = 0.1
    rotary: bool = False
    num_kv_heads: int | None = None
    normalize_qk: Literal["layer", "rms", "l2"] | None = None
    output_norm: Literal["rms"] | None = None
    output_gate: Literal["sigmoid", "silu"] | None = None
    short_conv: int | None = None
    position_bias: Literal["alibi", "relative"] | None = None
    weight_dropout_rate: float = 0.0
    dtype: DTypeName = "float32"
    remat: Literal["none", "dots", "blocks"] = "none"
    scan_layers: bool = False
    drop_path_rate: float = 0.0
    layer_scale: float | None = None

    def __post_init__(self) -> None:
        hints = type_hints(type(self))
        object.__setattr__(self, "dtype", _dtype_name(self.dtype))
        if self.norm in get_args(hints["norm_type"]):
            raise OptionError(
                f"norm must be one of {', '.join(get_args(hints['norm']))} (where norms are "
                f"applied), got {self.norm!r}, which is a type of norm; pass "
                f"norm_type={self.norm!r} instead.",
                "norm",
            )
        for name, hint in hints.items():
            value = getattr(self, name)
            literals = [each for each in (hint, *get_args(hint)) if get_origin(each) is Literal]
            if not literals:
                check_type(hint, **{name: value})
            elif value is not None or hint in literals:
                check_choice(get_args(literals[0]), **{name: value})
        check_integers(1, MAX_FEATURES, features=self.features, num_heads=self.num_heads)
        check_integers(1, 8 * MAX_FEATURES, hidden_features=self.hidden_features)
        check_integers(1, MAX_LAYERS, num_layers=self.num_layers)
        check_rate(dropout_rate=self.dropout_rate)
        check_rate(drop_path_rate=self.drop_path_rate)
        if self.layer_scale is not None:
            check_positive(layer_scale=self.layer_scale)
        check_positive(residual_scale=self.residual_scale)
        check_rate(weight_dropout_rate=self.weight_dropout_rate)
        check_integers(2, short_conv=self.short_conv)
        if isinstance(self.mechanism, (list, tuple)):
            names = tuple(self.mechanism)
            if len(names) not in (1, self.num_layers):
                raise OptionError(
                    f"mechanism must be one mechanism, or one for each of {self.num_layers} "
                    f"layers, got {len(names)}.",
                    "mechanism",
                    "num_layers",
                )
            object.__setattr__(self, "mechanism", names[0] if len(set(names)) == 1 else names)
        if self.scan_layers and self.drop_path_rate:
            raise OptionError(
                "scan_layers needs equal blocks, but drop_path_rate differs between blocks; remove "
                "one of them.",
                "scan_layers",
                "drop_path_rate",
            )
        self._check_heads()

    def _check_heads(self) -> None:
        own = self.mechanism if isinstance(self.mechanism, tuple) else (self.mechanism,)
        has_bias = self.position_bias is not None
        options = (self.num_kv_heads is not None, has_bias, self.weight_dropout_rate, self.rotary)
        try:
            for each in own:
                if isinstance(each, str):
                    check_mechanism(each.partition(":")[0])
            # A name without hyperparameters needs no mechanism, unless an option does.
            is_plain = all(isinstance(each, str) and ":" not in each for each in own)
            mechanisms = () if is_plain and not any(options) else self.mechanisms
        except (TypeError, ValueError) as error:
            raise OptionError(str(error), "mechanism") from None
        if self.features % self.num_heads:
            raise OptionError(
                f"features must be a multiple of num_heads, got features={self.features} and "
                f"num_heads={self.num_heads}.",
                "features",
                "num_heads",
            )
        if mechanisms:
            from flax_linattn.nn.attention import check_pair_options
            from flax_linattn.nn.projected import check_kv_heads
        for mechanism in mechanisms:
            check_kv_heads(mechanism, self.num_heads, self.num_kv_heads)
            check_pair_options(mechanism, has_bias, self.weight_dropout_rate)
            if self.rotary and mechanism.capabilities.learned_query:
                raise OptionError(
                    f"rotary positions rotate the query of each token, but {mechanism.name!r} "
                    "has one learned query for all tokens; remove rotary, or choose another "
                    "mechanism.",
                    "rotary",
                    "mechanism",
                )

    @property
    def mechanisms(self) -> tuple[ops.Mechanism, ...]:
        """The mechanism of each layer, in order."""
        from flax_linattn.nn import resolve_mechanism

        if isinstance(self.mechanism, tuple):
            return tuple(map(resolve_mechanism, self.mechanism))
        return (resolve_mechanism(self.mechanism),) * self.num_layers

    def map_mechanisms(self, function: Callable[[ops.Mechanism], ops.Mechanism]) -> Self:
        """Returns layers whose mechanisms are replaced by a function of them.

        Args:
            function: Function of a mechanism, such as a method that splits it over devices.

        Example:
            >>> layers = Layers(num_layers=2, mechanism="elementwise_series")
            >>> from flax_linattn import ops
            >>> layers.map_mechanisms(lambda mechanism: ops.get_mechanism("aaren")).mechanism.name
            'aaren'
        """
        mechanisms = tuple(map(function, self.mechanisms))
        same = mechanisms == self.mechanisms
        return self if same else dataclasses.replace(self, mechanism=mechanisms)

    def without_order(self) -> Self:
        """Returns layers for tokens that have no order, such as channels.

        Example:
            >>> layers = Layers(mechanism="linear", rotary=True, short_conv=4)
            >>> layers.without_order() == Layers(mechanism="linear")
            True
        """
        defaults: dict[str, Any] = {f.name: f.default for f in dataclasses.fields(self)}
        return dataclasses.replace(self, **{name: defaults[name] for name in OPTIONS_OF_ORDER})

    @property
    def drop_path_rates(self) -> tuple[float, ...]:
        """Drop-path rate of each block, in order.

        Example:
            >>> Layers(num_layers=3, drop_path_rate=0.1).drop_path_rates
            (0.0, 0.05, 0.1)
        """
        steps = max(self.num_layers - 1, 1)
        return tuple(self.drop_path_rate * i / steps for i in range(self.num_layers))

    @property
    def other_dropout_rates(self) -> tuple[float, float]:
        """Rates of blocks that need a dropout key in training even if ``dropout_rate`` is 0."""
        return self.drop_path_rates[-1], self.weight_dropout_rate

    @property
    def scan_period(self) -> int:
        """Smallest number of blocks whose mechanisms, repeated, make up the whole stack.

        Example:
            >>> hybrid = ("gated_delta", "gated_delta", "gated_delta", "softmax")
            >>> Layers(num_layers=8, mechanism=2 * hybrid).scan_period
            4
        """
        names = self.mechanisms
        periods = (p for p in range(1, len(names)) if names == len(names) // p * names[:p])
        return next(periods, len(names))

    @property
    def compute_dtype(self) -> DTypeLike | None:
        """Argument ``dtype`` of the layers; None if inputs and parameters decide."""
        import jax.numpy as jnp

        return None if self.dtype == "float32" else jnp.dtype(self.dtype)

    def take(self, options: Mapping[str, Any]) -> tuple[Self, dict[str, Any]]:
        """Splits options into its own, with which it returns a copy, and the others.

        Example:
            >>> layers, others = Layers().take({"features": 16, "kernel_size": 5})
            >>> layers.features, others
            (16, {'kernel_size': 5})
        """
        names = {field.name for field in dataclasses.fields(self)}
        own = {name: value for name, value in options.items() if name in names}
        others = {name: value for name, value in options.items() if name not in names}
        return dataclasses.replace(self, **own), others

    @property
    def _block_options(self) -> dict[str, Any]:
        """Options that blocks and decoder blocks share."""
        names = (
            *("num_heads", "num_kv_heads", "hidden_features", "norm", "norm_type"),
            *("activation", "use_bias", "dropout_rate", "normalize_qk", "output_norm"),
            *("output_gate", "short_conv", "weight_dropout_rate"),
        )
        own = {name: getattr(self, name) for name in names}
        return own | {"dtype": self.compute_dtype}

    def block(
        self,
        mechanism: ops.Mechanism,
        rngs: nnx.Rngs,
        *,
        is_causal: bool = False,
        drop_path_rate: float = 0.0,
        **parameters: Unpack[nn.ParameterOptions],
    ) -> nn.TransformerBlock:
        """Makes a block of these options with this mechanism and one of ``drop_path_rates``.

        ``is_causal`` says whether calls of the block will be causal, for a learned position bias.
        """
        from flax_linattn import nn

        return nn.TransformerBlock(
            self.features,
            mechanism=mechanism,
            position=nn.RotaryPosition() if self.rotary else None,
            position_bias=self._make_position_bias(is_causal, rngs, parameters),
            is_parallel=self.is_parallel,
            residual_scale=self.residual_scale,
            drop_path_rate=drop_path_rate,
            layer_scale=self.layer_scale,
            rngs=rngs,
            **self._block_options,
            **parameters,
        )

    def decoder_block(
        self, mechanism: ops.Mechanism, rngs: nnx.Rngs, **parameters: Unpack[nn.ParameterOptions]
    ) -> nn.DecoderBlock:
        """Makes a decoder block of these options with this mechanism."""
        from flax_linattn import nn

        return nn.DecoderBlock(
            self.features,
            mechanism=mechanism,
            position_bias=self._make_position_bias(True, rngs, parameters),
            rngs=rngs,
            **self._block_options,
            **parameters,
        )

    def _make_position_bias(
        self, is_causal: bool, rngs: nnx.Rngs, parameters: nn.ParameterOptions
    ) -> nn.PositionBias | None:
        import jax.numpy as jnp

        from flax_linattn import nn

        if self.position_bias == "relative":
            param_dtype = parameters.get("param_dtype", jnp.float32)
            return nn.RelativeBias(
                self.num_heads, is_causal=is_causal, param_dtype=param_dtype, rngs=rngs
            )
        return None if self.position_bias is None else nn.AlibiBias(self.num_heads)


def window_layers(num_symbols: int, **options: Any) -> Layers:
    """Returns the default layers of a window model, as in the paper, with width d = N.

    Args:
        num_symbols: Number of symbols N.
        **options: Options of :class:`Layers` that replace the paper's.

    Example:
        >>> layers = window_layers(16, mechanism="softmax:scale=1")
        >>> layers.features, layers.num_layers, layers.num_heads, layers.activation
        (16, 1, 1, 'tanh')
    """
    paper: dict[str, Any] = {
        "features": num_symbols,
        "num_layers": 1,
        "num_heads": 1,
        "mechanism": "expressive",
        "norm": "pre",
        "activation": "tanh",
        "dropout_rate": 0.0,
    }
    return Layers(**paper | options)


def _dtype_name(given: Any) -> str:
    """Name of a dtype; None is float32."""
    if given is None:
        return "float32"
    if isinstance(given, str) and given in get_args(DTypeName):  # NumPy's dtypes equal their names
        return given
    import jax.numpy as jnp

    return jnp.dtype(given).name


def check_causal(layers: Layers) -> None:
    """Raises unless all mechanisms have a causal form, for models that are always causal."""
    for mechanism in layers.mechanisms:
        if not mechanism.capabilities.causal:
            raise OptionError(
                f"{mechanism.name!r} has no causal form, which this model needs; choose another "
                "mechanism.",
                "mechanism",
            )


def sized(mechanism: ops.Mechanism, max_length: int | None) -> ops.Mechanism:
    """Sets the ``max_length`` of a mechanism that learns something for each position."""
    if max_length is None or not hasattr(mechanism, "max_length"):
        return mechanism
    if mechanism.max_length is not None:
        if mechanism.max_length < max_length:
            raise ValueError(
                f"the mechanism {mechanism.name!r} has max_length={mechanism.max_length}, but the "
                f"model needs {max_length} positions; remove the mechanism's max_length, or set it "
                f"to {max_length} or more."
            )
        return mechanism
    return dataclasses.replace(mechanism, max_length=max_length)  # type: ignore[call-arg]


CLASSIFIER_LAYERS = Layers(hidden_features=256)
"""Default layers of a classifier: Time-Series-Library's for classification."""

DECISION_LAYERS = Layers(features=128, num_layers=3, num_heads=1, norm="post", dropout_rate=0.1)
"""Default layers of a decision transformer, as in the published code."""

EVENT_LAYERS = Layers(
    features=64, num_layers=2, num_heads=4, hidden_features=128, norm="pre", dropout_rate=0.0
)
"""Default layers of an event forecaster."""

FORECASTER_LAYERS = Layers(features=64, num_layers=2, hidden_features=128)
"""Default layers of a forecaster."""
