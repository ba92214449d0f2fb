"""What a model has to beat: simple methods on the same data, and the verdict on the model."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

D = TypeVar("D")


@dataclasses.dataclass(frozen=True)
class Yardsticks:
    """Which numbers of a report are those of simple methods, and which of them judges the model.

    Attributes:
        metric: that judges. A report has it as ``test_<metric>`` of the model, and as
            ``<name>_<metric>`` of a yardstick.
        names: of the yardsticks; one whose number a report does not have judges nothing.
        larger_is_better: as of accuracies.
        title: of the metric, for people; default its name.
        num_train: the name of the number that there was to learn from. A yardstick tells in
            ``<name>_learned_from`` from how many it did; where that is fewer, the verdict says so.

    Example:
        >>> yardsticks = Yardsticks("mse", ("naive", "ridge"), title="MSE")
        >>> values = {"test_mse": 0.516, "naive_mse": 1.2, "ridge_mse": 0.388}
        >>> yardsticks.beaten_by(values)
        ['ridge']
        >>> yardsticks.verdict(values)
        'the model loses to ridge (MSE 0.388 against 0.516)'
        >>> yardsticks.verdict({**values, "test_mse": 0.3})
        'no yardstick beats the model; the best is ridge (MSE 0.388 against 0.3)'
    """

    metric: str
    names: tuple[str, ...]
    larger_is_better: bool = False
    title: str = ""
    num_train: str = "num_train"

    def beaten_by(self, values: Mapping[str, Any]) -> list[str]:
        """The names of those that do better than the model, the best first.

        A model whose number is not finite loses to all that have one.
        """
        ours = self._badness(values[f"test_{self.metric}"])
        return [name for name, theirs in self._ranked(values) if not ours <= theirs]

    def verdict(self, values: Mapping[str, Any]) -> str:
        """A sentence on ``beaten_by``; empty where no yardstick has a number."""
        ranked = self._ranked(values)
        if not ranked:
            return ""
        better = self.beaten_by(values)
        best = [name for name, _ in ranked][: max(1, len(better))]
        title = self.title or self.metric.replace("_", " ")
        ours = values[f"test_{self.metric}"]
        shown = [
            f"{name.replace('_', ' ')} ({title} {values[f'{name}_{self.metric}']:.3g} against "
            f"{ours:.3g}{self._share(name, values)})"
            for name in best
        ]
        if better:
            others = ", ".join(shown[:-1])
            return f"the model loses to {others}{' and ' if others else ''}{shown[-1]}"
        return f"no yardstick beats the model; the best is {shown[0]}"

    def _share(self, name: str, values: Mapping[str, Any]) -> str:
        """What a yardstick learned from, where that is not all."""
        learned, there = values.get(f"{name}_learned_from"), values.get(self.num_train)
        if learned is None or there is None or learned >= there:
            return ""
        return f", learned from {learned:,} of {there:,}"

    def _ranked(self, values: Mapping[str, Any]) -> list[tuple[str, float]]:
        numbers = {name: values.get(f"{name}_{self.metric}") for name in self.names}
        known = [(n, self._badness(v)) for n, v in numbers.items() if v is not None]
        return sorted((pair for pair in known if math.isfinite(pair[1])), key=lambda pair: pair[1])

    def _badness(self, value: float) -> float:
        return -value if self.larger_is_better else value


def at_hand(read: Callable[[], D]) -> D | None:
    """Training data, for the yardsticks that learn from them.

    Args:
        read: gives them, and raises where they are gone or have changed.

    Returns:
        The data; None where they cannot be had, which a note on standard error tells.
    """
    try:
        return read()
    except (FileNotFoundError, ValueError) as error:
        told = f"note: no yardsticks that learn, for the training data cannot be read: {error}"
        print(told, file=sys.stderr)
        return None
