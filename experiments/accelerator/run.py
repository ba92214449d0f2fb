"""Runs one piece in this process; the command starts a process for each piece.

    python -m experiments.accelerator.run NAME --seconds 60 --output FOLDER --scale smallest

The last line on standard output is the outcome as JSON.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import jax

from experiments.accelerator.journal import OutOfTimeError, TimedJournal
from experiments.accelerator.machine import nvidia_smi
from experiments.accelerator.pieces import PAPER, SMALL, Piece, piece
from experiments.accelerator.states import SKIPPED, Outcome, outcome
from flax_linattn.bench.origin import device

LIBRARIES = re.compile(r"jaxlib|jax-cuda|jax_cuda|nvidia-|libtpu|triton|torch$|fla-core")


def device_folder(output: Path) -> Path:
    """The folder of this device's results."""
    return output / re.sub("[^a-z0-9]+", "-", device().lower()).strip("-")


def libraries() -> dict[str, str]:
    """Versions of the driver and of what computes on the device."""
    names = {one.metadata["Name"]: one.version for one in distributions()}
    versions = {name: names[name] for name in sorted(names) if LIBRARIES.match(name)}
    driver = nvidia_smi("--query-gpu=driver_version", "--format=csv,noheader")
    first = jax.devices()[0]
    return {
        **({"driver": driver.splitlines()[0].strip()} if driver and driver.strip() else {}),
        "platform": " ".join(getattr(first.client, "platform_version", "").split()),
        **versions,
    }


def run(one: Piece, scale: str, folder: Path, seconds: float, *, progress: bool = True) -> Outcome:
    """Measures what is missing, as far as the time allows, and writes the page."""
    path = one.stored(folder, scale)
    small = " --smallest" if scale == SMALL else ""
    command = f"python -m experiments.accelerator --only {one.name}{small}"
    try:
        experiment = one.experiment(scale)
        head = experiment.head(scale, command) | {"libraries": libraries()}
        experiment.fill(scale, TimedJournal(path, head, seconds, progress=progress))
        experiment.render(scale, folder)
    except OutOfTimeError:
        pass
    except SystemExit as missing:  # a package or a device: the message says what to do
        return Outcome(SKIPPED, str(missing))
    return outcome(one, path)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "name", nargs="?", help="name of the piece; without it only print the device"
    )
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--scale", choices=(PAPER, SMALL), default=PAPER)
    options = parser.parse_args(arguments)
    folder = device_folder(options.output)
    reply: dict[str, Any] = {"folder": str(folder), "platform": jax.default_backend()}
    if options.name is not None:
        result = run(piece(options.name), options.scale, folder, options.seconds)
        reply |= result._asdict()
    print(json.dumps(reply))
    return 0


if __name__ == "__main__":
    sys.exit(main())
