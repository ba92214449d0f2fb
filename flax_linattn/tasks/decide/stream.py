"""A trained model over a stream: observations in, actions out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flax_linattn import inference
from flax_linattn.checks import OptionError
from flax_linattn.tasks.decide.data import columns
from flax_linattn.tasks.decide.figures import draw_actions
from flax_linattn.tasks.decide.rows import Seen, parse_lines
from flax_linattn.tasks.decide.stream_options import DecideStreamOptions
from flax_linattn.tasks.facts import read_count, read_numbers
from flax_linattn.tasks.run_types import Run
from flax_linattn.tasks.streaming import Streaming

DRAWN = 1000
"""Last steps of the figure."""


class DecideStream(Streaming):
    """The action to take after each observation, in constant time with all steps in view.

    Args:
        run: the trained run.
        options: as there.

    Attributes:
        return_to_go: what is asked for from the next step on, in the unit of the rewards.

    Raises:
        ValueError: the model cannot stream, or an option is out of range.
    """

    def __init__(self, run: Run, options: DecideStreamOptions) -> None:
        if not run.model.streams:
            raise OptionError(
                "the run cannot stream: its mechanism has no recurrent form.", "mechanism"
            )
        problem = run.problem
        asked = options.target_return
        self._target = problem.target_return if asked is None else asked
        length = problem.max_steps if options.max_length is None else options.max_length
        super().__init__(
            run,
            inference.Stream(run.model, max_length=length),
            ["step", "return_to_go", *(f"action{n}" for n in range(1, problem.action_dim + 1))],
            max_length=length,
            target_return=self._target,
        )
        self._problem = problem
        self._length = 0
        self.return_to_go = self._target
        self._last = np.zeros(problem.action_dim, np.float32)
        self._drawn: list[np.ndarray] = []

    def parse(self, lines: Iterable[str], name: str) -> Iterator[Seen | None]:
        """Reads a step a line; see ``parse_lines``."""
        return parse_lines(lines, name, self._problem.observation_dim)

    def cells(self, observation: Seen | None) -> Sequence[Any] | None:
        """Step of the episode, the return that is still asked for, and the action."""
        if observation is None:
            self._restart()
            self.num_breaks += 1
            return None
        action = self.step(observation)
        return [self._length, f"{self.return_to_go:.6g}", *(f"{x:.6g}" for x in action)]

    def step(self, seen: Seen) -> np.ndarray:
        """Takes in a step.

        Returns:
            The action, float32 [A], in the unit of the run's data.

        Raises:
            ValueError: no room is left, or NaN comes out.
        """
        problem = self._problem
        left = self.return_to_go - (seen.reward if self._length else 0.0)
        x = columns(
            np.array([self._length]),
            np.array([self._length > 0]),
            np.array([left / problem.return_scale]),
            problem.scaled_observations(seen.observation[None]),
            self._last[None],
        )
        try:
            told = np.asarray(self._stream.step(x))[0]
        except OptionError as error:  # no room is left
            raise OptionError(f"{error} A blank line begins an episode.", *error.options) from error
        if np.isnan(told).any():
            raise ValueError("the model's actions are NaN: its numbers overflow.")
        self._last, self.return_to_go = told, left
        self._length, self.num_steps = self._length + 1, self.num_steps + 1
        action = problem.actions(told)
        self._drawn = [*self._drawn[1 - DRAWN :], action]
        return action

    def facts(self) -> dict[str, Any]:
        """Where in the episode it is, what is asked for, and the last action."""
        return {
            "length": self._length,
            "asked": [self.return_to_go],
            "last": [float(x) for x in self._last],
        }

    def restore(self, facts: Mapping[str, Any]) -> None:
        """Goes on after the last step."""
        length = read_count(facts, "length")
        if length > read_count(facts, "num_steps"):
            raise ValueError(f"an episode of {length} steps is longer than the stream")
        (asked,) = read_numbers(facts, "asked", 1)
        last = read_numbers(facts, "last", self._problem.action_dim)
        if np.abs(last).max() > 1:
            raise ValueError(f"expected the last action in -1 ... 1, got {last}")
        self._length = self._stream.num_steps = length
        self.return_to_go, self._last = float(asked), last.astype(np.float32)
        self._drawn = []

    def ages(self, facts: Mapping[str, Any]) -> Sequence[int]:
        """Steps of the episode."""
        return [read_count(facts, "length")]

    def end(self) -> str | None:
        """What of the return is left."""
        if not self._length:
            return None
        return f"step {self._length:,} of the episode; still asked for: {self.return_to_go:.6g}"

    def draw(self, path: Path) -> None:
        """Draws the last actions."""
        if not self._drawn:
            raise ValueError("expected steps for a figure, got none; leave it out.")
        draw_actions(np.stack(self._drawn), path)

    def _restart(self) -> None:
        self._stream.reset()
        self._length, self.return_to_go = 0, self._target
        self._last = np.zeros_like(self._last)
        self._drawn = []
