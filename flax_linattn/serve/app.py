"""The ASGI application of a bundle: states of clients, sessions, health and metrics."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import json
import secrets
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from hmac import compare_digest
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from flax_linattn.checks import check_integers, check_positive, quote
from flax_linattn.inference.linattn_runtime import Bundle, Session
from flax_linattn.serve.batcher import Batcher, OverloadError
from flax_linattn.serve.openapi import describe_api
from flax_linattn.serve.page import make_page
from flax_linattn.serve.seal import Sealer
from flax_linattn.serve.sessions import SessionStore

Item = tuple[np.ndarray, dict[str, np.ndarray]]
"""Observations and states of the rows of one session."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits on requests, rows and sessions.

    Attributes:
        max_rows: Maximum number of rows that one call of the model steps together.
        max_waiting: Maximum number of observations that wait, and of requests to sessions on the
            server; further requests are refused with the status 503.
        max_connections: Maximum number of WebSocket connections; further connections are closed
            with the code 1013.
        max_observations: Maximum number of observations of a request.
        max_request_bytes: Maximum size of a request in bytes, including its state.
        max_sessions: Maximum number of sessions on the server.
        idle_seconds: Seconds without a request after which a session may be removed, once the
            server has the maximum number of sessions.
    """

    max_rows: int = 64
    max_waiting: int = 4096
    max_connections: int = 1000
    max_observations: int = 1000
    max_request_bytes: int = 2**22
    max_sessions: int = 100_000
    idle_seconds: float = 7 * 86400.0

    def __post_init__(self) -> None:
        check_integers(1, 2**16, max_rows=self.max_rows)
        check_integers(1, max_waiting=self.max_waiting, max_observations=self.max_observations)
        check_integers(1, max_sessions=self.max_sessions, max_connections=self.max_connections)
        check_integers(2**10, max_request_bytes=self.max_request_bytes)
        check_positive(idle_seconds=self.idle_seconds)


class RequestError(ValueError):
    """A request that cannot be served, with its HTTP status."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class Server:
    """Processes the observations of sessions of a bundle, in batches over all clients.

    Args:
        bundle: The bundle, which describes raw observations.
        sealer: Seals the states that clients hold.
        store: Stores sessions on the server.
        limits: The limits.
    """

    def __init__(self, bundle: Bundle, sealer: Sealer, store: SessionStore, limits: Limits) -> None:
        self.bundle, self.sealer, self.store, self.limits = bundle, sealer, store, limits
        rows = len(next(iter(bundle.session().state.values())))
        observation = bundle.signature["observation"]
        self._zeros = np.zeros((rows, *observation["shape"]), observation["dtype"])
        num_sessions = max(limits.max_rows // rows, 1)
        self._sizes = [rows * 4**n for n in range(-(-(num_sessions - 1).bit_length() // 2) + 1)]
        """Numbers of rows of the compiled steps, enough for ``num_sessions``."""
        self.steps = Batcher(self._step_rows, num_sessions, limits.max_waiting)
        self.writes = Batcher(self._write, limits.max_waiting, limits.max_waiting)
        self.is_ready = False
        self.num_connections = self._num_requests = self._num_begins = 0
        self._locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self.registry = CollectorRegistry()
        self.observations = Counter(
            "linattn_observations", "Observations that were processed", registry=self.registry
        )
        self.errors = Counter(
            "linattn_errors", "Requests that were refused", ["status"], registry=self.registry
        )
        self.batch_rows = Histogram(
            "linattn_batch_rows", "Rows of a call of the model", registry=self.registry,
            buckets=[2**n for n in range(limits.max_rows.bit_length() + 1)],
        )  # fmt: skip
        waiting = Gauge("linattn_waiting", "Observations that wait", registry=self.registry)
        waiting.set_function(lambda: self.steps.num_waiting)
        sessions = Gauge("linattn_sessions", "Sessions on the server", registry=self.registry)
        sessions.set_function(store.count)

    def warm_up(self) -> None:
        """Compiles the step for each batch size in use."""
        for size in self._sizes:
            self._call([(self._zeros, self.bundle.session().state)], size)

    def _step_rows(self, items: Sequence[Item]) -> list[Any]:
        """Steps the rows of several sessions in one call, padded to a compiled number of rows."""
        rows = sum(len(x) for x, _ in items)
        self.batch_rows.observe(rows)
        return self._call(items, next(size for size in self._sizes if size >= rows))

    def _call(self, items: Sequence[Item], size: int) -> list[Any]:
        lengths = [len(x) for x, _ in items]
        missing = size - sum(lengths)

        def join(arrays: list[np.ndarray]) -> np.ndarray:
            joined = np.concatenate(arrays)
            return np.pad(joined, [(0, missing), *[(0, 0)] * (joined.ndim - 1)])

        x = join([x for x, _ in items])
        state = {name: join([own[name] for _, own in items]) for name in items[0][1]}
        y, state = self.bundle.step(x, state, np.arange(size) < size - missing)
        y, state = np.asarray(y), {name: np.asarray(value) for name, value in state.items()}
        ends = np.cumsum([0, *lengths])
        return [
            (y[a:b], {name: value[a:b] for name, value in state.items()})
            for a, b in itertools.pairwise(ends.tolist())
        ]

    def _write(self, sessions: Sequence[tuple[str, bytes | None]]) -> list[None]:
        self.store.write(sessions)
        return [None] * len(sessions)

    async def advance(self, session: Session, request: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Processes the observations of a request, and returns their predictions.

        Raises:
            RequestError: If the request is invalid, or the session has another number of steps.
            BundleError: If an observation is invalid.
            OverloadError: If too many observations wait.
        """
        expected = request.get("steps")
        if expected is not None and expected != session.num_steps:
            raise RequestError(
                f"expected a session of {quote(expected)} observations (steps), got one of "
                f"{session.num_steps}; an earlier request may have been processed.",
                409,
            )
        predictions = []
        for observation, time in _observations(request, self.limits.max_observations):
            x, state, columns = session.prepare(observation, time)
            y, state = await self.steps.add((x, state))
            predictions.append(_plain(session.finish(columns, y, state)))
            self.observations.inc()
        return predictions

    def open(self, content: bytes | None) -> Session:
        """Returns a session from its bytes; None begins a new session."""
        session = self.bundle.session()
        if content is not None:
            session.from_bytes(content)
        return session

    def unseal(self, sealed: Any) -> Session:
        """Returns a session from its sealed state; None begins a new session."""
        if sealed is not None and not isinstance(sealed, str):
            raise RequestError("expected state as text, from an earlier answer, or none.")
        return self.open(None if sealed is None else self.sealer.open(sealed))

    async def step_sealed(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Steps the session of a sealed state; returns predictions and the new state."""
        session = self.unseal(request.get("state"))
        predictions = await self.advance(session, request)
        state = self.sealer.seal(session.to_bytes())
        return {"predictions": predictions, "steps": session.num_steps, "state": state}

    async def step_session(self, name: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """Steps a session on the server, and syncs it to the disk before the response."""
        async with self._turn(name):
            session = self.open(await self.read(name))
            predictions = await self.advance(session, request)
            await self.writes.add((name, session.to_bytes()))
        return {"predictions": predictions, "steps": session.num_steps}

    @contextlib.asynccontextmanager
    async def _turn(self, name: str) -> AsyncIterator[None]:
        """Locks a session, so that its requests are processed one after another."""
        if self._num_requests >= self.limits.max_waiting:
            raise OverloadError
        self._num_requests += 1
        try:
            async with self._locks.setdefault(name, asyncio.Lock()):
                yield
        finally:
            self._num_requests -= 1

    async def read(self, name: str) -> bytes:
        """Bytes of a session on the server."""
        # In a thread, because the store is locked while it syncs to the disk.
        content = await asyncio.to_thread(self.store.read, name)
        if content is None:
            raise RequestError(f"there is no session {quote(name)}; begin one.", 404)
        return content

    async def begin(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Begins a new session, a session from a sealed state, or a fork of another session."""
        if "state" in request and "fork" in request:
            raise RequestError("expected state or fork, got both.")
        self._num_begins += 1
        try:
            if not await asyncio.to_thread(self._has_room, self._num_begins):
                raise OverloadError("the server has no room for further sessions.")
            if "fork" in request:
                session = self.open(await self.read(str(request["fork"])))
            else:
                session = self.unseal(request.get("state"))
            name = secrets.token_urlsafe(16)
            await self.writes.add((name, session.to_bytes()))
        finally:
            self._num_begins -= 1
        return {"session": name, "steps": session.num_steps}

    def _has_room(self, num_sessions: int) -> bool:
        """Whether further sessions may begin; removes idle sessions if there are too many."""
        limit = self.limits.max_sessions - num_sessions
        if self.store.count() > limit:
            self.store.remove_idle(self.limits.idle_seconds)
        return self.store.count() <= limit

    async def remove(self, name: str) -> None:
        """Removes a session from the disk, after the requests that step it."""
        async with self._turn(name):
            await self.read(name)
            await self.writes.add((name, None))


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
        return JSONResponse({"steps": session.num_steps, "state": state})

    async def remove(request: Request) -> Response:
        await server.remove(request.path_params["name"])
        return Response(status_code=204)

    def make_endpoint(
        call: Callable[..., Awaitable[Any]], names: Sequence[str], status: int = 200
    ) -> Any:
        async def endpoint(request: Request) -> Response:
            body = await _body(request, names, server.limits.max_request_bytes)
            return JSONResponse(await call(*request.path_params.values(), body), status)

        return endpoint

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
        status = _status(error)
        server.errors.labels(str(status)).inc()
        headers = {"Retry-After": "1"} if status == 503 else {}
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
                "/v1/step", make_endpoint(server.step_sealed, (*_STEP, "state")), methods=["POST"]
            ),
            Route("/v1/sessions", make_endpoint(server.begin, _BEGIN, 201), methods=["POST"]),
            Route("/v1/sessions/{name}", show, methods=["GET"]),
            Route("/v1/sessions/{name}", remove, methods=["DELETE"]),
            Route(
                "/v1/sessions/{name}/step",
                make_endpoint(server.step_session, _STEP),
                methods=["POST"],
            ),
            WebSocketRoute("/v1/stream", stream),
        ],
        exception_handlers={ValueError: refuse, OverloadError: refuse, OSError: refuse},
        middleware=[Middleware(_Authorize, token=token or None)],
        lifespan=lifespan,
    )


async def _stream(server: Server, socket: WebSocket) -> None:
    """Answers each message of a WebSocket; an error keeps the connection and the state."""
    name, content = socket.query_params.get("session"), None
    with contextlib.suppress(WebSocketDisconnect):
        while (message := await socket.receive())["type"] == "websocket.receive":
            try:
                text = message.get("bytes") or (message.get("text") or "").encode()
                if name is not None:
                    answer = await server.step_session(name, _parse(text, _STEP))
                else:
                    request = _parse(text, (*_STEP, "state", "seal"))
                    is_given = request.get("state") is not None
                    session = server.unseal(request["state"]) if is_given else server.open(content)
                    answer = {"predictions": await server.advance(session, request)}
                    answer["steps"], content = session.num_steps, session.to_bytes()
                    if request.get("seal"):
                        answer["state"] = server.sealer.seal(content)
            except (ValueError, OverloadError, OSError) as error:
                server.errors.labels(str(_status(error))).inc()
                answer = {"error": str(error)}
            await socket.send_json(answer)


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


async def _body(request: Request, names: Sequence[str], limit: int) -> dict[str, Any]:
    content = bytearray()
    async for part in request.stream():
        content += part
        if len(content) > limit:
            raise RequestError(f"expected a request of at most {limit:,} bytes, got more.", 413)
    return _parse(bytes(content), names)


_STEP = ("observation", "observations", "time", "times", "steps")
"""Names in a request that steps a session."""
_BEGIN = ("state", "fork")
"""Names in a request that begins a session."""


def _parse(content: bytes, names: Sequence[str]) -> dict[str, Any]:
    """Parses a JSON object, and checks its names."""
    try:
        values = json.loads(content or b"{}")
    except (ValueError, RecursionError) as error:
        raise RequestError(
            f"expected a JSON object, got invalid JSON ({quote(error, 80)})."
        ) from error
    if not isinstance(values, dict):
        raise RequestError(f"expected a JSON object, got {quote(values, 80)}.")
    if unknown := [name for name in values if name not in names]:
        raise RequestError(f"unknown name {quote(unknown[0])}; expected {', '.join(names)}.")
    return values


def _observations(request: Mapping[str, Any], limit: int) -> list[tuple[Any, Any]]:
    """Returns the observations of a request with their times."""
    if ("observation" in request) == ("observations" in request):
        raise RequestError("expected observation, or a list of observations.")
    many = request.get("observations", [request.get("observation")])
    times = request.get("times", [request["time"]] if "time" in request else None)
    if not isinstance(many, list) or not 0 < len(many) <= limit:
        raise RequestError(f"expected observations as a list of 1 to {limit:,} elements.")
    if times is not None and (not isinstance(times, list) or len(times) != len(many)):
        raise RequestError("expected times as a list as long as observations.")
    return list(zip(many, times or [None] * len(many), strict=True))


def _plain(predictions: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in predictions.items()}


def _status(error: Exception) -> int:
    """Returns the HTTP status of an error."""
    if isinstance(error, RequestError):
        return error.status
    if isinstance(error, OverloadError):
        return 503
    return 507 if isinstance(error, OSError) else 400
