"""Next-symbol prediction from a sliding window: the expressive-attention paper's model.

Gros, "Reorganizing attention-space geometry with expressive attention", 2024 (arXiv 2407.18601),
"Experimental settings": one-hot tokens of dimension d = N, no positions, one causal block of a
single head, layer norms before attention and feed-forward (tanh, width 4 d), skip connections, and
a matrix from the last layer to the next symbol, without a norm before it. The paper leaves open
whether that matrix receives the last token or the whole context: ``readout`` offers both. The
paper's query, key and value matrices act "specifically for each token", and there is no output
projection: with ``projections="position"`` each position of the window has its own three matrices.
Only the feed-forward layers have biases.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
from einops import rearrange
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Int

from flax_linattn import nn
from flax_linattn.checks import check_choice, check_integers
from flax_linattn.models.backbone import Backbone
from flax_linattn.models.embedding import OneHotEmbedding
from flax_linattn.models.head import Head, split_options
from flax_linattn.models.layers import Layers, check_causal, window_layers
from flax_linattn.nn.call import Call
from flax_linattn.nn.linear import linear
from flax_linattn.nn.tokens import check_tokens
from flax_linattn.ops.contract.masks import zero_padding
from flax_linattn.ops.contract.state import register_state
from flax_linattn.typing import Array

READOUTS = ("flatten", "last")
"""Input of the readout: the flattened context, or its last token."""

PROJECTIONS = ("position", "shared")
"""Whether each position has its own projections, or all positions share them."""


@register_state
class WindowState(NamedTuple):
    """State of a :class:`WindowModel`: the last tokens of each sequence.

    Attributes:
        tokens: Last tokens, int32 [B, context], the newest last; 0 before the first token.
        num_tokens: Number of valid tokens, int32 [B].
    """

    tokens: Int[Array, "B T"]
    num_tokens: Int[Array, "B"]


class WindowModel(Head):
    """Predicts the next symbol from the last ``context`` symbols, after Gros (module docstring).

    It streams with any causal mechanism, and in constant memory: the state is the window itself,
    and each step recomputes the whole window. Positions before the first token are masked.

    A call takes symbols int [B, T], T = ``context`` in training, and returns scores float32 [B, N]
    of the symbol after the last ``context`` valid ones of each sequence: 0 if there is no valid
    symbol. A symbol out of range is an error, and under ``jit`` NaN.

    Args:
        num_symbols: Number N of symbols, which are 0 ... N - 1, and of features.
        context: Number of tokens of a window.
        readout: "flatten", a matrix [context * N, N] on the whole context, so that each position
            has its own weights; or "last", a matrix [N, N] on the last token.
        projections: "position", query, key and value matrices for each position (a learned query is
            shared), and no output projection; or "shared", the four projections of
            ``nn.Attention``.
        layers: Options of the blocks; default ``window_layers(num_symbols)``.
        rngs: Random number generators; "params" initializes the parameters, and "dropout", if
            present, gives dropout keys after ``model.train()``.
        **options: Options of ``layers`` by name (mechanism, num_layers, ...); initialization and
            dtype of the parameters (``nn.ParameterOptions``).

    Raises:
        ValueError: If an option is unknown or out of range, the layers have another width, or the
            mechanism is not causal.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> from flax_linattn import inference, models
        >>> model = models.WindowModel(5, 4, mechanism="softmax:scale=1", rngs=nnx.Rngs(0))
        >>> series = jnp.array([[1, 2, 3, 0, 3, 3, 1]])
        >>> stream = inference.Stream(model)
        >>> for t in range(7):
        ...     scores = stream.step(series[:, t])
        >>> bool(jnp.allclose(scores, model(series[:, -4:]), atol=1e-5))
        True
        >>> inference.generate(model, series, 3).tokens.shape       # greedy
        (1, 3)
    """

    state_type = WindowState
    output_axes = 1
    option_names = (*("num_symbols", "context", "readout", "projections", "layers", "param_dtype"),)

    def __init__(
        self,
        num_symbols: int,
        context: int,
        *,
        readout: Literal["flatten", "last"] = "flatten",
        projections: Literal["position", "shared"] = "position",
        layers: Layers | None = None,
        rngs: nnx.Rngs,
        **options: Any,
    ) -> None:
        check_integers(2, num_symbols=num_symbols)
        check_integers(1, context=context)
        check_choice(READOUTS, readout=readout)
        check_choice(PROJECTIONS, projections=projections)
        num_symbols, context = int(num_symbols), int(context)
        layers, options, head_parameters = split_options(
            layers or window_layers(num_symbols), options
        )
        check_causal(layers)
        self.num_symbols = num_symbols
        self.context = context
        self.readout: Literal["flatten", "last"] = readout
        self.projections: Literal["position", "shared"] = projections
        self.backbone = Backbone(
            OneHotEmbedding(num_symbols),
            layers,
            max_length=context,
            final_norm=False,
            rngs=rngs,
            **options,
        )
        if projections == "position":
            for block in self.backbone.blocks:
                _project_by_position(block.attention, context, options, rngs)
        self.head = linear(
            num_symbols * (context if readout == "flatten" else 1),
            num_symbols,
            use_bias=False,
            rngs=rngs,
            **head_parameters,
        )

    def read(self, h: Array) -> Array:
        """Computes scores float32 [B, N] from the features of a window [B, context, N]."""
        h = h[:, -1] if self.readout == "last" else rearrange(h, "b t c -> b (t c)")
        return self.head(h).astype(jnp.float32)

    def _map(self, x: Array, call: Call) -> tuple[Array, WindowState]:
        """Computes scores of the symbol after the last tokens of the state and x."""
        check_tokens(x, self.num_symbols)
        tokens, real = x[:, -self.context :], None
        if call.mask is not None or call.state is not None or x.shape[1] < self.context:
            tokens, real = self._last_tokens(x, call.mask, call.state)
        h, _ = self.backbone._map(tokens, call.replace(mask=real, state=None, return_state=False))
        scores = self.read(zero_padding(h, real))
        real = jnp.ones(tokens.shape, bool) if real is None else real
        return scores, WindowState(tokens.astype(jnp.int32), jnp.sum(real, 1, dtype=jnp.int32))

    @property
    def streams(self) -> bool:
        """True: the state is the window, whatever the mechanism."""
        return True

    @property
    def constant_memory(self) -> bool:
        """True: the state is the window, whatever the mechanism."""
        return True

    @property
    def num_positions(self) -> int | None:
        """None: the length of a stream is unlimited, since the window slides."""
        return None

    def init_state(
        self, batch_size: int, max_length: int | None = None, *, dtype: DTypeLike = jnp.float32
    ) -> WindowState:
        """Returns an empty window per sequence; ``max_length`` and ``dtype`` have no effect."""
        return WindowState(
            jnp.zeros((batch_size, self.context), jnp.int32), jnp.zeros(batch_size, jnp.int32)
        )

    def _map_step(
        self, x: Array, state: WindowState, mask: Array | None
    ) -> tuple[Array, WindowState]:
        """Computes scores [B, N] and the new state."""
        return self._map(
            x[:, None], Call(mask=None if mask is None else mask[:, None], state=state)
        )

    def _check_packs(self) -> None:
        """Raises a ValueError: packed sequences are not supported."""
        raise ValueError(
            "a window model does not support packed sequences; pass each sequence in its own row."
        )

    def _check_streams(self) -> None:
        """Accepts every mechanism: the state is the window."""

    def _last_tokens(
        self, x: Array, mask: Array | None, state: WindowState | None
    ) -> tuple[Array, Array]:
        """Returns the last tokens of the state and x, left-padded, and which of them are valid."""
        state = self.init_state(x.shape[0]) if state is None else state
        before = jnp.arange(self.context) >= self.context - state.num_tokens[:, None]
        real = jnp.concatenate([before, jnp.ones(x.shape, bool) if mask is None else mask], axis=1)
        tokens = jnp.concatenate([state.tokens, x.astype(jnp.int32)], axis=1)
        last = jnp.argsort(real, axis=1, stable=True)[:, -self.context :]  # padding comes first
        tokens, real = (jnp.take_along_axis(a, last, axis=1) for a in (tokens, real))
        return tokens, real


def _project_by_position(
    attention: nn.Attention, context: int, options: Mapping[str, Any], rngs: nnx.Rngs
) -> None:
    """Sets query, key and value projections by position, and removes the output projection."""
    names = ["key_projection", "value_projection"]
    can = attention.mechanism.capabilities
    if not (can.learned_query or can.shared_query_key):
        names.append("query_projection")
    for name in names:
        shared: nnx.Linear = getattr(attention, name)
        own = nn.PositionLinear(
            context,
            shared.in_features,
            shared.out_features,
            use_bias=False,
            dtype=shared.dtype,
            param_dtype=shared.param_dtype,
            kernel_init=options.get("kernel_init"),
            rngs=rngs,
        )
        setattr(attention, name, own)
    attention.out_projection = None
