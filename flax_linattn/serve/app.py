"""The ASGI application of a bundle: states of clients, sessions, generation, and metrics."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from hmac import compare_digest
from typing import Any

from prometheus_client import generate_latest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from flax_linattn.inference.linattn_runtime import Bundle
from flax_linattn.serve import generation
from flax_linattn.serve.generation import (
    GENERATE_NAMES,
    sealed_events,
    send_events,
    session_events,
)
from flax_linattn.serve.limits import Limits
from flax_linattn.serve.messages import (
    BEGIN_NAMES,
    MEDIA_TYPES,
    STEP_NAMES,
    Form,
    RequestError,
    encode,
    num_observations,
    parse,
)
from flax_linattn.serve.openapi import describe_api
from flax_linattn.serve.page import make_page
from flax_linattn.serve.seal import Sealer
from flax_linattn.serve.server import REFUSED, Server
from flax_linattn.serve.sessions import SessionStore


def make_app(
    bundle: Bundle,
    *,
    sealer: Sealer | None = None,
    store: SessionStore | None = None,
    token: str | None = None,
    limits: Limits | None = None,
) -> ASGIApp:
    """Makes an ASGI application that serves a bundle.

    Args:
        bundle: A bundle that describes raw observations.
        sealer: Seals the states that clients hold. Default: with a random key of this process.
        store: Stores sessions. Default: in memory.
        token: Bearer token of all requests, except for the page, health and readiness. Default:
            none.
        limits: Limits on requests. Default: ``Limits()``.

    Raises:
        BundleError: If the bundle does not describe raw observations.
    """
    server = Server(
        bundle,
        sealer or Sealer(),
        store or SessionStore(None, bundle.fingerprint),
        limits or Limits(),
    )

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        server.warm_up()
        generation.warm_up(bundle)
        async with server.writes, server.steps:  # sessions of the last steps are still written
            server.is_ready = True
            yield
            server.is_ready = False
        server.store.close()

    page = make_page()

    async def show_page(_: Request) -> Response:
        return page

    async def healthy(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def ready(_: Request) -> Response:
        return JSONResponse({"ready": server.is_ready}, 200 if server.is_ready else 503)

    async def metrics(_: Request) -> Response:
        content = await asyncio.to_thread(generate_latest, server.registry)
        return Response(content, media_type="text/plain; version=0.0.4")

    async def signature(_: Request) -> Response:
        return JSONResponse(bundle.signature)

    async def openapi(_: Request) -> Response:
        return JSONResponse(describe_api(bundle.signature))

    async def show(request: Request) -> Response:
        session = server.open(await server.read(request.path_params["name"]))
        state = server.sealer.seal(session.to_bytes())
        return _answer({"steps": session.num_steps, "state": state}, "json")

    async def remove(request: Request) -> Response:
        await server.remove(request.path_params["name"])
        return Response(status_code=204)

    def make_endpoint(
        call: Callable[..., Awaitable[Any]], names: Sequence[str], status: int = 200
    ) -> Any:
        async def endpoint(request: Request) -> Response:
            body, form = await _read(server, request, names)
            return _answer(await call(*request.path_params.values(), body), form, status)

        return endpoint

    async def generate_sealed(request: Request) -> Response:
        body, _ = await _read(server, request, (*GENERATE_NAMES, "state"))
        return await send_events(server, sealed_events(server, body))

    async def generate_session(request: Request) -> Response:
        body, _ = await _read(server, request, GENERATE_NAMES)
        return await send_events(server, session_events(server, request.path_params["name"], body))

    async def stream(socket: WebSocket) -> None:
        await socket.accept()
        if server.num_connections >= server.limits.max_connections:
            await socket.close(1013, "the server has too many connections; try again later.")
            return
        server.num_connections += 1
        try:
            await _stream(server, socket)
        finally:
            server.num_connections -= 1

    async def refuse(_: Any, error: Exception) -> Response:
        status = server.count_error(error)
        # The window of a rate has passed after two seconds.
        headers = {"Retry-After": "2" if status == 429 else "1"} if status in (429, 503) else {}
        return JSONResponse({"error": str(error)}, status, headers)

    return Starlette(
        routes=[
            Route("/", show_page),
            Route("/healthz", healthy),
            Route("/readyz", ready),
            Route("/metrics", metrics),
            Route("/openapi.json", openapi),
            Route("/v1/signature", signature),
            Route(
                "/v1/step",
                make_endpoint(server.step_sealed, (*STEP_NAMES, "state")),
                methods=["POST"],
            ),
            Route("/v1/generate", generate_sealed, methods=["POST"]),
            Route("/v1/sessions", make_endpoint(server.begin, BEGIN_NAMES, 201), methods=["POST"]),
            Route("/v1/sessions/{name}", show, methods=["GET"]),
            Route("/v1/sessions/{name}", remove, methods=["DELETE"]),
            Route(
                "/v1/sessions/{name}/step",
                make_endpoint(server.step_session, STEP_NAMES),
                methods=["POST"],
            ),
            Route("/v1/sessions/{name}/generate", generate_session, methods=["POST"]),
            WebSocketRoute("/v1/stream", stream),
        ],
        exception_handlers=dict.fromkeys(REFUSED, refuse),
        middleware=[Middleware(_Authorize, token=token or None)],
        lifespan=lifespan,
    )


async def _stream(server: Server, socket: WebSocket) -> None:
    """Answers each message of a WebSocket; an error keeps the connection and the state."""
    name, content = socket.query_params.get("session"), None
    address = get_address(socket)
    with contextlib.suppress(WebSocketDisconnect):
        if name is not None:
            try:
                await server.read(name)
            except REFUSED as error:
                server.count_error(error)
                await socket.close(1008, "the session does not exist, or cannot be read.")
                return
        while (message := await socket.receive())["type"] == "websocket.receive":
            text = message.get("text")
            form: Form = "json" if text is not None else "msgpack"
            given = message.get("bytes") or b"" if text is None else text.encode()
            try:
                request = parse(given, form, STEP_NAMES if name else (*STEP_NAMES, "state", "seal"))
                await server.admit(address, num_observations(request))
                if name is not None:
                    answer = await server.step_session(name, request)
                else:
                    is_given = request.get("state") is not None
                    session = server.unseal(request["state"]) if is_given else server.open(content)
                    answer = {"predictions": await server.advance(session, request)}
                    answer["steps"], content = session.num_steps, session.to_bytes()
                    if request.get("seal"):
                        answer["state"] = server.sealer.seal(content)
            except REFUSED as error:
                server.count_error(error)
                answer = {"error": str(error)}
            if form == "json":
                await socket.send_text(encode(answer, form).decode())
            else:
                await socket.send_bytes(encode(answer, form))


class _Authorize:
    """Middleware that refuses pages of other sites, and requests without the bearer token."""

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self._app, self._expected = app, None if token is None else f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request to the application, or refuses it."""
        headers = dict(scope.get("headers", []))
        origin = headers.get(b"origin")
        is_open = scope["type"] == "lifespan" or scope["path"] in ("/", "/healthz", "/readyz")
        given, error = headers.get(b"authorization", b""), ""
        status, own = 401, {"WWW-Authenticate": "Bearer"}
        if origin is not None and origin.partition(b"://")[2] != headers.get(b"host"):
            # A browser sends requests of any page, even to the loopback address.
            error, status, own = "requests of pages of other sites are refused.", 403, {}
        elif not (is_open or self._expected is None or compare_digest(given, self._expected)):
            error = "expected the header Authorization: Bearer TOKEN."
        if not error:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await JSONResponse({"error": error}, status, own)(scope, receive, send)


async def _read(
    server: Server, request: Request, names: Sequence[str]
) -> tuple[dict[str, Any], Form]:
    """Reads and admits a request; returns its values and its form, which the answer has, too."""
    limit = server.limits.max_request_bytes
    content = bytearray()
    async for part in request.stream():
        content += part
        if len(content) > limit:
            raise RequestError(f"expected a request of at most {limit:,} bytes, got more.", 413)
    given = request.headers.get("content-type", "").partition(";")[0].strip()
    form: Form = "msgpack" if given == MEDIA_TYPES["msgpack"] else "json"
    values = parse(bytes(content), form, names)
    if "max_tokens" in names:
        values["max_tokens"] = server.get_max_tokens(values)
    await server.admit(get_address(request), num_observations(values))
    return values, form


def get_address(connection: HTTPConnection) -> str:
    """Returns the address of a client, by which its rate is limited.

    In a network of IPv6 a client may choose any address, so the network counts. A server behind a
    proxy takes the address from X-Forwarded-For.
    """
    host = "" if connection.client is None else connection.client.host
    try:
        return str(ipaddress.IPv6Network(f"{host}/64", strict=False))
    except ValueError:  # an address of IPv4, or what a proxy wrote
        return host


def _answer(values: Mapping[str, Any], form: Form, status: int = 200) -> Response:
    return Response(encode(values, form), status, media_type=MEDIA_TYPES[form])
