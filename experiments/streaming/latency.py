"""Latency of a step and size of the state after 10, 1,000 and 100,000 observations.

    python -m experiments.streaming.latency

The stream is the concatenated test recordings of Japanese Vowels, without a reset. Aaren's
classifier (that of ``make demo``, untrained, because training does not change the cost of a step)
is compared with the same model with softmax attention and a key/value cache for the whole stream.
The softmax stream stops earlier, because each of its steps reads the whole cache. Blocks of steps
of both run in turns in one process. Numbers are medians over the last steps before each count.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx

from experiments.measured import Measured, Rows
from experiments.rules import Range, no_more, no_more_bytes
from experiments.statements import Statement
from experiments.verdicts import Verdict, combine
from flax_linattn import data, inference, models
from flax_linattn.bench import Journal, spread
from flax_linattn.bench.report import markdown

AAREN, CACHED = "aaren", "softmax, cache"
WINDOW = 100
"""Steps timed before a mark (all of them before an earlier one)."""


@dataclasses.dataclass(frozen=True)
class Size:
    """Settings of the measurement at one scale."""

    counts: tuple[int, ...] = (10, 1_000, 100_000)
    """Observations so far."""
    softmax_counts: tuple[int, ...] = (10, 1_000)
    features: int = 128
    num_layers: int = 3


def measure(size: Size, journal: Journal) -> None:
    journal.row({"what": "streams"}, lambda: {"streams": streams(size)})


def streams(size: Size) -> dict[str, Any]:
    """Both streams, mark by mark in turns."""
    counts = {AAREN: size.counts, CACHED: size.softmax_counts}
    made = {name: stream(name, size) for name in counts}
    tapes = {name: observations() for name in made}
    results: dict[str, Any] = {name: [] for name in made}
    for count in size.counts:
        for name, one in made.items():
            if count in counts[name]:
                results[name].append(advance(one, tapes[name], count))
    return results


def spread_of_parts(times: Sequence[float], parts: int = 8) -> dict[str, float]:
    """Median, least and most of the medians of consecutive parts.

    Of many single steps least and most are accidents, and the further apart the more there are.
    """
    cut = [len(times) * i // parts for i in range(parts + 1)]
    medians = [statistics.median(times[a:b]) for a, b in itertools.pairwise(cut) if a < b]
    return spread(medians) | {"median": statistics.median(times)}


def stream(name: str, size: Size) -> inference.Stream:
    """A classifier of nine speakers as a recurrent network, compiled."""
    train = data.japanese_vowels()[0]
    model = models.SequenceClassifier(
        train.series[0].shape[-1],
        9,
        features=size.features,
        num_layers=size.num_layers,
        mechanism="softmax" if name == CACHED else name,
        rngs=nnx.Rngs(0),
    )
    one = inference.Stream(model, max_length=max(size.counts) if name == CACHED else None)
    one.step(next(observations()))
    one.reset()
    return one


def observations() -> Iterator[np.ndarray]:
    """The standardized test recordings, over and over: float32 [1, channels] each."""
    train, test = data.japanese_vowels()
    series = data.Standardizer.fit(train.series).apply(test.series)
    yield from itertools.cycle(np.concatenate(series).astype(np.float32)[:, None])


def advance(stream: inference.Stream, tape: Iterator[np.ndarray], count: int) -> dict[str, Any]:
    """Runs the stream up to a mark and times the last steps before it."""
    window = min(WINDOW, count - stream.num_steps)
    while stream.num_steps < count - window:
        stream.step(next(tape))
    seconds = []
    for _ in range(window):
        x = next(tape)
        begin = time.perf_counter()
        logits = jax.block_until_ready(stream.step(x))
        seconds.append(time.perf_counter() - begin)
    return {
        "observations": count,
        "us": spread_of_parts([1e6 * one for one in seconds]),
        "p90_us": 1e6 * sorted(seconds)[int(0.9 * len(seconds))],
        "state_bytes": inference.state_bytes(stream.state),
        "compilations": stream.num_compilations,
        "finite": bool(np.isfinite(logits).all()),
    }


def constant(rows: Rows) -> Verdict:
    """Aaren's state keeps its size and its step its time."""
    points = rows[0]["streams"][AAREN]
    first, *later = (Range.of(point["us"]) for point in points)
    times = [time.over(first) for time in later]
    sizes = [point["state_bytes"] / points[0]["state_bytes"] for point in points[1:]]
    word = combine([no_more(times), no_more_bytes(sizes)])
    last = points[-1]
    return Verdict(
        word,
        f"{last['state_bytes']:,} bytes and {times[-1].middle:.2g} times the time of a step after "
        f"{last['observations']:,} observations against {points[0]['observations']:,}",
    )


def table(rows: Rows, size: Size) -> str:
    lines = [
        [
            name,
            f"{point['observations']:,}",
            f"{1e-3 * point['us']['median']:.2f} ms",
            f"{point['state_bytes']:,} bytes",
        ]
        for name, points in rows[0]["streams"].items()
        for point in points
    ]
    return markdown(["model", "observations so far", "median time of a step", "state"], lines)


EXPERIMENT = Measured(
    module="experiments.streaming.latency",
    about="Aaren, figure 5: memory and time per token are constant in the number of tokens so far",
    sizes={"": Size()},
    measure=measure,
    table=table,
    statements=(
        Statement(
            "Aaren, section 3.3", "a whole model processes a token in constant time", constant
        ),
    ),
    left_out={"": "training; the softmax stream beyond 1,000 observations"},
)

if __name__ == "__main__":
    EXPERIMENT.main()
