"""Where and how a run is trained."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

from flax_linattn.checks import at_least
from flax_linattn.storage import held
from flax_linattn.training.checkpointer import clear_unfinished
from flax_linattn.training.parallel import Parallel
from flax_linattn.training.processes import on_main
from flax_linattn.training.trackers import Tracker

LOCK_FILE = "training.lock"


@dataclasses.dataclass(frozen=True)
class Session:
    """Where and how a run is trained: nothing that changes what it computes.

    Devices change it by rounding, and by what ``Parallel`` says of dropout.

    Args:
        run_dir: The run folder, made if needed.
        resume: Go on with the run in ``run_dir``.
        progress: What is shown on stderr: a line for each validation, and on a terminal a bar;
            "lines" leaves out the bar, False both.
        parallel: The devices, and what is split over them; default ``Parallel()``, which splits
            batches over all devices that divide them evenly. A run may be resumed on others.
        trackers: Take in running metrics and speeds every 20 steps, and those of each validation.
        profile_steps: Trace so many steps with ``jax.profiler``, from the eleventh of this session
            on, into ``profile`` in the run folder; a shorter one has no trace.

    Raises:
        OptionError: If ``profile_steps`` is negative.

    Example:
        >>> Session("runs/first", resume=True).resume
        True
    """

    run_dir: str | Path
    resume: bool = False
    progress: bool | Literal["lines"] = True
    parallel: Parallel | None = None
    trackers: Sequence[Tracker] = ()
    profile_steps: int = 0
    _holders: set[int] = dataclasses.field(
        default_factory=set, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        at_least(0, profile_steps=self.profile_steps)

    @property
    def lock_file(self) -> Path:
        """What ``holding`` locks in the run folder."""
        return Path(self.run_dir) / LOCK_FILE

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Keeps other sessions out of the run folder, and clears what a kill left half written.

        A thread that holds it may ask again. ``fit`` does so; whoever writes into the folder before
        or after it does it around both. Of several processes of a run the main one holds it.

        Raises:
            storage.HeldError: Another session works in the folder; says in which process.
            OSError: The lock file cannot be made.
            LostProcessError: The same, in the processes that are not the main one.

        Example:
            >>> import tempfile
            >>> session, other = (Session(folder) for folder in [tempfile.mkdtemp()] * 2)
            >>> with session.holding(), session.holding(), other.holding():
            ...     pass
            Traceback (most recent call last):
            ...
            flax_linattn.storage.HeldError: another process works with the run in ...
        """
        me = threading.get_ident()
        if me in self._holders:
            yield
            return
        with ExitStack() as ends:

            def begin() -> None:
                ends.enter_context(held(self.lock_file, f"the run in {self.run_dir}"))
                clear_unfinished(self.run_dir)

            on_main(begin)
            self._holders.add(me)
            ends.callback(self._holders.discard, me)
            yield
