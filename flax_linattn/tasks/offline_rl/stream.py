"""A trained model over a stream: observations in, actions out."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import MAX_INTEGER, OptionError, at_least, choice
from flax_linattn.tasks.lines import CellLines
from flax_linattn.tasks.offline_rl.agent import DecisionAgent, make_recurrent
from flax_linattn.tasks.offline_rl.data import max_episode_length
from flax_linattn.tasks.offline_rl.figures import plot_actions
from flax_linattn.tasks.spec import Run
from flax_linattn.tasks.streaming import Record, Streaming, explain_full_stream


@dataclasses.dataclass(frozen=True)
class OfflineRLStreamOptions:
    """Options of a stream of decisions.

    A step is a line: the reward of the action before (empty where there was none), then the numbers
    of the observation, separated by commas; a first line may name the columns. A blank line begins
    a new episode. What comes out is the action to take.

    Attributes:
        act: How the agent handles the context: "stream" (all steps of the episode) or "restart"
            (the last steps, at most as many as in training). Default: the value of the run;
            "restart" for a run with "window".
        target_return: Target return (return-to-go at the start of the episode). Default: the target
            return of the run.
        max_length: Maximum number of steps of an episode, for mechanisms with a cache. Default: the
            longest training episode of the run.
    """

    act: Literal["stream", "restart"] | None = None
    target_return: float | None = None
    max_length: int | None = None

    def __post_init__(self) -> None:
        at_least(1, MAX_INTEGER, max_length=self.max_length)
        if self.act is not None:
            choice(("stream", "restart"), act=self.act)
        target = self.target_return
        if target is not None and not abs(target) < float("inf"):
            raise OptionError(f"target_return must be finite, got {target}.", "target_return")


DRAWN = 1000
"""Last steps of the figure."""


class OfflineRLStream(Streaming):
    """The action to take after each observation, in constant time.

    Args:
        run: the trained run.
        options: as there.

    Attributes:
        agent: what acts, in one row.

    Raises:
        ValueError: the model cannot stream, or an option is out of range.
    """

    def __init__(self, run: Run, options: OfflineRLStreamOptions) -> None:
        if not run.model.streams:
            raise OptionError(
                "the run cannot stream: its mechanism has no recurrent form.", "mechanism"
            )
        data_spec = run.data_spec
        act = options.act or ("stream" if run.config.play.act == "stream" else "restart")
        asked = options.target_return
        target = data_spec.target_return if asked is None else asked
        length = data_spec.max_steps if options.max_length is None else options.max_length
        memory = make_recurrent(run, act, 1, length)
        super().__init__(
            run,
            memory.stream,
            ["step", "return_to_go", *(f"action{n}" for n in range(1, data_spec.action_dim + 1))],
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
        self._drawn: deque[np.ndarray] = deque(maxlen=DRAWN)

    def parse(self, lines: Iterable[str]) -> Iterator[StreamedStep | None]:
        """Reads a step a line; see ``parse_steps``."""
        return parse_steps(lines, self._run.data_spec.observation_dim)

    def cells(self, observation: StreamedStep | None) -> Sequence[Any] | None:
        """Step of the episode, the return that is still asked for, and the action."""
        if observation is None:
            self._restart()
            self.num_breaks += 1
            return None
        action = self.step(observation)
        asked = float(self.agent.returns_to_go[0])
        return [self._length, asked, *action]

    @property
    def _length(self) -> int:
        return int(self.agent.steps[0])

    def step(self, seen: StreamedStep) -> np.ndarray:
        """Takes in a step.

        Returns:
            The action, float32 [A], in the unit of the run's data.

        Raises:
            ValueError: the reward of the action before is missing, no room is left, or NaN comes
                out.
        """
        begins, times = not self._length, max_episode_length(self._run.config)
        if times is not None and self._length >= times:
            raise OptionError(
                f"the model has times for {times:,} steps; train it with a larger max_length or "
                "another position. A blank line begins an episode.",
                "position",
            )
        if seen.reward is None and not begins:
            raise ValueError(
                f"expected the reward of action {self._length} in front of what came of it, got "
                "nothing; give it, or begin a new episode by a blank line."
            )
        reward = 0.0 if begins or seen.reward is None else seen.reward
        with explain_full_stream("episode"):
            (action,) = self.agent.act(
                seen.observation[None].astype(np.float32),
                np.array([reward]),
                np.array([begins]),
            )
        if np.isnan(action).any():
            raise ValueError("the model's actions are NaN: its numbers overflow.")
        self.num_steps += 1
        self._drawn.append(action)
        return np.asarray(action)

    def is_possible(self, record: Record) -> bool:
        """An episode no longer than the stream, and a scaled action."""
        steps = int(record["agent.steps"][0])
        return bool(
            steps <= record["num_steps"]
            and self._memory.can_hold(int(record["agent.memory.ages"][0]), steps)
            and np.abs(record["agent.last_actions"]).max() <= 1
        )

    def resume(self) -> None:
        """Restores a saved stream; its figure starts empty."""
        self._drawn.clear()

    def ages(self, record: Record) -> Sequence[int]:
        """Steps that the state holds."""
        return [int(record["agent.memory.ages"][0])]

    def end(self) -> str | None:
        """What of the return is left."""
        if not self._length:
            return None
        asked = float(self.agent.returns_to_go[0])
        return f"step {self._length:,} of the episode; still asked for: {asked:.6g}"

    def plot(self, path: Path) -> None:
        """Plots the last actions of the episode."""
        if not self._drawn:
            raise ValueError("expected steps for a figure, got none; leave it out.")
        plot_actions(np.stack(self._drawn), path)

    def _restart(self) -> None:
        self._stream.reset()
        self._memory.ages = np.zeros_like(self._memory.ages)
        self.agent = DecisionAgent(self._run.data_spec, self._memory, 1, self._target)
        self._drawn.clear()


class StreamedStep(NamedTuple):
    """What is seen in a step.

    Attributes:
        reward: of the action before; None where none is told.
        observation: float64 [S].
    """

    reward: float | None
    observation: NDArray[np.float64]


def parse_steps(lines: Iterable[str], observation_dim: int) -> Iterator[StreamedStep | None]:
    """Parses one step per line: the previous reward, or an empty cell, and the observation.

    A first line may name the columns, in this order.

    Example:
        >>> for seen in parse_steps([",0.5,1", "-2,0.25,1"], 2):
        ...     print(seen.reward, seen.observation.tolist())
        None [0.5, 1.0]
        -2.0 [0.25, 1.0]
    """
    reward, *others = "reward", *(f"observation{n}" for n in range(1, observation_dim + 1))
    for cells in CellLines((reward, *others), header="order").cells(lines):
        if cells is None:
            yield None
            continue
        told = bool(cells.texts[reward])
        values = cells.numbers([reward, *others] if told else others)
        if not np.abs(values).max() <= np.finfo(np.float32).max:  # nor is NaN one
            raise ValueError("expected finite numbers that float32 can hold.")
        yield StreamedStep(float(values[0]) if told else None, values[told:])
