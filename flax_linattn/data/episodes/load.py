"""Loading of episodes, with the file format inferred from the content."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from flax_linattn.checks import check_choice
from flax_linattn.data.episodes.d4rl import read_d4rl
from flax_linattn.data.episodes.episodes import Episodes, join_episodes
from flax_linattn.data.episodes.hdf5_file import SIGNATURE, Hdf5File
from flax_linattn.data.episodes.minari import EPISODE, read_minari
from flax_linattn.data.errors import DataFormatError
from flax_linattn.data.files.text_files import check_is_file

EpisodeFormat = Literal["auto", "d4rl", "minari", "npz"]
"""File formats; "auto" infers the format from the file."""

_READERS: dict[str, Callable[..., Episodes]] = {
    "d4rl": read_d4rl,
    "minari": read_minari,
    "npz": read_d4rl,
}


def load_episodes(
    paths: str | Path | Sequence[str | Path],
    file_format: EpisodeFormat = "auto",
    keep_unfinished: bool = False,
) -> Episodes:
    """Loads episodes from a file or folder, or from several, concatenated.

    "auto" takes a folder for Minari's, recognizes ``.npz`` and HDF5 files by their first bytes, and
    Minari's HDF5 file by its groups. With several files, each note names its file.

    Args:
        paths: File or folder, or several of the same environment.
        file_format: "d4rl" (``read_d4rl``), "minari" (``read_minari``), "npz" (as
            "d4rl"), or "auto".
        keep_unfinished: Whether to include episodes without a recorded end, as truncated episodes.

    Raises:
        FileNotFoundError: If a file or folder does not exist.
        OptionError: If the format is unknown.
        ValueError: If no path is given, files do not match, or h5py is not installed.
        DataFormatError: If a file breaks its format; the message names the file, the key and the
            row.

    Example:
        >>> import tempfile, numpy as np
        >>> path = Path(tempfile.mkdtemp(), "toy.npz")
        >>> np.savez(path, observations=np.zeros((3, 2)), actions=np.zeros((3, 1)),
        ...          rewards=np.ones(3), terminals=np.array([0, 0, 1]))
        >>> load_episodes([path, path]).returns.tolist()
        [3.0, 3.0]
    """
    check_choice(("auto", *_READERS), file_format=file_format)
    if isinstance(paths, (str, Path)):
        paths = [paths]
    parts = []
    for path in paths:
        chosen = _format(Path(path)) if file_format == "auto" else file_format
        parts.append(_READERS[chosen](path, keep_unfinished=keep_unfinished))
    if len(parts) > 1:
        parts = [_with_its_name(part) for part in parts]
    return join_episodes(parts)


def _with_its_name(part: Episodes) -> Episodes:
    """Prefixes notes with the name of the file, so that equal notes of two files stay distinct."""
    return dataclasses.replace(part, notes=tuple(f"{part.name}: {note}" for note in part.notes))


def _format(path: Path) -> str:
    """Infers the format of a file or folder."""
    if path.is_dir():
        return "minari"
    check_is_file(path)
    with open(path, "rb") as binary:
        start = binary.read(len(SIGNATURE))
    if start.startswith(b"PK"):
        return "npz"
    if start != SIGNATURE:
        expected = (
            f"{path}: expected episodes in an HDF5 file of D4RL or Minari, or in an .npz file"
        )
        if {".csv", ".tsv"} & {suffix.lower() for suffix in path.suffixes}:
            raise DataFormatError(
                f"{expected}, got CSV, which is not supported; save its columns as arrays "
                "with numpy.savez, one row per step, under D4RL's names: observations [N, S], "
                "actions [N, A] or integers [N], rewards [N], terminals [N], and timeouts [N]"
            )
        raise DataFormatError(
            f"{expected}, got another kind of file, or a damaged one ({start!r}); check that this "
            "is the right file"
        )
    with Hdf5File(path) as file:
        names = file.names()
    return "minari" if any(EPISODE.fullmatch(name) for name in names) else "d4rl"
