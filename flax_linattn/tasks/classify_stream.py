"""A trained classifier over a stream: observations in, class probabilities out."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from flax_linattn import inference
from flax_linattn.checks import at_least
from flax_linattn.data.cells import BadCellError, join_cells, parse_numbers
from flax_linattn.tasks.classify_data import ClassifyProblem
from flax_linattn.tasks.classify_evaluate import ClassifyRun, load_classifier, load_test
from flax_linattn.tasks.figure import new_figure
from flax_linattn.tasks.lines import open_lines

MOST_DRAWN = 10_000
"""Predictions kept for a figure, so that an endless stream stays in constant memory."""


class Prediction(NamedTuple):
    """What is known after one observation.

    Attributes:
        step: observations of this sequence so far.
        probabilities: float32 [classes].
    """

    step: int
    probabilities: NDArray[np.float32]


def parse_observations(
    lines: Iterable[str], num_channels: int, name: str = "standard input"
) -> Iterator[NDArray[np.float64] | None]:
    """Reads one observation a line: numbers separated by commas or blanks.

    "?", "NaN", "NA" and "null" are missing values. A blank line ends the sequence; there are no
    headers.

    Args:
        lines: the text.
        num_channels: numbers expected in a line.
        name: of the source, for messages.

    Yields:
        float64 [channels], NaN = missing; None where a new sequence begins.

    Raises:
        ValueError: a line that holds something else; the message names it.

    Example:
        >>> [o if o is None else o.tolist() for o in parse_observations(["1, 2", "", "3 ?"], 2)]
        [[1.0, 2.0], None, [3.0, nan]]
    """
    for number, line in enumerate(lines, start=1):
        fields = line.replace(",", " ").split()
        if not fields:
            yield None
            continue
        if len(fields) != num_channels:
            raise ValueError(
                f"{name}:{number}: expected {num_channels} values, one for each channel, got "
                f"{len(fields)} in {line.strip()!r}; separate them by commas or blanks."
            )
        try:
            yield parse_numbers(fields)
        except BadCellError as bad:
            raise ValueError(
                f"{name}:{number}: expected finite numbers, got {fields[bad.index]!r}; write '?' "
                "for a missing value, and leave out headers and comments."
            ) from None


def predict_stream(
    run: ClassifyRun,
    observations: Iterable[NDArray[np.float64] | None],
    *,
    max_length: int | None = None,
) -> Iterator[Prediction]:
    """Feeds observations to a run's model, one compiled step each.

    A missing value repeats the channel's last one, or the training mean if there is none.

    Args:
        run: the trained run.
        observations: float [channels] each; None begins a new sequence.
        max_length: most observations of a sequence, for mechanisms with a cache; default the
            longest sequence of the run's data.

    Yields:
        The prediction after each observation.

    Raises:
        ValueError: the model cannot stream, ``max_length`` is below 1, a sequence is longer
            than the model can take, or a value is out of range.
    """
    at_least(1, max_length=max_length)
    max_length = run.problem.max_length if max_length is None else max_length
    stream = inference.Stream(run.model, max_length=max_length)
    standardizer, channels = run.problem.standardizer, run.problem.channels
    last = standardizer.mean
    for observation in observations:
        if observation is None:
            stream.reset()
            last = standardizer.mean
            continue
        last = np.where(np.isnan(observation), last, observation)
        (scaled,) = standardizer.apply([last[None]], channels)
        logits = stream.step(scaled.astype(np.float32))
        probabilities = np.asarray(jax.nn.softmax(logits[0]))
        if np.isnan(probabilities).any():
            raise ValueError(
                f"the model gives no answer for observation {stream.num_steps}: it is made for "
                f"at most {max_length} a sequence. Give a larger "
                "--max-length for mechanisms with a cache; the flatten head has no longer form. "
                "A blank line begins a new sequence."
            )
        yield Prediction(stream.num_steps, probabilities)


def stream_classifier(
    run: Path,
    input: Path | None = None,
    sequence: int | None = None,
    max_length: int | None = None,
    figure: Path | None = None,
) -> None:
    """Prints the class probabilities after each observation; the options are ``stream_run``'s.

    Raises:
        FileNotFoundError: the run or the input is missing.
        ValueError: damaged files; a run that cannot stream; a bad line.
    """
    if input is not None and sequence is not None:
        raise ValueError("give --input or --sequence, not both.")
    loaded = load_classifier(run)
    if not loaded.model.backbone.streams:
        raise ValueError(
            f"the run {run} cannot stream: its model looks at the future. Train one with "
            "--causal, --embedding causal and a mechanism with a causal form."
        )
    title = f"{loaded.problem.dataset}, {loaded.config.mechanism}"
    if sequence is not None:
        test = load_test(loaded)
        if not 0 <= sequence < test.num_examples:
            raise ValueError(
                f"the test data have sequences 0 to {test.num_examples - 1}, got {sequence}."
            )
        truth = test.classes[test.labels[sequence]]
        title += f": test sequence {sequence}, class {truth}"
        print(f"# test sequence {sequence}, true class {truth}", file=sys.stderr)
        _print_predictions(loaded, iter(test.series[sequence]), max_length, figure, title)
        return
    with open_lines(input) as (lines, name):
        observations = parse_observations(lines, len(loaded.problem.channels), name)
        _print_predictions(loaded, observations, max_length, figure, title)


def _print_predictions(
    run: ClassifyRun,
    observations: Iterable[NDArray[np.float64] | None],
    max_length: int | None,
    figure: Path | None,
    title: str,
) -> None:
    classes = run.problem.classes
    drawn: deque[Prediction] = deque(maxlen=MOST_DRAWN)
    print(join_cells(["step", "prediction", *(f"p({name})" for name in classes)]), flush=True)
    any_yet = False
    try:
        for prediction in predict_stream(run, observations, max_length=max_length):
            any_yet = True
            best = classes[int(np.argmax(prediction.probabilities))]
            shares = (f"{p:.4f}" for p in prediction.probabilities)
            print(join_cells([prediction.step, best, *shares]), flush=True)
            if figure is not None:
                drawn.append(prediction)
    finally:  # a stream may well end by Ctrl-C
        if drawn and figure is not None:
            draw_stream(drawn, run.problem, figure, title)
            print(f"# figure: {figure}", file=sys.stderr)
    if not any_yet:
        print("# no observation came: give one a line", file=sys.stderr)


def draw_stream(
    predictions: Sequence[Prediction], problem: ClassifyProblem, path: Path, title: str
) -> None:
    """Draws class probabilities over time to a PNG file.

    Args:
        predictions: of one or more sequences, in order; a line breaks between sequences.
        problem: names the classes.
        path: the file.
        title: of the figure.

    Raises:
        ValueError: matplotlib is not installed.
    """
    probabilities = np.stack([prediction.probabilities for prediction in predictions])
    begins = [i for i, prediction in enumerate(predictions) if i and prediction.step == 1]
    probabilities = np.insert(probabilities, begins, np.nan, axis=0)  # a gap between sequences
    canvas = new_figure(8, 3.6)
    axes = canvas.subplots()
    steps = np.insert(np.arange(1.0, len(predictions) + 1), begins, np.nan)
    likeliest = set(np.argsort(-np.nanmax(probabilities, axis=0))[:4].tolist())
    for index, name in enumerate(problem.classes):
        if index in likeliest:
            axes.plot(steps, probabilities[:, index], linewidth=2, marker=".", label=name)
        else:
            axes.plot(steps, probabilities[:, index], linewidth=1, color="0.75", zorder=1)
    axes.set(xlabel="observations so far", ylabel="class probability", ylim=(0, 1.02), title=title)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(title="class", loc="center left", bbox_to_anchor=(1, 0.5))
    path.parent.mkdir(parents=True, exist_ok=True)
    canvas.savefig(path, dpi=120)
