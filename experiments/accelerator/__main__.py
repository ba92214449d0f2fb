"""The command that runs all pieces within the time limit of one call."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from experiments import command
from experiments.accelerator import BEGAN, summary
from experiments.accelerator.pieces import PAPER, PIECES, SMALL, Piece, piece
from experiments.accelerator.states import outcome
from experiments.accelerator.supervise import (
    in_a_process,
    last_words,
    run_process,
    say,
    status,
    supervise,
)
from flax_linattn.bench.origin import commit

MODULE = "experiments.accelerator"
FOLDER = Path(__file__).parent
SMALL_OUTPUT = Path("runs/accelerator-smallest")
ABOUT = """\
Checks and measures this library on a GPU or TPU. What is done is not done again: call it until the
exit status is 0. 75: there is more to do; 1: a check or a piece failed, and all others are done;
2: it cannot begin; 130: interrupted."""


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description=ABOUT)
    add = parser.add_argument
    add("--minutes", type=float, default=10.0, help="of this call, at most; default %(default)g")
    add("--only", metavar="NAME", help="this piece alone")
    add("--list", action="store_true", help="the pieces, and how far each is")
    add("--again", action="store_true", help="delete what is stored of the chosen pieces first")
    add("--smallest", action="store_true", help="small sizes, on any device, to see it run")
    add("--lower", action="store_true", help="only lower all programs for CUDA and TPUs, anywhere")
    add("--output", type=Path, help="folder of the devices' folders")
    options = parser.parse_args(arguments)
    if options.minutes <= 0:
        parser.error(f"--minutes must be above 0, got {options.minutes:g}.")
    try:
        options.pieces = PIECES if options.only is None else (piece(options.only),)
    except ValueError as error:
        parser.error(str(error))
    if options.output is None:
        options.output = SMALL_OUTPUT if options.smallest else FOLDER
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    if options.lower:
        from experiments.accelerator import lowering

        lowering.EXPERIMENT.main([])
        return 0
    scale = SMALL if options.smallest else PAPER
    reply = run_process(None, ["--output", str(options.output)])
    if reply is None:
        say("jax finds no device here; the message is above.")
        return 2
    folder = Path(reply["folder"])

    def stored(one: Piece) -> Path:
        return one.stored(folder, scale)

    if options.list:
        for one in options.pieces:
            print(f"{one.name}: " + ", ".join(outcome(one, stored(one))))
        return 0
    if not options.smallest and (refusal := _refusal(reply["platform"])):
        say(refusal)
        return 2
    if options.again:
        for one in options.pieces:
            stored(one).unlink(missing_ok=True)
    given = sys.argv[1:] if arguments is None else arguments
    going_on = ["python", "-m", MODULE, *(word for word in given if word != "--again")]
    start = partial(in_a_process, output=options.output, scale=scale)
    with command.resumable():
        outcomes = supervise(options.pieces, stored, start, 60 * options.minutes, BEGAN)
    if options.only is None:
        summary.write(folder, PIECES, scale, outcomes)
    say(last_words(outcomes, shlex.join(going_on)))
    return status(outcomes)


def _refusal(platform: str) -> str:
    """Why nothing is measured here at full size; empty if it is."""
    if platform == "cpu":
        return (
            "jax computes on the CPU here; these sizes are for accelerators. `make accelerator` "
            "installs the machine's jax; --smallest runs every piece here, in minutes, and "
            "--lower lowers all programs for both."
        )
    if (now := commit()).endswith("-dirty"):
        return (
            f"the code is not that of a commit ({now}): results name theirs, and are gone on with "
            "at the same one only. Commit first, or git stash."
        )
    return ""


if __name__ == "__main__":
    sys.exit(main())
