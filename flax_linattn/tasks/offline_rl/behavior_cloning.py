"""Behavior cloning: a perceptron from observations to actions, without context or return."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from numpy.typing import NDArray

from flax_linattn.data.episodes import Episodes
from flax_linattn.inference.programs import compile_once
from flax_linattn.tasks.offline_rl.actions import ActionChooser, ActionSpace
from flax_linattn.tasks.offline_rl.data import OfflineRLSpec
from flax_linattn.typing import Array

HIDDEN = 256
BATCH = 256
LEARNING_RATE = 1e-3


class Policy(nnx.Module):
    """Maps scaled observations [..., S] to outputs [..., O]; two hidden layers of 256."""

    def __init__(self, observation_dim: int, space: ActionSpace, *, rngs: nnx.Rngs) -> None:
        self.space = space
        sizes = (observation_dim, HIDDEN, HIDDEN, space.num_outputs)
        self.layers = nnx.List(nnx.Linear(*pair, rngs=rngs) for pair in itertools.pairwise(sizes))

    def __call__(self, observations: Array) -> Array:
        """Predicts scaled actions, or logits of discrete ones, from observations [..., S]."""
        *hidden, last = self.layers
        for layer in hidden:
            observations = jax.nn.relu(layer(observations))
        return self.space.read(last(observations))


def train_policy(episodes: Episodes, data_spec: OfflineRLSpec, num_steps: int, seed: int) -> Policy:
    """Trains a policy on the loss of actions by Adam, with ``num_steps`` batches of 256 steps."""
    policy = Policy(data_spec.observation_dim, data_spec.action_space, rngs=nnx.Rngs(seed))
    observations = jnp.asarray(data_spec.scaled_observations(episodes.observations))
    actions = jnp.asarray(data_spec.scaled_actions(episodes.actions))
    key = jax.random.fold_in(jax.random.key(seed), 1)
    graphdef, params = nnx.split(policy)
    nnx.update(policy, _fit(graphdef, params, observations, actions, key, num_steps=num_steps))
    return policy


@partial(jax.jit, static_argnums=0, static_argnames="num_steps")
def _fit(
    graphdef: Any, params: Any, observations: Array, actions: Array, key: Array, *, num_steps: int
) -> Any:
    optimizer = optax.adam(LEARNING_RATE)

    def loss(params: Any, rows: Array) -> Array:
        policy = nnx.merge(graphdef, params)
        return jnp.mean(policy.space.evaluate(policy(observations[rows]), actions[rows])["loss"])

    def step(carry: Any, number: Array) -> Any:
        params, state = carry
        rows = jax.random.randint(jax.random.fold_in(key, number), (BATCH,), 0, len(observations))
        gradients = jax.grad(loss)(params, rows)
        with jax.numpy_dtype_promotion("standard"):  # optax counts in int32
            updates, state = optimizer.update(gradients, state)
        return (optax.apply_updates(params, updates), state), None

    (params, _), _ = jax.lax.scan(step, (params, optimizer.init(params)), jnp.arange(num_steps))
    return params


class PolicyAgent(ActionChooser):
    """Plays with a policy: a ``control.Agent`` without memory."""

    def __init__(self, policy: Policy, data_spec: OfflineRLSpec, sample: bool = False) -> None:
        super().__init__(policy.space, sample)
        self._policy, self._data_spec = policy, data_spec

    def act(
        self,
        observations: NDArray[np.float32],
        rewards: NDArray[np.float32],
        begins: NDArray[np.bool_],
    ) -> NDArray:
        """Chooses the next action of each row; see ``control.Agent``."""
        scaled = self._data_spec.scaled_observations(observations)
        outputs = np.asarray(predict_policy_outputs(self._policy, scaled))
        return self._data_spec.actions(self.choose(outputs))


@compile_once()
def predict_policy_outputs(policy: Any, observations: Any) -> Any:
    """Computes outputs of a policy, compiled once."""
    return policy(observations)
