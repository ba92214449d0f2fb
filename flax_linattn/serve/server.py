"""``Server``: steps the sessions of all clients together, within limits."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
import weakref
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import numpy as np
from limits import RateLimitItemPerSecond
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import SlidingWindowCounterRateLimiter
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from flax_linattn.checks import quote
from flax_linattn.inference.linattn_runtime import Bundle, Session
from flax_linattn.serve.batcher import Batcher, OverloadError
from flax_linattn.serve.limits import Limits
from flax_linattn.serve.messages import RequestError, decode_state, get_observations
from flax_linattn.serve.seal import Sealer
from flax_linattn.serve.sessions import SessionStore

REFUSED = (ValueError, OverloadError, OSError)
"""Errors of requests that are refused, with a status and a text."""
Item = tuple[np.ndarray, dict[str, np.ndarray]]
"""Observations and states of the rows of one session."""


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
        self._rates = SlidingWindowCounterRateLimiter(MemoryStorage())
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
        if expected is not None and type(expected) is not int:
            raise RequestError(f"expected steps as an integer, got {quote(expected)}.")
        if expected is not None and expected != session.num_steps:
            raise RequestError(
                f"expected a session of {quote(expected)} observations (steps), got a session "
                f"of {session.num_steps}; an earlier request may have been processed.",
                409,
            )
        observations = get_observations(request, self.limits.max_observations)
        return [await self.step(session, *each) for each in observations]

    async def step(self, session: Session, observation: Any, time: Any = None) -> dict[str, Any]:
        """Processes one observation, in one call with observations of other sessions."""
        x, state, columns = session.prepare(observation, time)
        y, state = await self.steps.add((x, state))
        prediction = session.finish(columns, y, state)
        self.observations.inc()
        return prediction

    async def admit(self, address: str, count: int) -> None:
        """Counts observations of a client's address.

        Raises:
            RequestError: If there are too many in the last second.
        """
        rate = self.limits.max_rate
        if rate is None:
            return
        if count > rate:
            raise RequestError(
                f"expected at most {rate:,} observations and new tokens in a request, the rate of "
                f"this server, got {count:,}.",
                413,
            )
        if not await self._rates.hit(RateLimitItemPerSecond(rate), address, cost=count):
            raise RequestError(
                f"expected at most {rate:,} observations per second, got more; try again later.",
                429,
            )

    def get_max_tokens(self, request: Mapping[str, Any]) -> int:
        """Returns the number of tokens that a request may generate.

        Raises:
            RequestError: If it is not an integer from 1 to the maximum number of observations.
        """
        limit, value = self.limits.max_observations, request.get("max_tokens")
        if value is None:
            return min(100, limit)
        if type(value) is not int or not 1 <= value <= limit:
            raise RequestError(
                f"expected max_tokens as an integer from 1 to {limit:,}, got {quote(value)}."
            )
        return value

    def count_error(self, error: Exception) -> int:
        """Counts a refused request; returns its HTTP status."""
        status = 507 if isinstance(error, OSError) else 400
        if isinstance(error, RequestError):
            status = error.status
        elif isinstance(error, OverloadError):
            status = 503
        self.errors.labels(str(status)).inc()
        return status

    def open(self, content: bytes | None) -> Session:
        """Returns a session from its bytes; None begins a new session."""
        session = self.bundle.session()
        if content is not None:
            session.from_bytes(content)
        return session

    def unseal(self, sealed: Any) -> Session:
        """Returns a session from its sealed state; None begins a new session."""
        return self.open(None if sealed is None else self.sealer.open(decode_state(sealed)))

    async def step_sealed(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Steps the session of a sealed state; returns predictions and the new state."""
        session = self.unseal(request.get("state"))
        predictions = await self.advance(session, request)
        state = self.sealer.seal(session.to_bytes())
        return {"predictions": predictions, "steps": session.num_steps, "state": state}

    async def step_session(self, name: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """Steps a session on the server, and syncs it to the disk before the response."""
        async with self.lock_session(name):
            session = self.open(await self.read(name))
            predictions = await self.advance(session, request)
            await self.save(name, session)
        return {"predictions": predictions, "steps": session.num_steps}

    @contextlib.asynccontextmanager
    async def lock_session(self, name: str) -> AsyncIterator[None]:
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
            raise RequestError(f"there is no session {quote(name)}; begin a session.", 404)
        return content

    async def save(self, name: str, session: Session) -> None:
        """Syncs a session to the disk; a cancelled request waits for the disk, too."""
        write = asyncio.ensure_future(self.writes.add((name, session.to_bytes())))
        try:
            await asyncio.shield(write)
        except asyncio.CancelledError:
            await write  # the lock of the session is held until then
            raise

    async def begin(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Begins a new session, a session from a sealed state, or a fork of another session."""
        if "state" in request and "fork" in request:
            raise RequestError("expected state or fork, got both.")
        self._num_begins += 1
        try:
            if not await asyncio.to_thread(self._has_room, self._num_begins):
                raise OverloadError(
                    "the server has reached its maximum number of sessions; try again later."
                )
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
        async with self.lock_session(name):
            await self.read(name)
            await self.writes.add((name, None))
