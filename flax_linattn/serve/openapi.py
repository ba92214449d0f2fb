"""The OpenAPI description of a server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flax_linattn.serve.messages import MEDIA_TYPES


def describe_api(signature: Mapping[str, Any]) -> dict[str, Any]:
    """Makes the OpenAPI 3.1 description of a server of a bundle.

    Args:
        signature: Signature of the bundle.

    Example:
        >>> sorted(describe_api({"task": {"name": "classify", "inputs": []}})["paths"])[:2]
        ['/v1/generate', '/v1/sessions']
    """
    observation = {"description": _observation(signature["task"]["inputs"])}
    given = {
        "observation": observation,
        "observations": {"type": "array", "items": observation},
        "time": {
            "type": ["string", "number"],
            "description": "Time of the observation, ISO 8601; a number for events without dates.",
        },
        "times": {"type": "array", "items": {"type": "string"}},
        "steps": {
            "type": "integer",
            "description": "Number of observations so far; another number is refused with 409.",
        },
    }
    state = {"type": "string", "description": "Sealed state, from an earlier answer."}
    generation = {
        **given,
        "prompt": {"type": "string", "description": "Text, for a model of bytes."},
        "max_tokens": {"type": "integer", "default": 100},
        "temperature": {
            "type": "number", "default": 1, "description": "0 selects the most likely token."
        },
        "top_k": {"type": "integer"},
        "top_p": {"type": "number", "default": 1},
        "min_p": {"type": "number", "default": 0},
        "seed": {"type": "integer", "default": 0},
    }  # fmt: skip
    answer = {
        "predictions": {"type": "array", "items": {"type": "object"}},
        "steps": {"type": "integer"},
    }
    name = {"name": "session", "in": "path", "required": True, "schema": {"type": "string"}}
    session = "/v1/sessions/{session}"
    return {
        "openapi": "3.1.0",
        "info": {"title": f"Streams of a {signature['task']['name']} model", "version": "1"},
        "paths": {
            "/v1/step": {
                "post": _call(
                    "Step a stream whose state the client holds",
                    {**given, "state": state},
                    {**answer, "state": state},
                )
            },
            "/v1/generate": {
                "post": _generation({**generation, "state": state}),
            },
            "/v1/sessions": {
                "post": _call(
                    "Begin a session, or fork one",
                    {"state": state, "fork": {"type": "string"}},
                    {"session": {"type": "string"}, "steps": {"type": "integer"}},
                    "201",
                )
            },
            session: {
                "parameters": [name],
                "get": _call("Seal the state of a session", None, {**answer, "state": state}),
                "delete": {
                    "summary": "Remove a session",
                    "responses": {"204": {"description": ""}},
                },
            },
            f"{session}/step": {
                "parameters": [name],
                "post": _call("Step a session on the server", given, answer),
            },
            f"{session}/generate": {"parameters": [name], "post": _generation(generation)},
        },
    }


def _observation(inputs: list[Mapping[str, Any]]) -> str:
    """Describes an observation in words."""
    for part in inputs:
        if part["kind"] == "token":
            return f"An integer below {part['count']:,}."
        if part["kind"] == "values":
            return f"Values by channel, or as a list: {', '.join(part['names'])}."
        if part["kind"] == "decision":
            return (
                "The reward of the previous action (null at first) and the observation, by name or "
                f"as a list: {', '.join(part['names'])}."
            )
        if part["kind"] == "event":
            return f"The type of an event ({', '.join(part['names'])}); its time is in time."
    return "Values."


def _call(
    summary: str,
    given: Mapping[str, Any] | None,
    answer: Mapping[str, Any],
    status: str = "200",
) -> dict[str, Any]:
    responses: dict[str, Any] = {
        status: {"description": "Done", "content": _json(answer)},
        "400": {"description": "The request, the state or an observation is invalid"},
        "429": {"description": "Too many observations per second; try again later"},
        "503": {"description": "Busy; try again later"},
    }
    body = {} if given is None else {"requestBody": {"content": _json(given)}}
    return {"summary": summary, **body, "responses": responses}


def _generation(given: Mapping[str, Any]) -> dict[str, Any]:
    """A call whose answer is a stream of events."""
    call = _call("Sample tokens of a model that predicts tokens", given, {})
    events = "Events with token and, for bytes, text; the event end has finish_reason and the state"
    content = {"text/event-stream": {"schema": {"type": "string"}}}
    call["responses"]["200"] = {"description": events, "content": content}
    return call


def _json(properties: Mapping[str, Any]) -> dict[str, Any]:
    schema = {"schema": {"type": "object", "properties": dict(properties)}}
    return dict.fromkeys(MEDIA_TYPES.values(), schema)
