"""Latency of a step and size of the state after 10, 1,000 and 100,000 observations.

    python -m experiments.streaming.latency runs/demo

The stream repeats the run's test recordings end to end, without a reset. Beside Aaren's run
stands the same model with softmax attention and a key/value cache preallocated for the whole
stream, stopped earlier, since its step slows down with the cache. The blocks of steps of both
are taken in turn, in one process; figures are medians over the last steps before each mark.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from flax_linattn import data, inference, tasks

MARKS = (10, 1_000, 100_000)
WINDOW = 100
"""Steps timed before a mark (all ten before the first)."""


def observations(run: tasks.ClassifyRun) -> Iterator[np.ndarray]:
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
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--softmax-tokens", type=int, default=100_000)
    parser.add_argument("--softmax-mark", type=int, default=1_000)
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("results.json"))
    options = parser.parse_args()

    run = tasks.load_classifier(options.run)
    config = tasks.ClassifyConfig.from_json({**run.config.to_json(), "mechanism": "softmax"})
    softmax = tasks.build_classifier(config, run.problem)
    streams = {
        run.config.mechanism: inference.Stream(run.model),
        "softmax, cache": inference.Stream(softmax, max_length=options.softmax_tokens),
    }
    tapes = {name: observations(run) for name in streams}
    for name, stream in streams.items():  # compile, then begin anew
        stream.step(next(tapes[name]))
        stream.reset()
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in streams}
    for mark in MARKS:
        for name, stream in streams.items():
            if name == run.config.mechanism or mark <= options.softmax_mark:
                results[name].append(measure(stream, tapes[name], mark))
                print(name, results[name][-1], flush=True)
        compilations = {name: stream.num_compilations for name, stream in streams.items()}
    report = {
        "command": "python -m experiments.streaming.latency RUN",
        "jax": jax.__version__,
        "device": jax.devices()[0].device_kind,
        "compilations": compilations,
        "results": results,
    }
    options.output.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
