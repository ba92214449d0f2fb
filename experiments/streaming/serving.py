"""Observations per second and latency of ``flax-linattn serve``, by the number of clients.

    python -m experiments.streaming.serving

A server process serves Aaren's classifier of ``make demo`` (untrained, because training does not
change the cost of a step). Clients in this process stream recordings of Japanese Vowels: each sends
an observation, waits for the answer, and compares it with the bundle's own answer. The last row
steps the bundle without a server, one client after another.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import jax.numpy as jnp
import numpy as np
import websockets
from flax import nnx

from experiments.measured import Measured, Rows
from flax_linattn import data, inference, models
from flax_linattn.bench import Journal
from flax_linattn.bench.report import markdown, number
from flax_linattn.inference.linattn_runtime import Bundle

HELD, SESSION, SOCKET, NONE = "state at the client", "session", "WebSocket", "no server"


@dataclasses.dataclass(frozen=True)
class Size:
    """Settings of the measurement at one scale.

    Attributes:
        modes: where the states are.
        clients: numbers of clients that stream at the same time.
        seconds: how long they stream, after a fifth of it to warm up.
        length: observations of a client, after which it begins again.
        tapes: number of different sequences.
    """

    modes: tuple[str, ...] = (HELD, SESSION, SOCKET)
    clients: tuple[int, ...] = (1, 16, 64)
    seconds: float = 10.0
    length: int = 100
    tapes: int = 8
    features: int = 128
    num_layers: int = 3


Step = Callable[[list[float]], Awaitable[dict[str, float]]]
"""Sends an observation, and returns the probability of each class."""


def measure(size: Size, journal: Journal) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.linattn")
        write_bundle(path, size)
        tapes, answers = sequences(path, size)
        with server(path) as address:
            for mode in size.modes:
                for count in size.clients:
                    key = {"mode": mode, "clients": count}
                    journal.row(key, partial(load, address, size, mode, count, tapes, answers))
        journal.row({"mode": NONE, "clients": 1}, partial(without_server, path, size, tapes))


def write_bundle(path: Path, size: Size) -> None:
    """Exports the classifier with the names and the scale of the recordings."""
    train = data.japanese_vowels()[0]
    scaler = data.Standardizer.fit(train.series)
    channels = train.series[0].shape[-1]
    model = models.SequenceClassifier(
        channels, 9, features=size.features, num_layers=size.num_layers, mechanism="aaren",
        rngs=nnx.Rngs(0),
    )  # fmt: skip
    names = [f"dim_{i}" for i in range(channels)]
    scale = {"mean": scaler.mean.tolist(), "std": scaler.std.tolist()}
    task = {
        "name": "classify",
        "inputs": [{"kind": "values", "names": names, **scale}],
        "outputs": {"kind": "classes", "names": [str(i) for i in range(1, 10)]},
    }
    inference.export(
        path, model, jnp.ones((1, channels)), chunk_sizes=(), platforms=("cpu",), task=task
    )


def sequences(path: Path, size: Size) -> tuple[list[list[Any]], list[list[Any]]]:
    """Recordings, and the answers of the bundle to them."""
    rows = np.concatenate(data.japanese_vowels()[1].series)
    tapes = [rows[i * size.length : (i + 1) * size.length].tolist() for i in range(size.tapes)]
    bundle = Bundle(path)
    answers = []
    for tape in tapes:
        session = bundle.session()
        answers.append([session.step(row) for row in tape])
    return tapes, answers


@contextmanager
def server(path: Path) -> Iterator[str]:
    """The address of a server process of a bundle."""
    command = [sys.executable, "-m", "flax_linattn", "serve", str(path), "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if match := re.fullmatch(r"# serving on http://(\S+)\n", line):
                yield match[1]
                return
        raise RuntimeError(f"{' '.join(command)} did not start.")
    finally:
        process.terminate()
        process.communicate()


def load(
    address: str, size: Size, mode: str, num_clients: int, tapes: Any, answers: Any
) -> dict[str, Any]:
    """Observations per second and latency of clients that stream at the same time."""
    times, wrong = asyncio.run(stream(address, size, mode, num_clients, tapes, answers))
    return summary(times, size.seconds) | {"wrong": wrong}


async def stream(
    address: str, size: Size, mode: str, num_clients: int, tapes: Any, answers: Any
) -> tuple[list[float], int]:
    """Milliseconds of each observation after the warm-up, and the number of wrong answers."""
    times: list[float] = []
    wrong = 0
    begin = time.perf_counter() + size.seconds / 5
    end = begin + size.seconds

    async def client(index: int, http: httpx2.AsyncClient) -> None:
        nonlocal wrong
        tape, answer = tapes[index % size.tapes], answers[index % size.tapes]
        while time.perf_counter() < end:
            async for step in CONNECT[mode](address, http):
                for row, want in zip(tape, answer, strict=True):
                    sent = time.perf_counter()
                    if sent > end:
                        return
                    got = await step(row)
                    if sent > begin:
                        times.append(1e3 * (time.perf_counter() - sent))
                    wrong += any(abs(got[k] - want[k]) > 1e-5 for k in want if k != "prediction")

    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx2.AsyncClient(base_url=f"http://{address}", limits=limits, timeout=60) as http:
        await asyncio.gather(*(client(index, http) for index in range(num_clients)))
    return times, wrong


async def held(address: str, http: httpx2.AsyncClient) -> Any:
    """A stream whose state the client holds."""
    state = None

    async def step(row: list[float]) -> dict[str, float]:
        nonlocal state
        request = {"observation": row} | ({} if state is None else {"state": state})
        answer = await post(http, "/v1/step", request)
        state = answer["state"]
        return answer["predictions"][0]

    yield step


async def session(address: str, http: httpx2.AsyncClient) -> Any:
    """A session on the server."""
    name = (await post(http, "/v1/sessions", {}))["session"]

    async def step(row: list[float]) -> dict[str, float]:
        answer = await post(http, f"/v1/sessions/{name}/step", {"observation": row})
        return answer["predictions"][0]

    yield step
    await http.delete(f"/v1/sessions/{name}")


async def socket(address: str, http: httpx2.AsyncClient) -> Any:
    """A stream over a WebSocket."""
    async with websockets.connect(f"ws://{address}/v1/stream") as connection:

        async def step(row: list[float]) -> dict[str, float]:
            await connection.send(json.dumps({"observation": row}))
            return json.loads(await connection.recv())["predictions"][0]

        yield step


CONNECT = {HELD: held, SESSION: session, SOCKET: socket}


async def post(http: httpx2.AsyncClient, url: str, request: dict[str, Any]) -> Any:
    """The answer to a request, which must succeed."""
    response = await http.post(url, json=request)
    response.raise_for_status()
    return response.json()


def without_server(path: Path, size: Size, tapes: Any) -> dict[str, Any]:
    """Steps of one client in this process."""
    session, times = Bundle(path).session(), []
    session.step(tapes[0][0])
    begin = time.perf_counter()
    while time.perf_counter() < begin + size.seconds:
        for row in tapes[0]:
            sent = time.perf_counter()
            session.step(row)
            times.append(1e3 * (time.perf_counter() - sent))
    return summary(times, time.perf_counter() - begin) | {"wrong": 0}


def summary(times: Sequence[float], seconds: float) -> dict[str, Any]:
    """Observations per second, and percentiles of their milliseconds."""
    percent = statistics.quantiles(times, n=100)
    return {
        "observations": len(times),
        "per_second": len(times) / seconds,
        "milliseconds": {"p50": percent[49], "p99": percent[98]},
    }


def table(rows: Rows, size: Size) -> str:
    """A line for each mode and number of clients."""
    header = ["states", "clients", "observations per second", "p50, ms", "p99, ms"]
    header += ["answers", "wrong"]
    lines = [
        [
            row["mode"],
            str(row["clients"]),
            number(row["per_second"]),
            number(row["milliseconds"]["p50"]),
            number(row["milliseconds"]["p99"]),
            f"{row['observations']:,}",
            str(row["wrong"]),
        ]
        for row in rows
    ]
    return markdown(header, lines)


EXPERIMENT = Measured(
    module="experiments.streaming.serving",
    about="not measured in any of the papers",
    sizes={"cpu": Size()},
    measure=measure,
    table=table,
    left_out={
        "cpu": "clients on another machine (here they share the server's cores), an accelerator, "
        "and sessions in SQLite, whose speed is the disk's"
    },
)

if __name__ == "__main__":
    EXPERIMENT.main()
