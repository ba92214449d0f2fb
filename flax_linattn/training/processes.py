"""Several processes of one run, started by ``jax.distributed``; process 0 writes the files."""

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
from flax_linattn.storage import write_text

_OPTIONS = ("coordinator", "num_processes", "process_id")


def start_process(
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    heartbeat_timeout: int = 100,
) -> None:
    """Makes this process one of several processes of a run; call it before any computation.

    From then on an uncaught exception ends the process at once, so that the others notice: at a
    normal exit JAX would wait for them.

    Args:
        coordinator: HOST:PORT of process 0, reachable from every process. Default: as SLURM,
            Open MPI, Kubernetes or Cloud TPU report it.
        num_processes: Number of processes; required with ``coordinator``.
        process_id: Index of this process, counted from 0; required with ``coordinator``.
        heartbeat_timeout: Seconds without a heartbeat after which a process counts as lost, and
            JAX ends the others.

    Raises:
        OptionError: If only some of ``coordinator``, ``num_processes`` and ``process_id`` are
            given, one is invalid, or the cluster reports none of them.
    """
    given = [x is not None for x in (coordinator, num_processes, process_id)]
    if any(given) and not all(given):
        raise OptionError(
            "coordinator, num_processes and process_id belong together; pass all three or none, "
            f"got {coordinator!r}, {num_processes!r} and {process_id!r}.",
            *_OPTIONS,
        )
    if coordinator is not None:
        host, _, port = coordinator.rpartition(":")
        if not host or not port.isdigit():
            raise OptionError(
                f"coordinator must be HOST:PORT, such as 10.0.0.1:1234, got {coordinator!r}.",
                "coordinator",
            )
        if process_id == 0:
            print(f"waiting for {num_processes} processes at {coordinator}", file=sys.stderr)
    try:
        jax.distributed.initialize(
            coordinator, num_processes, process_id, heartbeat_timeout_seconds=heartbeat_timeout
        )
    except (ValueError, RuntimeError) as error:
        raise OptionError(
            f"This process cannot join the others: {error} Start one process on each machine, each "
            "with coordinator=HOST:PORT, num_processes=N and process_id=I.",
            *_OPTIONS,
        ) from error
    if jax.process_count() > 1:
        sys.excepthook = _end_at_once


def _end_at_once(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    sys.__excepthook__(kind, error, traceback)
    exit_at_once(1)


def exit_at_once(status: int) -> NoReturn:
    """Ends this process without waiting for the others, which JAX then ends as well."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def warn_of_lost_processes(advice: str) -> None:
    """Warns that the loss of a process ends this one: JAX then ends it before Python can report."""
    if jax.process_count() > 1:
        print(
            f"note: process {jax.process_index()} of {jax.process_count()}: if another process "
            f"dies, JAX ends this one as well ('detected fatal errors'). {advice}",
            file=sys.stderr,
        )


def is_main() -> bool:
    """Whether this process writes the run's files and shows its progress."""
    return jax.process_index() == 0


def max_over_processes(value: int) -> int:
    """The maximum over all processes, which wait for each other."""
    if jax.process_count() == 1:
        return value
    return int(np.max(multihost_utils.process_allgather(np.asarray(value, np.int32))))


def mean_over_processes(values: Sequence[float]) -> list[float]:
    """The means over all processes, which wait for each other."""
    if jax.process_count() == 1:
        return list(values)
    all_values = multihost_utils.process_allgather(np.asarray(values, np.float32))
    return [float(value) for value in np.mean(all_values, axis=0)]


def broadcast_from_main(values: Sequence[float]) -> list[float]:
    """The values of the main process, bit for bit; the others pass as many values and wait."""
    if jax.process_count() == 1 or not values:
        return list(values)
    # As 32-bit words: JAX would make float32 of float64.
    words = np.asarray(values, np.float64).view(np.uint32)
    own = multihost_utils.broadcast_one_to_all(words, is_source=is_main())
    return [float(value) for value in np.asarray(own).view(np.float64)]


def check_shared_folder(folder: Path) -> None:
    """Raises in every process if one of them cannot see the folder of process 0."""
    if jax.process_count() == 1:
        return
    sign = folder / "shared_by"
    number = 0
    if is_main():
        number = os.getpid()
        write_text(sign, str(number))  # in a stranger's folder it replaces a link
    number = max_over_processes(number)
    is_missing = not sign.is_file() or sign.read_text() != str(number)
    is_missing_anywhere = max_over_processes(int(is_missing))
    if is_main():
        sign.unlink()
    if is_missing_anywhere:
        who = f"Process {jax.process_index()}" if is_missing else "Another process"
        raise ValueError(
            f"{who} cannot see the folder {folder} of process 0. It has to be on a file system "
            "that all processes share."
        )


def check_same_in_processes(describe: Callable[[], Mapping[str, Any]]) -> None:
    """Raises in every process if a value differs between processes; names the values."""
    if jax.process_count() == 1:
        return
    values = describe()
    crcs = [zlib.crc32(repr(value).encode()) & 0x7FFFFFFF for value in values.values()]
    all_crcs = multihost_utils.process_allgather(np.asarray(crcs, np.int32))
    differ = [
        n for n, column in zip(values, all_crcs.T, strict=True) if len(set(column.tolist())) > 1
    ]
    if differ:
        here = ", ".join(f"{name}={values[name]!r}" for name in differ[:4])
        raise ValueError(
            f"The processes of a run need the same options and data, but {', '.join(differ[:4])} "
            f"differ{'s' if len(differ) == 1 else ''}: process {jax.process_index()} has {here}. "
            "Start all processes with the same options and the same files."
        )


def on_main(function: Callable[[], None]) -> None:
    """Calls a function in the main process while the others wait; an error is raised in all."""
    failure: Exception | None = None
    if is_main():
        try:
            function()
        except Exception as error:
            failure = error
    failed = max_over_processes(int(failure is not None))
    if failure is not None:
        raise failure
    if failed:
        raise LostProcessError("Process 0 stopped with an error; see its own message.")


class LostProcessError(RuntimeError):
    """Another process of the run has ended, or cannot be reached."""


@contextmanager
def lost_process_errors(advice: Callable[[], str]) -> Iterator[None]:
    """Raises LostProcessError, with advice, if another process of the run is lost."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if jax.process_count() == 1 or "RESOURCE_EXHAUSTED" in str(error):
            raise
        reason = str(error).strip().splitlines()[0]
        raise LostProcessError(
            f"Process {jax.process_index()} of {jax.process_count()} cannot continue: another "
            f"process has ended or cannot be reached ({reason[:200]}). {advice()}"
        ) from error
