"""A JSON file that tells by a checksum whether it is as it was written."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

from flax_linattn.checkpoint.arrays import CorruptCheckpointError

FORMAT = 2


def write_json(file: Path, values: dict[str, Any]) -> None:
    """Writes JSON values, with the format's number and a checksum, under the file's own name."""
    crc = zlib.crc32(json.dumps(values).encode())
    file.write_text(json.dumps({"format": FORMAT, "crc32": crc, file.stem: values}))


def read_json(file: Path) -> dict[str, Any]:
    """Reads what ``write_json`` wrote.

    Raises:
        CorruptCheckpointError: It is missing or damaged.
        ValueError: It has another format.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp(), "progress.json")
        >>> write_json(file, {"step": 3})
        >>> read_json(file)
        {'step': 3}
    """
    try:
        content = json.loads(file.read_text())
        version, crc, values = content["format"], content["crc32"], content[file.stem]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise CorruptCheckpointError(
            f"The checkpoint {file.parent} is damaged: its {file.name} cannot be read "
            f"({type(error).__name__})."
        ) from error
    if version != FORMAT:
        raise ValueError(
            f"The checkpoint {file.parent} has format {version!r}, this version reads {FORMAT}. "
            "Use the version of flax_linattn that wrote it."
        )
    if zlib.crc32(json.dumps(values).encode()) != crc:
        raise CorruptCheckpointError(
            f"The checkpoint {file.parent} is damaged: its {file.name} is not as saved."
        )
    return values
