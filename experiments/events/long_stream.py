"""One stream of 100,000 events: likelihood compared with a batch, state size and speed.

    python -m experiments.events.long_stream

None of the implemented papers measures this. The stream processes one event at a time, as
``stream`` does, and the batch scores the whole sequence in chunks of 512 tokens, both in float32.
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from functools import partial
from typing import Any

import numpy as np

from experiments.measured import Measured, Rows
from experiments.options import task_config
from experiments.statements import Statement
from experiments.verdicts import FAILS, HOLDS, Rule, Verdict, Word, combine
from flax_linattn import tasks, training
from flax_linattn.bench import Journal
from flax_linattn.bench.report import markdown
from flax_linattn.tasks.events.data import PROCESSES
from flax_linattn.tasks.events.evaluate import score
from flax_linattn.tasks.events.options import EventsStreamOptions
from flax_linattn.tasks.events.rows import Event
from flax_linattn.tasks.events.stream import EventsStream

EQUAL = 1e-5
SAME = Rule(
    f"A stream equals the batch if their NLL per event differs by at most {EQUAL:g}, and its state "
    "has the same number of bytes after the first and the last event.",
    "2026-11-24T08:45:00+00:00",
)


@dataclasses.dataclass(frozen=True)
class Size:
    """Settings of the streams at one scale."""

    mechanisms: tuple[str, ...] = ("aaren", "elementwise_series", "taylorshift", "linear")
    events: int = 100_000
    train: int = 60
    """Sequences that the model has learned from."""
    epochs: int = 5


def measure(size: Size, journal: Journal) -> None:
    for mechanism in size.mechanisms:
        journal.row({"mechanism": mechanism}, partial(score_stream, size, mechanism))


def score_stream(size: Size, mechanism: str) -> dict[str, Any]:
    """Scores a long stream with a trained model, event by event and as a batch."""
    config = task_config(
        "events",
        process="hawkes-marked",
        num_sequences=size.train,
        mechanism=mechanism,
        epochs=size.epochs,
    )
    process = PROCESSES["hawkes-marked"]
    # A quarter more than wanted are to be expected, and the rest is cut off.
    rate = float(process.sample(50, end=200.0, seed=1).num_events) / (50 * 200.0)
    generated = process.sample(1, end=1.25 * size.events / rate, seed=2)
    times, event_types = generated.times[0][: size.events], generated.event_types[0][: size.events]
    whole = dataclasses.replace(generated, times=(times,), event_types=(event_types,), end=None)
    with tempfile.TemporaryDirectory() as folder:
        tasks.train("events", config, training.Session(folder, progress=False))
        run = tasks.load_run(folder)
    scores = score(run.model, whole, run.data_spec)
    stream = EventsStream(run, EventsStreamOptions(begin="0"))
    state_bytes, begun, first = [], time.perf_counter(), 200
    log_likelihoods = []
    for number, (at, event_type) in enumerate(zip(times, event_types, strict=True)):
        if number == first:
            begun = time.perf_counter()
        log_likelihoods.append(stream.step(Event(float(at), int(event_type))))
        if number in (0, len(times) - 1):
            state_bytes.append(stream.state_bytes)
    seconds = time.perf_counter() - begun
    batch = scores.time + scores.event_type
    return {
        "events": len(times),
        "batch_nll": -float(batch.mean()),
        "stream_nll": -stream.log_likelihood / stream.num_foreseen,
        "max_difference": float(np.max(np.abs(np.array(log_likelihoods) - batch))),
        "state_bytes": state_bytes,
        "events_per_second": (len(times) - first) / seconds,
    }


def is_batch(rows: Rows) -> Verdict:
    """The verdict on streams against batches, over all mechanisms."""
    words, differences = [], []
    for row in rows:
        difference = abs(row["stream_nll"] - row["batch_nll"])
        constant = len(set(row["state_bytes"])) == 1
        words.append(Word(HOLDS if difference <= EQUAL and constant else FAILS, SAME))
        differences.append(f"{row['mechanism']} {difference:.1e}")
    return Verdict(combine(words), ", ".join(differences))


def table(rows: Rows, size: Size) -> str:
    """A table with a line for each mechanism."""
    header = [
        "attention", "events", "NLL of the batch", "of the stream", "largest difference",
        "bytes of state", "events per second",
    ]  # fmt: skip
    lines = [
        [
            f"`{row['mechanism']}`",
            f"{row['events']:,}",
            f"{row['batch_nll']:.6f}",
            f"{row['stream_nll']:.6f}",
            f"{row['max_difference']:.1e}",
            f"{row['state_bytes'][0]:,}, then {row['state_bytes'][-1]:,}",
            f"{row['events_per_second']:,.0f}",
        ]
        for row in rows
    ]
    note = (
        "Each step calls the compiled model and the likelihood; reading and printing lines is "
        "not included. The model was trained on sequences of 256 events: the table shows that "
        "stream and batch agree, not that the model is accurate that far beyond its training "
        "length."
    )
    return f"{markdown(header, lines)}\n\n{note}"


EXPERIMENT = Measured(
    module="experiments.events.long_stream",
    sizes={"": Size()},
    measure=measure,
    table=table,
    statements=(
        Statement(
            "ours", "the streamed likelihood equals the batch's, in constant memory", is_batch
        ),
    ),
    left_out={"": "mechanisms with a cache, whose memory is not constant; accelerators"},
)


if __name__ == "__main__":
    EXPERIMENT.main()
