"""The command line that all experiments share."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from flax_linattn import training

INTERRUPTED = 130


def parser(
    module: str, about: str, output: Path, scales: Sequence[str] = (), usual: str | None = None
) -> argparse.ArgumentParser:
    """The flags that every experiment has.

    Args:
        module: whose command it is.
        about: what it does.
        output: the folder that results go to unless another is given.
        scales: names of its sizes, if there are several.
        usual: the scale unless another is given.
    """
    made = argparse.ArgumentParser(prog=f"python -m {module}", description=about)
    made.add_argument("--output", type=Path, default=output, help="folder of results and page")
    if any(scales):
        made.add_argument("--scale", choices=scales, default=usual, help="default %(default)s")
    return made


@contextmanager
def resumable() -> Iterator[None]:
    """Reports an interruption of work that the same command resumes."""
    try:
        yield
    except (KeyboardInterrupt, training.Interrupted):
        print("interrupted: the same command goes on from here.", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None
