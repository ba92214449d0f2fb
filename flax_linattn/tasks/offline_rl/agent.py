"""Agents of runs: target return, and the context of previous steps that a model receives."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from flax_linattn import inference
from flax_linattn.checks import OptionError, check_choice
from flax_linattn.inference.programs import compile_once
from flax_linattn.tasks.offline_rl.actions import ActionChooser
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
    """Context of all steps of an episode as the model's state: constant time per step.

    Args:
        run: The trained run.
        num_rows: Number of rows B, each for one episode.
        max_steps: Maximum number of steps in a cache.

    Attributes:
        stream: Stream of the model with B rows.
        ages: Number of steps in the state of each row, int64 [B].
        record_attributes: Names of the attributes to save with the state.

    Raises:
        ValueError: If the model cannot stream.
    """

    record_attributes: tuple[str, ...] = ("ages",)

    def __init__(self, run: Run, num_rows: int, max_steps: int) -> None:
        self.stream = inference.Stream(run.model, batch_size=num_rows, max_length=max_steps)
        self.ages, self._max_steps = np.zeros(num_rows, np.int64), max_steps

    @property
    def state(self) -> Any:
        """The arrays that hold the context, with B rows."""
        return self.stream.state

    def can_hold(self, age: int, steps: int) -> bool:
        """Whether the state of a row may hold ``age`` steps after ``steps`` of its episode."""
        return age == steps

    def step(self, x: Numbers, begins: Rows) -> Numbers:
        """Processes one step of each row, and returns the outputs of the model.

        Args:
            x: Steps, float32 [B, 3 + S + A], see ``models.DecisionColumns``.
            begins: Boolean array of shape [B]; ``True`` marks rows in which an episode begins.

        Returns:
            Outputs, float32 [B, O]: scaled actions, or logits of discrete actions.

        Raises:
            ValueError: If the capacity is exhausted; no row is changed then.
        """
        before = np.where(begins, 0, self.ages)
        # Among several rows, an idle row continues beyond the end of its episode.
        played = before < self._max_steps if len(x) > 1 else None
        outputs = np.asarray(self.stream.step(x, played, reset=begins))
        self.ages = before + 1
        return outputs


class RestartMemory(StreamMemory):
    """Context of at most the training length: resets the state and replays the last steps.

    After ``context`` steps a row resets, and the last half of them is prefilled at once: the model
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
        return age <= min(steps, self._context) and (age == 0) == (steps == 0)

    @property
    def state(self) -> Any:
        return self.stream.state, self.last_steps

    def step(self, x: Numbers, begins: Rows) -> Numbers:
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
    """Context of the last steps, recomputed at each step, as in the published code.

    Attributes:
        state: The last steps of each row, float32 [B, context, 3 + S + A].
    """

    def __init__(self, run: Run, num_rows: int) -> None:
        self._model, self._clock = run.model, run.config.model.clock
        self._context = run.config.fit.context
        shape = (num_rows, self._context, *run.model.observation_shape)
        self.state = np.zeros(shape, np.float32)
        self._filled = np.zeros(num_rows, np.int64)

    def step(self, x: Numbers, begins: Rows) -> Numbers:
        """Processes one step of each row; see ``StreamMemory.step``."""
        filled = np.where(begins, 0, self._filled)
        full = filled == self._context
        shifted = np.roll(self.state, -1, axis=1)
        self.state = np.where(full[:, None, None], shifted, self.state)
        rows, last = np.arange(len(x)), np.where(full, self._context - 1, filled)
        self.state[rows, last] = x
        self._filled = last + 1
        mask = np.arange(self._context) < self._filled[:, None]
        outputs = predict_outputs(self._model, begin_context(self.state, self._clock), mask)
        return np.asarray(outputs)[rows, last]


@compile_once()
def predict_outputs(model: Any, x: Any, mask: Any) -> Any:
    """Computes outputs of windows, float32 [B, T, O]; equal structures share a program."""
    return model(x, mask=mask)


INFERENCE_MODES = ("window", "stream", "restart")
"""Names of the inference modes, which handle the context of previous steps."""


def make_stream_memory(run: Run, act: str, num_rows: int, max_steps: int) -> StreamMemory:
    """Makes the memory of the inference mode ``act``, "stream" or "restart".

    Raises:
        ValueError: If the model cannot stream.
    """
    if act == "restart":
        return RestartMemory(run, num_rows)
    if run.model.num_positions is not None and run.config.model.clock == "context":
        raise OptionError(
            "act='stream' needs times beyond the context, but the model learned times for the "
            f"{run.config.fit.context} steps of the context alone; use act='restart', or train "
            "with another position or clock.",
            "act",
            "position",
            "clock",
        )
    return StreamMemory(run, num_rows, max_steps)


class DecisionAgent(ActionChooser):
    """Plays with the model of a run in B rows: a ``control.Agent``.

    The return-to-go of an episode starts at the target return and decreases by each reward.

    Args:
        data_spec: Data spec of the run.
        memory: Memory that computes outputs from the context of previous steps.
        num_rows: Number of rows B.
        target_return: Return-to-go at the start of an episode.
        sample: Sample discrete actions, see ``ActionChooser``.

    Attributes:
        memory: The memory.
        returns_to_go: Return-to-go of each row, float64 [B], in the unit of rewards.
        steps: Number of steps of the episode so far, int64 [B].
        last_actions: Scaled actions of the previous step, float32 [B, A].
        outputs: Outputs of the model in the previous step, such as logits, float32 [B, O].
    """

    def __init__(
        self,
        data_spec: OfflineRLSpec,
        memory: StreamMemory | WindowMemory,
        num_rows: int,
        target_return: float,
        sample: bool = False,
    ) -> None:
        super().__init__(data_spec.action_space, sample)
        self._data_spec, self._target = data_spec, target_return
        self.memory = memory
        self.returns_to_go = np.full(num_rows, target_return, np.float64)
        self.steps = np.zeros(num_rows, np.int64)
        self.last_actions = np.zeros((num_rows, data_spec.action_dim), np.float32)
        self.outputs = np.zeros((num_rows, data_spec.action_space.num_outputs), np.float32)

    def act(
        self,
        observations: NDArray[np.float32],
        rewards: NDArray[np.float32],
        begins: NDArray[np.bool_],
    ) -> NDArray:
        """Chooses the next action of each row; see ``control.Agent``.

        A discrete action is -1 if the outputs of the model are NaN.

        Raises:
            ValueError: If a shape differs, a number is not finite, or the capacity of the model is
                exhausted; no row is changed then.
        """
        data_spec, num_rows = self._data_spec, len(self.steps)
        for name, values, shape in (
            ("observations", observations, (num_rows, data_spec.observation_dim)),
            ("rewards", rewards, (num_rows,)),
            ("begins", begins, (num_rows,)),
        ):
            if np.shape(values) != shape:
                raise ValueError(
                    f"expected {name} of shape {list(shape)}, got {list(np.shape(values))}."
                )
            if not np.isfinite(values).all():
                raise ValueError(f"expected finite {name}, got {values}.")
        time = np.where(begins, 0, self.steps)
        returns_to_go = np.where(begins, self._target, self.returns_to_go - rewards)
        x = columns(
            time,
            ~begins,
            returns_to_go / data_spec.return_scale,
            data_spec.scaled_observations(observations),
            np.where(begins[:, None], 0, self.last_actions),
        )
        self.outputs = self.memory.step(x, begins)
        self.last_actions = self.choose(self.outputs)
        self.steps, self.returns_to_go = time + 1, returns_to_go
        return data_spec.actions(self.last_actions)


def make_agent(
    run: Run,
    num_rows: int,
    max_steps: int,
    *,
    act: str | None = None,
    target_return: float | None = None,
    sample_actions: bool | None = None,
) -> DecisionAgent:
    """Makes an agent of a run, for ``control.play`` or a loop of your own.

    Args:
        run: The trained run.
        num_rows: Number of rows B.
        max_steps: Maximum number of steps of an episode. Idle rows may continue beyond it.
        act: Inference mode, "window", "stream" or "restart". Default: the option of the run.
        target_return: Return-to-go at the start of an episode. Default: that of the run.
        sample_actions: Sample discrete actions. Default: the option of the run.

    Raises:
        ValueError: If the inference mode needs a model that streams, or the model does not support
            ``max_steps`` steps.
    """
    act = run.config.play.act if act is None else act
    target = run.data_spec.target_return if target_return is None else target_return
    check_choice(INFERENCE_MODES, act=act)
    times = max_episode_length(run.config)
    if times is not None and times < max_steps:
        raise OptionError(
            f"an episode may have {max_steps:,} steps, but the model has times for {times:,}; "
            "train with a larger max_length, or with another position.",
            "max_length",
            "position",
        )
    sample = run.config.play.sample_actions if sample_actions is None else sample_actions
    if sample and run.data_spec.num_actions is None:
        raise OptionError("sample_actions needs discrete actions; omit it.", "sample_actions")
    memory: StreamMemory | WindowMemory
    if act == "window":
        memory = WindowMemory(run, num_rows)
    else:
        memory = make_stream_memory(run, act, num_rows, max_steps)
    return DecisionAgent(run.data_spec, memory, num_rows, target, sample)
