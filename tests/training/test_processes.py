"""Several processes are one run: its numbers, its files, and its end where one of them dies."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from flax_linattn.training import Parallel, list_checkpoints
from tests.training.problem import make_batches, read_metrics, train

PATIENCE = 300


def start(run_dir: Path, count: int, *how: str) -> list[subprocess.Popen]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    environment = os.environ | {"XLA_FLAGS": ""}
    return [
        subprocess.Popen(
            [sys.executable, "-m", "tests.training.process_child", str(run_dir), address,
             str(count), str(index), *how],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        )
        for index in range(count)
    ]  # fmt: skip


def finish(processes: list[subprocess.Popen]) -> list[tuple[int, str, str]]:
    try:
        ends = [process.communicate(timeout=PATIENCE) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(p.returncode, *out) for p, out in zip(processes, ends, strict=True)]


@pytest.fixture(scope="module")
def one_process(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    run_dir = tmp_path_factory.mktemp("one")
    _, result = train(run_dir, validation=make_batches(seed=None), parallel=Parallel("none"))
    return [line["validation_loss"] for line in result.history]


@pytest.mark.parametrize(
    ("count", "how"),
    [(2, []), pytest.param(4, ["fsdp"], marks=pytest.mark.slow)],
    ids=["2", "4-fsdp"],
)
def test_processes_are_one_run(
    count: int, how: list[str], one_process: list[float], tmp_path: Path
) -> None:
    """The loss curve in every process, one line an epoch, one set of checkpoints."""
    for status, out, err in finish(start(tmp_path, count, *how)):
        assert status == 0, err
        curve = json.loads(out.splitlines()[-1])
        np.testing.assert_allclose(curve, one_process, rtol=1e-5)
    assert [line["epoch"] for line in read_metrics(tmp_path)] == [1, 2, 3]
    assert list_checkpoints(tmp_path)[-1].step == 15


def wait_for_steps(run_dir: Path, steps: int, processes: list[subprocess.Popen]) -> None:
    end = time.monotonic() + PATIENCE
    while not any(c.step >= steps for c in list_checkpoints(run_dir)):
        alive = all(process.poll() is None for process in processes)
        if not alive or time.monotonic() > end:
            raise AssertionError([out[2] for out in finish(processes)])
        time.sleep(0.05)


@pytest.mark.slow
def test_a_signal_to_one_stops_all(tmp_path: Path) -> None:
    processes = start(tmp_path, 2, "slow")
    wait_for_steps(tmp_path, 4, processes)
    processes[1].send_signal(signal.SIGTERM)
    for status, _, err in finish(processes):
        assert status == 128 + signal.SIGTERM, err
    step = list_checkpoints(tmp_path)[-1].step
    assert step % 20 == 0 or step % 5 == 0  # where processes tell each other


def test_a_dead_process_stops_the_others(one_process: list[float], tmp_path: Path) -> None:
    """With a message, and a checkpoint from which the run goes on."""
    processes = start(tmp_path, 2, "slow")
    wait_for_steps(tmp_path, 4, processes)
    processes[1].kill()
    (status, _, err), _ = finish(processes)
    assert status != 0
    assert "another task died" in err  # JAX itself
    assert f"start all processes again with resume=True (--resume): {tmp_path}." in err
    alone = {"parallel": Parallel("none"), "validation": make_batches(seed=None)}
    _, result = train(tmp_path, epochs=3, resume=True, **alone)
    np.testing.assert_allclose(
        [line["validation_loss"] for line in result.history][:3], one_process, rtol=1e-5
    )
