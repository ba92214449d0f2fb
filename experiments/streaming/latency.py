"""Latency of a step and size of the state after 10, 1,000 and 100,000 observations.

    python -m experiments.streaming.latency runs/demo

The stream repeats the run's test recordings end to end, without a reset. Beside Aaren's run
stands the same model with softmax attention and a key/value cache preallocated for the whole
stream, stopped earlier, since its step slows down with the cache. The blocks of steps of both
are taken in turn, in one process; figures are medians over the last steps before each mark.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments import command
from experiments.options import changed
from flax_linattn import data, inference, tasks
from flax_linattn.bench import provenance
from flax_linattn.bench.journal import write_json

MARKS = (10, 1_000, 100_000)
CACHED = "softmax, cache"
WINDOW = 100
"""Steps timed before a mark (all ten before the first)."""


def observations(run: tasks.Run) -> Iterator[np.ndarray]:
    """The standardised test recordings, over and over: float32 [1, channels] each."""
    series = run.problem.standardizer.apply(data.japanese_vowels()[1].series)
    tape = np.concatenate(series).astype(np.float32)
    while True:
        yield from tape[:, None]


def measure(stream: inference.Stream, tape: Iterator[np.ndarray], mark: int) -> dict[str, Any]:
    """Runs the stream up to a mark and times the last steps before it."""
    window = min(WINDOW, mark - stream.num_steps)
    while stream.num_steps < mark - window:
        stream.step(next(tape))
    seconds = []
    for _ in range(window):
        x = next(tape)
        begin = time.perf_counter()
        logits = jax.block_until_ready(stream.step(x))
        seconds.append(time.perf_counter() - begin)
    return {
        "observations": mark,
        "median_us": 1e6 * statistics.median(seconds),
        "p90_us": 1e6 * sorted(seconds)[int(0.9 * len(seconds))],
        "state_bytes": inference.state_bytes(stream.state),
        "finite": bool(np.isfinite(logits).all()),
    }


def main() -> None:
    about = (__doc__ or "").splitlines()[0]
    parser = command.parser("experiments.streaming.latency", about, Path(__file__).parent)
    parser.add_argument("run", type=Path)
    parser.add_argument("--softmax-tokens", type=int, default=100_000)
    parser.add_argument("--softmax-mark", type=int, default=1_000)
    options = parser.parse_args()

    run = tasks.load_run(options.run)
    name = run.config.to_json()["mechanism"]
    softmax = run.task.model(changed(run.config, mechanism="softmax"), run.problem)
    streams = {
        name: inference.Stream(run.model),
        CACHED: inference.Stream(softmax, max_length=options.softmax_tokens),
    }
    marks = {name: MARKS, CACHED: [mark for mark in MARKS if mark <= options.softmax_mark]}
    tapes = {model: observations(run) for model in streams}
    for model, stream in streams.items():  # compile, then begin anew
        stream.step(next(tapes[model]))
        stream.reset()
    results: dict[str, list[dict[str, Any]]] = {model: [] for model in streams}
    for mark in MARKS:
        for model, stream in streams.items():
            if mark in marks[model]:
                results[model].append(measure(stream, tapes[model], mark))
                print(model, results[model][-1], flush=True)
    compilations = {model: stream.num_compilations for model, stream in streams.items()}
    head = provenance("python -m experiments.streaming.latency RUN")
    rows = {"compilations": compilations, "results": results}
    write_json(options.output / "latency.json", head | rows)


if __name__ == "__main__":
    main()
