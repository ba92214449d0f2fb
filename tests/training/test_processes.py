"""Several processes are one run: its numbers, its files, and its end where one of them dies."""

import json
import signal
import socket
import time
from pathlib import Path

import numpy as np
import pytest

from flax_linattn.training import Parallel, list_checkpoints
from tests.training.children import PATIENCE, Child, Children
from tests.training.problem import make_batches, read_metrics, recorded, train


def start(children: Children, run_dir: Path, count: int, *how: str) -> list[Child]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    return [
        children.start("tests.training.process_child", run_dir, address, count, index, *how)
        for index in range(count)
    ]


def finish(processes: list[Child]) -> list[tuple[int, str, str]]:
    try:
        return [(process.wait(), process.stdout, process.stderr) for process in processes]
    finally:
        for process in processes:
            process.kill()


@pytest.fixture(scope="module")
def one_process(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    run_dir = tmp_path_factory.mktemp("one")
    _, result = train(run_dir, validation=make_batches(seed=None), parallel=Parallel("none"))
    return [line["validation_loss"] for line in result.history]


@pytest.mark.parametrize(
    ("count", "how"),
    [(2, ["validate"]), pytest.param(4, ["fsdp", "validate"], marks=pytest.mark.slow)],
    ids=["2", "4-fsdp"],
)
def test_processes_are_one_run(
    children: Children, count: int, how: list[str], one_process: list[float], tmp_path: Path
) -> None:
    """The loss curve in every process, one line an epoch, one set of checkpoints.

    What ``validate`` returns in process 0 counts in every process.
    """
    run_dir = tmp_path / "run"
    for status, out, err in finish(start(children, run_dir, count, *how)):
        assert status == 0, err
        curve = json.loads(out.splitlines()[-1])
        np.testing.assert_allclose(curve, one_process, rtol=1e-5)
        assert json.loads(out.splitlines()[-2]) == [0.1] * 3
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2, 3]
    counts = [line["examples_per_second"] * line["seconds"] for line in lines]
    np.testing.assert_allclose(counts, 38, rtol=0.01)  # processes count together
    assert list_checkpoints(run_dir)[-1].step == 15
    check_examples(tmp_path, epochs=3, shared_by=count)


def assert_lost(err: str) -> None:
    """Our message where a computation of both fails first, else that of JAX itself."""
    assert "cannot continue: another process has ended" in err or "another task died" in err


def check_examples(folder: Path, epochs: int, shared_by: int) -> None:
    """Each example was loaded once an epoch, whichever processes did so, and however often.

    What is done again after a kill is the same; and the first batch is made whole by each process.
    """
    loaded: dict[int, dict[str, set[int]]] = {}
    for file in folder.glob("ids-*"):
        for line in file.read_text().splitlines():
            step, ids = json.loads(line)
            loaded.setdefault(step, {}).setdefault(file.name, set()).update(ids)
    for epoch in range(epochs):
        steps = [loaded[step] for step in range(epoch * 5, epoch * 5 + 5)]
        examples = [set().union(*step.values()) for step in steps]
        assert sum(map(len, examples)) == len(set().union(*examples)) == 38
    parts = [len(ids) for name, ids in loaded[1].items() if name.startswith(f"ids-{shared_by}")]
    assert parts == [8 // shared_by] * shared_by


def wait_for_steps(run_dir: Path, steps: int, processes: list[Child]) -> None:
    end = time.monotonic() + PATIENCE
    while not any(c.step >= steps for c in list_checkpoints(run_dir)):
        alive = all(process.poll() is None for process in processes)
        if not alive or time.monotonic() > end:
            raise AssertionError([out[2] for out in finish(processes)])
        time.sleep(0.05)


@pytest.mark.slow
def test_a_signal_to_one_stops_all(children: Children, tmp_path: Path) -> None:
    processes = start(children, tmp_path, 2, "slow")
    wait_for_steps(tmp_path, 4, processes)
    processes[1].send_signal(signal.SIGTERM)
    for status, _, err in finish(processes):
        assert status == 128 + signal.SIGTERM, err
    step = list_checkpoints(tmp_path)[-1].step
    assert step % 20 == 0 or step % 5 == 0  # where processes tell each other


@pytest.mark.parametrize("count", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_a_dead_process_stops_the_others(
    children: Children, count: int, one_process: list[float], tmp_path: Path
) -> None:
    """With a message, and a checkpoint from which another number of processes goes on."""
    run_dir = tmp_path / "run"
    processes = start(children, run_dir, 2, "slow")
    wait_for_steps(run_dir, 4, processes)
    processes[1].kill()
    (status, _, err), _ = finish(processes)
    assert status != 0
    assert_lost(err)
    assert f"start all processes again with the resume option: {run_dir}." in err
    done = list_checkpoints(run_dir)[-1].step
    if count > 1:
        for status, _, err in finish(start(children, run_dir, count, "resume")):
            assert status == 0, err
    else:
        source = recorded(make_batches(), tmp_path / "ids-1-0")
        alone = {"parallel": Parallel("none"), "validation": make_batches(seed=None)}
        train(run_dir, epochs=3, resume=True, train=source, **alone)
    curve = [line["validation_loss"] for line in read_metrics(run_dir)][:3]
    np.testing.assert_allclose(curve, one_process, rtol=1e-5)
    check_examples(tmp_path, epochs=max(3, done // 5), shared_by=2)


def test_what_differs_between_processes_is_named(children: Children, tmp_path: Path) -> None:
    """Before anything is trained; and an error of one process does not keep the others waiting."""
    for status, _, err in finish(start(children, tmp_path / "a", 2, "differ")):
        assert status == 1
        assert "need the same options and data, but FitConfig differs: process" in err
    begin = time.monotonic()
    for status, _, err in finish(start(children, tmp_path / "b", 2, "apart")):
        assert status == 1
        assert "has to be on a file system that all processes share" in err
    assert time.monotonic() - begin < PATIENCE


@pytest.mark.slow
def test_an_error_of_one_process_ends_the_others(children: Children, tmp_path: Path) -> None:
    (_, _, other), (status, _, err) = finish(start(children, tmp_path / "run", 2, "fail"))
    assert status == 1
    assert "no more data" in err
    assert_lost(other)
