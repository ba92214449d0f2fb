"""Embeddings of values and tokens, and the protocol that embeddings of backbones implement."""

from __future__ import annotations

import abc
from typing import (
    Any,
    ClassVar,
    Literal,
    Protocol,
    TypeAlias,
    TypedDict,
    Unpack,
    runtime_checkable,
)

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Int

from flax_linattn import nn
from flax_linattn.checks import OptionError, check_choice, check_integers
from flax_linattn.nn.meshes import automatic
from flax_linattn.nn.tokens import check_tokens
from flax_linattn.ops.contract.masks import Segments, zero_padding
from flax_linattn.ops.contract.numerics import accumulation_dtype
from flax_linattn.typing import Array, Features, FeaturesStep, Mask, State

PositionName: TypeAlias = Literal["sinusoidal", "learned", "none"]
POSITIONS = ("sinusoidal", "learned", "none")

EMBEDDING_INIT = nnx.initializers.variance_scaling(1.0, "fan_in", "normal", out_axis=0)
"""Initializer of tables with a norm of about one for each token, as in ``nnx.Embed``."""


class TokenOptions(TypedDict, total=False):
    """Options that embeddings of tokens share; see ``TokenEmbedding``."""

    position: PositionName
    max_length: int | None
    dtype: DTypeLike | None
    param_dtype: DTypeLike


@runtime_checkable
class Embedding(Protocol):
    """Protocol of modules that map observations to features, in parallel or one after another.

    Attributes:
        features: Number of features C.
        observation_shape: Shape of one observation: ``(channels,)`` for values, ``()`` for tokens.
        max_length: Maximum length of a sequence; None if unlimited.
        streams: Whether the embedding is causal, so that ``init_state`` and ``step`` are available.
    """

    features: int
    observation_shape: tuple[int, ...]
    max_length: int | None

    @property
    def streams(self) -> bool:
        """Whether ``init_state`` and ``step`` are offered."""
        ...

    def __call__(
        self,
        x: Array,
        *,
        positions: Int[Array, "B T"],
        mask: Mask | None = None,
        segments: Segments | None = None,
        state: State | None = None,
    ) -> tuple[Features, State]:
        """Embeds whole sequences of observations.

        Args:
            x: Observations of shape ``[B, T, *observation_shape]``. Values at padding are finite,
                and change nothing at valid tokens.
            positions: Integer array of shape [B, T]; positions of valid tokens, counted from 0 in
                each sequence.
            mask: Boolean array of shape [B, T]; True marks valid tokens.
            segments: Boundaries of packed sequences.
            state: State returned by an earlier call; None at the beginning of a sequence.

        Returns:
            Features of shape [B, T, C], and the state with the structure of ``init_state``'s, or
            None if the embedding does not stream.
        """
        ...

    def init_state(self, batch_size: int, *, dtype: DTypeLike = jnp.float32) -> State:
        """Returns the state before the first observation, for inputs of this dtype."""
        ...

    def step(
        self, x: Array, state: State, *, positions: Int[Array, "B"], mask: Array | None = None
    ) -> tuple[FeaturesStep, State]:
        """Processes one observation per row: x ``[B, *observation_shape]`` -> h [B, C], new state.

        Where ``mask``, Boolean [B], is False, the row's state is unchanged.
        """
        ...


class BaseEmbedding(nnx.Module, abc.ABC):
    """Base class of the package's embeddings: calls, steps, positions and options.

    A subclass maps observations by ``_map`` and ``_map_step``, which do not add positions.

    Attributes:
        option_names: Constructor arguments that are attributes of the same name, see ``options``.
    """

    option_names: ClassVar[tuple[str, ...]]
    features: int
    observation_shape: tuple[int, ...]
    max_length: int | None = None
    position: PositionName = "none"
    positions: nn.SinusoidalPosition | nn.LearnedPosition | None = None

    def _set_positions(
        self, position: PositionName, max_length: int | None, rngs: nnx.Rngs
    ) -> None:
        """Makes the position embedding, after all other parameters."""
        self.max_length = max_length if position == "learned" else None
        self.position = position
        self.positions = make_position(position, self.features, max_length, rngs)

    @property
    def options(self) -> dict[str, Any]:
        """Constructor arguments of an equal model, as ``save_model`` stores them."""
        return {name: getattr(self, name) for name in self.option_names}

    @property
    def streams(self) -> bool:
        """Whether ``init_state`` and ``step`` are offered."""
        return True

    @automatic(2)
    def __call__(
        self,
        x: Array,
        *,
        positions: Int[Array, "B T"],
        mask: Mask | None = None,
        segments: Segments | None = None,
        state: State | None = None,
    ) -> tuple[Features, State]:
        """Embeds whole sequences of observations; see ``Embedding``."""
        h, state = self._map(x, mask, segments, state)
        return add_positions(h, self.positions, positions), state

    @automatic(1)
    def step(
        self, x: Array, state: State, *, positions: Int[Array, "B"], mask: Array | None = None
    ) -> tuple[FeaturesStep, State]:
        """Processes one observation per row; see ``Embedding``."""
        h, state = self._map_step(x, state, mask)
        return add_positions(h, self.positions, positions), state

    @abc.abstractmethod
    def init_state(self, batch_size: int, *, dtype: DTypeLike = jnp.float32) -> State:
        """Returns the state before the first observation, for inputs of this dtype."""

    @abc.abstractmethod
    def _map(
        self, x: Array, mask: Mask | None, segments: Segments | None, state: State | None
    ) -> tuple[Array, State]:
        """Maps whole sequences to features [B, T, C], and the state after them."""

    @abc.abstractmethod
    def _map_step(self, x: Array, state: State, mask: Array | None) -> tuple[Array, State]:
        """Maps one observation per row to features [B, C], and the new state."""


class PointwiseEmbedding(BaseEmbedding):
    """Base class of embeddings that map each observation on its own and have no state."""

    def init_state(self, batch_size: int, *, dtype: DTypeLike = jnp.float32) -> State:
        """Returns no state: no observation changes the features of another one."""
        return ()

    def _map(
        self, x: Array, mask: Mask | None, segments: Segments | None, state: State | None
    ) -> tuple[Array, State]:
        return self._embed(x), ()

    def _map_step(self, x: Array, state: State, mask: Array | None) -> tuple[Array, State]:
        return self._embed(x), state

    @abc.abstractmethod
    def _embed(self, x: Array) -> Array:
        """Maps observations to features [..., C]."""


class ConvolvedEmbedding(BaseEmbedding):
    """Base class of embeddings with a convolution over time, whose window is their state."""

    @property
    @abc.abstractmethod
    def _convolution(self) -> nn.ValueEmbedding | nn.ConvEmbedding: ...

    @property
    def streams(self) -> bool:
        return self._convolution.streams

    @property
    def kernel_size(self) -> int:
        """Number of taps of the convolution."""
        return self._convolution.kernel_size

    @property
    def padding(self) -> str:
        """Padding of the convolution over time."""
        return self._convolution.padding

    def init_state(self, batch_size: int, *, dtype: DTypeLike = jnp.float32) -> State:
        """Returns the empty window of the convolution."""
        return self._convolution.init_state(batch_size, dtype)

    def _map(
        self, x: Array, mask: Mask | None, segments: Segments | None, state: State | None
    ) -> tuple[Array, State]:
        inputs, own = self._inputs(x)
        inputs = zero_padding(inputs, mask)  # which is made of zeros, or of what a head has scaled
        h, state = self._convolution._map(inputs, mask=mask, segments=segments, state=state)
        return self._outputs(h, own), state

    def _map_step(self, x: Array, state: State, mask: Array | None) -> tuple[Array, State]:
        inputs, own = self._inputs(x)
        h, state = self._convolution.step(inputs, state, mask=mask)
        return self._outputs(h, own), state

    def _inputs(self, x: Array) -> tuple[Array, Any]:
        """Splits observations x into inputs of the convolution and of ``_outputs``."""
        return x, None

    def _outputs(self, h: Array, own: Any) -> Array:
        """Maps outputs of the convolution, h [..., C], to features [..., C]."""
        return h


class ObservationEmbedding(ConvolvedEmbedding):
    """Embeds observations: a convolution over values, a linear layer of covariates, positions.

    After Time-Series-Library's ``DataEmbedding``. An observation is its values, followed by
    its covariates, if any: further inputs, such as time features, with their own linear layer.

    Args:
        num_channels: Number of values of an observation.
        features: Number of features C.
        num_covariates: Number of covariates that follow the values.
        kernel_size: Number of taps of the convolution.
        padding: Padding of the convolution: "causal" (streams) or "circular"
            (Time-Series-Library's).
        position: Position embedding: "sinusoidal", "learned" for positions below ``max_length``, or
            "none".
        max_length: Maximum number of tokens of a sequence; needed for learned positions.
        dtype: Dtype of the computation; inferred from inputs and parameters if None.
        param_dtype: Dtype of the parameters.
        kernel_init: Initializer of the convolution; default Time-Series-Library's.
        rngs: Random number generators; "params" initializes the parameters.

    Raises:
        ValueError: If an option is out of range.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> embedding = ObservationEmbedding(3, 8, rngs=nnx.Rngs(0))
        >>> h, state = embedding(jnp.ones((2, 5, 3)), positions=jnp.arange(5)[None])
        >>> h.shape, embedding.observation_shape
        ((2, 5, 8), (3,))
    """

    option_names = (
        *("num_channels", "features", "num_covariates", "kernel_size", "padding", "position"),
        *("max_length", "dtype", "param_dtype"),
    )

    def __init__(
        self,
        num_channels: int,
        features: int,
        *,
        num_covariates: int = 0,
        kernel_size: int = 3,
        padding: Literal["causal", "circular"] = "causal",
        position: PositionName = "sinusoidal",
        max_length: int | None = None,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        kernel_init: nnx.Initializer | None = None,
        rngs: nnx.Rngs,
    ) -> None:
        check_integers(1, num_channels=num_channels, features=features)
        check_integers(0, num_covariates=num_covariates)
        self.features, self.num_channels, self.num_covariates = (
            features,
            num_channels,
            num_covariates,
        )
        self.observation_shape = (num_channels + num_covariates,)
        self.dtype, self.param_dtype = dtype, param_dtype
        self.values = nn.ValueEmbedding(
            num_channels,
            features,
            kernel_size=kernel_size,
            padding=padding,
            dtype=dtype,
            param_dtype=param_dtype,
            kernel_init=kernel_init or nn.embedding.KERNEL_INIT,
            rngs=rngs,
        )
        self.marks = (
            nn.linear(
                num_covariates,
                features,
                use_bias=False,
                dtype=dtype,
                param_dtype=param_dtype,
                rngs=rngs,
            )
            if num_covariates
            else None
        )
        self._set_positions(position, max_length, rngs)

    @property
    def _convolution(self) -> nn.ValueEmbedding:
        return self.values

    def _inputs(self, x: Array) -> tuple[Array, Array]:
        return x[..., : self.num_channels], x[..., self.num_channels :]

    def _outputs(self, h: Array, own: Array) -> Array:
        return h if self.marks is None else h + self.marks(own)


class TokenTable(PointwiseEmbedding):
    """Base class of embeddings with a table row for each token, plus positions."""

    option_names = ("num_tokens", "features", "position", "max_length", "dtype", "param_dtype")

    def __init__(
        self,
        num_tokens: int,
        features: int,
        *,
        position: PositionName = "sinusoidal",
        max_length: int | None = None,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        embedding_init: nnx.Initializer,
        rngs: nnx.Rngs,
    ) -> None:
        check_integers(1, num_tokens=num_tokens, features=features)
        self.features, self.num_tokens, self.dtype = features, int(num_tokens), dtype
        self.observation_shape = ()
        self.table = nnx.Param(embedding_init(rngs.params(), (num_tokens, features), param_dtype))
        self._set_positions(position, max_length, rngs)

    @property
    def param_dtype(self) -> Any:
        """Dtype of the embedding table."""
        return self.table.dtype

    def _embed(self, x: Array) -> Array:
        check_tokens(x, self.num_tokens)
        x = x.astype(jnp.int32)  # a narrow dtype, such as that of bytes, may not hold N
        # Negative ones would count from the table's end.
        known = jnp.where(x < 0, self.num_tokens, x)
        h = jnp.take(self.table[...], known, axis=0, mode="fill", fill_value=jnp.nan)
        h = self._transform_rows(h)
        return h if self.dtype is None else h.astype(self.dtype)

    def _transform_rows(self, rows: Array) -> Array:
        """Transforms the table rows [..., C] of tokens, before positions are added."""
        return rows


class TokenEmbedding(TokenTable):
    """Embeds tokens: a table, times sqrt(C), plus positions (Vaswani et al., 2017, section 3.4).

    The factor makes the norm of a token about that of its position embedding; a tied head uses the
    table without the factor. Under ``jit`` a token outside the table gives NaN, as a position
    beyond a learned table does; outside ``jit`` it is an error.

    Args:
        num_tokens: Vocabulary size N; tokens are 0 ... N - 1.
        features: Number of features C.
        embedding_init: Initializer of the table.
        rngs: Random number generators; "params" initializes the parameters.
        **options: ``position`` ("sinusoidal", "learned" for positions below ``max_length``, or
            "none"), ``max_length`` (maximum length of a sequence, needed by learned positions),
            ``dtype`` of the computation, and ``param_dtype`` of the table.

    Raises:
        ValueError: If an option is out of range.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> embedding = TokenEmbedding(11, 8, rngs=nnx.Rngs(0))
        >>> h, _ = embedding(jnp.array([[1, 2, 3]]), positions=jnp.arange(3)[None])
        >>> h.shape, embedding.observation_shape
        ((1, 3, 8), ())
    """

    def __init__(
        self,
        num_tokens: int,
        features: int,
        *,
        embedding_init: nnx.Initializer = EMBEDDING_INIT,
        rngs: nnx.Rngs,
        **options: Unpack[TokenOptions],
    ) -> None:
        super().__init__(num_tokens, features, embedding_init=embedding_init, rngs=rngs, **options)

    def attend(self, h: Features) -> Array:
        """Returns logits of a tied head: products of h [..., C] with the table, [..., N]."""
        table = self.table[...].astype(h.dtype)
        wide = accumulation_dtype(h.dtype)
        return jnp.einsum("...c,nc->...n", h, table, preferred_element_type=wide)

    def _transform_rows(self, rows: Array) -> Array:
        return rows * jnp.asarray(self.features**0.5, rows.dtype)


class OneHotEmbedding(PointwiseEmbedding):
    """Encodes tokens as one-hot vectors, without parameters and positions.

    A token outside 0 ... N - 1 is handled as by a :class:`TokenEmbedding`.

    Args:
        num_tokens: Vocabulary size N, and number of features; tokens are 0 ... N - 1.
        rngs: Unused; accepted because all embeddings take it.

    Raises:
        ValueError: If ``num_tokens`` is below 1.

    Example:
        >>> import jax.numpy as jnp
        >>> embedding = OneHotEmbedding(3)
        >>> h, _ = embedding(jnp.array([[2, 0]]), positions=jnp.arange(2)[None])
        >>> h.tolist(), embedding.features
        ([[[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]], 3)
    """

    option_names = ("num_tokens",)

    def __init__(self, num_tokens: int, *, rngs: nnx.Rngs | None = None) -> None:
        check_integers(1, num_tokens=num_tokens)
        self.num_tokens = self.features = int(num_tokens)
        self.observation_shape = ()

    def _embed(self, x: Array) -> Array:
        check_tokens(x, self.num_tokens)
        x = x.astype(jnp.int32)  # a narrow dtype may not hold N
        known = (x >= 0) & (x < self.num_tokens)
        return jnp.where(known[..., None], jax.nn.one_hot(x, self.num_tokens), jnp.nan)


class FeatureEmbedding(PointwiseEmbedding):
    """Passes features on, for heads that embed observations themselves.

    Args:
        features: Number of features C.
        rngs: Unused; accepted because all embeddings take it.

    Raises:
        ValueError: If ``features`` is below 1.

    Example:
        >>> import jax.numpy as jnp
        >>> embedding = FeatureEmbedding(8)
        >>> embedding(jnp.ones((2, 5, 8)), positions=jnp.arange(5)[None])[0].shape
        (2, 5, 8)
    """

    option_names = ("features",)

    def __init__(self, features: int, *, rngs: nnx.Rngs | None = None) -> None:
        check_integers(1, features=features)
        self.features = features
        self.observation_shape = (features,)

    def _embed(self, x: Array) -> Array:
        return x


def make_position(
    position: PositionName, features: int, max_length: int | None, rngs: nnx.Rngs
) -> nn.SinusoidalPosition | nn.LearnedPosition | None:
    """Makes the position embedding of this name; None for "none"."""
    check_choice(POSITIONS, position=position)
    if position == "none":
        return None
    if position == "sinusoidal":
        return nn.SinusoidalPosition(features)
    if max_length is None:
        raise OptionError(
            "learned positions need max_length, the number of positions.", "position", "max_length"
        )
    return nn.LearnedPosition(max_length, features, rngs=rngs)


def add_positions(
    h: Array, position: nn.SinusoidalPosition | nn.LearnedPosition | None, positions: Array
) -> Array:
    """Adds the embeddings of positions int [...] to h [..., C]."""
    return h if position is None else h + position(positions).astype(h.dtype)
