"""Limits of a server."""

from __future__ import annotations

import dataclasses

from flax_linattn.checks import check_integers, check_positive


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits on requests, rows and sessions.

    Attributes:
        max_rows: Maximum number of rows that one call of the model steps together.
        max_waiting: Maximum number of observations that wait, and of requests to sessions on the
            server; further requests are refused with the status 503.
        max_connections: Maximum number of WebSocket connections; further connections are closed
            with the code 1013.
        max_observations: Maximum number of observations of a request, and of tokens that a request
            generates.
        max_rate: Maximum number of observations per second of a client's address; further
            observations are refused with the status 429. Default: unlimited.
        max_request_bytes: Maximum size of a request in bytes, including its state.
        max_sessions: Maximum number of sessions on the server.
        idle_seconds: Seconds without a request after which a session may be removed, once the
            server has the maximum number of sessions.
    """

    max_rows: int = 64
    max_waiting: int = 4096
    max_connections: int = 1000
    max_observations: int = 1000
    max_rate: int | None = None
    max_request_bytes: int = 2**22
    max_sessions: int = 100_000
    idle_seconds: float = 7 * 86400.0

    def __post_init__(self) -> None:
        check_integers(1, 2**16, max_rows=self.max_rows)
        check_integers(1, max_waiting=self.max_waiting, max_observations=self.max_observations)
        check_integers(1, max_sessions=self.max_sessions, max_connections=self.max_connections)
        check_integers(1, max_rate=self.max_rate)
        check_integers(2**10, max_request_bytes=self.max_request_bytes)
        check_positive(idle_seconds=self.idle_seconds)
