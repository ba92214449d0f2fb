"""Generation of tokens by a session: each token is sent as it is sampled."""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import AsyncIterator, Mapping
from typing import Any

import jax
import numpy as np

from flax_linattn.checks import check_integers, quote
from flax_linattn.inference.linattn_runtime import Session
from flax_linattn.inference.sampling import Sampling, choose, make_sampling
from flax_linattn.serve.messages import STEP, RequestError
from flax_linattn.serve.server import Server

GENERATE = (*STEP, "prompt", "max_tokens", "temperature", "top_k", "top_p", "min_p", "seed")
"""Names in a request that generates tokens."""
MAX_TEMPERATURE = 1000.0
_choose = jax.jit(choose)


async def generate(
    server: Server, session: Session, request: Mapping[str, Any]
) -> AsyncIterator[dict[str, Any]]:
    """Samples tokens after the tokens of a request; each one is the next observation.

    The session processes all tokens but the last one, with which a later request continues.

    Args:
        server: The server.
        session: The session, which the generation advances.
        request: Values by the names of ``GENERATE``.

    Yields:
        An empty dict, once the tokens of the request are processed. Then for each sampled token
        "token" and, if tokens are bytes, "text", which is empty until a character is complete. At
        last "finish_reason": "length", or "stop" if the model would begin another document.

    Raises:
        RequestError: If the model does not predict tokens, or an option has the wrong type.
        OptionError: If an option is out of range.
        BundleError: If a token of the request is invalid, or the session is full.
        OverloadError: If too many observations wait.
    """
    task = server.bundle.signature["task"]
    tokens = task["inputs"][0]
    if tokens["kind"] != "token" or task["outputs"]["kind"] != "logits":
        raise RequestError(f"a model of the task {task['name']} does not generate tokens.")
    is_bytes, begin = tokens.get("tokenizer") == "bytes", tokens.get("begin")
    limit = server.limits.max_observations
    sampling, top_k, max_tokens = await asyncio.to_thread(_options, request, limit)
    prompt = _with_prompt(request, is_bytes, begin if session.num_steps == 0 else None)
    prediction = (await server.advance(session, prompt))[-1]
    yield {}
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for count in range(max_tokens):
        token = await asyncio.to_thread(_sample, prediction["logits"], count, sampling, top_k)
        if token == begin:
            yield {"finish_reason": "stop"}
            return
        yield {"token": token} | ({"text": decoder.decode(bytes([token]))} if is_bytes else {})
        if count + 1 < max_tokens:
            prediction = await server.step(session, token)
    yield {"finish_reason": "length"}


def _options(request: Mapping[str, Any], limit: int) -> tuple[Sampling, int | None, int]:
    """Options of the sampling, the number of most likely tokens, and ``max_tokens``."""
    numbers = {"temperature": 1.0, "top_p": 1.0, "min_p": 0.0}
    for name in numbers:
        value = request.get(name, numbers[name])
        maximum = MAX_TEMPERATURE if name == "temperature" else 1.0
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 <= value <= maximum:
            raise RequestError(
                f"expected {name} as a number from 0 to {maximum:g}, got {quote(value)}."
            )
        numbers[name] = float(value)
    seed, top_k = request.get("seed", 0), request.get("top_k")
    max_tokens = request.get("max_tokens", min(100, limit))
    try:
        check_integers(0, 2**32 - 1, seed=seed)
        check_integers(1, top_k=top_k)
        check_integers(1, limit, max_tokens=max_tokens)
    except TypeError as error:
        raise RequestError(f"{error}") from None
    # Every request has all options, so that one program samples for all of them.
    key, (temperature, top_p, min_p) = jax.random.key(seed), numbers.values()
    sampling = make_sampling(1, key=key, temperature=temperature, top_p=top_p, min_p=min_p)
    return sampling, top_k, max_tokens


def _with_prompt(request: Mapping[str, Any], is_bytes: bool, begin: int | None) -> dict[str, Any]:
    """The names of a step, with the bytes of a prompt as observations."""
    step = {name: value for name, value in request.items() if name in STEP}
    if "prompt" not in request:
        return step
    prompt = request["prompt"]
    if not is_bytes or not isinstance(prompt, str) or {"observation", "observations"} & {*step}:
        raise RequestError(
            "expected prompt as text for a model of bytes, without observations; pass other tokens "
            "as observations."
        )
    first = [] if begin is None else [begin]  # as in training, it begins a document
    return {**step, "observations": [*first, *prompt.encode("utf-8", "replace")]}


def _sample(logits: np.ndarray, count: int, sampling: Sampling, top_k: int | None) -> int:
    """Samples a token; ``top_k`` is no option of the program, which would be compiled for each."""
    logits = logits.astype(np.float32)
    if top_k is not None:
        logits[np.argsort(-logits, kind="stable")[top_k:]] = -np.inf
    return int(_choose(logits[None], np.int32(count), sampling)[0])
