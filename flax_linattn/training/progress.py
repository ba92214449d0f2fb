"""Progress of a run: on stderr, in trackers, as a profiler trace, and as a learning curve."""

from __future__ import annotations

import contextlib
import json
import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol, Self, TypedDict

import jax
from rich.console import Console
from rich.file_proxy import FileProxy
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from flax_linattn.annotations import fits
from flax_linattn.checks import quote
from flax_linattn.storage import atomic_write, sync_file, write_text
from flax_linattn.terminal import EscapedStream
from flax_linattn.training.history import METRICS_FILE


class ProgressDisplay:
    """Shows a run's steps, metrics and throughput on stderr; ``progress`` is as in ``Session``."""

    def __init__(
        self,
        progress: bool | Literal["lines"],
        epochs: int | None,
        total_steps: int,
        step: int,
        *,
        counts_tokens: bool = False,
    ) -> None:
        self._counts_tokens = counts_tokens
        self._prints_lines = bool(progress)
        self._epochs = epochs
        self._total_steps = total_steps
        # The bar is drawn by control characters, which a command's own stderr escapes.
        stderr = getattr(sys.stderr, "rich_proxied_file", sys.stderr)
        plain: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False}
        self._console = Console(file=stderr, stderr=True, soft_wrap=True, **plain)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[metrics]}"),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=self._console,
            disable=progress is not True or not self._console.is_terminal,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task = self._bar.add_task("", total=total_steps, completed=step, metrics="")

    def __enter__(self) -> Self:
        with ExitStack() as ends:
            ends.enter_context(self._bar)
            if not self._bar.disable:
                # Not rich's own redirection: it obeys the escape sequences of what is printed.
                for redirect, stream in [
                    (redirect_stdout, sys.stdout),
                    (redirect_stderr, sys.stderr),
                ]:
                    if stream and stream.isatty():
                        above = ends.enter_context(redirect(self._above_bar(stream)))
                        ends.callback(above.flush)
            self._ends = ends.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ends.close()

    def _above_bar(self, stream: Any) -> EscapedStream:
        """A stream that prints above the bar, without control characters other than colors."""
        keep_colors = getattr(stream, "keep_colors", True)
        return EscapedStream(FileProxy(self._console, stream), keep_colors=keep_colors)

    def step(self, step: int, epoch: int) -> None:
        """Updates the number of steps done."""
        description = "" if self._epochs is None else f"epoch {epoch}/{self._epochs}"
        self._bar.update(self._task, completed=step, description=description)

    def metrics(self, means: dict[str, float], speed: Mapping[str, float]) -> None:
        """Updates the running training metrics and the throughput."""
        texts = [f"{name} {means[name]:.4g}" for name in ("loss", "accuracy") if name in means]
        self._bar.update(self._task, metrics="  ".join([*texts, *self._throughput(speed)]))

    def _throughput(self, speed: Mapping[str, float]) -> list[str]:
        """Texts of tokens per second and MFU, or of examples per second."""
        if not self._counts_tokens or "tokens_per_second" not in speed:
            return [f"{speed['examples_per_second']:.0f} examples/s"]
        texts = [f"{speed['tokens_per_second']:,.0f} tokens/s"]
        if "model_flops_utilization" in speed:
            texts.append(f"MFU {speed['model_flops_utilization']:.0%}".replace("%", " %"))
        return texts

    def validation(self, line: dict[str, Any], seconds_left: float = 0.0) -> None:
        """Prints a line of metrics.jsonl, and the training time left where tokens are counted."""
        if not self._prints_lines:
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
        parts += self._throughput(line)
        if self._counts_tokens and line["step"] < self._total_steps:
            parts.append(f"{timedelta(seconds=round(seconds_left))} left")
        if "skipped_steps" in line:
            parts.append(f"{line['skipped_steps']} updates skipped")
        if "runs" in line:
            best = line["runs"]["best_step"]
            parts.append(f"{best.count(line['step'])} of {len(best)} runs at their best")
            print("  ".join(parts), file=sys.stderr)
            return
        at = "best_step" if "best_step" in line else "best_epoch"
        is_best = line[at] == line[at.removeprefix("best_")]
        if is_best:
            parts.append("best")
        print("  ".join(parts), file=sys.stderr)
        if is_best and line["step"] == self._total_steps:
            last, unit = ("validation", "steps") if self._epochs is None else ("epoch", "epochs")
            print(
                f"note: the last {last} was the best; more {unit} may improve it", file=sys.stderr
            )


WARM_UP_STEPS = 10
"""Number of steps before a trace, since the first ones compile."""


class Tracker(Protocol):
    """Interface of a logger of a run's metrics; implement it for any other service."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Logs metrics, by name, after ``step`` training steps."""

    def close(self) -> None:
        """Flushes and closes the log; called at the end of a session, however it ends."""


class JsonLines:
    """Tracker that writes a JSON object per line: "step" and the values; NaN and inf are null.

    Args:
        path: The file. Lines of the first logged step and later ones, as when a run resumes from an
            earlier checkpoint, are removed.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "steps.jsonl")
        >>> JsonLines(path).log(20, {"loss": 0.5})
        >>> path.read_text().splitlines()
        ['{"step": 20, "loss": 0.5}']
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._begun = False

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Writes a line of metrics to the file."""
        if not self._begun:
            write_text(self._path, "".join(f"{line}\n" for line in self._earlier_lines(step)))
            self._begun = True
        finite = {k: v if math.isfinite(v) else None for k, v in values.items()}
        with open(self._path, "a") as file:
            file.write(json.dumps({"step": step, **finite}) + "\n")

    def close(self) -> None:
        """Waits until all lines are on the disk."""
        if self._begun:
            sync_file(self._path)

    def _earlier_lines(self, step: int) -> Iterator[str]:
        text = self._path.read_bytes() if self._path.is_file() else b""
        for line in text.decode(errors="replace").splitlines():
            # A kill may have cut off a line, or a stranger written it.
            with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
                if json.loads(line)["step"] < step:
                    yield line


class TensorBoard:
    """Tracker that writes event files for TensorBoard, by tensorboardX.

    Args:
        folder: The log folder, to start TensorBoard with.

    Raises:
        ValueError: If tensorboardX is not installed.
    """

    def __init__(self, folder: str | Path) -> None:
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            raise ValueError(
                "TensorBoard files need the package tensorboardX; install it with "
                "pip install 'flax-linattn[tensorboard]'."
            ) from None
        self._make_writer = partial(SummaryWriter, str(folder))
        self._writer: Any = None  # made when it is needed, since it creates a file at once

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Adds a point to the curve of each value."""
        if self._writer is None:
            self._writer = self._make_writer()
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Flushes and closes the file."""
        if self._writer is not None:
            self._writer.close()


class Profile:
    """Traces ``count`` steps with ``jax.profiler`` into a folder, for TensorBoard or Perfetto."""

    def __init__(self, folder: Path, step: int, count: int) -> None:
        self._folder = folder
        self._first = step + WARM_UP_STEPS
        self._end = self._first + count
        self._tracing = False

    def before(self, step: int) -> None:
        """Starts the trace before its first step."""
        if step == self._first < self._end:
            jax.profiler.start_trace(str(self._folder))
            self._tracing = True

    def after(self, step: int, state: Any) -> None:
        """Ends the trace after its last step, once the state is computed."""
        if self._tracing and step == self._end:
            jax.block_until_ready(state)
            self.stop()

    def stop(self) -> None:
        """Ends the trace if it has started."""
        if self._tracing:
            jax.profiler.stop_trace()
            self._tracing = False


class _Line(TypedDict):
    """The keys that every line of metrics.jsonl must have."""

    epoch: int
    step: int
    monitor: str


def learning_curve(run_dir: str | Path) -> Path | None:
    """Plots a run's loss and monitored metric, and marks the best validation.

    The x-axis has epochs, or steps if there are validations within epochs. For several runs in one
    folder it plots each of them, and their mean.

    Args:
        run_dir: The run folder that ``fit`` wrote.

    Returns:
        The path of ``learning_curve.png`` in that folder, or None, with a note on stderr, if
        matplotlib is not installed.

    Raises:
        FileNotFoundError: If the folder has no metrics.jsonl.
        ValueError: If there was no validation yet, or a line is damaged; names the line.
    """
    source = Path(run_dir) / METRICS_FILE
    if not source.is_file():
        raise FileNotFoundError(f"There is no {source}: train a run in this folder first.")
    lines = _read_lines(source)
    if not lines:
        raise ValueError(
            f"{source} is empty, since no epoch of the run has finished; resume the run first."
        )
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError:
        print(
            "note: the learning curve needs matplotlib; install it with "
            "pip install 'flax-linattn[plots]'.",
            file=sys.stderr,
        )
        return None

    unit = "step" if "best_step" in lines[-1] else "epoch"
    x = [line[unit] for line in lines]
    best = lines[-1].get(f"best_{unit}")
    monitor = lines[-1]["monitor"]
    names = list(dict.fromkeys(["loss", monitor]))
    figure = Figure(figsize=(4.5 * len(names), 3.4), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        for part, color in (("train", "tab:blue"), ("validation", "tab:orange")):
            # A metric without any counted example is null; the curve has a gap there.
            means = [line.get(f"{part}_{name}") for line in lines]
            values = [float("nan") if mean is None else mean for mean in means]
            marker = "o" if len(x) == 1 else None
            axes.plot(x, values, color=color, label=part, marker=marker)
            for run in _run_curves(lines, f"{part}_{name}"):
                axes.plot(x, run, color=color, linewidth=0.5, alpha=0.5)
            if best is not None and part == "validation" and name == monitor:
                axes.plot(best, values[x.index(best)], "*", color=color, ms=12, label="best")
        if best is None:
            axes.set(xlabel=unit, ylabel=name, title=f"{name}, mean and each run")
        else:
            axes.axvline(best, color="gray", linewidth=0.8, linestyle="--", zorder=0)
            axes.set(xlabel=unit, ylabel=name, title=f"{name} (best {unit}: {best})")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend(frameon=False)
    path = Path(run_dir) / "learning_curve.png"
    with atomic_write(path) as file:
        figure.savefig(file, dpi=150)
    return path


def _run_curves(lines: list[dict[str, Any]], name: str) -> list[list[float]]:
    """A metric of each of several runs over the validations; empty for a single model."""
    columns = [line.get("runs", {}).get(name, ()) for line in lines]
    return [
        [float("nan") if value is None else value for value in run]
        for run in zip(*columns, strict=True)
    ]


def _read_lines(source: Path) -> list[dict[str, Any]]:
    lines = []
    for number, text in enumerate(source.read_bytes().splitlines(), start=1):
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            line = None
        if not fits(line, _Line):
            raise ValueError(
                f"{source}:{number}: expected the JSON of a validation, got "
                f"{quote(text.decode(errors='backslashreplace'), 80)}; resume the run to rewrite "
                "the file from its checkpoint."
            )
        lines.append(line)
    return lines
