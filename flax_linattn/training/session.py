"""Where and how a run is trained."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from flax_linattn.checks import at_least
from flax_linattn.training.parallel import Parallel
from flax_linattn.training.trackers import Tracker


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

    def __post_init__(self) -> None:
        at_least(0, profile_steps=self.profile_steps)
