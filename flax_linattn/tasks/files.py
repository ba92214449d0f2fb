"""Files of run folders: atomic JSON files, checksums, file names."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flax_linattn.storage import (
    MAX_JSON_BYTES,
    check_json_size,
    open_regular,
    parse_json,
    write_text,
)


def checksum(arrays: Iterable[NDArray]) -> str:
    """A SHA-256 of arrays: shapes, dtypes and values."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(
            f"{array.dtype}{array.shape}".encode() + np.ascontiguousarray(array).tobytes()
        )
    return digest.hexdigest()


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Writes a JSON object and creates its folder; numbers that are not finite become null.

    The write is atomic: a killed process leaves the previous file or the new one.

    Raises:
        ValueError: If the object is too large to be read again.
    """
    text = json.dumps(_finite(values), indent=2, allow_nan=False) + "\n"
    try:
        check_json_size(text.encode())
    except ValueError as error:
        raise ValueError(f"{path} would be too large to load: {error}.") from None
    write_text(path, text)


def _finite(value: Any) -> Any:
    match value:
        case dict():
            return {name: _finite(item) for name, item in value.items()}
        case list() | tuple():
            return [_finite(item) for item in value]
        case float() if not math.isfinite(value):
            return None
    return value


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object that ``write_json`` wrote."""
    if path.is_file() and (num_bytes := path.stat().st_size) > MAX_JSON_BYTES:
        raise ValueError(
            f"{path} takes {num_bytes:,} bytes, at most {MAX_JSON_BYTES:,} are read; restore the "
            "file from a copy."
        )
    try:
        with open_regular(path) as file:
            values: dict[str, Any] = parse_json(file.read())
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{path} is missing, so the run folder is incomplete; restore the file from a copy, or "
            "start a new run."
        ) from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}:{error.lineno}: not valid JSON ({error.msg}).") from error
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:  # no UTF-8, a number or a list that is too long
        raise ValueError(f"{path}: not valid JSON ({type(error).__name__}).") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path}: expected a JSON object, got {type(values).__name__}.")
    return values


def make_file_name(*parts: object) -> str:
    """Joins parts to a valid file name.

    Example:
        >>> make_file_name("ETTh1", "elementwise_series:order=2", 0)
        'ETTh1-elementwise_series-order-2-0'
    """
    return "-".join(re.sub(r"[^\w.]+", "-", str(part)) for part in parts)
