"""Several processes of one run, as ``jax.distributed`` starts them: who writes, and who waits."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import jax
import numpy as np
from jax.experimental import multihost_utils


def start_process(
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    heartbeat_timeout: int = 100,
) -> None:
    """Makes this process one of several of a run; before anything is computed.

    Args:
        coordinator: HOST:PORT of process 0, as every process reaches it. Default: what SLURM,
            Open MPI or Cloud TPU say.
        num_processes: How many there are; with ``coordinator``.
        process_id: Which one this is, counted from 0; with ``coordinator``.
        heartbeat_timeout: Seconds without a sign of life after which a process is taken for dead,
            and JAX ends the others.

    Raises:
        ValueError: Only some of the three are given, or nothing tells them.
    """
    given = [x is not None for x in (coordinator, num_processes, process_id)]
    if any(given) and not all(given):
        raise ValueError(
            "--coordinator, --num-processes and --process-id belong together; got "
            f"{coordinator!r}, {num_processes!r} and {process_id!r}."
        )
    try:
        jax.distributed.initialize(
            coordinator, num_processes, process_id, heartbeat_timeout_seconds=heartbeat_timeout
        )
    except (ValueError, RuntimeError) as error:
        raise ValueError(
            f"this process cannot join the others: {error} Start one process a machine, each with "
            "--coordinator HOST:PORT --num-processes N --process-id I."
        ) from error


def announce(advice: str) -> None:
    """Says in each process what its end would mean: JAX ends it without letting Python speak."""
    if jax.process_count() > 1:
        print(
            f"process {jax.process_index()} of {jax.process_count()}: if another one dies, JAX "
            f"ends this one, too ('detected fatal errors'). {advice}",
            file=sys.stderr,
        )


def is_main() -> bool:
    """Whether this process writes the run's files and shows its progress."""
    return jax.process_index() == 0


def largest(value: int) -> int:
    """The largest value of all processes; they wait for each other."""
    if jax.process_count() == 1:
        return value
    return int(np.max(multihost_utils.process_allgather(np.asarray(value, np.int32))))


def average(values: Sequence[float]) -> list[float]:
    """The means over all processes; they wait for each other."""
    if jax.process_count() == 1:
        return list(values)
    found = multihost_utils.process_allgather(np.asarray(values, np.float32))
    return [float(value) for value in np.mean(found, axis=0)]


def check_shared(folder: Path) -> None:
    """Checks that every process sees a folder that process 0 has made.

    Raises:
        ValueError: One does not; in every process.
    """
    missing = jax.process_count() > 1 and not folder.is_dir()
    if largest(int(missing)):
        raise ValueError(
            f"process {jax.process_index()} {'does not see' if missing else 'sees'} {folder}, and "
            f"{'others do' if missing else 'another does not'}; the run folder has to be on a "
            "file system that all processes share."
        )


def on_main(function: Callable[[], None]) -> None:
    """Calls a function in the main process; the others wait until it has returned.

    Raises:
        Exception: What the function raised; in the other processes a ``LostProcessError``.
    """
    failure: Exception | None = None
    if is_main():
        try:
            function()
        except Exception as error:
            failure = error
    failed = largest(int(failure is not None))
    if failure is not None:
        raise failure
    if failed:
        raise LostProcessError("Process 0 could not go on; its own message says why.")


class LostProcessError(RuntimeError):
    """Another process of the run has ended, or cannot be reached."""


@contextmanager
def together(advice: Callable[[], str]) -> Iterator[None]:
    """Says so, and what to do, where another process of the run is lost.

    Args:
        advice: What to tell the user to do, called when it is needed.

    Raises:
        LostProcessError: A computation of several processes failed.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if jax.process_count() == 1 or "RESOURCE_EXHAUSTED" in str(error):
            raise
        reason = str(error).strip().splitlines()[0]
        raise LostProcessError(
            f"Process {jax.process_index()} of {jax.process_count()} cannot go on: another one has "
            f"ended or cannot be reached ({reason[:200]}). {advice()}"
        ) from error
