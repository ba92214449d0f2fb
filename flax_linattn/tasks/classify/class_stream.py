"""A trained classifier over a stream: observations in, class probabilities out."""

from __future__ import annotations

import abc
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import jax
import numpy as np
from numpy.typing import NDArray

from flax_linattn import inference
from flax_linattn.checks import OptionError, check_integers
from flax_linattn.tasks.classify.figures import plot_stream
from flax_linattn.tasks.options import mechanism_name
from flax_linattn.tasks.spec import Run
from flax_linattn.tasks.streaming import Streaming, explain_full_stream

MAX_PREDICTIONS = 10_000
"""Maximum number of predictions in a figure; a stream without end needs constant memory."""

Observation = TypeVar("Observation")


class Prediction(NamedTuple):
    """Class probabilities after an observation.

    Attributes:
        step: Number of observations of this sequence so far.
        probabilities: Class probabilities, float32 [classes].
    """

    step: int
    probabilities: NDArray[np.float32]


class ClassStream(Streaming, Generic[Observation]):
    """Predicts class probabilities after each observation, with one compiled step.

    Args:
        run: The trained run.
        max_length: Maximum number of observations of a sequence, for mechanisms with a cache.
            Default: the longest sequence in the data of the run.

    Attributes:
        unit: Name of an observation.
        advice: Model options that a stream needs besides a mechanism with a state, in words.
        remedy: The same options by name.

    Raises:
        ValueError: If the model cannot stream, or an option is out of range.
    """

    unit: ClassVar[str] = "observation"
    advice: ClassVar[str]
    remedy: ClassVar[Mapping[str, Any]]

    def __init__(self, run: Run, *, max_length: int | None = None) -> None:
        check_integers(1, max_length=max_length)
        if not run.model.streams:
            raise OptionError(
                "the run cannot stream, because its model is not causal or its mechanism has no "
                f"state; train a causal model with {self.advice} and a mechanism with a state.",
                "mechanism",
                causal=True,
                **self.remedy,
            )
        length = run.data_spec.max_length if max_length is None else max_length
        super().__init__(
            run,
            inference.Stream(run.model, max_length=length),
            ["step", "prediction", *(f"p({name})" for name in run.data_spec.classes)],
            max_length=length,
        )
        self._logits = np.zeros(len(run.data_spec.classes), np.float32)
        """Logits after the last observation."""
        self._predictions: deque[Prediction] = deque(maxlen=MAX_PREDICTIONS)
        self._title = f"{run.data_spec.dataset}, {mechanism_name(run.config.layers)}"

    @abc.abstractmethod
    def _input(self, observation: Observation) -> NDArray:
        """Converts an observation to the input of the model's step, [1, ...].

        Raises:
            ValueError: If a value is out of range.
        """

    def _begin(self) -> None:
        """Resets the state for a new sequence."""
        self._stream.reset()

    def step(self, observation: Observation | None) -> Prediction | None:
        """Processes an observation; None begins a new sequence, and predicts nothing.

        Raises:
            ValueError: If a sequence is longer than the model supports, or a value is out of range.
        """
        if observation is None:
            self._begin()
            self.num_breaks += 1
            return None
        x = self._input(observation)
        with explain_full_stream():
            logits = self._stream.step(x)
        self.num_steps += 1
        self._logits = np.asarray(logits[0])
        probabilities = np.asarray(jax.nn.softmax(self._logits))
        if np.isnan(probabilities).any():
            raise ValueError(
                f"the prediction after {self.unit} {self._stream.num_steps} of a sequence is NaN: "
                "the model overflows, has no position for it, or has NaN parameters."
            )
        return Prediction(self._stream.num_steps, probabilities)

    def cells(self, observation: Observation | None) -> Sequence[Any] | None:
        """Returns the step, the most likely class, and the probability of each class."""
        prediction = self.step(observation)
        if prediction is None:
            return None
        self._predictions.append(prediction)
        return self._row(prediction)

    def _row(self, prediction: Prediction) -> list[Any]:
        best = self._run.data_spec.classes[int(np.argmax(prediction.probabilities))]
        return [prediction.step, best, *prediction.probabilities]

    def class_outputs(self) -> dict[str, Any]:
        """Describes the outputs for a bundle; see ``interface``."""
        return {"kind": "classes", "names": list(self._run.data_spec.classes)}

    def plot(self, path: Path) -> None:
        """Plots the probabilities of the last 10,000 observations."""
        steps = [prediction.step for prediction in self._predictions]
        probabilities = np.stack([prediction.probabilities for prediction in self._predictions])
        plot_stream(steps, probabilities, self._run.data_spec.classes, path, self._title)
