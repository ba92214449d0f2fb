"""A served process: what is answered survives a kill, and what has begun is answered."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("httpx2")
pytest.importorskip("starlette")
import httpx2 as httpx

from flax_linattn import cli, inference
from flax_linattn.inference.linattn_runtime import Bundle
from tests.inference.cases import CHANNELS, classifier
from tests.serve.test_app import ROWS, close, ok


class Served:
    """A server in its own process, by default on a free port."""

    def __init__(self, path: Path, *args: str, port: int = 0, **environment: str) -> None:
        command = [sys.executable, "-m", "flax_linattn", "serve", str(path), "--port", str(port)]
        self.process = subprocess.Popen(
            [*command, "--max-rows", "4", *args], stderr=subprocess.PIPE, text=True,
            env={**os.environ, **environment},
        )  # fmt: skip
        self.notes = ""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.notes += line
            if match := re.fullmatch(r"# serving on (http://127\.0\.0\.1:\d+)\n", line):
                self.url = match[1]
                return
        raise AssertionError(self.notes)

    def end(self, how: signal.Signals) -> int:
        self.process.send_signal(how)
        _, more = self.process.communicate(timeout=60)
        self.notes += more
        return self.process.returncode


def free_port() -> int:
    """A port on which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.mark.slow
def test_an_answered_row_survives_a_kill(path: Path, tmp_path: Path) -> None:
    """Killed while a client streams; it goes on where the last answer was, or one row later."""
    session = Bundle(path).session()
    want = [session.step(row) for row in ROWS]
    args, random = ("--sessions", str(tmp_path / "sessions.sqlite")), np.random.default_rng(0)
    name, steps = None, 0
    for _ in range(3):
        server = Served(path, *args)
        with httpx.Client(base_url=server.url) as client:
            if name is None:
                name = ok(client.post("/v1/sessions", json={}), 201)["session"]
            now = ok(client.get(f"/v1/sessions/{name}"))["steps"]
            assert now - steps in (0, 1)  # a row may have been saved, but not yet answered
            steps, end = now, time.monotonic() + random.uniform(0.05, 0.4)
            while steps < len(ROWS) and time.monotonic() < end:
                request = {"observation": ROWS[steps], "steps": steps}
                answer = ok(client.post(f"/v1/sessions/{name}/step", json=request))
                assert close(answer["predictions"][0], want[steps])
                steps = answer["steps"]
        assert server.end(signal.SIGKILL) == -signal.SIGKILL
    assert steps > 0


@pytest.mark.slow
def test_sigterm_ends_a_server_that_answers(path: Path) -> None:
    server = Served(path, FLAX_LINATTN_SECRET="a secret of many bytes")
    assert "states end with this process" not in server.notes
    assert ok(httpx.post(f"{server.url}/v1/step", json={"observation": ROWS[0]}))["steps"] == 1
    assert server.end(signal.SIGTERM) in (0, -signal.SIGTERM, 128 + signal.SIGTERM)


def test_a_run_without_a_description_is_refused(tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "a.linattn"
    inference.export(
        file, classifier("aaren"), jnp.ones((1, CHANNELS)), chunk_sizes=(), platforms=("cpu",)
    )
    assert cli.main(["serve", str(file), "--port", "0"]) == 2
    assert f"{file} cannot be served, because" in capsys.readouterr().err


def test_what_is_not_served(path: Path, tmp_path: Path, capsys: Any) -> None:
    """A port in use is refused before a model is loaded."""
    used = socket.create_server(("127.0.0.1", 0))
    port = str(used.getsockname()[1])
    for args, message in (
        ([], "expected a run folder or a bundle, got none"),
        ([str(tmp_path / "none")], "does not exist"),
        ([str(path), "--host", "0.0.0.0"], "the address 0.0.0.0 is open to other machines"),
        ([str(path), "--port", port], f"cannot listen on 127.0.0.1, port {port}: Add"),
        ([str(path), "--port", "99999"], "port must be 0-65535"),
        ([str(path), "--max-rows", "0"], "max_rows must be at least 1, got 0"),
        ([str(path), "--sessions", str(path)], "is no file of sessions, or is damaged"),
    ):
        assert cli.main(["serve", *args]) == 2
        assert message in capsys.readouterr().err
    used.close()
