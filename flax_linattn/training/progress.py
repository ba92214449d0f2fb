"""Progress on stderr: a line for each validation, and on a terminal a bar."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Literal, Self

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
        shown: "lines" shows no bar, False nothing.
        epochs: Epochs of the run; None if it is counted in steps.
        total_steps: Training steps of the run.
        step: Steps done already.
    """

    def __init__(
        self,
        shown: bool | Literal["lines"],
        epochs: int | None,
        total_steps: int,
        step: int,
    ) -> None:
        self._shown = shown
        self._epochs = epochs
        self._total_steps = total_steps
        self._console = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[metrics]}"),
            TimeRemainingColumn(),
            console=self._console,
            disable=shown is not True or not self._console.is_terminal,
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
        description = "" if self._epochs is None else f"epoch {epoch}/{self._epochs}"
        self._bar.update(self._task, completed=step, description=description)

    def metrics(self, means: dict[str, float], examples_per_second: float) -> None:
        """Shows the running training metrics."""
        texts = [f"{name} {means[name]:.4g}" for name in ("loss", "accuracy") if name in means]
        self._bar.update(
            self._task, metrics="  ".join([*texts, f"{examples_per_second:.0f} examples/s"])
        )

    def validation(self, line: dict[str, Any]) -> None:
        """Prints a line of metrics.jsonl."""
        if not self._shown:
            return
        if self._epochs is None:
            parts = [f"step {line['step']}/{self._total_steps}"]
        else:
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
        if "runs" in line:
            best = line["runs"]["best_step"]
            parts.append(f"{best.count(line['step'])} of {len(best)} runs at their best")
            self._console.print("  ".join(parts))
            return
        at = "best_step" if "best_step" in line else "best_epoch"
        is_best = line[at] == line[at.removeprefix("best_")]
        if is_best:
            parts.append("best")
        self._console.print("  ".join(parts))
        if is_best and line["step"] == self._total_steps:
            last = "validation" if self._epochs is None else "epoch"
            more = "steps" if self._epochs is None else "of them"
            self._console.print(f"the last {last} was the best: more {more} may do better")
