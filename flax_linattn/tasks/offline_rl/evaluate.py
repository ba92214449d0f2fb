"""Trained models of decisions: tested on held-out actions, played, and asked to predict."""

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
from flax_linattn.tasks.baselines import Baselines, read_or_note
from flax_linattn.tasks.offline_rl.agent import make_agent, predict_actions
from flax_linattn.tasks.offline_rl.behavior_cloning import (
    CloneAgent,
    ClonedPolicy,
    predict_cloned_actions,
    train_clone,
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
    "return", ("data", "clone", "best_clone"), larger_is_better=True, title="return"
)
# The model receives the return-to-go and the actions before, the baselines observations alone.
ACTION_BASELINES = Baselines("mse", ("mean", "ridge", "clone"), title="squared error of actions")

BEST_FRACTION = 0.1
"""Fraction of the steps that the clone of the best imitates, as 10 % behavior cloning."""
MAX_OVERSHOOT = 1e-3
MAX_ENVIRONMENTS = 64
MAX_COMPARED_STEPS = 1000
"""Steps over which the stream is compared with the parallel model."""


def make_run_environments(data_spec: OfflineRLSpec, config: OfflineRLConfig) -> VectorEnv | None:
    """Environments to play in; None, with a note, where there are none.

    Raises:
        OptionError: the environment that the options name does not fit.
    """
    if data_spec.env_id is None or not config.play.play_episodes:
        return None
    try:
        num_envs = min(config.play.play_episodes, MAX_ENVIRONMENTS)
        return _fitting(data_spec.env_id, num_envs, data_spec, data_spec.dataset, config)
    except ValueError as error:
        if config.data.env:  # it is asked for
            raise
        print(f"note: not played, for {error}", file=sys.stderr)
        return None


def check_environment(episodes: Episodes, env_id: str, config: OfflineRLConfig) -> None:
    """Refuses an environment that does not exist, does not fit, or is another robot's."""
    families = [find_family(name) for name in (env_id, episodes.env_id or "")]
    if None not in families and len(set(families)) == 2:
        raise OptionError(
            f"{episodes.name} are episodes of {episodes.env_id}, got env={env_id}; give that one.",
            "env",
        )
    with closing(_fitting(env_id, 1, episodes, episodes.name, config)) as environments:
        low, high = control.action_bounds(environments)
        overshoot = np.maximum(low - episodes.actions, episodes.actions - high)
        if share := float((overshoot > MAX_OVERSHOOT).any(axis=1).mean()):
            print(
                f"note: {share:.1%} of the actions are beyond the bounds of {env_id}, "
                f"{low.min():g} to {high.max():g}, to which it clips them; are they in its unit?",
                file=sys.stderr,
            )


def _fitting(
    env_id: str,
    num_envs: int,
    like: Episodes | OfflineRLSpec,
    dataset: str,
    config: OfflineRLConfig,
) -> VectorEnv:
    """Environments with as many numbers in observations and actions, and no more steps."""
    environments = control.make_environments(env_id, num_envs, observation_dim=like.observation_dim)
    most, limit = max_episode_length(config), control.max_episode_steps(environments)
    try:
        action_dim = len(control.action_bounds(environments)[0])
        if action_dim != like.action_dim:
            raise OptionError(
                f"actions of {env_id} have {action_dim} numbers, those of {dataset} "
                f"{like.action_dim}; give the environment of the data.",
                "env",
            )
        if most is not None and limit > most:
            raise OptionError(
                f"an episode of {env_id} may have {limit:,} steps, and the model "
                f"has times for {most:,}; raise max_length, or choose another position.",
                "max_length",
                "position",
            )
    except OptionError:
        environments.close()
        raise
    return environments


def play_run(run: Run, environments: VectorEnv, **how: Any) -> Episodes:
    """Plays the episodes of a run's test; ``how`` as in ``make_agent``."""
    agent = make_agent(run, environments.num_envs, control.max_episode_steps(environments), **how)
    return control.play(agent, environments, episode_seeds(run.config))


def episode_seeds(config: OfflineRLConfig) -> list[int]:
    """Seeds of the test episodes."""
    first = config.play.play_seed
    return list(range(first, first + config.play.play_episodes))


def played_return(
    config: OfflineRLConfig, data_spec: OfflineRLSpec, model: Any, task: Any
) -> float:
    """The mean return of the episodes of the test, which selects."""
    environments = make_run_environments(data_spec, config)
    if environments is None:
        raise OptionError("there is no environment whose return could select.", "select_on", "env")
    with closing(environments):
        return float(play_run(Run(task, config, data_spec, model), environments).returns.mean())


def test_values(run: Run, batches: WindowBatches) -> tuple[dict[str, Any], Episodes | None]:
    """The error of actions in held-out episodes, and the episodes that were played, if any."""
    config, data_spec = run.config, run.data_spec
    values: dict[str, Any] = {
        "dataset": data_spec.dataset,
        "mechanism": mechanism_name(config.layers),
        "num_train": data_spec.num_train_steps,
        "num_test_steps": batches.episodes.num_steps,
        "test_mse": action_error(run.model, batches),
    }
    environments = make_run_environments(data_spec, config)
    if environments is None:
        return values, None
    with closing(environments):
        played = play_run(run, environments)
    asked = {
        "env": data_spec.env_id,
        "act": config.play.act,
        "selected_on": config.fit.select_on,
        "target_return": data_spec.target_return,
    }
    return values | asked | summarize_returns("test", played), played


def summarize_returns(name: str, played: Episodes) -> dict[str, float]:
    """Mean and standard deviation of returns, mean length, and score where there is one."""
    returns = played.returns
    values = {f"{name}_return": float(returns.mean())}
    if len(returns) > 1:
        values[f"{name}_return_sd_of_episodes"] = float(returns.std(ddof=1))
    values[f"{name}_length"] = float(played.lengths.mean())
    scores = normalized_scores(returns, played.env_id)
    return values if scores is None else values | {f"{name}_score": float(np.mean(scores))}


def list_episodes(run: Run, played: Episodes) -> list[dict[str, Any]]:
    """Seed, return and length of each episode."""
    rows = zip(episode_seeds(run.config), played.returns, played.lengths, strict=True)
    return [
        {"seed": seed, "return": round(float(value), 3), "length": int(length)}
        for seed, value, length in rows
    ]


def decision_loss(
    model: models.DecisionTransformer, batch: dict[str, Array], dropout_key: Array | None
) -> tuple[Array, dict[str, tuple[Array, Array]]]:
    """Mean squared error of the actions of real steps, in their scale of -1 ... 1."""
    told = model(batch["x"], mask=batch["mask"], dropout_key=dropout_key)
    real = jnp.where(batch["mask"], batch["weight"][:, None], 0)
    error = jnp.mean((told - batch["actions"]) ** 2, axis=-1)
    total, count = jnp.sum(jnp.where(real > 0, error, 0)), jnp.sum(real)
    return total / jnp.maximum(count, 1), {"loss": (total, count)}


def action_error(model: Any, batches: WindowBatches) -> float:
    """Mean squared error of actions over all windows, in the model's scale."""
    totals = np.zeros(2)
    for step in range(len(batches)):
        totals += np.asarray(_error(model, batches.batch(step)), np.float64)
    return float(totals[0] / totals[1])


@nnx.jit
def _error(model: Any, batch: Mapping[str, Any]) -> Any:
    return jnp.stack(decision_loss(model, dict(batch), None)[1]["loss"])


def baseline_values(run: Run, batches: WindowBatches) -> dict[str, Any]:
    """Numbers of methods without a model of sequences, trained on the same episodes."""
    train = read_or_note(partial(own_episodes, run, "train"))
    if train is None:
        return {}
    data_spec, config = run.data_spec, run.config
    parts = (train, batches.episodes)
    inputs, test_inputs = (data_spec.scaled_observations(part.observations) for part in parts)
    targets, test_targets = (data_spec.scaled_actions(part.actions) for part in parts)
    x, y = (
        np.concatenate([part.astype(np.float64), np.ones((len(part), 1))], axis=1)
        for part in (inputs, test_inputs)
    )
    ridge = np.linalg.solve(x.T @ x + np.eye(x.shape[1]), x.T @ targets)  # a penalty of one row
    values = {
        "data_return": data_spec.mean_return,
        "best_data_return": data_spec.best_return,
        "mean_mse": float(np.mean((test_targets - targets.mean(axis=0)) ** 2)),
        "ridge_mse": float(np.mean((y @ ridge - test_targets) ** 2)),
    }
    if not config.play.clone_steps:
        return values
    with ExitStack() as stack:
        environments = make_run_environments(data_spec, config)
        if environments is not None:
            stack.enter_context(closing(environments))
        for name, clone in train_clones(train, data_spec, config).items():
            actions = np.asarray(predict_cloned_actions(clone, test_inputs))
            values[f"{name}_mse"] = float(np.mean((actions - test_targets) ** 2))
            if environments is not None:
                played = control.play(
                    CloneAgent(clone, data_spec), environments, episode_seeds(config)
                )
                values |= summarize_returns(name, played)
    return values


def train_clones(
    train: Episodes, data_spec: OfflineRLSpec, config: OfflineRLConfig
) -> dict[str, ClonedPolicy]:
    """Clones of all episodes, and of the best of them, by their names among the baselines."""
    kinds = {"clone": train, "best_clone": train.top(BEST_FRACTION)}
    steps, seed = config.play.clone_steps, config.seed
    return {name: train_clone(part, data_spec, steps, seed) for name, part in kinds.items()}


def own_episodes(run: Run, name: Literal["train", "test"]) -> Episodes:
    """The episodes that the run was trained on, or is to be tested on; see ``own_part``."""
    part: Episodes = own_part(run, name, load_data, split_data, Episodes.checksum)
    return part


def stream_error(run: Run, episodes: Episodes) -> dict[str, Any]:
    """The largest difference between streamed and parallel actions, over the longest episode."""
    longest = episodes.take([int(np.argmax(episodes.lengths))])
    times = run.model.num_positions
    most = MAX_COMPARED_STEPS if times is None else min(MAX_COMPARED_STEPS, times)
    return stream_difference(run.model, scale_episodes(longest, run.data_spec).x[None, :most])


def predict(run: Run, file: Path | None) -> pd.DataFrame:
    """A row for each episode: its last step, the return-to-go there, and the action.

    The model receives the last steps of the episode, as many as it was trained on, with the actions
    that were taken. The target return of the run holds at the start; the last action and its reward
    do not count.

    Raises:
        ValueError: the file does not fit the run, or NaN comes out.
    """
    batches = run.task.test_batches(run, file)
    assert isinstance(batches, WindowBatches)
    episodes, data_spec, context = batches.episodes, run.data_spec, run.config.fit.context
    scaled = scale_episodes(episodes, data_spec).x
    action_dim = data_spec.action_dim
    windows = np.zeros((episodes.num_episodes, context, scaled.shape[1]), np.float32)
    lengths = np.minimum(episodes.lengths, context)
    asked = np.zeros(episodes.num_episodes)
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
        asked[row] = left[-1]
    mask = np.arange(context) < lengths[:, None]
    told = np.asarray(
        predict_actions(run.model, begin_context(windows, run.config.model.clock), mask)
    )
    actions = data_spec.actions(told[np.arange(len(told)), lengths - 1])
    if np.isnan(actions).any():
        raise ValueError("the model's actions are NaN: its numbers overflow.")
    names = ["episode", "step", "return_to_go"]
    names += [f"action{number}" for number in range(1, action_dim + 1)]
    return make_table(names, (np.arange(len(actions)), episodes.lengths, asked, *actions.T))
