"""``flax-linattn serve RUN_OR_BUNDLE``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from flax_linattn.checks import import_extra
from flax_linattn.cli import flags
from flax_linattn.serve.limits import Limits
from flax_linattn.tasks.config_file import read_task_options

MISSING = "serving needs the extra serve: pip install 'flax-linattn[serve]'."


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


def serve_command(args: Sequence[str]) -> Callable[[], None]:
    """Parses the command line of ``flax-linattn serve`` and returns a function that serves."""
    own = [*flags.groups(ServeOptions()), *flags.groups(Limits())]
    if flags.asks_help(args, f"expected a run folder or a bundle, got none; write {PROG}."):
        flags.parse(own, args, PROG, ABOUT)
    path = Path(args[0])
    if not path.exists():
        raise FileNotFoundError(f"expected a run folder or a bundle, but {path} does not exist.")
    task = read_task_options(path) if path.is_dir() else None
    groups = own if task is None else [*own, *flags.groups(task.StreamOptions(), task.name)]
    values = flags.parse(groups, args[1:], f"flax-linattn serve {args[0]}", ABOUT)
    options, limits = flags.build(ServeOptions, values), flags.build(Limits, values)
    stream: Any = None if task is None else flags.build(task.StreamOptions, values)

    def run() -> None:
        for module in ("limits", "msgpack", "prometheus_client", "starlette", "uvicorn"):
            import_extra(module, MISSING)
        import_extra("websockets", MISSING)
        from flax_linattn.cli.server import serve_file

        serve_file(path, stream, options, limits)

    return run
