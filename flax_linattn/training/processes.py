"""Several processes of one run, as ``jax.distributed`` starts them: who writes, and who waits."""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import jax
import numpy as np
from jax.experimental import multihost_utils

from flax_linattn.checks import OptionError

_OPTIONS = ("coordinator", "num_processes", "process_id")


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

    From then on an error that nobody catches ends the process at once, so that the others notice:
    at its usual end JAX would wait for them.

    Raises:
        OptionError: Only some of the three are given, they are no such, or nothing tells them.
    """
    given = [x is not None for x in (coordinator, num_processes, process_id)]
    if any(given) and not all(given):
        raise OptionError(
            "coordinator, num_processes and process_id belong together; got "
            f"{coordinator!r}, {num_processes!r} and {process_id!r}.",
            *_OPTIONS,
        )
    if coordinator is not None:
        host, _, port = coordinator.rpartition(":")
        if not host or not port.isdigit():
            raise OptionError(f"coordinator must be HOST:PORT, got {coordinator!r}.", "coordinator")
        if process_id == 0:
            print(f"waiting for {num_processes} processes at {coordinator}", file=sys.stderr)
    try:
        jax.distributed.initialize(
            coordinator, num_processes, process_id, heartbeat_timeout_seconds=heartbeat_timeout
        )
    except (ValueError, RuntimeError) as error:
        raise OptionError(
            f"this process cannot join the others: {error} Start one process a machine, each with "
            "coordinator=HOST:PORT, num_processes=N and process_id=I.",
            *_OPTIONS,
        ) from error
    if jax.process_count() > 1:
        sys.excepthook = _end_at_once


def _end_at_once(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    sys.__excepthook__(kind, error, traceback)
    leave(1)


def leave(status: int) -> NoReturn:
    """Ends this process without waiting for the others, which JAX then ends, too."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


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
    all_values = multihost_utils.process_allgather(np.asarray(values, np.float32))
    return [float(value) for value in np.mean(all_values, axis=0)]


def of_main(values: Sequence[float]) -> list[float]:
    """The values of the main process, to the bit; the others wait for it, with as many."""
    if jax.process_count() == 1 or not values:
        return list(values)
    # As 32-bit words: JAX would make float32 of float64.
    words = np.asarray(values, np.float64).view(np.uint32)
    own = multihost_utils.broadcast_one_to_all(words, is_source=is_main())
    return [float(value) for value in np.asarray(own).view(np.float64)]


def check_shared(folder: Path) -> None:
    """Refuses, in every process, a folder of which one does not see that of process 0."""
    if jax.process_count() == 1:
        return
    sign = folder / "shared_by"
    number = 0
    if is_main():
        number = os.getpid()
        sign.write_text(str(number))
    number = largest(number)
    missing = not sign.is_file() or sign.read_text() != str(number)
    anywhere = largest(int(missing))
    if is_main():
        sign.unlink()
    if anywhere:
        who = f"process {jax.process_index()} does not see" if missing else "another does not see"
        raise ValueError(
            f"{who} the folder {folder} of process 0; it has to be on a file system that all "
            "processes share."
        )


def check_same(describe: Callable[[], Mapping[str, Any]]) -> None:
    """Refuses, in every process, values that differ in one, by the names to show."""
    if jax.process_count() == 1:
        return
    facts = describe()
    crcs = [zlib.crc32(repr(value).encode()) & 0x7FFFFFFF for value in facts.values()]
    all_crcs = multihost_utils.process_allgather(np.asarray(crcs, np.int32))
    differ = [
        n for n, column in zip(facts, all_crcs.T, strict=True) if len(set(column.tolist())) > 1
    ]
    if differ:
        here = ", ".join(f"{name}={facts[name]!r}" for name in differ[:4])
        raise ValueError(
            f"processes of one run need the same options and data, but {', '.join(differ[:4])} "
            f"differ{'s' if len(differ) == 1 else ''}; process {jax.process_index()} has {here}."
        )


def on_main(function: Callable[[], None]) -> None:
    """Calls a function in the main process, while the others wait; errors are raised in all."""
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
    """Raises LostProcessError, with advice, where another process of the run is lost."""
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
