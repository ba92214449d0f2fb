"""Runs the pieces one after another, each in its own process, within a time limit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from experiments.accelerator.pieces import Piece
from experiments.accelerator.states import (
    DONE,
    FAILED,
    MORE,
    SKIPPED,
    Outcome,
    outcome,
    read,
)

MIN_FRACTION_LEFT = 0.1
"""Of the minutes of a call: with less left no further piece begins."""
CLOSING = 0.04
"""Of the minutes: kept for ending the process and writing pages."""
MORE_TO_DO = 75
"""The exit status of a call after which there is more to do (EX_TEMPFAIL)."""

Start = Callable[[Piece, float, float], Outcome]
"""Runs a piece: seconds until it begins no further row, and until it is ended."""


def run_process(name: str | None, arguments: Sequence[str], **how: Any) -> dict[str, Any] | None:
    """Runs ``experiments.accelerator.run`` and parses its last line; None if it failed.

    Args:
        name: of the piece; None only asks for the device.
        arguments: of its command line.
        **how: of ``subprocess.run``.

    Raises:
        subprocess.TimeoutExpired: it was ended, for the time was over.
        KeyboardInterrupt: it was interrupted.
    """
    command = [sys.executable, "-m", "experiments.accelerator.run"]
    command += ([] if name is None else [name]) + list(arguments)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, **how)
    if done.returncode:
        return None
    return json.loads(done.stdout.splitlines()[-1])


def in_a_process(one: Piece, soft: float, hard: float, *, output: Path, scale: str) -> Outcome:
    """Runs a piece in a process of its own; its progress goes to standard error."""
    arguments = ["--seconds", f"{soft:.0f}", "--output", str(output), "--scale", scale]
    reply = run_process(one.name, arguments, timeout=hard, env=os.environ | dict(one.environment))
    if reply is None:
        return Outcome(FAILED, "its process broke down; the message is above")
    return Outcome(reply["state"], reply["why"])


def supervise(
    pieces: Sequence[Piece],
    stored: Callable[[Piece], Path],
    start: Start,
    seconds: float,
    began: float,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Outcome]:
    """Runs what is not done, as far as the time allows.

    A row that is cut off by the end of the time is lost, and the next call begins with it; one that
    takes longer than a whole call fails its piece.

    Args:
        pieces: in their order.
        stored: the file of a piece's results.
        start: runs one.
        seconds: of this call.
        began: when it did.
        clock: returns the time in seconds.
    """
    outcomes: dict[str, Outcome] = {}
    for i, one in enumerate(pieces):
        path = stored(one)
        before = outcomes[one.name] = outcome(one, path)
        left = began + seconds - clock()
        if read(path)["finished"] or left < MIN_FRACTION_LEFT * seconds:
            continue
        place = f"[{i + 1} of {len(pieces)}] {one.name}"
        say(place)
        try:
            result = start(one, (1 - 2 * CLOSING) * left, (1 - CLOSING) * left)
        except subprocess.TimeoutExpired:
            result = outcome(one, path)
            if left > (1 - MIN_FRACTION_LEFT) * seconds and result == before:
                why = f"one row took more than {left / 60:.1f} minutes; give more by --minutes"
                result = Outcome(FAILED, why)
        outcomes[one.name] = result
        say(f"{place}: {result.state}. {result.why}")
    return outcomes


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def status(outcomes: dict[str, Outcome]) -> int:
    """The exit status: 0 all done, 75 more to do, 1 a piece failed."""
    states = {result.state for result in outcomes.values()}
    if MORE in states:
        return MORE_TO_DO
    return 1 if FAILED in states else 0


def last_words(outcomes: dict[str, Outcome], command: str) -> str:
    """Numbers of pieces by state, reasons of skips and failures, and how to continue."""
    count = {
        state: sum(result.state == state for result in outcomes.values())
        for state in (DONE, MORE, SKIPPED, FAILED)
    }
    lines = [", ".join(f"{n} {state}" for state, n in count.items() if n) + "."]
    for name, result in outcomes.items():
        if result.state in (SKIPPED, FAILED):
            lines.append(f"{result.state}: {name}: {result.why}")
    if count[MORE]:
        lines.append(f"there is more to do (exit status {MORE_TO_DO}); go on by: {command}")
    return "\n".join(lines)
