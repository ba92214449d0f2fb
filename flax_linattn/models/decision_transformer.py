"""What to do next, of returns, observations and actions: the decision transformer."""

from __future__ import annotations

from typing import Any, Literal, Unpack, overload

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Float

from flax_linattn import nn
from flax_linattn.checks import choice
from flax_linattn.models.backbone import HEAD_OPTIONS, Backbone, BackboneOptions, BackboneState
from flax_linattn.models.decision_embedding import TOKENS, DecisionEmbedding
from flax_linattn.models.embedding import FeatureEmbedding, PositionName
from flax_linattn.models.forecaster import check_causal
from flax_linattn.models.layers import Layers
from flax_linattn.nn.linear import linear
from flax_linattn.nn.meshes import automatic
from flax_linattn.ops.contract.masks import zero_padding
from flax_linattn.typing import Array, Mask, SegmentIds

DECISION_LAYERS = Layers(features=128, num_layers=3, num_heads=1, norm="post", dropout_rate=0.1)
"""The layers of a decision transformer unless others are given: those of the published code."""

DECISION_LENGTH = 4096
"""Times of the learned table, unless another number is given."""


class DecisionTransformer(nnx.Module):
    """The action to take in each step of an episode, given the return that is asked for.

    A step is three tokens: the action before it, the return to go, the observation; the action is
    told from the observation's token. So the tokens of an episode are (R, s), (a, R, s), ... as in
    Chen et al., "Decision Transformer" (2021), in the code that the Aaren paper's table 1 builds on
    (Barhate, 2022), and a step needs nothing that is not known when an agent has to act. The last
    action of a sequence is no token: nothing would follow it. Departure: in training, dropout also
    comes before the first block, as in all backbones here.

    Args:
        observation_dim: S.
        action_dim: A.
        position: of the times of steps, see :class:`DecisionEmbedding`. With "sinusoidal" and
            "none" an episode may last as long as it likes.
        max_length: most steps of an episode, for the learned table and the default size of caches.
        layers: of the backbone; default ``DECISION_LAYERS``.
        rngs: holds the stream "params", and perhaps "dropout".
        **options: of ``layers`` by name, and how parameters are made (``nn.ParameterOptions``).

    Attributes:
        tokens_per_observation: 3.

    Raises:
        ValueError: an option out of range, or a mechanism that looks at the future.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> from flax_linattn import models
        >>> model = models.DecisionTransformer(11, 3, features=16, num_layers=1, rngs=nnx.Rngs(0))
        >>> x = models.DecisionColumns(
        ...     time=jnp.tile(jnp.arange(5.0), (2, 1)), known=jnp.ones((2, 5)).at[:, 0].set(0),
        ...     return_to_go=jnp.ones((2, 5)), observation=jnp.zeros((2, 5, 11)),
        ...     action=jnp.zeros((2, 5, 3))).joined()
        >>> model(x).shape
        (2, 5, 3)
        >>> action, state = model.step(x[:, 0], model.init_state(2))
        >>> action.shape
        (2, 3)
    """

    tokens_per_observation = TOKENS

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        *,
        position: PositionName = "learned",
        max_length: int | None = DECISION_LENGTH,
        layers: Layers | None = None,
        rngs: nnx.Rngs,
        **options: Any,
    ) -> None:
        layers, options = (layers or DECISION_LAYERS).take(options)
        for name in options:
            choice([*Layers.__annotations__, *nn.ParameterOptions.__annotations__], option=name)
        check_causal(layers)
        of_head = {name: options[name] for name in HEAD_OPTIONS if name in options}
        self.max_length = max_length
        self.position: PositionName = position
        self.embedding = DecisionEmbedding(
            observation_dim,
            action_dim,
            layers.features,
            position=position,
            max_length=max_length,
            dtype=layers.compute_dtype,
            rngs=rngs,
            **of_head,
        )
        self.backbone = Backbone(
            FeatureEmbedding(layers.features),
            layers,
            max_length=None if max_length is None else TOKENS * max_length,
            final_norm=layers.norm == "pre",  # the published code has post-norm, and none behind
            rngs=rngs,
            **options,
        )
        of_head["dtype"] = jnp.float32
        self.head = linear(layers.features, action_dim, rngs=rngs, **of_head)

    @property
    def options(self) -> dict[str, Any]:
        """The arguments that make one like it, as ``save_model`` keeps them."""
        return {
            "observation_dim": self.embedding.observation_dim,
            "action_dim": self.embedding.action_dim,
            "position": self.position,
            "max_length": self.max_length,
            "layers": self.backbone.layers,
            "param_dtype": self.backbone.param_dtype,
        }

    @property
    def dropout(self) -> nnx.Dropout:
        """That of the backbone, as ``save_model`` asks for it."""
        return self.backbone.dropout

    @property
    def observation_dim(self) -> int:
        """S."""
        return self.embedding.observation_dim

    @property
    def action_dim(self) -> int:
        """A."""
        return self.embedding.action_dim

    @property
    def observation_shape(self) -> tuple[int, ...]:
        """Of one step: (3 + S + A,)."""
        return (3 + self.observation_dim + self.action_dim,)

    @property
    def streams(self) -> bool:
        """Whether ``init_state`` and ``step`` are offered."""
        return self.backbone.streams

    @property
    def num_positions(self) -> int | None:
        """Most steps of an episode that have a time; None = any number."""
        return self.max_length if self.position == "learned" else None

    @overload
    def __call__(
        self,
        x: Float[Array, "B T W"],
        *,
        return_state: Literal[False] = False,
        **options: Unpack[BackboneOptions],
    ) -> Float[Array, "B T A"]: ...

    @overload
    def __call__(
        self,
        x: Float[Array, "B T W"],
        *,
        return_state: Literal[True],
        **options: Unpack[BackboneOptions],
    ) -> tuple[Float[Array, "B T A"], BackboneState]: ...

    @overload
    def __call__(
        self,
        x: Float[Array, "B T W"],
        *,
        return_state: bool,
        **options: Unpack[BackboneOptions],
    ) -> Float[Array, "B T A"] | tuple[Float[Array, "B T A"], BackboneState]: ...

    @automatic(2)
    def __call__(
        self,
        x: Float[Array, "B T W"],
        *,
        mask: Mask | None = None,
        segment_ids: SegmentIds | None = None,
        state: BackboneState | None = None,
        return_state: bool = False,
        dropout_key: Array | None = None,
        form: str = "auto",
    ) -> Array | tuple[Array, BackboneState]:
        """Maps whole sequences of steps; arguments as those of ``Backbone``.

        Args:
            x: [B, T, 3 + S + A], see ``DecisionColumns``.
            mask: bool [B, T], True = a step.
            segment_ids: int [B, T], packed episodes.
            state: what an earlier call returned.
            return_state: return ``(actions, state)``.
            dropout_key: a key turns dropout on (training).
            form: see ``ops.Mechanism.attend``.

        Returns:
            Actions float32 [B, T, A] in -1 ... 1, and the state if asked for.

        Raises:
            ValueError: wrong shapes, or a state where the model cannot stream.
        """
        self._check(x, 3)
        _check_rows(x, mask, segment_ids)
        x = zero_padding(x, mask)
        B, T = x.shape[:2]
        options: BackboneOptions = {
            "mask": self._tokens_of(x, mask).reshape(B, TOKENS * T),
            "segment_ids": None if segment_ids is None else jnp.repeat(segment_ids, TOKENS, axis=1),
            "state": state,
            "dropout_key": dropout_key,
            "form": form,
        }
        tokens = self.embedding(x).reshape(B, TOKENS * T, -1)
        if return_state:
            h, after = self.backbone(tokens, return_state=True, **options)
            return self._actions(h[:, TOKENS - 1 :: TOKENS]), after
        return self._actions(self.backbone(tokens, **options)[:, TOKENS - 1 :: TOKENS])

    def init_state(
        self, batch_size: int, max_length: int | None = None, *, dtype: DTypeLike = jnp.float32
    ) -> BackboneState:
        """The state before the first step.

        Args:
            batch_size: B.
            max_length: most steps, for mechanisms with a cache; default the model's.
            dtype: dtype of the inputs.

        Raises:
            ValueError: the model cannot stream.
        """
        tokens = None if max_length is None else TOKENS * max_length
        return self.backbone.init_state(batch_size, tokens, dtype=dtype)

    @automatic(1)
    def step(
        self, x: Float[Array, "B W"], state: BackboneState, *, mask: Array | None = None
    ) -> tuple[Float[Array, "B A"], BackboneState]:
        """Takes in one step a row: x [B, 3 + S + A] -> actions [B, A] and the new state.

        ``mask`` bool [B]: where False the state stays as it is.
        """
        self._check(x, 2)
        real, tokens = self._tokens_of(x, mask), self.embedding(x)
        h = tokens[:, -1]
        for n in range(TOKENS):
            h, state = self.backbone.step(tokens[:, n], state, mask=real[:, n])
        return self._actions(h), state

    def _tokens_of(self, x: Array, mask: Array | None) -> Array:
        """Which tokens there are, bool [..., 3]."""
        real = jnp.ones(x.shape[:-1], bool) if mask is None else mask
        return jnp.stack([real & (x[..., 1] > 0), real, real], axis=-1)

    def _actions(self, h: Array) -> Array:
        return jnp.tanh(self.head(h))

    def _check(self, x: Array, ndim: int) -> None:
        if x.ndim != ndim or x.shape[1:][-1:] != self.observation_shape or 0 in x.shape[1:]:
            lead = "B, T >= 1" if ndim == 3 else "B"
            raise ValueError(
                f"expected steps [{lead}, {self.observation_shape[0]}] (time, known, return to go, "
                f"{self.observation_dim} of the observation, {self.action_dim} of the action "
                f"before), got {x.shape}."
            )


def _check_rows(x: Array, mask: Array | None, segment_ids: Array | None) -> None:
    """Refuses masks and ids of other sizes, which have to be of steps and not of tokens."""
    if mask is not None and (mask.dtype != bool or mask.shape != x.shape[:2]):
        raise ValueError(
            f"expected mask as bool {x.shape[:2]}, True = a step, got {mask.dtype} {mask.shape}."
        )
    if segment_ids is not None and segment_ids.shape != x.shape[:2]:
        raise ValueError(
            f"expected segment_ids as int {x.shape[:2]}, got shape {segment_ids.shape}."
        )
