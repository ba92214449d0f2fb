"""Messages of clients: JSON and MessagePack with the same names, and server-sent events."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgpack
import numpy as np

from flax_linattn.checks import quote

Form = Literal["json", "msgpack"]
MEDIA_TYPES: dict[Form, str] = {"json": "application/json", "msgpack": "application/msgpack"}
"""Media types of the two forms of a message."""

STEP_NAMES = ("observation", "observations", "time", "times", "steps")
"""Names in a request that steps a session."""
BEGIN_NAMES = ("state", "fork")
"""Names in a request that begins a session."""


class RequestError(ValueError):
    """A request that cannot be served, with its HTTP status."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


def parse(content: bytes, form: Form, names: Sequence[str]) -> dict[str, Any]:
    """Parses a message, whose names must be known.

    Raises:
        RequestError: If the message is malformed, or has an unknown name.

    Example:
        >>> parse(b'{"observation": [1.5, null]}', "json", STEP_NAMES)
        {'observation': [1.5, None]}
    """
    label = {"json": "JSON", "msgpack": "MessagePack"}[form]
    try:
        if form == "msgpack":
            values = msgpack.unpackb(content or b"\x80")
        else:
            values = json.loads(content or b"{}")
    except (ValueError, RecursionError, TypeError) as error:
        reason = quote(str(error) or type(error).__name__, 80)
        raise RequestError(f"expected a {label} object, got invalid {label} ({reason}).") from error
    if not isinstance(values, dict):
        raise RequestError(f"expected a {label} object, got {quote(values, 80)}.")
    if unknown := [name for name in values if name not in names]:
        raise RequestError(f"unknown name {quote(unknown[0])}; expected {', '.join(names)}.")
    return values


def encode(answer: Mapping[str, Any], form: Form = "json") -> bytes:
    """Encodes an answer; arrays become lists, and bytes become URL-safe base64 in JSON.

    Example:
        >>> encode({"state": b"abc", "logits": np.ones(2)})
        b'{"state":"YWJj","logits":[1.0,1.0]}'
    """
    if form == "msgpack":
        return bytes(msgpack.packb(answer, default=_plain))
    return json.dumps(answer, default=_plain, allow_nan=False, separators=(",", ":")).encode()


def encode_event(values: Mapping[str, Any], name: str = "") -> bytes:
    r"""Encodes a server-sent event of JSON values.

    Example:
        >>> encode_event({"token": 104}, "end")
        b'event: end\ndata: {"token":104}\n\n'
    """
    return (f"event: {name}\n" if name else "").encode() + b"data: " + encode(values) + b"\n\n"


def decode_state(state: Any) -> bytes:
    """Returns the bytes of a state as a client sends it.

    Raises:
        RequestError: If the state is neither text nor bytes.
    """
    if isinstance(state, bytes):
        return state
    if not isinstance(state, str):
        raise RequestError("expected state as text, from an earlier answer, or none.")
    try:
        text = state.encode("ascii")
        return base64.b64decode(text + b"=" * (-len(text) % 4), b"-_", validate=True)
    except ValueError:
        return b""  # is no sealed state


def get_observations(request: Mapping[str, Any], limit: int) -> list[tuple[Any, Any]]:
    """Returns the observations of a request with their times.

    Raises:
        RequestError: If there is none or too many, or the number of times differs.
    """
    if ("observation" in request) == ("observations" in request):
        raise RequestError("expected observation, or a list of observations.")
    many = request.get("observations", [request.get("observation")])
    times = request.get("times", [request["time"]] if "time" in request else None)
    if not isinstance(many, list) or not 0 < len(many) <= limit:
        given = f"{len(many):,}" if isinstance(many, list) else quote(many)
        raise RequestError(f"expected a list of 1 to {limit:,} observations, got {given}.")
    if times is not None and (not isinstance(times, list) or len(times) != len(many)):
        raise RequestError("expected times as a list as long as observations.")
    return list(zip(many, times or [None] * len(many), strict=True))


def num_observations(request: Mapping[str, Any]) -> int:
    """Counts the observations of a request, and the tokens that it may generate.

    Example:
        >>> num_observations({"observations": [1, 2], "max_tokens": 10})
        12
    """
    prompt = request.get("prompt")
    given = prompt.encode("utf-8", "replace") if isinstance(prompt, str) else None
    given = request.get("observations", given)
    count = len(given) if isinstance(given, list | bytes) else 1
    return max(count, 1) + int(request.get("max_tokens", 0))


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.urlsafe_b64encode(value).decode().rstrip("=")
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is no value of a message")
