"""The action for the last state of episodes, by a run's model."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from flax_linattn.inference.compiled import compiled
from flax_linattn.tasks.decide.data import WindowBatches, begin_context, columns, steps_of
from flax_linattn.tasks.predicted import Table
from flax_linattn.tasks.run_types import Run


def predict(run: Run, file: Path | None) -> Table:
    """A row an episode: its last step, the return that is still asked for there, and the action.

    The model sees the last steps of the episode, as many as it was trained on, with the actions
    that were taken. The return that the run remembers is asked for at the begin, less the rewards
    since; what the last action of the episode was, and its reward, do not count.

    Raises:
        ValueError: the file does not fit the run, or NaN comes out.
        FileNotFoundError: it is missing.
    """
    batches = run.task.test_batches(run, file)
    assert isinstance(batches, WindowBatches)
    episodes, problem, context = batches.episodes, run.problem, run.config.fit.context
    scaled = steps_of(episodes, problem).x
    action_dim = problem.action_dim
    windows = np.zeros((episodes.num_episodes, context, scaled.shape[1]), np.float32)
    lengths = np.minimum(episodes.lengths, context)
    asked = np.zeros(episodes.num_episodes)
    for row, (start, stop) in enumerate(
        zip(episodes.starts[:-1], episodes.starts[1:], strict=True)
    ):
        rewards = episodes.rewards[start : stop - 1].astype(np.float64)
        left = problem.target_return - np.concatenate([[0.0], np.add.accumulate(rewards)])
        own = slice(stop - lengths[row], stop)
        x = scaled[own]
        windows[row, : len(x)] = columns(
            x[:, 0],
            x[:, 1],
            left[-len(x) :] / problem.return_scale,
            x[:, 3:-action_dim],
            x[:, -action_dim:],
        )
        asked[row] = left[-1]
    mask = np.arange(context) < lengths[:, None]
    told = np.asarray(_actions(run.model, begin_context(windows, run.config.model.clock), mask))
    actions = problem.actions(told[np.arange(len(told)), lengths - 1])
    if np.isnan(actions).any():
        raise ValueError("the model's actions are NaN: its numbers overflow.")
    names = ["episode", "step", "return_to_go"]
    names += [f"action{number}" for number in range(1, action_dim + 1)]
    return Table(tuple(names), (np.arange(len(actions)), episodes.lengths, asked, *actions.T))


@compiled()
def _actions(model, x, mask):  # type: ignore[no-untyped-def]
    return model(x, mask=mask)
