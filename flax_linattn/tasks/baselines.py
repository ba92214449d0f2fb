"""Baselines: simple methods on the same data, and the verdict on a model compared with them."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

D = TypeVar("D")


TIE = 1e-6
"""Relative difference up to which two numbers are equally good."""


@dataclasses.dataclass(frozen=True)
class Baselines:
    r"""The baselines of a report, and the metric that compares them with the model.

    Attributes:
        metric: Name of the metric. A report has it as ``test_<metric>`` of the model, and as
            ``<name>_<metric>`` of a baseline.
        names: Names of the baselines; a baseline without a value in the report is ignored.
        larger_is_better: Whether larger values are better, as for accuracy.
        title: Title of the metric in the verdict; default its name.
        num_train: Name of the number of training examples. ``<name>_learned_from`` is the number
            that a baseline was fitted on; where that is smaller, the verdict says so.
        selected: Names of the baselines that, like the model, were selected on the validation data.
            A report may have the metric on these as ``validation_<metric>`` of the model and
            ``<name>_validation_<metric>`` of a baseline; the verdict then names both.
        remark: Function of a report's values that adds a remark to the verdict; "" adds nothing.
        also: Further metrics, such as CRPS, each compared where a report has it.

    Example:
        >>> baselines = Baselines("mse", ("naive", "ridge"), title="MSE")
        >>> values = {"test_mse": 0.516, "naive_mse": 1.2, "ridge_mse": 0.388}
        >>> baselines.beaten_by(values)
        ['ridge']
        >>> baselines.verdict(values)
        'the ridge baseline is better: MSE 0.388, this model 0.516'
        >>> baselines.verdict({**values, "test_mse": 0.3})
        'this model is better than every baseline: MSE 0.3, ridge 0.388'
        >>> on_both = {**values, "validation_mse": 0.7, "ridge_validation_mse": 1.0}
        >>> print(baselines.verdict(on_both).replace("; ", "\n"))
        on test the ridge baseline is better: MSE 0.388, this model 0.516
        on validation (optimistic, because these rows selected the model) this model is ...
    """

    metric: str
    names: tuple[str, ...]
    larger_is_better: bool = False
    title: str = ""
    num_train: str = "num_train"
    selected: tuple[str, ...] = ()
    remark: Callable[[Mapping[str, Any]], str] | None = None
    also: tuple[Baselines, ...] = ()

    def beaten_by(self, values: Mapping[str, Any], *, validation: bool = False) -> list[str]:
        """Names of the baselines that are better than the model, the best first.

        A model whose value is not finite loses to every finite baseline. Values that differ by
        rounding alone (a relative 1e-6) are a tie.

        Args:
            values: Values of the report.
            validation: Compare on the validation data instead of the test data.
        """
        ours = self._badness(values[self._ours(validation)])
        ranked = self._ranked(values, validation)
        return [n for n, theirs in ranked if not (ours <= theirs or _is_tie(ours, theirs))]

    def on_validation(self, values: Mapping[str, Any]) -> bool:
        """Whether a report has the metric of the model on the validation data."""
        return self._ours(True) in values

    def better_baselines(self, values: Mapping[str, Any]) -> dict[str, list[str]]:
        """Names of the better baselines in each metric, under keys that begin with ``beaten_by``.

        Example:
            >>> crps = Baselines("crps", ("ridge",))
            >>> both = Baselines("mse", ("ridge",), also=(crps,))
            >>> numbers = {"test_mse": 1.0, "ridge_mse": 2.0, "test_crps": 0.4, "ridge_crps": 0.3}
            >>> both.better_baselines(numbers)
            {'beaten_by': [], 'beaten_by_in_crps': ['ridge']}
        """
        better = {"beaten_by": self.beaten_by(values)}
        if self.on_validation(values):
            better["beaten_by_on_validation"] = self.beaten_by(values, validation=True)
        for other in self.also:
            if other._ours(False) in values and other._ranked(values, False):
                better[f"beaten_by_in_{other.metric}"] = other.beaten_by(values)
        return better

    def verdict(self, values: Mapping[str, Any]) -> str:
        """One sentence that compares the model with the baselines; empty without any value."""
        compared = self._compare(values)
        others = [o._clause(values, False) for o in self.also if o._ours(False) in values]
        remark = "" if self.remark is None else self.remark(values)
        return "; ".join(part for part in (compared, *others, remark) if part and compared)

    def _compare(self, values: Mapping[str, Any]) -> str:
        on_test = self._clause(values, False)
        on_validation = self._clause(values, True) if self.on_validation(values) else ""
        if not on_test or not on_validation:
            return on_test
        known = [n for n in self.selected if f"{n}_validation_{self.metric}" in values]
        selected = " and ".join(["the model", *(f"the {name}" for name in known)])
        optimistic = f"(optimistic, because these rows selected {selected})"
        return f"on test {on_test}; on validation {optimistic} {on_validation}"

    def _clause(self, values: Mapping[str, Any], validation: bool) -> str:
        ranked = self._ranked(values, validation)
        if not ranked:
            return ""
        better = self.beaten_by(values, validation=validation)
        best = [name for name, _ in ranked][: max(1, len(better))]
        theirs = [values[self._theirs(name, validation)] for name in best]
        ours, *numbers = _distinct(values[self._ours(validation)], *theirs)
        sizes = ["" if validation else self._size(name, values) for name in best]
        cells = [f"{n}{size}" for n, size in zip(numbers, sizes, strict=True)]
        title = self.title or self.metric.replace("_", " ")
        names = [name.replace("_", " ") for name in best]
        if len(better) == 1:
            return f"the {names[0]} baseline is better: {title} {cells[0]}, this model {ours}"
        if better:
            each = ", ".join(f"{name} {n}" for name, n in zip(names, cells, strict=True))
            return f"{len(better)} baselines are better: {title} of {each}, this model {ours}"
        if _is_tie(values[self._ours(validation)], theirs[0]):
            return f"this model is as good as the best baseline, {names[0]}: {title} {cells[0]}"
        return f"this model is better than every baseline: {title} {ours}, {names[0]} {cells[0]}"

    def _ours(self, validation: bool) -> str:
        return f"{'validation' if validation else 'test'}_{self.metric}"

    def _theirs(self, name: str, validation: bool) -> str:
        return f"{name}_{'validation_' if validation else ''}{self.metric}"

    def _size(self, name: str, values: Mapping[str, Any]) -> str:
        """A remark on a baseline that was fitted on a part of the training examples."""
        fitted, total = values.get(f"{name}_learned_from"), values.get(self.num_train)
        if fitted is None or total is None or fitted >= total:
            return ""
        return f" (learned from {fitted:,} of {total:,})"

    def _ranked(self, values: Mapping[str, Any], validation: bool) -> list[tuple[str, float]]:
        numbers = {name: values.get(self._theirs(name, validation)) for name in self.names}
        known = [(n, self._badness(v)) for n, v in numbers.items() if v is not None]
        return sorted((pair for pair in known if math.isfinite(pair[1])), key=lambda pair: pair[1])

    def _badness(self, value: float) -> float:
        return -value if self.larger_is_better else value


def _is_tie(ours: float, theirs: float) -> bool:
    return abs(ours - theirs) <= TIE * abs(theirs)


def _distinct(ours: float, *theirs: float) -> list[str]:
    """Values with 3 digits, or with as many as distinguish the first value from each non-tie."""
    others = [x for x in theirs if not _is_tie(ours, x)]
    digits = next(d for d in range(3, 18) if f"{ours:.{d}g}" not in {f"{x:.{d}g}" for x in others})
    return [f"{x:.{digits}g}" for x in (ours, *theirs)]


def read_or_note(read: Callable[[], D]) -> D | None:
    """Reads training data for baselines; prints a note and returns None if that fails."""
    try:
        return read()
    except (FileNotFoundError, ValueError) as error:
        reason = f"because the training data cannot be read: {error}"
        print(f"note: trained baselines are skipped, {reason}", file=sys.stderr)
        return None
