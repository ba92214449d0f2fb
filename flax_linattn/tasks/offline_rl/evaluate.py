"""Evaluation of offline-RL runs: held-out actions, played episodes, baselines, predictions."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import jax.numpy as jnp
import numpy as np
import pandas as pd
from flax import nnx

from flax_linattn import control, models
from flax_linattn.checks import OptionError
from flax_linattn.data.episodes import Episodes, find_family, normalized_scores
from flax_linattn.data.episodes.episodes import actions_as_text
from flax_linattn.tasks.baselines import Baselines, read_or_note
from flax_linattn.tasks.offline_rl.actions import ActionSpace
from flax_linattn.tasks.offline_rl.agent import make_agent, predict_outputs
from flax_linattn.tasks.offline_rl.behavior_cloning import (
    Policy,
    PolicyAgent,
    predict_policy_outputs,
    train_policy,
)
from flax_linattn.tasks.offline_rl.data import (
    OfflineRLSpec,
    WindowBatches,
    begin_context,
    columns,
    load_data,
    max_episode_length,
    scale_episodes,
    split_data,
)
from flax_linattn.tasks.offline_rl.options import OfflineRLConfig
from flax_linattn.tasks.options import mechanism_name
from flax_linattn.tasks.prediction_table import make_table
from flax_linattn.tasks.run import own_part
from flax_linattn.tasks.spec import Run
from flax_linattn.tasks.streaming import stream_difference
from flax_linattn.typing import Array

if TYPE_CHECKING:
    from gymnasium.vector import VectorEnv


RETURN_BASELINES = Baselines(
    "return",
    ("data", "behavior_cloning", "percentile_behavior_cloning"),
    larger_is_better=True,
    title="return",
)

BEST_FRACTION = 0.1
"""Fraction of the steps, from the best episodes, that percentile behavior cloning trains on."""
MAX_OVERSHOOT = 1e-3
MAX_ENVIRONMENTS = 64
MAX_COMPARED_STEPS = 1000
"""Maximum number of steps of the comparison between stream and parallel model."""


def make_run_environments(data_spec: OfflineRLSpec, config: OfflineRLConfig) -> VectorEnv | None:
    """Makes environments to play in; prints a note and returns None if that fails.

    Raises:
        OptionError: If the environment that the options name does not match the data.
    """
    if data_spec.env_id is None or not config.play.play_episodes:
        return None
    try:
        num_envs = min(config.play.play_episodes, MAX_ENVIRONMENTS)
        return _make_environments(data_spec.env_id, num_envs, data_spec, data_spec.dataset, config)
    except ValueError as error:
        if config.data.env:  # the user named it
            raise
        print(f"note: no episodes are played, because {error}", file=sys.stderr)
        return None


def check_environment(episodes: Episodes, env_id: str, config: OfflineRLConfig) -> None:
    """Checks that an environment exists, fits the episodes, and has the same robot."""
    families = [find_family(name) for name in (env_id, episodes.env_id or "")]
    if None not in families and len(set(families)) == 2:
        raise OptionError(
            f"expected env={episodes.env_id!r}, as in {episodes.name}, got {env_id!r}.",
            "env",
        )
    with closing(_make_environments(env_id, 1, episodes, episodes.name, config)) as environments:
        if episodes.num_actions is not None:
            return
        low, high = control.action_bounds(environments)
        overshoot = np.maximum(low - episodes.actions, episodes.actions - high)
        if fraction := float((overshoot > MAX_OVERSHOOT).any(axis=1).mean()):
            print(
                f"note: {fraction:.1%} of the actions exceed the bounds of {env_id} "
                f"({low.min():g} to {high.max():g}) and are clipped; check the unit of the actions",
                file=sys.stderr,
            )


def _make_environments(
    env_id: str,
    num_envs: int,
    like: Episodes | OfflineRLSpec,
    dataset: str,
    config: OfflineRLConfig,
) -> VectorEnv:
    """Makes environments, and checks their actions and maximum number of steps."""
    environments = control.make_environments(env_id, num_envs, observation_dim=like.observation_dim)
    max_length, limit = max_episode_length(config), control.max_episode_steps(environments)
    try:
        num_actions = control.num_actions(environments)
        if num_actions is None:
            action_dim = len(control.action_bounds(environments)[0])
            fits = like.num_actions is None and like.action_dim == action_dim
        else:
            action_dim, fits = 1, like.num_actions is not None and like.num_actions <= num_actions
        if not fits:
            raise OptionError(
                f"expected {actions_as_text(like.action_dim, like.num_actions)}, as in {dataset}, "
                f"got {actions_as_text(action_dim, num_actions)} in {env_id}; pass the environment "
                "of the data. Discrete actions must be stored as integers.",
                "env",
            )
        if max_length is not None and limit > max_length:
            raise OptionError(
                f"an episode of {env_id} may have {limit:,} steps, but the model has times for "
                f"{max_length:,}; increase max_length, or choose another position.",
                "max_length",
                "position",
            )
    except OptionError:
        environments.close()
        raise
    return environments


def play_run(run: Run, environments: VectorEnv, **how: Any) -> Episodes:
    """Plays the test episodes of a run; ``how`` are options of ``make_agent``."""
    agent = make_agent(run, environments.num_envs, control.max_episode_steps(environments), **how)
    return control.play(agent, environments, episode_seeds(run.config))


def episode_seeds(config: OfflineRLConfig) -> list[int]:
    """Random seeds of the test episodes."""
    first = config.play.play_seed
    return list(range(first, first + config.play.play_episodes))


def played_return(
    config: OfflineRLConfig, data_spec: OfflineRLSpec, model: Any, task: Any
) -> float:
    """Mean return of the test episodes, to select parameters."""
    environments = make_run_environments(data_spec, config)
    if environments is None:
        raise OptionError(
            "select_on='return' needs an environment to play in, got none.", "select_on", "env"
        )
    with closing(environments):
        return float(play_run(Run(task, config, data_spec, model), environments).returns.mean())


def test_values(run: Run, batches: WindowBatches) -> tuple[dict[str, Any], Episodes | None]:
    """Returns the metrics of actions in held-out episodes, and the played episodes, if any."""
    config, data_spec = run.config, run.data_spec
    values: dict[str, Any] = {
        "dataset": data_spec.dataset,
        "mechanism": mechanism_name(config.layers),
        "num_train": data_spec.num_train_steps,
        "num_test_steps": batches.episodes.num_steps,
        **{f"test_{name}": value for name, value in action_metrics(run, batches).items()},
    }
    environments = make_run_environments(data_spec, config)
    if environments is None:
        return values, None
    with closing(environments):
        played = play_run(run, environments)
    settings = {
        "env": data_spec.env_id,
        "act": config.play.act,
        "selected_on": config.fit.select_on,
        "target_return": data_spec.target_return,
    }
    if data_spec.num_actions is not None:
        settings["sample_actions"] = config.play.sample_actions
    return values | settings | summarize_returns("test", played), played


def summarize_returns(name: str, played: Episodes) -> dict[str, float]:
    """Mean and standard deviation of returns, mean length, and normalized score, if any."""
    returns = played.returns
    values = {f"{name}_return": float(returns.mean())}
    if len(returns) > 1:
        values[f"{name}_return_sd_of_episodes"] = float(returns.std(ddof=1))
    values[f"{name}_length"] = float(played.lengths.mean())
    scores = normalized_scores(returns, played.env_id)
    return values if scores is None else values | {f"{name}_score": float(np.mean(scores))}


def list_episodes(run: Run, played: Episodes) -> list[dict[str, Any]]:
    """Lists seed, return and length of each episode."""
    rows = zip(episode_seeds(run.config), played.returns, played.lengths, strict=True)
    return [
        {"seed": seed, "return": round(float(value), 3), "length": int(length)}
        for seed, value, length in rows
    ]


def decision_loss(
    space: ActionSpace,
    model: models.DecisionTransformer,
    batch: dict[str, Array],
    dropout_key: Array | None,
) -> tuple[Array, dict[str, tuple[Array, Array]]]:
    """Mean loss of the actions of valid steps, and the sums of all metrics of the action space."""
    outputs = model(batch["x"], mask=batch["mask"], dropout_key=dropout_key)
    real = jnp.where(batch["mask"], batch["weight"][:, None], 0)
    count = jnp.sum(real)
    sums = {
        name: (jnp.sum(jnp.where(real > 0, values, 0)), count)
        for name, values in space.evaluate(outputs, batch["actions"]).items()
    }
    return sums["loss"][0] / jnp.maximum(count, 1), sums


def action_metrics(run: Run, batches: WindowBatches) -> dict[str, float]:
    """Metrics of actions over all windows, such as the mean squared error, by name."""
    space = run.data_spec.action_space
    totals = dict.fromkeys(space.metrics, np.zeros(2))
    for step in range(len(batches)):
        sums = _sum_metrics(space, run.model, batches.batch(step))
        totals = {key: totals[key] + np.asarray(sums[key], np.float64) for key in totals}
    return {space.metrics[key]: float(total / count) for key, (total, count) in totals.items()}


@nnx.jit(static_argnums=0)
def _sum_metrics(space: ActionSpace, model: Any, batch: Mapping[str, Any]) -> Any:
    return decision_loss(space, model, dict(batch), None)[1]


def baseline_values(run: Run, batches: WindowBatches) -> dict[str, Any]:
    """Tests the baselines, which are trained on the same episodes without a sequence model."""
    train = read_or_note(partial(own_episodes, run, "train"))
    if train is None:
        return {}
    data_spec, config = run.data_spec, run.config
    parts = (train, batches.episodes)
    inputs, test_inputs = (data_spec.scaled_observations(part.observations) for part in parts)
    targets, test_targets = (data_spec.scaled_actions(part.actions) for part in parts)
    space = data_spec.action_space
    constant, metric = space.baselines.names[0], space.baselines.metric
    vectors = space.to_vectors(targets)
    x, y = (
        np.concatenate([part.astype(np.float64), np.ones((len(part), 1))], axis=1)
        for part in (inputs, test_inputs)
    )
    ridge = np.linalg.solve(x.T @ x + np.eye(x.shape[1]), x.T @ vectors)  # a penalty of one row
    values = {
        "data_return": data_spec.mean_return,
        "best_data_return": data_spec.best_return,
        f"{constant}_{metric}": space.score(vectors.mean(axis=0, keepdims=True), test_targets),
        f"ridge_{metric}": space.score(y @ ridge, test_targets),
    }
    if not config.play.behavior_cloning_steps:
        return values
    with ExitStack() as stack:
        environments = make_run_environments(data_spec, config)
        if environments is not None:
            stack.enter_context(closing(environments))
        for name, policy in train_policies(train, data_spec, config).items():
            outputs = np.asarray(predict_policy_outputs(policy, test_inputs))
            values[f"{name}_{metric}"] = space.score(outputs, test_targets)
            if environments is not None:
                agent = PolicyAgent(policy, data_spec, config.play.sample_actions)
                played = control.play(agent, environments, episode_seeds(config))
                values |= summarize_returns(name, played)
    return values


def train_policies(
    train: Episodes, data_spec: OfflineRLSpec, config: OfflineRLConfig
) -> dict[str, Policy]:
    """Trains policies by behavior cloning on all and on the best episodes, by baseline name."""
    parts = {"behavior_cloning": train, "percentile_behavior_cloning": train.top(BEST_FRACTION)}
    steps, seed = config.play.behavior_cloning_steps, config.seed
    return {name: train_policy(part, data_spec, steps, seed) for name, part in parts.items()}


def own_episodes(run: Run, name: Literal["train", "test"]) -> Episodes:
    """Loads the unchanged training or test episodes of a run; see ``own_part``."""
    part: Episodes = own_part(run, name, load_data, split_data, Episodes.checksum)
    return part


def stream_error(run: Run, episodes: Episodes) -> dict[str, Any]:
    """Compares streamed and parallel actions over the longest episode."""
    longest = episodes.take([int(np.argmax(episodes.lengths))])
    times = run.model.num_positions
    steps = MAX_COMPARED_STEPS if times is None else min(MAX_COMPARED_STEPS, times)
    return stream_difference(run.model, scale_episodes(longest, run.data_spec).x[None, :steps])


def predict(run: Run, file: Path | None) -> pd.DataFrame:
    """Predicts the action at the last step of each episode, one row per episode.

    Discrete actions are followed by the probability of each action.

    The context is the last steps of the episode, up to the training length, with the recorded
    actions. The return-to-go starts at the target return of the run; the last action and its reward
    are ignored.

    Raises:
        ValueError: If the file does not match the run, or an action is NaN.
    """
    batches = run.task.test_batches(run, file)
    assert isinstance(batches, WindowBatches)
    episodes, data_spec, context = batches.episodes, run.data_spec, run.config.fit.context
    scaled = scale_episodes(episodes, data_spec).x
    action_dim = data_spec.action_dim
    windows = np.zeros((episodes.num_episodes, context, scaled.shape[1]), np.float32)
    lengths = np.minimum(episodes.lengths, context)
    returns_to_go = np.zeros(episodes.num_episodes)
    for row, (start, stop) in enumerate(itertools.pairwise(episodes.starts)):
        rewards = episodes.rewards[start : stop - 1].astype(np.float64)
        left = data_spec.target_return - np.concatenate([[0.0], np.add.accumulate(rewards)])
        x = scaled[stop - lengths[row] : stop]
        windows[row, : len(x)] = columns(
            x[:, 0],
            x[:, 1],
            left[-len(x) :] / data_spec.return_scale,
            x[:, 3:-action_dim],
            x[:, -action_dim:],
        )
        returns_to_go[row] = left[-1]
    mask = np.arange(context) < lengths[:, None]
    outputs = np.asarray(
        predict_outputs(run.model, begin_context(windows, run.config.model.clock), mask)
    )[np.arange(len(lengths)), lengths - 1]
    space = data_spec.action_space
    if np.isnan(space.choose(outputs)).any():
        raise ValueError("the actions of the model are NaN, because its numbers overflow.")
    names = ("episode", "step", "return_to_go", *space.names)
    numbers = np.arange(episodes.num_episodes)
    return make_table(names, (numbers, episodes.lengths, returns_to_go, *space.columns(outputs)))
