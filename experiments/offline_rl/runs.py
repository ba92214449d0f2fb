"""Offline-RL runs trained in memory, and their returns."""

from __future__ import annotations

import tempfile
import time
from contextlib import closing
from typing import Any

from flax_linattn import tasks, training
from flax_linattn.data.episodes import Episodes, normalized_score
from flax_linattn.tasks.offline_rl import OfflineRLConfig, evaluate
from flax_linattn.tasks.offline_rl.agent import INFERENCE_MODES
from flax_linattn.tasks.offline_rl.data import WindowBatches
from flax_linattn.tasks.offline_rl.evaluate import action_metrics, play_run, stream_error


def train_run(config: OfflineRLConfig) -> tuple[tasks.Run, tasks.Run]:
    """A run with its selected parameters, and with its last ones; nothing is played."""
    plain = config.replace(play_episodes=0, behavior_cloning_steps=0)
    with tempfile.TemporaryDirectory() as folder:
        tasks.train("offline-rl", plain, training.Session(folder, progress=False))
        best = tasks.load_run(folder)
        last = tasks.load_run(folder, checkpoint="last")
    return best._replace(config=config), last._replace(config=config)


def train_and_play(config: OfflineRLConfig) -> dict[str, Any]:
    """Trains a run and plays its episodes in several ways.

    Returns:
        The error of actions in held-out episodes ("mse"), how far the stream is from the parallel
        model ("stream_max_error"), and ``play_timed``'s results for each inference mode and, by
        "last", for the window with the last parameters.
    """
    begun = time.perf_counter()
    best, last = train_run(config)
    seconds = time.perf_counter() - begun
    batches = best.task.test_batches(best, None)
    assert isinstance(batches, WindowBatches)
    results: dict[str, Any] = {
        "train_seconds": round(seconds, 1),
        **action_metrics(best, batches),
        **stream_error(best, batches.episodes),
    }
    with make_run_environments(best) as environments:
        for mode in INFERENCE_MODES:
            results[mode] = play_timed(best, environments, act=mode)
        results["last"] = play_timed(last, environments, act="window")
    return results


def make_run_environments(run: tasks.Run) -> closing[Any]:
    """The environments of a run's test, as a context that closes them."""
    environments = evaluate.make_run_environments(run.data_spec, run.config)
    assert environments is not None
    return closing(environments)


def play_timed(run: tasks.Run, environments: Any, **how: Any) -> dict[str, Any]:
    """Plays episodes; returns their metrics and the seconds."""
    begun = time.perf_counter()
    played = play_run(run, environments, **how)
    return episode_metrics(played) | {"seconds": round(time.perf_counter() - begun, 2)}


def episode_metrics(played: Episodes) -> dict[str, Any]:
    """Mean return, score and length, and the returns one by one."""
    returns = played.returns
    assert played.env_id is not None
    return {
        "return": float(returns.mean()),
        "score": float(normalized_score(returns, played.env_id).mean()),
        "length": float(played.lengths.mean()),
        "returns": [round(float(own), 1) for own in returns],
    }
