"""Decision transformer: actions from returns-to-go, observations and earlier actions."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from flax_linattn.checks import OptionError
from flax_linattn.models.backbone import Backbone, BackboneState
from flax_linattn.models.decision_embedding import TOKENS, DecisionEmbedding
from flax_linattn.models.embedding import FeatureEmbedding, PositionName
from flax_linattn.models.head import Head, split_options
from flax_linattn.models.layers import DECISION_LAYERS, Layers, check_causal
from flax_linattn.nn.call import Call
from flax_linattn.nn.linear import linear
from flax_linattn.ops.contract.masks import zero_padding
from flax_linattn.ops.contract.numerics import accumulation_dtype
from flax_linattn.typing import Array

DECISION_LENGTH = 4096
"""Default number of times in the learned table."""


class DecisionTransformer(Head):
    """Predicts the action of each step of an episode, conditioned on a target return.

    A step is three tokens: the previous action, the return-to-go and the observation; the action is
    read from the observation's token. The tokens of an episode are (R, s), (a, R, s), ... as in
    Chen et al., "Decision Transformer" (2021), in the code that the Aaren paper's table 1 builds on
    (Barhate, 2022), so a step needs only inputs that are available when the agent acts. The last
    action of a sequence is not a token, since nothing follows it. Departure: in training there is
    also dropout before the first block, as in all backbones here.

    A call maps steps [B, T, 3 + S + A], see :class:`DecisionColumns`, to actions [B, T, A]. With
    ``num_actions`` actions are discrete: A is 1, the index of an action, which is embedded by a
    table; the outputs are logits [B, T, ``num_actions``].

    Args:
        observation_dim: Size S of an observation.
        action_dim: Size A of a continuous action.
        num_actions: Number of discrete actions, instead of ``action_dim``.
        position: Embedding of the times of steps, see :class:`DecisionEmbedding`. With "sinusoidal"
            and "none" the length of an episode is unlimited.
        max_length: Maximum number of steps of an episode, for the learned table and the default
            size of caches.
        layers: Options of the backbone's layers; default ``DECISION_LAYERS``.
        rngs: Random number generators; "params" initializes the parameters, and "dropout", if
            present, gives dropout keys after ``model.train()``.
        **options: Options of ``layers`` by name, and dtype and initializers of the parameters
            (``nn.ParameterOptions``).

    Attributes:
        tokens_per_observation: 3.

    Raises:
        ValueError: If an option is out of range, or the mechanism has no causal form.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> from flax_linattn import models
        >>> model = models.DecisionTransformer(11, 3, features=16, num_layers=1, rngs=nnx.Rngs(0))
        >>> x = models.DecisionColumns(
        ...     time=jnp.tile(jnp.arange(5.0), (2, 1)), known=jnp.ones((2, 5)).at[:, 0].set(0),
        ...     return_to_go=jnp.ones((2, 5)), observation=jnp.zeros((2, 5, 11)),
        ...     action=jnp.zeros((2, 5, 3))).to_array()
        >>> model(x).shape
        (2, 5, 3)
        >>> action, state = model.step(x[:, 0], model.init_state(2))
        >>> action.shape
        (2, 3)
        >>> game = models.DecisionTransformer(
        ...     11, num_actions=4, features=16, num_layers=1, rngs=nnx.Rngs(0))
        >>> game(jnp.ones((2, 5, 15))).shape
        (2, 5, 4)
    """

    tokens_per_observation = TOKENS
    option_names = (
        *("observation_dim", "action_dim", "num_actions", "position", "max_length", "layers"),
        "param_dtype",
    )

    def __init__(
        self,
        observation_dim: int,
        action_dim: int | None = None,
        *,
        num_actions: int | None = None,
        position: PositionName = "learned",
        max_length: int | None = DECISION_LENGTH,
        layers: Layers | None = None,
        rngs: nnx.Rngs,
        **options: Any,
    ) -> None:
        layers, options, head_parameters = split_options(layers or DECISION_LAYERS, options)
        check_causal(layers)
        if num_actions is not None:
            action_dim = 1 if action_dim is None else action_dim
        if action_dim is None or (num_actions is not None and action_dim != 1):
            raise OptionError(
                "a decision transformer needs action_dim, or num_actions for discrete actions, got "
                f"action_dim={action_dim} and num_actions={num_actions}.",
                "action_dim",
                "num_actions",
            )
        self.max_length = max_length
        self.position: PositionName = position
        self.embedding = DecisionEmbedding(
            observation_dim,
            action_dim,
            layers.features,
            num_actions=num_actions,
            position=position,
            max_length=max_length,
            dtype=layers.compute_dtype,
            rngs=rngs,
            **head_parameters,
        )
        self.backbone = Backbone(
            FeatureEmbedding(layers.features),
            layers,
            max_length=None if max_length is None else TOKENS * max_length,
            final_norm=layers.norm == "pre",  # the published code: post-norm without a final norm
            rngs=rngs,
            **options,
        )
        dtype = accumulation_dtype(head_parameters.get("param_dtype", jnp.float32))
        outputs = action_dim if num_actions is None else num_actions
        self.head = linear(layers.features, outputs, dtype=dtype, rngs=rngs, **head_parameters)

    @property
    def observation_dim(self) -> int:
        """Size S of an environment's observation."""
        return self.embedding.observation_dim

    @property
    def action_dim(self) -> int:
        """Size A of an action, 1 for discrete actions."""
        return self.embedding.action_dim

    @property
    def num_actions(self) -> int | None:
        """Number of discrete actions; None if actions are continuous."""
        return self.embedding.num_actions

    @property
    def observation_shape(self) -> tuple[int, ...]:
        """Shape of one step: (3 + S + A,)."""
        return (3 + self.observation_dim + self.action_dim,)

    @property
    def num_positions(self) -> int | None:
        return self.max_length if self.position == "learned" else None

    @property
    def observation_columns(self) -> str:
        return (
            f" (time, known, return to go, {self.observation_dim} of the observation, "
            f"{self.action_dim} of the previous action)"
        )

    def read(self, h: Array) -> Array:
        """Computes actions float32 [..., A] in -1 ... 1, or logits, from observation tokens."""
        outputs = self.head(h)
        return jnp.tanh(outputs) if self.num_actions is None else outputs

    def _map(self, x: Array, call: Call) -> tuple[Array, BackboneState | None]:
        """Computes actions or logits [B, T, ...], and the backbone's state."""
        B, T = x.shape[:2]
        ids = call.segment_ids
        token_call = call.replace(
            mask=self._token_mask(x, call.mask).reshape(B, TOKENS * T),
            segment_ids=None if ids is None else jnp.repeat(ids, TOKENS, axis=1),
        )
        tokens = zero_padding(self.embedding(x).reshape(B, TOKENS * T, -1), token_call.mask)
        h, state = self.backbone._map(tokens, token_call)
        return self.read(h[:, TOKENS - 1 :: TOKENS]), state

    def init_state(
        self, batch_size: int, max_length: int | None = None, *, dtype: DTypeLike = jnp.float32
    ) -> BackboneState:
        """Returns the state before the first step; ``max_length`` is a number of steps."""
        tokens = None if max_length is None else TOKENS * max_length
        return self.backbone.init_state(batch_size, tokens, dtype=dtype)

    def _map_step(
        self, x: Array, state: BackboneState, mask: Array | None
    ) -> tuple[Array, BackboneState]:
        """Computes actions or logits [B, ...], and the state after the three tokens of a step."""
        real, tokens = self._token_mask(x, mask), self.embedding(x)
        h = tokens[:, -1]
        for n in range(TOKENS):
            h, state = self.backbone._map_step(tokens[:, n], state, real[:, n])
        return self.read(h), state

    def _token_mask(self, x: Array, mask: Array | None) -> Array:
        """Boolean mask [..., 3] of the tokens of each step that are present."""
        real = jnp.ones(x.shape[:-1], bool) if mask is None else mask
        return jnp.stack([real & (x[..., 1] > 0), real, real], axis=-1)
