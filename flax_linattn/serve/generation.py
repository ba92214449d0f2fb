"""Generation of tokens by a session: each token is sent as it is sampled."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any

import jax
import numpy as np
from starlette.responses import StreamingResponse

from flax_linattn.checks import check_integers, quote
from flax_linattn.inference.linattn_runtime import Bundle, Session
from flax_linattn.inference.sampling import Sampling, choose, make_sampling
from flax_linattn.serve.messages import STEP_NAMES, RequestError, encode_event
from flax_linattn.serve.server import REFUSED, Server

GENERATE_NAMES = (
    *STEP_NAMES, "prompt", "max_tokens", "temperature", "top_k", "top_p", "min_p", "seed"
)  # fmt: skip
"""Names in a request that generates tokens."""
MAX_TEMPERATURE = 1000.0
_choose = jax.jit(choose)


def generates(bundle: Bundle) -> bool:
    """Whether the model of a bundle predicts the next token."""
    task = bundle.signature["task"]
    return bool(task["inputs"][0]["kind"] == "token" and task["outputs"]["kind"] == "logits")


def warm_up(bundle: Bundle) -> None:
    """Compiles the sampling, if the model generates tokens."""
    if generates(bundle):
        sampling, _ = _options({})
        _sample(np.zeros(bundle.signature["output"]["shape"]), 0, sampling, None)


async def generate(
    server: Server, session: Session, request: Mapping[str, Any]
) -> AsyncGenerator[dict[str, Any]]:
    """Samples tokens after the tokens of a request; each one is the next observation.

    The session processes all tokens but the last one, with which a later request continues.

    Args:
        server: The server.
        session: The session, which the generation advances.
        request: Values by the names of ``GENERATE_NAMES``; "max_tokens" is checked.

    Yields:
        An empty dict, once the tokens of the request are processed. Then for each sampled token
        "token" and, if tokens are bytes, "text", which is empty until a character is complete. At
        last "finish_reason" ("length", or "stop" if the model would begin another document),
        "next", the token with which a later request continues, and the rest of an incomplete
        character as "text".

    Raises:
        RequestError: If the model does not predict tokens, or an option has the wrong type.
        OptionError: If an option is out of range.
        BundleError: If a token of the request is invalid, or the session is full.
        OverloadError: If too many observations wait.
    """
    if not generates(server.bundle):
        name = server.bundle.signature["task"]["name"]
        raise RequestError(f"a model of the task {name} does not generate tokens.")
    tokens = server.bundle.signature["task"]["inputs"][0]
    is_bytes, begin = tokens.get("tokenizer") == "bytes", tokens.get("begin")
    sampling, top_k = await asyncio.to_thread(_options, request)
    prompt = _with_prompt(request, is_bytes, begin if session.num_steps == 0 else None)
    prediction = (await server.advance(session, prompt))[-1]
    yield {}
    decoder, token = codecs.getincrementaldecoder("utf-8")("replace"), None
    end = {"finish_reason": "length"}
    for count in range(request["max_tokens"]):
        if count:
            prediction = await server.step(session, token)
        # By the position, two requests of the same seed sample what one long request does.
        position = session.num_steps
        token = await asyncio.to_thread(_sample, prediction["logits"], position, sampling, top_k)
        if token == begin:
            end = {"finish_reason": "stop"}
            break
        yield {"token": token} | ({"text": decoder.decode(bytes([token]))} if is_bytes else {})
    rest = decoder.decode(b"", True)
    yield {**end, "next": token, **({"text": rest} if rest else {})}


async def sealed_events(server: Server, request: dict[str, Any]) -> AsyncGenerator[bytes]:
    """Yields the events of a generation whose state the client holds; the last one has it."""
    session = server.unseal(request.pop("state", None))
    async with contextlib.aclosing(generate(server, session, request)) as generation:
        async for values in generation:
            if "finish_reason" in values:
                state = server.sealer.seal(session.to_bytes())
                yield encode_event({**values, "steps": session.num_steps, "state": state}, "end")
            else:
                yield encode_event(values) if values else b""


async def session_events(
    server: Server, name: str, request: dict[str, Any]
) -> AsyncGenerator[bytes]:
    """Yields the events of a generation by a session, synced to the disk before the last one."""
    async with server.lock_session(name):
        session = server.open(await server.read(name))
        async with contextlib.aclosing(generate(server, session, request)) as generation:
            async for values in generation:
                if "finish_reason" in values:
                    await server.save(name, session)
                    yield encode_event({**values, "steps": session.num_steps}, "end")
                else:
                    yield encode_event(values) if values else b""


async def send_events(server: Server, events: AsyncGenerator[bytes]) -> StreamingResponse:
    """Makes a response of events; an error before the first event is raised.

    A task generates, at most ``max_tokens`` events ahead of the client: a client that reads slowly
    or leaves does not hold its session.
    """
    queue: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()

    async def produce() -> None:
        try:
            async with contextlib.aclosing(events):
                async for event in events:
                    queue.put_nowait(event)
        except Exception as error:
            queue.put_nowait(error)
            if not isinstance(error, REFUSED):
                raise
        finally:
            queue.put_nowait(None)

    task = asyncio.create_task(produce())
    first = await queue.get()
    if isinstance(first, Exception):
        raise first

    async def send() -> AsyncIterator[bytes]:
        try:
            while (event := await queue.get()) is not None:
                if isinstance(event, Exception):
                    server.count_error(event)
                    event = encode_event({"error": str(event)}, "error")
                yield event
        finally:
            task.cancel()

    # nginx would collect events otherwise.
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(send(), media_type="text/event-stream", headers=headers)


def _options(request: Mapping[str, Any]) -> tuple[Sampling, int | None]:
    """Options of the sampling, and the number of most likely tokens."""
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
    seed, top_k = request.get("seed"), request.get("top_k")
    try:
        check_integers(0, 2**32 - 1, seed=seed)
        check_integers(1, top_k=top_k)
    except TypeError as error:
        raise RequestError(f"{error}") from None
    # Every request has all options, so that one program samples for all of them.
    key = jax.random.key(0 if seed is None else seed)
    temperature, top_p, min_p = numbers.values()
    return make_sampling(1, key=key, temperature=temperature, top_p=top_p, min_p=min_p), top_k


def _with_prompt(request: Mapping[str, Any], is_bytes: bool, begin: int | None) -> dict[str, Any]:
    """The names of a step, with the bytes of a prompt as observations."""
    step = {name: value for name, value in request.items() if name in STEP_NAMES}
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


def _sample(logits: np.ndarray, position: int, sampling: Sampling, top_k: int | None) -> int:
    """Samples a token; ``top_k`` is no option of the program, which would be compiled for each."""
    logits = logits.astype(np.float32)
    if top_k is not None:
        logits[np.argsort(-logits, kind="stable")[top_k:]] = -np.inf
    return int(_choose(logits[None], np.int32(position), sampling)[0])
