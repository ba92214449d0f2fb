"""The offline-RL task."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from flax import nnx

from flax_linattn import control, models, training
from flax_linattn.checks import OptionError, format_count
from flax_linattn.data.episodes import Episodes
from flax_linattn.data.episodes.episodes import actions_as_text
from flax_linattn.tasks.offline_rl import evaluate
from flax_linattn.tasks.offline_rl.agent import make_agent
from flax_linattn.tasks.offline_rl.data import (
    OfflineRLSpec,
    WindowBatches,
    describe,
    load_data,
    max_episode_length,
    resolve_env,
    resolve_target_return,
    split_data,
)
from flax_linattn.tasks.offline_rl.evaluate import decision_loss, predict
from flax_linattn.tasks.offline_rl.figures import plot_episodes
from flax_linattn.tasks.offline_rl.options import (
    OfflineRLConfig,
    OfflineRLOptions,
    OfflineRLStreamOptions,
)
from flax_linattn.tasks.offline_rl.stream import OfflineRLStream
from flax_linattn.tasks.spec import Run
from flax_linattn.tasks.task import DataSummary, Report, Task

if TYPE_CHECKING:
    from gymnasium.vector import VectorEnv


class OfflineRLTask(OfflineRLOptions, Task[OfflineRLConfig, Episodes, OfflineRLSpec]):
    """Offline reinforcement learning: predicts actions from recorded episodes."""

    DataSpec = OfflineRLSpec
    splits_time = False

    def check(self, config: OfflineRLConfig, placement: training.Placement) -> None:
        """Checks that the mechanism supports the inference mode; windows are not split in time."""
        super().check(config, placement)
        streams = all(m.capabilities.recurrent for m in config.layers.mechanisms)
        if config.play.act != "window" and not streams:
            raise OptionError(
                f"act={config.play.act!r} needs a mechanism with a recurrent form; choose another "
                "mechanism, or act='window'.",
                "act",
                "mechanism",
            )

    def load(self, config: OfflineRLConfig) -> Episodes:
        """Loads all episodes, and checks the environment if the options need it."""
        episodes = load_data(config.data)
        if config.play.sample_actions and episodes.num_actions is None:
            raise OptionError(
                f"sample_actions needs discrete actions, but {episodes.name} has "
                f"{actions_as_text(episodes.action_dim, None)}; remove it.",
                "sample_actions",
            )
        env_id, selects = resolve_env(config.data, episodes), config.fit.select_on == "return"
        if env_id is None and selects:
            raise OptionError(
                f"select_on='return' needs an environment, but {episodes.name} names none; pass "
                "env=....",
                "select_on",
                "env",
            )
        if env_id is not None and (config.data.env or selects):
            evaluate.check_environment(episodes, env_id, config)
        return episodes

    def describe(self, data: Episodes, config: OfflineRLConfig) -> OfflineRLSpec:
        """Makes the data spec: scales and returns of the training episodes."""
        return describe(data, config)

    def about_data(self, data: Episodes, config: OfflineRLConfig) -> DataSummary:
        """Describes episodes, sizes and returns, with the notes of the readers."""
        parts = split_data(data, config.data)
        numbers = ", ".join(f"{part.num_episodes:,}" for part in parts)
        returns, lengths = data.returns, data.lengths
        env_id = resolve_env(config.data, data)
        target = resolve_target_return(config, env_id, float(parts.train.returns.max()))
        where = f"to be played in {env_id}" if env_id else "not to be played"
        if env_id is None and config.data.env != "none":
            where = "not to be played, because the files name no environment; set env"
        text = (
            f"{data.name}: {format_count(data.num_episodes, 'episode')} of {lengths.min():,} to "
            f"{format_count(lengths.max(), 'step')}, {data.num_steps:,} in all, observations of "
            f"{data.observation_dim} and {actions_as_text(data.action_dim, data.num_actions)}\n"
            f"returns from {returns.min():.6g} to {returns.max():.6g}, mean {returns.mean():.6g}\n"
            f"episodes to train, validate and test on: {numbers}; {where}, with a target return of "
            f"{target:.6g}"
        )
        return DataSummary(text, data.notes)

    def batches(
        self,
        data: Episodes,
        config: OfflineRLConfig,
        data_spec: OfflineRLSpec,
        sequence_shards: int,
    ) -> training.Splits:
        """Makes batches of windows of steps."""
        parts = split_data(data, config.data)
        windows = partial(WindowBatches, data_spec=data_spec, config=config)
        return training.Splits(
            windows(parts.train, seed=config.seed),
            windows(parts.validation, seed=None),
            windows(parts.test, seed=None),
        )

    def model(
        self,
        config: OfflineRLConfig,
        data_spec: OfflineRLSpec,
        placement: training.Placement = training.ONE_DEVICE,
    ) -> models.DecisionTransformer:
        """Builds the ``models.DecisionTransformer`` of a run."""
        return models.DecisionTransformer(
            data_spec.observation_dim,
            data_spec.action_dim,
            num_actions=data_spec.num_actions,
            position=config.model.position,
            max_length=config.model.max_length,
            layers=config.layers.map_mechanisms(placement.mechanism),
            rngs=nnx.Rngs(config.seed),
        )

    def objective(
        self, config: OfflineRLConfig, data_spec: OfflineRLSpec, steps_per_epoch: int
    ) -> training.Objective:
        """Makes the objective: the loss of actions; it or the return selects parameters."""
        optimizer = config.fit.make_optimizer(steps_per_epoch)
        loss = partial(decision_loss, data_spec.action_space)
        if config.fit.select_on == "validation":
            return training.Objective(loss, optimizer)

        def validate(model: Any, step: int) -> dict[str, float]:
            return {"return": evaluate.played_return(config, data_spec, model, self)}

        return training.Objective(loss, optimizer, "return", "max", validate)

    def test_batches(self, run: Run, file: Path | None) -> WindowBatches:
        """Makes batches of the run's test episodes, or of all episodes of another file."""
        if file is None:
            test = evaluate.own_episodes(run, "test")
        else:
            options = replace(run.config.data, file=(file,), file_format="auto", num_episodes=0)
            test = load_data(options)
        data_spec = run.data_spec
        sizes, expected = (
            (of.observation_dim, of.action_dim, of.num_actions is None) for of in (test, data_spec)
        )
        if sizes != expected or (test.num_actions or 0) > (data_spec.num_actions or 0):
            its, ours = (
                f"observations of {of.observation_dim} and "
                f"{actions_as_text(of.action_dim, of.num_actions)}"
                for of in (test, data_spec)
            )
            raise OptionError(
                f"expected {ours} in {file}, got {its}; pass episodes of the same environment.",
                "test_file",
            )
        longest, max_length = int(test.lengths.max()), max_episode_length(run.config)
        if max_length is not None and longest > max_length:
            raise OptionError(
                f"{file} has an episode of {longest:,} steps, but the model has times for "
                f"{max_length:,}; pass shorter episodes.",
                "test_file",
            )
        return WindowBatches(test, run.data_spec, run.config, seed=None)

    def test(self, run: Run, batches: training.BatchSource) -> Report:
        """Reports the metrics of actions, and returns of played episodes."""
        assert isinstance(batches, WindowBatches)
        values, played = evaluate.test_values(run, batches)
        if played is None:
            return Report(values, baselines=run.data_spec.action_space.baselines)
        values["episodes"] = evaluate.list_episodes(run, played)
        return Report(
            values,
            tables=("episodes",),
            figures={"episodes.png": partial(plot_episodes, run.data_spec, played)},
            baselines=evaluate.RETURN_BASELINES,
        )

    def test_baselines(self, run: Run, batches: training.BatchSource) -> dict[str, Any]:
        """Tests behavior cloning, a ridge and a constant; reports the returns of the data."""
        assert isinstance(batches, WindowBatches)
        return evaluate.baseline_values(run, batches)

    def stream_error(self, run: Run, batches: training.BatchSource) -> dict[str, Any]:
        """Compares streamed and parallel actions over the longest episode."""
        assert isinstance(batches, WindowBatches)
        return evaluate.stream_error(run, batches.episodes)

    def predict(self, run: Run, file: Path | None) -> pd.DataFrame:
        """Predicts the action at the last step of each episode."""
        return predict(run, file)

    def stream(self, run: Run, options: OfflineRLStreamOptions) -> OfflineRLStream:
        """Makes a stream of actions after each observation."""
        return OfflineRLStream(run, options)

    def agent(self, run: Run, environments: VectorEnv, **how: Any) -> control.Agent:
        """Makes an agent; ``how`` are options of ``make_agent``."""
        num_rows, max_steps = environments.num_envs, control.max_episode_steps(environments)
        return make_agent(run, num_rows, max_steps, **how)
