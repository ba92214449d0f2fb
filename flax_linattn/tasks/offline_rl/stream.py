"""Stream of an offline-RL run: observations in, actions out."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import OptionError
from flax_linattn.tasks.lines import CellLines
from flax_linattn.tasks.offline_rl.actions import ContinuousActions
from flax_linattn.tasks.offline_rl.agent import DecisionAgent, RestartMemory, make_stream_memory
from flax_linattn.tasks.offline_rl.data import max_episode_length
from flax_linattn.tasks.offline_rl.figures import plot_actions
from flax_linattn.tasks.offline_rl.options import OfflineRLStreamOptions
from flax_linattn.tasks.spec import Run
from flax_linattn.tasks.streaming import Record, Streaming, explain_full_stream

MAX_ACTIONS = 1000
"""Maximum number of actions in the figure."""


class OfflineRLStream(Streaming):
    """Predicts the action to take after each observation, in constant time.

    Args:
        run: The trained run.
        options: Options of the stream.

    Attributes:
        agent: The agent, with one row.

    Raises:
        ValueError: If the model cannot stream, or an option is out of range.
    """

    def __init__(self, run: Run, options: OfflineRLStreamOptions) -> None:
        if not run.model.streams:
            raise OptionError(
                "the run cannot stream, because its mechanism has no recurrent form.", "mechanism"
            )
        data_spec = run.data_spec
        act = options.act or ("stream" if run.config.play.act == "stream" else "restart")
        target = options.target_return
        target = data_spec.target_return if target is None else target
        length = data_spec.max_steps if options.max_length is None else options.max_length
        memory = make_stream_memory(run, act, 1, length)
        super().__init__(
            run,
            memory.stream,
            ["step", "return_to_go", *data_spec.action_space.names],
            act=act,
            target_return=target,
            **({"max_length": length} if act == "stream" else {}),
        )
        self._memory, self._target = memory, target
        self.agent = DecisionAgent(data_spec, memory, 1, target)
        self.record_attributes = (
            *("agent.steps", "agent.returns_to_go", "agent.last_actions"),
            *(f"agent.memory.{name}" for name in memory.record_attributes),
        )
        self._actions: deque[np.ndarray] = deque(maxlen=MAX_ACTIONS)

    @property
    def without_restarts(self) -> str:
        return "act='stream'" if isinstance(self._memory, RestartMemory) else ""

    def interface(self) -> dict[str, Any] | None:
        """Describes observations and actions; None if the context restarts after an odd number."""
        data_spec, config = self._run.data_spec, self._run.config
        context = config.fit.context if isinstance(self._memory, RestartMemory) else 0
        if context % 2:
            return None
        space = data_spec.action_space
        is_discrete = space.num_actions is not None
        decision = {
            "kind": "decision",
            "names": _column_names(data_spec.observation_dim),
            "mean": list(data_spec.observation_mean),
            "std": list(data_spec.observation_scale),
            "return_scale": data_spec.return_scale,
            "initial": [self._target, *[0.0] * data_spec.action_dim],
            "clock": config.model.clock,
            "max_steps": max_episode_length(config),
            "is_discrete": is_discrete,
        }
        outputs: dict[str, Any] = {
            "kind": "classes",
            "names": [*map(str, range(space.num_outputs))],
        }
        if isinstance(space, ContinuousActions):
            middle, half = (numbers.tolist() for numbers in space.middle_and_half())
            outputs = {"kind": "targets", "columns": space.names, "mean": middle, "std": half}
        return {"inputs": [decision], "outputs": outputs, "context": context}

    def parse(self, lines: Iterable[str]) -> Iterator[StreamedStep | None]:
        """Parses one step per line; see ``parse_steps``."""
        return parse_steps(lines, self._run.data_spec.observation_dim)

    def cells(self, observation: StreamedStep | None) -> Sequence[Any] | None:
        """Returns the step of the episode, the return-to-go, and the columns of the action."""
        if observation is None:
            self._restart()
            self.num_breaks += 1
            return None
        self.step(observation)
        columns = self._run.data_spec.action_space.columns(self.agent.outputs)
        return [self._length, float(self.agent.returns_to_go[0]), *(c[0] for c in columns)]

    @property
    def _length(self) -> int:
        return int(self.agent.steps[0])

    def step(self, observation: StreamedStep) -> np.ndarray:
        """Processes a step, and predicts the action.

        Returns:
            The action, float32 [A], in the unit of the run's data; a discrete action, int64 [].

        Raises:
            ValueError: If the reward of the previous action is missing, the capacity is exhausted,
                or the action is NaN.
        """
        begins, times = not self._length, max_episode_length(self._run.config)
        if times is not None and self._length >= times:
            raise OptionError(
                f"an episode may have at most {times:,} steps, for which the model has times; "
                "train with a larger max_length or another position. A blank line begins a new "
                "episode.",
                "position",
            )
        if observation.reward is None and not begins:
            raise ValueError(
                f"expected the reward of action {self._length} before the observation, got an "
                "empty cell; write the reward, or begin a new episode by a blank line."
            )
        reward = 0.0 if begins or observation.reward is None else observation.reward
        with explain_full_stream("episode"):
            (action,) = self.agent.act(
                observation.values[None].astype(np.float32),
                np.array([reward]),
                np.array([begins]),
            )
        if np.isnan(self.agent.last_actions).any():
            raise ValueError("the actions of the model are NaN, because its numbers overflow.")
        self.num_steps += 1
        self._actions.append(np.atleast_1d(action))
        return np.asarray(action)

    def is_possible(self, record: Record) -> bool:
        """Whether the episode is no longer than the stream, and the last action is possible."""
        steps = int(record["agent.steps"][0])
        return bool(
            steps <= record["num_steps"]
            and self._memory.can_hold(int(record["agent.memory.ages"][0]), steps)
            and self._run.data_spec.action_space.is_valid(record["agent.last_actions"])
        )

    def resume(self) -> None:
        """Clears the actions of the figure, which are not saved."""
        self._actions.clear()

    def ages(self, record: Record) -> Sequence[int]:
        """Number of steps in the state of the row."""
        return [int(record["agent.memory.ages"][0])]

    def end(self) -> str | None:
        """Returns a note on the step of the episode and its return-to-go."""
        if not self._length:
            return None
        return_to_go = float(self.agent.returns_to_go[0])
        return f"step {self._length:,} of the episode; return-to-go: {return_to_go:.6g}"

    def plot(self, path: Path) -> None:
        """Plots the last actions of the episode."""
        if not self._actions:
            raise ValueError("the figure needs steps of an episode, got none; remove the figure.")
        plot_actions(np.stack(self._actions), self._run.data_spec.action_space.names, path)

    def _restart(self) -> None:
        self._stream.reset()
        self._memory.ages = np.zeros_like(self._memory.ages)
        self.agent = DecisionAgent(self._run.data_spec, self._memory, 1, self._target)
        self._actions.clear()


class StreamedStep(NamedTuple):
    """A step of an episode in a stream.

    Attributes:
        reward: Reward of the previous action; None if the cell is empty.
        values: Observation, float64 [S].
    """

    reward: float | None
    values: NDArray[np.float64]


def _column_names(observation_dim: int) -> list[str]:
    """Names of the reward and of the numbers of an observation."""
    return ["reward", *(f"observation{n}" for n in range(1, observation_dim + 1))]


def parse_steps(lines: Iterable[str], observation_dim: int) -> Iterator[StreamedStep | None]:
    """Parses one step per line: the previous reward, or an empty cell, and the observation.

    A first line may name the columns, in this order.

    Example:
        >>> for step in parse_steps([",0.5,1", "-2,0.25,1"], 2):
        ...     print(step.reward, step.values.tolist())
        None [0.5, 1.0]
        -2.0 [0.25, 1.0]
    """
    reward, *others = _column_names(observation_dim)
    for cells in CellLines((reward, *others), header="order").cells(lines):
        if cells is None:
            yield None
            continue
        has_reward = bool(cells.texts[reward])
        values = cells.numbers([reward, *others] if has_reward else others)
        if not np.abs(values).max() <= np.finfo(np.float32).max:  # false for NaN
            raise ValueError("expected finite numbers in the range of float32.")
        yield StreamedStep(float(values[0]) if has_reward else None, values[has_reward:])
