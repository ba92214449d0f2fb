"""A JSON file that tells by a checksum whether it is as it was written."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

from flax_linattn.checkpoint.arrays import CorruptCheckpointError
from flax_linattn.checks import shown
from flax_linattn.storage import write_text

FORMAT = 2


def write_json(file: Path, values: dict[str, Any]) -> None:
    """Writes JSON values, with the format's number and a checksum, under the file's own name."""
    write_text(file, json.dumps({"format": FORMAT, "crc32": _checksum(values), file.stem: values}))


def read_json(file: Path) -> dict[str, Any]:
    """Reads what ``write_json`` wrote.

    Raises:
        CorruptCheckpointError: It is missing, damaged, or has another format, which nobody can tell
            from damage.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp(), "progress.json")
        >>> write_json(file, {"step": 3})
        >>> read_json(file)
        {'step': 3}
    """
    try:
        content = json.loads(file.read_bytes())
        version, crc, values = content["format"], content["crc32"], content[file.stem]
        whole = isinstance(values, dict) and _checksum(values) == crc
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise CorruptCheckpointError(
            f"The checkpoint {file.parent} is damaged: its {file.name} cannot be read "
            f"({type(error).__name__})."
        ) from error
    if version != FORMAT:
        raise CorruptCheckpointError(
            f"The checkpoint {file.parent} has format {shown(version)}, this version reads "
            f"{FORMAT}. It is damaged, or needs the version of flax_linattn that wrote it."
        )
    if not whole:
        raise CorruptCheckpointError(
            f"The checkpoint {file.parent} is damaged: its {file.name} is not as saved."
        )
    checked: dict[str, Any] = values
    return checked


def _checksum(values: Any) -> int:
    return zlib.crc32(json.dumps(values).encode())
