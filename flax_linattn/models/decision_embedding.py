"""Embedding of decision steps: tokens of an action, a return-to-go and an observation."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Float

from flax_linattn import nn
from flax_linattn.checks import check_integers
from flax_linattn.models.embedding import (
    EMBEDDING_INIT,
    PositionName,
    add_positions,
    make_position,
)
from flax_linattn.nn.linear import linear
from flax_linattn.nn.meshes import automatic
from flax_linattn.typing import Array

TOKENS = 3
"""Number of tokens of a step: previous action, target return, observation."""

LATEST = 2.0**30
"""Latest time that int32 holds; later times count as this one."""


class DecisionColumns(NamedTuple):
    """Columns of a step of ``DecisionTransformer``.

    Attributes:
        time: Index of the step in its episode, from 0, of shape [...].
        known: 1 if the previous action is given, else 0, as in the first step of an episode; its
            token is then masked. Shape [...].
        return_to_go: Target return: sum of rewards to reach from this step on, scaled, of shape
            [...].
        observation: Observation of the environment, of shape [..., S].
        action: Previous action, scaled to -1 ... 1, of shape [..., A]; the index of a discrete
            action, of shape [..., 1].
    """

    time: Array
    known: Array
    return_to_go: Array
    observation: Array
    action: Array

    @classmethod
    def from_array(cls, x: Array, observation_dim: int) -> DecisionColumns:
        """Splits steps [..., 3 + S + A] into columns."""
        end = 3 + observation_dim
        return cls(x[..., 0], x[..., 1], x[..., 2], x[..., 3:end], x[..., end:])

    def to_array(self) -> Array:
        """Concatenates the columns to steps [..., 3 + S + A]."""
        first = jnp.stack([self.time, self.known, self.return_to_go], axis=-1)
        return jnp.concatenate([first, self.observation, self.action], axis=-1)


class DecisionEmbedding(nnx.Module):
    """Embeds each step as tokens of its previous action, target return and observation.

    Each kind of token has its own linear layer, or a table for discrete actions; an embedding of
    the time is added, and a LayerNorm follows (Chen et al., "Decision Transformer", 2021, as in the
    code that the Aaren paper used). An action has the time of its own step, the previous one. A
    time below 0 or beyond a learned table gives NaN, and so does a discrete action out of range.

    Args:
        observation_dim: Size S of an observation.
        action_dim: Size A of an action, 1 for discrete actions.
        features: Number of features C.
        num_actions: Number of discrete actions; None if actions are continuous.
        position: Embedding of the time: "learned" for times below ``max_length``, "sinusoidal", or
            "none".
        max_length: Number of rows of the learned table.
        dtype: Dtype of the computation; inferred from inputs and parameters if None.
        param_dtype: Dtype of the parameters.
        kernel_init: Initializer of the kernels, and of the table of discrete actions.
        bias_init: Initializer of the biases.
        rngs: Random number generators; "params" initializes the parameters.

    Raises:
        ValueError: If an option is out of range.
        TypeError: If steps are neither float32 nor float64 (raised by the call).

    Example:
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> embedding = DecisionEmbedding(11, 3, 8, position="sinusoidal", rngs=nnx.Rngs(0))
        >>> embedding(jnp.ones((2, 5, 17))).shape
        (2, 5, 3, 8)
    """

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        features: int,
        *,
        num_actions: int | None = None,
        position: PositionName = "learned",
        max_length: int | None = None,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        kernel_init: nnx.Initializer | None = None,
        bias_init: nnx.Initializer | None = None,
        rngs: nnx.Rngs,
    ) -> None:
        check_integers(1, observation_dim=observation_dim, action_dim=action_dim, features=features)
        check_integers(1, max_length=max_length, num_actions=num_actions)
        self.observation_dim, self.action_dim = int(observation_dim), int(action_dim)
        self.num_actions = None if num_actions is None else int(num_actions)
        layer = partial(
            linear,
            dtype=dtype,
            param_dtype=param_dtype,
            kernel_init=kernel_init,
            bias_init=bias_init,
            rngs=rngs,
        )
        self.action: nnx.Linear | nnx.Embed
        if num_actions is None:
            self.action = layer(action_dim, features)
        else:
            self.action = nnx.Embed(
                num_actions,
                features,
                dtype=dtype,
                param_dtype=param_dtype,
                embedding_init=kernel_init or EMBEDDING_INIT,
                rngs=rngs,
            )
        self.return_to_go = layer(1, features)
        self.observation = layer(observation_dim, features)
        self.times = make_position(position, features, max_length, rngs)
        self.norm = nn.LayerNorm(features, param_dtype=param_dtype, rngs=rngs)

    @automatic(1)
    def __call__(self, x: Float[Array, "... W"]) -> Float[Array, "... 3 C"]:
        """Embeds steps [..., 3 + S + A], see ``DecisionColumns``: tokens [..., 3, C]."""
        if x.dtype not in (jnp.float32, jnp.float64):
            raise TypeError(
                f"steps must be float32 or float64, got {x.dtype}, which cannot represent every "
                "time; cast them, for example x.astype(jnp.float32)."
            )
        columns = DecisionColumns.from_array(x, self.observation_dim)
        # A previous action that is not known has no effect, even if it is NaN.
        known = columns.known[..., None] > 0
        observation = self.observation(columns.observation)
        tokens = [
            self._embed_actions(jnp.where(known, columns.action, 0)).astype(observation.dtype),
            self.return_to_go(columns.return_to_go[..., None]),
            observation,
        ]
        return self.norm(self._add_times(jnp.stack(tokens, axis=-2), columns.time))

    def _embed_actions(self, actions: Array) -> Array:
        """Embeds previous actions [..., A]: tokens [..., C]."""
        if self.num_actions is None:
            return self.action(actions)
        in_table = (actions >= 0) & (actions < self.num_actions)  # False for NaN
        rows = self.action(jnp.where(in_table, actions, 0)[..., 0].astype(jnp.int32))
        return jnp.where(in_table, rows, jnp.nan)

    def _add_times(self, tokens: Array, time: Array) -> Array:
        """Adds the embeddings of their times to tokens [..., 3, C]."""
        if self.times is None:
            return tokens
        known = time >= 0  # False for NaN
        whole = jnp.round(jnp.where(known, jnp.minimum(time, LATEST), 0)).astype(jnp.int32)
        before = jnp.maximum(whole - 1, 0)  # the first step has no previous action
        times = jnp.stack([before, whole, whole], axis=-1)
        tokens = add_positions(tokens, self.times, times)
        return jnp.where(known[..., None, None], tokens, jnp.nan)
