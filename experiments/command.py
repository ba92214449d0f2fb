"""The command line that all experiments share."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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
        made.add_argument(
            "--size", dest="scale", choices=scales, action=_Renamed, help=argparse.SUPPRESS
        )
    return made


class _Renamed(argparse.Action):
    """An older name of a flag, which works until 0.3, and says so."""

    def __call__(
        self, parser: Any, namespace: Any, values: Any, option_string: str | None = None
    ) -> None:
        note = f"note: {option_string} is now --{self.dest}; the older name goes with 0.3."
        print(note, file=sys.stderr)
        setattr(namespace, self.dest, values)


@contextmanager
def resumable() -> Iterator[None]:
    """Where work that is interrupted goes on when asked for again."""
    try:
        yield
    except (KeyboardInterrupt, training.Interrupted):
        print("interrupted: the same command goes on from here.", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None
