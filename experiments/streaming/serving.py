"""Observations per second, latency and memory of ``flax-linattn serve``, by the number of clients.

    python -m experiments.streaming.serving

A server process serves Aaren's classifier of ``make demo`` (untrained, because training does not
change the cost of a step). Clients in this process stream recordings of Japanese Vowels: each sends
an observation, waits for the answer, and compares it with the bundle's own answer. Further rows
have a server process for each client, or step the bundle without a server, one client after
another. The second table has one server that holds many sessions. Memory is read from ``/proc``,
so the measurement needs Linux.
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
from contextlib import ExitStack, contextmanager
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
MEMORY, FILE = "memory", "file"


@dataclasses.dataclass(frozen=True)
class Size:
    """Settings of the measurement at one scale.

    Attributes:
        modes: where the states are.
        clients: numbers of clients that stream at the same time.
        separate: mode and number of clients that are measured with a server for each client, too.
        max_rows: maximum numbers of rows of a call of the model, for the most clients; the default
            of the server is 64.
        sessions: numbers of sessions that a server holds while its memory is measured.
        seconds: how long they stream, after a fifth of it to warm up.
        length: observations of a client, after which it begins again.
        recordings: number of different sequences.
        features: width of the model.
        num_layers: number of its layers.
    """

    modes: tuple[str, ...] = (HELD, SESSION, SOCKET)
    clients: tuple[int, ...] = (1, 4, 16, 64)
    separate: tuple[tuple[str, int], ...] = ((HELD, 4), (HELD, 16))
    max_rows: tuple[int, ...] = (1, 8)
    sessions: tuple[int, ...] = (1, 1000)
    seconds: float = 10.0
    length: int = 100
    recordings: int = 8
    features: int = 128
    num_layers: int = 3


Step = Callable[[list[float]], Awaitable[dict[str, float]]]
"""Sends an observation, and returns the probability of each class."""


def measure(size: Size, journal: Journal) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.linattn")
        write_bundle(path, size)
        recordings, answers = sequences(path, size)
        for mode in size.modes:
            for count in size.clients:
                # Next to each other, because other jobs may come and go on the machine.
                for num_servers in (1, count) if (mode, count) in size.separate else (1,):
                    key = {"mode": mode, "servers": num_servers, "clients": count, "max_rows": 64}
                    run = partial(load, path, size, mode, num_servers, count, recordings, answers)
                    journal.row(key, run)
        for max_rows in size.max_rows:
            mode, count = size.modes[-1], size.clients[-1]
            key = {"mode": mode, "servers": 1, "clients": count, "max_rows": max_rows}
            run = partial(load, path, size, mode, 1, count, recordings, answers, max_rows)
            journal.row(key, run)
        key = {"mode": NONE, "servers": 0, "clients": 1, "max_rows": 1}
        journal.row(key, partial(without_server, path, size, recordings))
        for stored in (MEMORY, FILE):
            for count in size.sessions:
                key = {"mode": SESSION, "stored in": stored, "sessions": count}
                journal.row(key, partial(hold, path, stored, count, recordings[0][0]))


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
    recordings = [
        rows[i * size.length : (i + 1) * size.length].tolist() for i in range(size.recordings)
    ]
    bundle = Bundle(path)
    answers = []
    for recording in recordings:
        session = bundle.session()
        answers.append([session.step(row) for row in recording])
    return recordings, answers


@contextmanager
def server(path: Path, *options: str) -> Iterator[tuple[str, int]]:
    """The address and the process id of a server of a bundle."""
    command = [sys.executable, "-m", "flax_linattn", "serve", str(path), "--port", "0", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if match := re.fullmatch(r"# serving on http://(\S+)\n", line):
                yield match[1], process.pid
                return
        raise RuntimeError(f"{' '.join(command)} did not start.")
    finally:
        process.terminate()
        process.communicate()


def memory(pids: Sequence[int]) -> int:
    """Resident bytes of processes; pages that they share, such as libraries, count once."""
    maps = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in pids]
    kilobytes = [{k: int(v) for k, v in re.findall(r"(\w+): +(\d+) kB", text)} for text in maps]
    private = sum(m["Private_Clean"] + m["Private_Dirty"] for m in kilobytes)
    return 1024 * (private + max(m["Shared_Clean"] + m["Shared_Dirty"] for m in kilobytes))


def load(
    path: Path,
    size: Size,
    mode: str,
    num_servers: int,
    num_clients: int,
    recordings: Any,
    answers: Any,
    max_rows: int = 64,
) -> dict[str, Any]:
    """Observations per second and latency of clients that stream at the same time."""
    options = ("--max-rows", str(max_rows))
    with ExitStack() as stack:
        started = [stack.enter_context(server(path, *options)) for _ in range(num_servers)]
        addresses, pids = zip(*started, strict=True)
        times, wrong = asyncio.run(stream(addresses, size, mode, num_clients, recordings, answers))
        return summary(times, size.seconds) | {"memory": memory(pids), "wrong": wrong}


def hold(path: Path, stored: str, num_sessions: int, row: list[float]) -> dict[str, Any]:
    """Memory of a server that holds sessions after an observation each, and bytes of its file."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "sessions")
        with server(path, *(["--sessions", str(file)] if stored == FILE else [])) as (address, pid):
            asyncio.run(begin_sessions(address, num_sessions, row))
            resident = memory([pid])
        return {"memory": resident, "file": file.stat().st_size if stored == FILE else None}


async def begin_sessions(address: str, num_sessions: int, row: list[float]) -> None:
    """Begins sessions one after another, each with one observation."""
    async with httpx2.AsyncClient(timeout=60) as http:
        for _ in range(num_sessions):
            async for step in session(address, http):
                await step(row)
                break  # before the session is removed


async def stream(
    addresses: Sequence[str], size: Size, mode: str, num_clients: int, recordings: Any, answers: Any
) -> tuple[list[float], int]:
    """Milliseconds of each observation after the warm-up, and the number of wrong answers."""
    times: list[float] = []
    wrong = 0
    begin = time.perf_counter() + size.seconds / 5
    end = begin + size.seconds

    async def client(index: int, http: httpx2.AsyncClient) -> None:
        nonlocal wrong
        recording, answer = recordings[index % size.recordings], answers[index % size.recordings]
        address = addresses[index % len(addresses)]
        while time.perf_counter() < end:
            async for step in CONNECT[mode](address, http):
                for row, want in zip(recording, answer, strict=True):
                    sent = time.perf_counter()
                    if sent > end:
                        return
                    got = await step(row)
                    if sent > begin:
                        times.append(1e3 * (time.perf_counter() - sent))
                    wrong += any(abs(got[k] - want[k]) > 1e-5 for k in want if k != "prediction")

    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx2.AsyncClient(limits=limits, timeout=60) as http:
        await asyncio.gather(*(client(index, http) for index in range(num_clients)))
    return times, wrong


async def held(address: str, http: httpx2.AsyncClient) -> Any:
    """A stream whose state the client holds."""
    state = None

    async def step(row: list[float]) -> dict[str, float]:
        nonlocal state
        request = {"observation": row} | ({} if state is None else {"state": state})
        answer = await post(http, f"http://{address}/v1/step", request)
        state = answer["state"]
        return answer["predictions"][0]

    yield step


async def session(address: str, http: httpx2.AsyncClient) -> Any:
    """A session on the server."""
    sessions = f"http://{address}/v1/sessions"
    name = (await post(http, sessions, {}))["session"]

    async def step(row: list[float]) -> dict[str, float]:
        answer = await post(http, f"{sessions}/{name}/step", {"observation": row})
        return answer["predictions"][0]

    yield step
    await http.delete(f"{sessions}/{name}")


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


def without_server(path: Path, size: Size, recordings: Any) -> dict[str, Any]:
    """Steps of one client in this process."""
    session, times = Bundle(path).session(), []
    session.step(recordings[0][0])
    begin = time.perf_counter()
    while time.perf_counter() < begin + size.seconds:
        for row in recordings[0]:
            sent = time.perf_counter()
            session.step(row)
            times.append(1e3 * (time.perf_counter() - sent))
    return summary(times, time.perf_counter() - begin) | {"memory": None, "wrong": 0}


def summary(times: Sequence[float], seconds: float) -> dict[str, Any]:
    """Observations per second, and percentiles of their milliseconds."""
    percent = statistics.quantiles(times, n=100)
    return {
        "observations": len(times),
        "per_second": len(times) / seconds,
        "milliseconds": {"p50": percent[49], "p99": percent[98]},
    }


def table(rows: Rows, size: Size) -> str:
    """A line for each mode and number of clients, and one for each number of sessions."""
    header = ["states", "servers", "clients", "rows of a call, at most"]
    header += ["observations per second", "p50, ms", "p99, ms", "memory, MB", "answers", "wrong"]
    loads = [
        [
            row["mode"],
            str(row["servers"]),
            str(row["clients"]),
            str(row["max_rows"]),
            number(row["per_second"]),
            number(row["milliseconds"]["p50"]),
            number(row["milliseconds"]["p99"]),
            megabytes(row["memory"]),
            f"{row['observations']:,}",
            str(row["wrong"]),
        ]
        for row in rows
        if "clients" in row
    ]
    sessions = [
        [
            f"{row['sessions']:,}",
            row["stored in"],
            megabytes(row["memory"]),
            megabytes(row["file"]),
        ]
        for row in rows
        if "sessions" in row
    ]
    sessions_header = ["sessions on the server", "stored in", "memory, MB", "file, MB"]
    return f"{markdown(header, loads)}\n\n{markdown(sessions_header, sessions)}"


def megabytes(size: int | None) -> str:
    """A number of bytes in units of 10^6 bytes, or a dash."""
    return "-" if size is None else number(size / 1e6)


EXPERIMENT = Measured(
    module="experiments.streaming.serving",
    extras="serve,test",
    about="not measured in any of the papers",
    sizes={"cpu": Size()},
    measure=measure,
    table=table,
    left_out={
        "cpu": "clients on another machine (here they share the server's cores), an accelerator, "
        "and the speed of sessions in a file, which is the disk's"
    },
)

if __name__ == "__main__":
    EXPERIMENT.main()
