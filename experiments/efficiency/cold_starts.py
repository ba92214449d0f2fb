"""CPU seconds that a user waits before the work begins: imports, help, errors, first answers.

    python -m experiments.efficiency.cold_starts

Each command runs as its own process on one core, first with an empty cache of compiled programs,
then with the cache that the first run filled. Times are user and system seconds of the process and
of its children, so other work on the machine counts little.
"""

from __future__ import annotations

import dataclasses
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from experiments.measured import Measured, Rows
from flax_linattn.bench import Journal
from flax_linattn.bench.report import interval, markdown

FIRST, SECOND = "empty", "filled"
"""Caches of compiled programs: an empty one, and the one that the process before has filled."""

FIT = """
import numpy as np
from flax_linattn import estimators
rng = np.random.default_rng(0)
x = rng.normal(size=(100, 50, 3)).astype(np.float32)
y = np.arange(100) % 2
x[y == 1] = 0.3 * x[y == 1].cumsum(1)
for fit in range(FITS):
    estimators.Classifier(OPTIONS).fit(x, y)
"""


@dataclasses.dataclass(frozen=True)
class Size:
    """Settings of the measurement at one scale.

    Attributes:
        repeats: Number of processes of each kind.
        rows: Number of rows of the table that a forecaster is trained on.
        epochs: Number of its training epochs.
    """

    repeats: int = 3
    rows: int = 2_000
    epochs: int = 4


def commands(size: Size, folder: Path) -> Iterator[tuple[str, Sequence[str], str, int]]:
    """A title of each process, its arguments after ``python``, its input and its exit status."""
    program = ("-m", "flax_linattn")
    yield "import jax and flax.nnx", ("-c", "import jax, flax.nnx"), "", 0
    importing = "from flax_linattn.models import LanguageModel"
    yield importing, ("-c", importing), "", 0
    for name in ("train forecast", "stream"):
        yield f"{name} --help", (*program, *name.split(), "--help"), "", 0
    refused = ("train", "forecast", "--mechanism", "softmx")
    yield "train forecast, misspelled mechanism", (*program, *refused), "", 2
    table, run = folder / "table.csv", folder / "run"
    rng = np.random.default_rng(0)
    values = np.sin(np.arange(size.rows)[:, None] / np.array([3, 7])) + rng.normal(
        scale=0.1, size=(size.rows, 2)
    )
    lines = [",".join(f"{cell:.4f}" for cell in row) for row in values]
    table.write_text("\n".join(["a,b", *lines, ""]))
    options = ("--csv", str(table), "--horizon", "24", "--epochs", str(size.epochs))
    name = f"train forecast, {size.rows:,} rows, {size.epochs} epochs"
    training = (*program, "train", "forecast", *options, "--run", str(run))
    yield name, training, "", 0
    if not run.exists():  # its result is stored already
        processor_seconds(training, "", 0, str(folder / "programs"))
    observations = "\n".join(lines[-200:]) + "\n"
    yield "stream, 200 rows", (*program, "stream", str(run)), observations, 0
    yield "stream, bad first row", (*program, "stream", str(run)), "a word,2\n", 2
    for model, options in (
        ("", "epochs=4"),
        (", closed form", "options={'model': 'closed-form'}"),
    ):
        for fits in (1, 2):
            code = FIT.replace("FITS", str(fits)).replace("OPTIONS", options)
            yield f"Classifier.fit{model}, {fits} in a process", ("-c", code), "", 0


def measure(size: Size, journal: Journal) -> None:
    cores = os.sched_getaffinity(0)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as ends:
        ends.callback(os.sched_setaffinity, 0, cores)
        os.sched_setaffinity(0, {min(cores)})  # which child processes inherit
        for name, arguments, text, status in commands(size, Path(folder)):
            seconds = partial(cold_and_warm, size, arguments, text, status)
            journal.row({"process": name}, seconds)


def cold_and_warm(size: Size, arguments: Sequence[str], text: str, status: int) -> dict[str, Any]:
    """Seconds of each process, by the cache that it finds.

    Raises:
        RuntimeError: a process ended with another exit status than expected.
    """
    seconds: dict[str, list[float]] = {FIRST: [], SECOND: []}
    for _ in range(size.repeats):
        with tempfile.TemporaryDirectory() as programs:
            for cache in (FIRST, SECOND):
                if "--run" in arguments:
                    run = arguments[arguments.index("--run") + 1]
                    shutil.rmtree(run, ignore_errors=True)
                seconds[cache].append(processor_seconds(arguments, text, status, programs))
    return {"seconds": seconds}


def processor_seconds(arguments: Sequence[str], text: str, status: int, programs: str) -> float:
    """User and system seconds of ``python`` with some arguments."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, *arguments],
        input=text,
        text=True,
        capture_output=True,
        check=False,
        env=os.environ | {"FLAX_LINATTN_PROGRAMS": programs},
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != status:
        raise RuntimeError(f"expected exit status {status}, got {done.returncode}: {done.stderr}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def table(rows: Rows, size: Size) -> str:
    """A table with a line for each process."""
    lines = [
        [row["process"], *(interval(row["seconds"][cache]) for cache in (FIRST, SECOND))]
        for row in rows
    ]
    header = ["process", "processor seconds, empty cache", "the cache of the process before"]
    return f"{markdown(header, lines)}\n\nMedian of {size.repeats} processes (minimum - maximum)."


EXPERIMENT = Measured(
    module="experiments.efficiency.cold_starts",
    sizes={"cpu": Size()},
    measure=measure,
    table=table,
    left_out={"cpu": "an accelerator, and disks slower than memory"},
)

if __name__ == "__main__":
    EXPERIMENT.main()
