"""``flax-linattn serve RUN_OR_BUNDLE``."""

from __future__ import annotations

import dataclasses
import ipaddress
import os
import socket
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from flax_linattn.checks import OptionError, import_extra
from flax_linattn.cli import flags
from flax_linattn.inference.linattn_runtime import Bundle
from flax_linattn.tasks.export import export_run
from flax_linattn.tasks.run import read_task

MISSING = "serving needs the extra serve: pip install 'flax-linattn[serve]'."
for module in ("limits", "msgpack", "prometheus_client", "starlette", "uvicorn", "websockets"):
    import_extra(module, MISSING)

import uvicorn  # noqa: E402

from flax_linattn.serve import Limits, Sealer, SessionStore, make_app  # noqa: E402
from flax_linattn.serve.seal import MIN_SECRET_BYTES  # noqa: E402

SECRET, TOKEN = "FLAX_LINATTN_SECRET", "FLAX_LINATTN_TOKEN"
"""Environment variables for the key that seals states and the bearer token of clients."""


@dataclasses.dataclass(frozen=True)
class ServeOptions:
    """Address, keys and sessions of a server.

    The environment variable FLAX_LINATTN_SECRET is the key that seals the states of clients:
    servers with the same key accept each other's states. By default it is random, and states end
    with the process. FLAX_LINATTN_TOKEN is a token that clients must send as
    "Authorization: Bearer TOKEN"; any host other than the loopback needs a token.

    Attributes:
        host: Address to listen on.
        port: Port to listen on; 0 chooses a free one.
        sessions: SQLite file that stores the sessions on the server, so that answered observations
            survive a crash. Default: sessions end with the process.
        max_age: Seconds after which a sealed state is refused. Default: states do not expire.
        drain: Seconds to wait for running requests after SIGTERM.
    """

    main_options: ClassVar[tuple[str, ...]] = ("host", "port", "sessions")
    host: str = "127.0.0.1"
    port: int = 8000
    sessions: Path | None = None
    max_age: float | None = None
    drain: int = 30


PROG = "flax-linattn serve RUN_OR_BUNDLE"
ABOUT = (
    "Serves predictions after each observation, over HTTP and WebSocket. A client holds its own "
    "state, sealed, or has a session on the server. The model processes all clients in batches."
)


def serve_command(args: Sequence[str]) -> int:
    """Serves a run or a bundle until SIGTERM or Ctrl-C.

    Args:
        args: The command line.

    Returns:
        The exit status.
    """
    own = [*flags.groups(ServeOptions()), *flags.groups(Limits())]
    if flags.asks_help(args, f"expected a run folder or a bundle, got none; write {PROG}."):
        flags.parse(own, args, PROG, ABOUT)
    path = Path(args[0])
    if not path.exists():
        raise FileNotFoundError(f"expected a run folder or a bundle, but {path} does not exist.")
    task = read_task(path) if path.is_dir() else None
    groups = own if task is None else [*own, *flags.groups(task.StreamOptions(), task.name)]
    values = flags.parse(groups, args[1:], f"flax-linattn serve {args[0]}", ABOUT)
    options, limits = flags.build(ServeOptions, values), flags.build(Limits, values)
    if task is None:  # first, or a port in use would hide that the file is no bundle
        Bundle.read_signature(path)
    with _bind(options.host, options.port) as listener:
        if task is None:
            bundle = Bundle(path)
        else:
            bundle = _export(path, flags.build(task.StreamOptions, values))
        if not (bundle.signature["task"] or {}).get("inputs"):
            raise ValueError(
                f"{path} cannot be served, because its bundle does not describe raw observations. "
                "Export a run whose stream takes raw observations: no known future covariates, no "
                "begin of events, and no odd context of an agent."
            )
        serve(bundle, options, limits, listener)
    return 0


def _export(run_dir: Path, options: Any) -> Bundle:
    """Exports a run to a temporary bundle, and loads it."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "model.linattn")
        export_run(run_dir, file, options, chunk_sizes=())
        return Bundle(file)


def _bind(host: str, port: int) -> socket.socket:
    """Reserves the port, before a model is loaded and compiled.

    Raises:
        OptionError: If the address needs a token, or the port is in use.
    """
    if not os.environ.get(TOKEN) and not _is_loopback(host):
        raise OptionError(
            f"the address {host} is open to other machines; set {TOKEN} to a bearer token, or "
            "listen on 127.0.0.1.",
            "host",
        )
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or error
        raise OptionError(
            f"the server cannot listen on {host}, port {port}: {reason}; choose another host or "
            "port.",
            "host",
            "port",
        ) from error
    return listener


def serve(bundle: Bundle, options: ServeOptions, limits: Limits, listener: socket.socket) -> None:
    """Serves a bundle until SIGTERM or Ctrl-C, then answers the running requests.

    Args:
        bundle: The bundle.
        options: Keys and sessions.
        limits: Limits on requests.
        listener: Socket that is bound to the address.

    Raises:
        OptionError: If an option is out of range.
        ValueError: If the file of sessions belongs to another bundle or is in use.
    """
    secret, token = os.environ.get(SECRET), os.environ.get(TOKEN)
    if secret is not None and len(secret.encode()) < MIN_SECRET_BYTES:
        raise ValueError(
            f"expected at least {MIN_SECRET_BYTES} bytes in {SECRET}, got {len(secret.encode())}."
        )
    app = make_app(
        bundle,
        sealer=Sealer(None if secret is None else secret.encode(), options.max_age),
        store=SessionStore(options.sessions, bundle.fingerprint),
        token=token,
        limits=limits,
    )
    if secret is None:
        print(f"# note: {SECRET} is not set: states end with this process", file=sys.stderr)
    config = uvicorn.Config(
        app,
        log_level="warning",
        lifespan="on",
        ws_max_size=limits.max_request_bytes,
        timeout_graceful_shutdown=options.drain,
        # Longer than clients keep idle connections: a request must not meet a closing connection.
        timeout_keep_alive=75,
    )
    _Server(config).run([listener])


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class _Server(uvicorn.Server):
    """A server that prints its address."""

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        for listener in sockets or []:
            host, port = listener.getsockname()[:2]
            host = f"[{host}]" if ":" in host else host
            print(f"# serving on http://{host}:{port}", file=sys.stderr, flush=True)
