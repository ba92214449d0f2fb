"""How a trained model acts: by the last steps, computed anew, or by a state that it carries."""

from __future__ import annotations

import abc
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flax_linattn import inference
from flax_linattn.checks import OptionError, choice
from flax_linattn.inference.compiled import compiled
from flax_linattn.tasks.decide.data import begin_context, columns
from flax_linattn.tasks.decide.problem import DecideProblem
from flax_linattn.tasks.run_types import Run

ACTS = ("window", "stream", "restart")
"""How a run can act."""

Rows = NDArray[np.bool_]
Numbers = NDArray[np.float32]


class DecisionAgent(abc.ABC):
    """Plays in B rows with a run's model: a ``control.Agent``.

    It asks for a return at the begin of an episode, and after each reward for what is left of it.

    Args:
        problem: of the run.
        num_rows: B.
        target_return: that is asked for.
    """

    def __init__(self, problem: DecideProblem, num_rows: int, target_return: float) -> None:
        self._problem, self._target = problem, target_return
        self._time = np.zeros(num_rows, np.int64)
        self.returns_to_go = np.full(num_rows, target_return, np.float64)
        """What is asked for now, of each row."""
        self._last = np.zeros((num_rows, problem.action_dim), np.float32)

    def act(self, observations: Numbers, rewards: Numbers, begins: Rows) -> Numbers:
        """See ``control.Agent``."""
        problem = self._problem
        self._time = np.where(begins, 0, self._time + 1)
        left = self.returns_to_go - rewards
        self.returns_to_go = np.where(begins, self._target, left)
        x = columns(
            self._time,
            ~begins,
            self.returns_to_go / problem.return_scale,
            problem.scaled_observations(observations),
            np.where(begins[:, None], 0, self._last),
        )
        self._last = self._decide(x, begins)
        return problem.actions(self._last)

    @property
    @abc.abstractmethod
    def past(self) -> Any:
        """What it keeps of the steps so far: arrays of B rows."""

    @abc.abstractmethod
    def _decide(self, x: Numbers, begins: Rows) -> Numbers:
        """Scaled actions [B, A] for steps [B, 3 + S + A]."""


class StreamAgent(DecisionAgent):
    """Acts by the model's state: all steps of the episode, in constant time a step.

    Args:
        run: the trained run.
        num_rows: B.
        target_return: that is asked for.
        max_steps: most steps of an episode, for mechanisms with a cache.

    Attributes:
        stream: of the model, a row an episode.

    Raises:
        ValueError: the model cannot stream.
    """

    def __init__(self, run: Run, num_rows: int, target_return: float, max_steps: int) -> None:
        super().__init__(run.problem, num_rows, target_return)
        self._max_steps = max_steps
        self.stream = inference.Stream(run.model, batch_size=num_rows, max_length=max_steps)

    @property
    def past(self) -> Any:
        """The model's state."""
        return self.stream.state

    def _decide(self, x: Numbers, begins: Rows) -> Numbers:
        played = self._time < self._max_steps  # what is longer is an idle row
        return np.asarray(self.stream.step(x, played, reset=begins))


class RestartAgent(DecisionAgent):
    """Acts by a state that never holds more steps than the model was trained on.

    After ``context`` steps a row begins anew with the last half of them, taken in at once: what it
    sees of the past is from half a context to a whole one, at the cost of two steps each.

    Args:
        run: the trained run.
        num_rows: B.
        target_return: that is asked for.

    Raises:
        ValueError: the model cannot stream.
    """

    def __init__(self, run: Run, num_rows: int, target_return: float) -> None:
        super().__init__(run.problem, num_rows, target_return)
        self._context, self._clock = run.config.fit.context, run.config.model.clock
        self._kept = self._context // 2
        self._stream = inference.Stream(run.model, batch_size=num_rows, max_length=self._context)
        width = run.model.observation_shape[0]
        self._past = np.zeros((num_rows, self._kept, width), np.float32)
        self._age = np.zeros(num_rows, np.int64)

    @property
    def past(self) -> Any:
        """The model's state, and the last half of a context."""
        return self._stream.state, self._past

    def _decide(self, x: Numbers, begins: Rows) -> Numbers:
        full = ~begins & (self._age == self._context)
        if full.any():
            self._stream.reset(full)
            again = begin_context(self._past, self._clock)
            mask = np.repeat(full[:, None], self._kept, axis=1)
            self._stream.prefill(again, mask, chunk_size=self._kept)
        self._age = np.where(begins, 0, np.where(full, self._kept, self._age)) + 1
        self._past = np.concatenate([self._past[:, 1:], x[:, None]], axis=1)
        if self._clock == "context":
            x = x.copy()
            x[:, 0] = self._age - 1
        return np.asarray(self._stream.step(x, reset=begins))


class WindowAgent(DecisionAgent):
    """Acts by the last steps, all of which are computed anew in each, as in the published code.

    Args:
        run: the trained run.
        num_rows: B.
        target_return: that is asked for.
    """

    def __init__(self, run: Run, num_rows: int, target_return: float) -> None:
        super().__init__(run.problem, num_rows, target_return)
        self._model, self._clock = run.model, run.config.model.clock
        self._context = run.config.fit.context
        width = run.model.observation_shape[0]
        self._window = np.zeros((num_rows, self._context, width), np.float32)
        self._filled = np.zeros(num_rows, np.int64)

    @property
    def past(self) -> Any:
        """The window."""
        return self._window

    def _decide(self, x: Numbers, begins: Rows) -> Numbers:
        self._filled = np.where(begins, 0, self._filled)
        full = self._filled == self._context
        self._window = np.where(
            full[:, None, None], np.roll(self._window, -1, axis=1), self._window
        )
        rows, last = np.arange(len(x)), np.where(full, self._context - 1, self._filled)
        self._window[rows, last] = x
        self._filled = last + 1
        mask = np.arange(self._context) < self._filled[:, None]
        told = _actions(self._model, begin_context(self._window, self._clock), mask)
        return np.asarray(told)[rows, last]


@compiled()
def _actions(model: Any, x: Any, mask: Any) -> Any:
    return model(x, mask=mask)


def make_agent(
    run: Run,
    num_rows: int,
    max_steps: int,
    *,
    act: str | None = None,
    target_return: float | None = None,
) -> DecisionAgent:
    """An agent of a run.

    Args:
        run: the trained run.
        num_rows: B.
        max_steps: of an episode.
        act: "window", "stream" or "restart"; default as the run's options say.
        target_return: that is asked for; default what the run remembers.

    Raises:
        ValueError: the model cannot stream, where it has to; or has no times for so many steps.
    """
    act = run.config.play.act if act is None else act
    choice(ACTS, act=act)
    times = run.model.num_positions
    # A stream begins with the episode, whatever the clock of the windows.
    counted = run.config.model.clock == "episode" or act == "stream"
    if times is not None and counted and times < max_steps:
        raise OptionError(
            f"an episode may have {max_steps:,} steps, and the model has times for {times:,}; "
            "train it with a larger max_length, or with another position.",
            "max_length",
            "position",
        )
    target = run.problem.target_return if target_return is None else target_return
    if act == "stream":
        return StreamAgent(run, num_rows, target, max_steps)
    return (RestartAgent if act == "restart" else WindowAgent)(run, num_rows, target)
