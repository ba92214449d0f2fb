"""Agents of runs: the return they ask for, and the steps before that their models receive."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from flax_linattn import inference
from flax_linattn.checks import OptionError, choice
from flax_linattn.inference.compiled import compiled
from flax_linattn.tasks.offline_rl.data import (
    OfflineRLSpec,
    begin_context,
    columns,
    max_episode_length,
)
from flax_linattn.tasks.spec import Run

Rows = NDArray[np.bool_]
Numbers = NDArray[np.float32]


class StreamMemory:
    """All steps of the episodes in B rows, as a model's state: constant time a step.

    Args:
        run: the trained run.
        num_rows: B.
        max_steps: most steps that a cache holds.

    Attributes:
        stream: of the model, a row an episode.
        ages: steps that the state of each row holds, int64 [B].
        record_attributes: attributes to save with the state.

    Raises:
        ValueError: the model cannot stream.
    """

    record_attributes: tuple[str, ...] = ("ages",)

    def __init__(self, run: Run, num_rows: int, max_steps: int) -> None:
        self.stream = inference.Stream(run.model, batch_size=num_rows, max_length=max_steps)
        self.ages, self._max_steps = np.zeros(num_rows, np.int64), max_steps

    @property
    def kept(self) -> Any:
        """What is stored of the steps so far: arrays of B rows."""
        return self.stream.state

    def can_hold(self, age: int, steps: int) -> bool:
        """Whether the state of a row may hold ``age`` steps after ``steps`` of its episode."""
        return age == steps

    def decide(self, x: Numbers, begins: Rows) -> Numbers:
        """Takes in a step of each row.

        Args:
            x: float32 [B, 3 + S + A], see ``models.DecisionColumns``.
            begins: bool [B], ``True`` marks rows in which an episode begins with the step.

        Returns:
            Actions, float32 [B, A] in -1 ... 1.

        Raises:
            ValueError: no room is left; nothing is taken in then.
        """
        before = np.where(begins, 0, self.ages)
        # With other rows, one in which nothing is played continues beyond the end of its episode.
        played = before < self._max_steps if len(x) > 1 else None
        actions = np.asarray(self.stream.step(x, played, reset=begins))
        self.ages = before + 1
        return actions


class RestartMemory(StreamMemory):
    """Never more steps than the model was trained on.

    After ``context`` steps a row resets, and the last half of them is taken in at once: the model
    conditions on half a context to a whole one, at the cost of two steps each.
    """

    record_attributes = ("ages", "last_steps")

    def __init__(self, run: Run, num_rows: int) -> None:
        self._context, self._clock = run.config.fit.context, run.config.model.clock
        super().__init__(run, num_rows, self._context)
        self.last_steps = np.zeros(
            (num_rows, self._context // 2, *run.model.observation_shape), np.float32
        )

    def can_hold(self, age: int, steps: int) -> bool:
        """See ``StreamMemory``."""
        return age <= min(steps, self._context) and (age == 0) == (steps == 0)

    @property
    def kept(self) -> Any:
        """The model's state, and the last half of a context."""
        return self.stream.state, self.last_steps

    def decide(self, x: Numbers, begins: Rows) -> Numbers:
        """See ``StreamMemory``."""
        half = self.last_steps.shape[1]
        full = ~begins & (self.ages == self._context)
        if full.any():
            self.stream.reset(full)
            again = begin_context(self.last_steps, self._clock)
            mask = np.repeat(full[:, None], half, axis=1)
            self.stream.prefill(again, mask, chunk_size=half)
        before = np.where(begins, 0, np.where(full, half, self.ages))
        self.last_steps = np.concatenate([self.last_steps[:, 1:], x[:, None]], axis=1)
        if self._clock == "context":
            x = x.copy()
            x[:, 0] = before
        self.ages = before + 1
        return np.asarray(self.stream.step(x, reset=begins))


class WindowMemory:
    """The last steps of B rows, all computed again in each step, as in the published code."""

    def __init__(self, run: Run, num_rows: int) -> None:
        self._model, self._clock = run.model, run.config.model.clock
        self._context = run.config.fit.context
        shape = (num_rows, self._context, *run.model.observation_shape)
        self.kept = np.zeros(shape, np.float32)
        self._filled = np.zeros(num_rows, np.int64)

    def decide(self, x: Numbers, begins: Rows) -> Numbers:
        """See ``StreamMemory``."""
        filled = np.where(begins, 0, self._filled)
        full = filled == self._context
        shifted = np.roll(self.kept, -1, axis=1)
        self.kept = np.where(full[:, None, None], shifted, self.kept)
        rows, last = np.arange(len(x)), np.where(full, self._context - 1, filled)
        self.kept[rows, last] = x
        self._filled = last + 1
        mask = np.arange(self._context) < self._filled[:, None]
        actions = predict_actions(self._model, begin_context(self.kept, self._clock), mask)
        return np.asarray(actions)[rows, last]


@compiled()
def predict_actions(model: Any, x: Any, mask: Any) -> Any:
    """Scaled actions of windows, float32 [B, T, A], compiled once for models that are alike."""
    return model(x, mask=mask)


ACTS = ("window", "stream", "restart")
"""Ways to handle the context."""


def make_recurrent(run: Run, act: str, num_rows: int, max_steps: int) -> StreamMemory:
    """A memory by which ``act``, "stream" or "restart", handles the context.

    Raises:
        ValueError: the model cannot stream.
    """
    if act == "restart":
        return RestartMemory(run, num_rows)
    if run.model.num_positions is not None and run.config.model.clock == "context":
        raise OptionError(
            f"the model has learned times for the {run.config.fit.context} steps of a window "
            "alone, and a stream goes on; let it begin anew, or train with other times.",
            "act",
            "position",
            "clock",
            act="restart",
        )
    return StreamMemory(run, num_rows, max_steps)


class DecisionAgent:
    """Plays in B rows with a run's model: a ``control.Agent``.

    The target return of an episode falls by each reward.

    Args:
        data_spec: of the run.
        memory: how its model receives the steps before.
        num_rows: B.
        target_return: at the start of an episode.

    Attributes:
        memory: as given.
        returns_to_go: what is left of the target return, float64 [B], in the unit of rewards.
        steps: of the episode so far, int64 [B].
        last_actions: of the step before, float32 [B, A] in -1 ... 1.
    """

    def __init__(
        self,
        data_spec: OfflineRLSpec,
        memory: StreamMemory | WindowMemory,
        num_rows: int,
        target_return: float,
    ) -> None:
        self._problem, self._target = data_spec, target_return
        self.memory = memory
        self.returns_to_go = np.full(num_rows, target_return, np.float64)
        self.steps = np.zeros(num_rows, np.int64)
        self.last_actions = np.zeros((num_rows, data_spec.action_dim), np.float32)

    def act(
        self,
        observations: NDArray[np.float32],
        rewards: NDArray[np.float32],
        begins: NDArray[np.bool_],
    ) -> NDArray[np.float32]:
        """See ``control.Agent``.

        Raises:
            ValueError: shapes do not fit, a number is not finite, or the model has no room for the
                step; nothing is taken in then.
        """
        data_spec, num_rows = self._problem, len(self.steps)
        for name, values, shape in (
            ("observations", observations, (num_rows, data_spec.observation_dim)),
            ("rewards", rewards, (num_rows,)),
            ("begins", begins, (num_rows,)),
        ):
            if np.shape(values) != shape:
                raise ValueError(f"expected {name} {list(shape)}, got {list(np.shape(values))}.")
            if not np.isfinite(values).all():
                raise ValueError(f"expected finite {name}, got {values}.")
        time = np.where(begins, 0, self.steps)
        asked = np.where(begins, self._target, self.returns_to_go - rewards)
        x = columns(
            time,
            ~begins,
            asked / data_spec.return_scale,
            data_spec.scaled_observations(observations),
            np.where(begins[:, None], 0, self.last_actions),
        )
        actions = self.memory.decide(x, begins)
        self.steps, self.returns_to_go, self.last_actions = time + 1, asked, actions
        return data_spec.actions(actions)


def make_agent(
    run: Run,
    num_rows: int,
    max_steps: int,
    *,
    act: str | None = None,
    target_return: float | None = None,
) -> DecisionAgent:
    """An agent of a run, for your own loop; ``control.play`` is one.

    Args:
        run: the trained run.
        num_rows: B.
        max_steps: of an episode. Rows in which none is played any more may go on beyond it.
        act: "window", "stream" or "restart"; default as in the run's options.
        target_return: at the start of an episode; default that of the run.

    Raises:
        ValueError: the model cannot stream, where it has to; or has no times for so many steps.
    """
    act = run.config.play.act if act is None else act
    target = run.data_spec.target_return if target_return is None else target_return
    choice(ACTS, act=act)
    times = max_episode_length(run.config)
    if times is not None and times < max_steps:
        raise OptionError(
            f"an episode may have {max_steps:,} steps, and the model has times for {times:,}; "
            "train it with a larger max_length, or with another position.",
            "max_length",
            "position",
        )
    if act == "window":
        return DecisionAgent(run.data_spec, WindowMemory(run, num_rows), num_rows, target)
    memory = make_recurrent(run, act, num_rows, max_steps)
    return DecisionAgent(run.data_spec, memory, num_rows, target)
