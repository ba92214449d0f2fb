"""Three ways to act, by time and memory: Aaren, figure 5, in the setting of its table 1.

    python -m experiments.decide.latency

An agent acts in every step of an episode: by a window of 20 steps that is computed anew (as the
published code does), by a cache of keys and values of all steps, or by a state of constant size. A
model of 3 blocks of 128, not trained, since numbers do not change its time.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from flax import nnx

from experiments.measured import Measured, Rows
from experiments.statements import Statement
from experiments.verdicts import FAILS, HOLDS, NotMeasuredError, Rule, Verdict, Word, all_of
from flax_linattn import inference, models
from flax_linattn.bench import Journal
from flax_linattn.bench.plots import import_figure
from flax_linattn.bench.report import markdown
from flax_linattn.inference.compiled import compiled

SAME_TIME = Rule(
    "The time of a step does not grow where its median at the last step is under 1.5 times that at "
    "the first one measured; it grows where it is above.",
    "2026-11-24T11:50:00+00:00",
)
OBSERVATION, ACTION, CONTEXT = 11, 3, 20
"""Of Hopper, and the published window."""

WAYS = ("stream", "cache", "window")


@dataclasses.dataclass(frozen=True)
class Size:
    """What is timed."""

    steps: tuple[int, ...] = (20, 1_000, 10_000)
    """At which a step is timed; and how long the episodes are whose time is summed up."""
    rows: tuple[int, ...] = (1, 64)
    repeats: int = 15
    features: int = 128
    num_layers: int = 3
    num_heads: int = 1
    most_bytes: int = 8 * 2**30
    """Of a cache that is tried."""


def measure(size: Size, journal: Journal) -> None:
    for rows in size.rows:
        for steps in size.steps:
            for way in WAYS:
                journal.row(
                    {"way": way, "rows": rows, "step": steps}, partial(one, size, way, rows, steps)
                )
    for steps in size.steps[1:]:
        for way in WAYS:
            key = {"way": way, "rows": 1, "episode": steps}
            journal.row(key, partial(episode, size, way, steps))


def make_model(size: Size, mechanism: str) -> models.DecisionTransformer:
    """An untrained model without a table of times."""
    return models.DecisionTransformer(
        OBSERVATION, ACTION, position="sinusoidal", max_length=None, mechanism=mechanism,
        features=size.features, num_layers=size.num_layers, num_heads=size.num_heads,
        rngs=nnx.Rngs(0),
    )  # fmt: skip


def step_of(size: Size, way: str, rows: int, steps: int) -> tuple[Callable[[], Any], int] | None:
    """A step after so many others, and the bytes that are kept from step to step.

    None where a cache would be too large.
    """
    rng = np.random.default_rng(0)
    width = 3 + OBSERVATION + ACTION

    def seen(*shape: int) -> Any:
        x = rng.normal(size=(*shape, width)).astype(np.float32)
        x[..., 1] = 1
        return x

    if way == "window":
        model, window = make_model(size, "softmax"), seen(rows, CONTEXT)
        mask = np.ones((rows, CONTEXT), bool)
        return lambda: np.asarray(_last(model, window, mask)), window.nbytes
    model = make_model(size, "aaren" if way == "stream" else "softmax")
    if way == "cache":
        tokens = 3 * (steps + 2 * size.repeats)
        if 8 * rows * tokens * size.features * size.num_layers > size.most_bytes:
            return None
    stream = inference.Stream(
        model, batch_size=rows, max_length=steps + 2 * size.repeats if way == "cache" else None
    )
    stream.prefill(seen(rows, steps), chunk_size=min(steps, 100))
    x = seen(rows)
    return lambda: np.asarray(stream.step(x)), inference.state_bytes(stream.state)


@compiled()
def _last(model: Any, x: Any, mask: Any) -> Any:
    return model(x, mask=mask)[:, -1]


def one(size: Size, way: str, rows: int, steps: int) -> dict[str, Any]:
    """The median time of a step."""
    made = step_of(size, way, rows, steps)
    if made is None:
        return {"milliseconds": None, "bytes": None}
    step, kept = made
    times = []
    for _ in range(size.repeats + 2):
        begun = time.perf_counter()
        step()
        times.append(1e3 * (time.perf_counter() - begun))
    jax.clear_caches()
    return {"milliseconds": statistics.median(times[2:]), "bytes": kept}


def episode(size: Size, way: str, steps: int) -> dict[str, Any]:
    """The time of all steps of an episode, one after another."""
    made = step_of(dataclasses.replace(size, repeats=(steps + 40) // 2), way, 1, 1)
    assert made is not None
    step, kept = made
    step()
    marks, begun = [], time.perf_counter()
    for number in range(1, steps + 1):
        step()
        if number % (steps // 10) == 0:
            marks.append(round(time.perf_counter() - begun, 3))
    jax.clear_caches()
    return {"seconds": marks, "bytes": kept}


def at(rows: Sequence[dict[str, Any]], way: str, num_rows: int, step: int) -> dict[str, Any]:
    """The row of a step.

    Raises:
        NotMeasuredError: it was not timed.
    """
    for row in rows:
        if (row["way"], row["rows"], row.get("step")) == (way, num_rows, step):
            return row
    raise NotMeasuredError(f"{way}, {num_rows} rows, step {step}")


def constant(way: str) -> Callable[[Sequence[dict[str, Any]]], Verdict]:
    """The verdict on the time of a way's steps, over numbers of rows."""

    def judge(rows: Sequence[dict[str, Any]]) -> Verdict:
        words, told = [], []
        for num_rows in dict.fromkeys(row["rows"] for row in rows):
            timed = [
                row
                for row in rows
                if (row["way"], row["rows"]) == (way, num_rows) and row.get("milliseconds")
            ]
            ratio = timed[-1]["milliseconds"] / timed[0]["milliseconds"]
            words.append(Word(HOLDS if ratio < 1.5 else FAILS, SAME_TIME))
            told.append(
                f"{num_rows} rows: {ratio:.2f} times from step {timed[0]['step']:,} to "
                f"{timed[-1]['step']:,}"
            )
        return Verdict(all_of(words), "; ".join(told))

    return judge


def grows(way: str) -> Callable[[Sequence[dict[str, Any]]], Verdict]:
    """The verdict on the claim that a way's steps take longer and longer."""

    def judge(rows: Sequence[dict[str, Any]]) -> Verdict:
        word, ours = constant(way)(rows)
        opposite = {HOLDS: FAILS, FAILS: HOLDS}
        return Verdict(Word(opposite.get(word, word), SAME_TIME), ours)

    return judge


def table(rows: Rows, size: Size) -> str:
    """Milliseconds a step, then seconds of episodes."""
    header = ["milliseconds a step", *(f"{way}, {n} rows" for n in size.rows for way in WAYS)]
    lines = []
    for step in size.steps:
        cells = []
        for num_rows in size.rows:
            for way in WAYS:
                row = at(rows, way, num_rows, step)
                cells.append(
                    "too large"
                    if row["milliseconds"] is None
                    else f"{row['milliseconds']:.2f}, {_bytes(row['bytes'])}"
                )
        lines.append([f"at step {step:,}", *cells])
    told = []
    for row in rows:
        if "episode" in row:
            cells = [f"{row['seconds'][-1]:.1f}", f"{row['seconds'][4]:.1f}", _bytes(row["bytes"])]
            told.append([f"{row['episode']:,} steps", row["way"], *cells])
    episodes = markdown(["an episode of", "", "seconds", "of its first half", "kept"], told)
    note = (
        "Median of the time of a step with the bytes that are kept from step to step; a row is an "
        "environment. The stream is Aaren's state, the cache softmax attention's, made for the "
        "whole episode at once, so that its steps cost the same from the first one on; the window "
        "is softmax attention over 20 steps, three tokens each."
    )
    return "\n\n".join([markdown(header, lines), note, episodes])


def _bytes(number: int) -> str:
    for unit, size in (("MB", 1e6), ("kB", 1e3)):
        if number >= size:
            return f"{number / size:,.3g} {unit}"
    return f"{number} bytes"


def draw(rows: Rows) -> Any:
    """Cumulative time and memory, as in the paper's figure 5."""
    episodes = [row for row in rows if "episode" in row]
    figure = import_figure()(figsize=(8.4, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    longest = max(row["episode"] for row in episodes)
    for number, way in enumerate(WAYS):
        for row in (row for row in episodes if row["way"] == way and row["episode"] == longest):
            x = [longest * (n + 1) / 10 for n in range(10)]
            left.plot(x, row["seconds"], "o-", markersize=3, color=f"C{number}", label=way)
        timed = [r for r in rows if r["way"] == way and r["rows"] == 1 and "step" in r]
        kept = [(r["step"], r["bytes"]) for r in timed if r["bytes"]]
        right.plot(*zip(*kept, strict=True), "o-", markersize=3, color=f"C{number}", label=way)
    left.set(xlabel="step of the episode", ylabel="cumulative seconds")
    right.set(xlabel="step of the episode", ylabel="bytes kept", xscale="log", yscale="log")
    left.legend(frameon=False)
    return figure


EXPERIMENT = Measured(
    module="experiments.decide.latency",
    about="Aaren, figure 5: memory and cumulative time of a stream; there in no robot's setting",
    sizes={"": Size()},
    measure=measure,
    table=table,
    draw=draw,
    statements=(
        Statement("Aaren, figure 5", "Aaren's steps take constant time", constant("stream")),
        Statement("Aaren, figure 5", "those of a cache take longer and longer", grows("cache")),
        Statement("ours", "those of a window take constant time", constant("window")),
    ),
    left_out={"": "accelerators; the paper's width of 512"},
)


if __name__ == "__main__":
    EXPERIMENT.main()
