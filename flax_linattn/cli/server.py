"""The server of ``flax-linattn serve``, which listens until SIGTERM or Ctrl-C."""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

import uvicorn

from flax_linattn.checks import OptionError
from flax_linattn.cli.serve import ServeOptions
from flax_linattn.inference.linattn_runtime import Bundle
from flax_linattn.serve import Limits, Sealer, SessionStore, make_app
from flax_linattn.serve.seal import MIN_SECRET_BYTES
from flax_linattn.tasks import export_run

SECRET, TOKEN = "FLAX_LINATTN_SECRET", "FLAX_LINATTN_TOKEN"
"""Environment variables for the key that seals states and the bearer token of clients."""


def serve_file(path: Path, stream: Any, options: ServeOptions, limits: Limits) -> None:
    """Serves a bundle, or a run with options of its stream, until SIGTERM or Ctrl-C."""
    if stream is None:  # first, or a port in use would hide that the file is no bundle
        Bundle.read_signature(path)
    with _bind(options.host, options.port) as listener:
        bundle = Bundle(path) if stream is None else _export(path, stream)
        if not (bundle.signature["task"] or {}).get("inputs"):
            raise ValueError(
                f"{path} cannot be served, because its bundle does not describe raw observations. "
                "Export a run whose stream takes raw observations: no known future covariates, no "
                "begin of events, and no odd context of an agent."
            )
        serve(bundle, options, limits, listener)


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
