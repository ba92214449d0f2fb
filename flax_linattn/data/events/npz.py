"""Events in NumPy's ``.npz`` files: one sequence after the other, or padded."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from flax_linattn.data.arrays import read_arrays
from flax_linattn.data.events.bounds import read_bound
from flax_linattn.data.events.gather import Found, number_marks
from flax_linattn.data.events.npz_file import KEYS, NpzFile
from flax_linattn.data.events.sequences import UNMARKED, EventSequences
from flax_linattn.data.files import DataFormatError

_FALLING = 0.25
"""Sequences whose times fall, from which share on they are gaps; of two random gaps half do."""


def load_event_npz(
    path: str | Path,
    *,
    gaps: bool | None = None,
    begin: float | str | None = None,
    end: float | str | None = None,
) -> EventSequences:
    r"""Loads the arrays of an ``.npz`` file.

    Two forms: ``times`` [n], one sequence after the other, with their ``lengths``, whole numbers
    [N]; or padded, ``times`` [N, L] with ``masks`` [N, L], 1 or True at events, which are adjacent.
    Both may have ``marks`` of the shape of ``times``, whole numbers from 0 on (those that there are
    become the names), and ``t_max``, [N] or one number: when the observation ended, which then
    began at 0. Nothing is unpickled.

    Args:
        path: The file.
        gaps: Whether ``times`` are gaps since the event before, the first one since 0, when the
            observation began; or, where it is 0, the first event is at 0 and the begin not known.
            Default: where ``times`` are padded and fall in a quarter of the sequences or more, they
            are gaps; where they never fall, they are not; in between, it has to be said.
        begin: When the observation of every sequence began, in the unit of the times.
        end: When it ended. Default: with the last event of each.

    Raises:
        FileNotFoundError: There is no such file.
        DataFormatError: It is no such file, or damaged; the message names the array and the place
            in it.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "toy.npz")
        ...     np.savez(path, times=np.array([0.5, 2.0, 1.0]), lengths=np.array([2, 1]), t_max=3)
        ...     events = load_event_npz(path)
        >>> [own.tolist() for own in events.times], events.begins.tolist(), events.ends.tolist()
        ([[0.5, 2.0], [1.0]], [0.0, 0.0], [3.0, 3.0])
    """
    file = NpzFile(Path(path), read_arrays(path, KEYS))
    places = file.places()
    times = [file.floats("times", own) for own in places]
    if "marks" in file.arrays:
        marks, names = number_marks([file.marks(own) for own in places])
    else:
        marks, names = [np.zeros(len(own), np.int32) for own in times], UNMARKED
    found = Found(
        file.path,
        times,
        marks,
        names,
        lambda sequence, event: file.place("times", int(places[sequence][event])),
        advice="sort the events of each sequence by time, or say gaps=True if times are gaps",
        options=("gaps",),
    )
    if gaps or (gaps is None and file.padded and _are_gaps(found)):
        found = _summed(found)
    if "t_max" in file.arrays:
        found.begin = np.zeros(len(times))
        found.end = file.ends(len(times))
    path = file.path
    return found.finish(read_bound("begin", begin, path), read_bound("end", end, path))


def _are_gaps(found: Found) -> bool:
    """Whether they are; where times fall in few sequences it is no, and these are refused."""
    if any(times.min() < 0 for times in found.times):
        return False
    longer = [times for times in found.times if len(times) > 1]
    falling = sum(bool((times[1:] < times[:-1]).any()) for times in longer)
    return falling > 0 and falling >= _FALLING * len(longer)


def _summed(found: Found) -> Found:
    """The same where times are gaps."""
    for index, gaps in enumerate(found.times):
        if (wrong := np.flatnonzero(gaps < 0)).size:
            raise DataFormatError(
                f"{found.place(index, int(wrong[0]))}: expected gaps between events, 0 or more, "
                f"got {gaps[wrong[0]]}; correct it, or say gaps=False if they are times",
                "gaps",
            )
    begin = np.array([np.nan if gaps[0] == 0 else 0.0 for gaps in found.times])
    return dataclasses.replace(found, times=[np.cumsum(gaps) for gaps in found.times], begin=begin)
