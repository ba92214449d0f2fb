"""Progress on stderr: a bar on a terminal, a line for each epoch elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)


class ProgressDisplay:
    """Shows a run's steps, running training metrics and speed.

    Args:
        enabled: False shows nothing.
        epochs: Epochs of the run.
        total_steps: Training steps of the run.
        step: Steps done already.
    """

    def __init__(self, enabled: bool, epochs: int, total_steps: int, step: int) -> None:
        self._enabled = enabled
        self._epochs = epochs
        self._console = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[metrics]}"),
            TimeRemainingColumn(),
            console=self._console,
            disable=not (enabled and self._console.is_terminal),
            transient=True,
        )
        self._task = self._bar.add_task("", total=total_steps, completed=step, metrics="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def step(self, step: int, epoch: int) -> None:
        """Shows that a step is done."""
        self._bar.update(self._task, completed=step, description=f"epoch {epoch}/{self._epochs}")

    def metrics(self, means: dict[str, float], examples_per_second: float) -> None:
        """Shows the epoch's running training metrics."""
        shown = [f"{name} {means[name]:.4g}" for name in ("loss", "accuracy") if name in means]
        self._bar.update(
            self._task, metrics="  ".join([*shown, f"{examples_per_second:.0f} examples/s"])
        )

    def epoch(self, line: dict[str, Any]) -> None:
        """Prints a finished epoch's line of metrics.jsonl."""
        if not self._enabled:
            return
        parts = [f"epoch {line['epoch']}/{self._epochs}", f"step {line['step']}"]
        for part in ("train", "validation"):
            means = [
                f"{name} {line[f'{part}_{name}']:.4g}"
                for name in dict.fromkeys(("loss", "accuracy", line["monitor"]))
                if line.get(f"{part}_{name}") is not None
            ]
            parts.append(" ".join([part, *means]))
        parts.append(f"{line['examples_per_second']:.0f} examples/s")
        if "skipped_steps" in line:
            parts.append(f"{line['skipped_steps']} updates skipped")
        if line["best_epoch"] == line["epoch"]:
            parts.append("best")
        self._console.print("  ".join(parts))
        if line["best_epoch"] == self._epochs:
            self._console.print("the last epoch was the best: more of them may do better")
