"""Two servers behind nginx: clients that hold their states do not notice that one is killed."""

import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("httpx2")
pytest.importorskip("starlette")
import httpx2 as httpx

from flax_linattn.inference.linattn_runtime import Bundle
from tests.serve.test_app import ROWS, close, ok
from tests.serve.test_process import Served, free_port

DEPLOYMENT = Path(__file__).parents[2] / "docs" / "guides" / "deployment"
SECRET = {"FLAX_LINATTN_SECRET": "a secret of many bytes"}


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[tuple[str, list[int]]]:
    """The address of nginx as the guide configures it, and the ports of the two servers."""
    if shutil.which("nginx") is None:
        pytest.skip("nginx is not installed")
    text = (DEPLOYMENT / "nginx.conf").read_text()
    ports = {str(port): free_port() for port in (8000, 8001, 8002)}
    text = re.sub(r"127\.0\.0\.1:(\d+)", lambda m: f"127.0.0.1:{ports[m[1]]}", text)
    (tmp_path / "nginx.conf").write_text(text)
    command = ["nginx", "-p", str(tmp_path), "-c", "nginx.conf", "-e", "stderr"]
    options = f"daemon off; pid {tmp_path}/pid; "
    process = subprocess.Popen([*command, "-g", options], stderr=subprocess.DEVNULL)
    yield f"http://127.0.0.1:{ports['8000']}", [ports["8001"], ports["8002"]]
    process.terminate()
    process.wait()


@pytest.mark.slow
def test_a_killed_replica_costs_no_answer(path: Path, proxy: Any) -> None:
    address, ports = proxy
    session = Bundle(path).session()
    want = [session.step(row) for row in ROWS]
    replicas = [Served(path, port=port, **SECRET) for port in ports]
    wrong: list[Any] = []
    num_answers, ended = 0, threading.Event()

    def client() -> None:
        nonlocal num_answers
        with httpx.Client(base_url=address, timeout=60) as http:
            while not ended.is_set():
                state: dict[str, Any] = {}
                for row, expected in zip(ROWS, want, strict=True):
                    request = {"observation": row, **state}
                    try:
                        answer = ok(http.post("/v1/step", json=request))
                    except httpx.RemoteProtocolError:  # the kill cut an answer
                        answer = ok(http.post("/v1/step", json=request))
                    state = {"state": answer["state"], "steps": answer["steps"]}
                    num_answers += 1
                    if not close(answer["predictions"][0], expected):
                        wrong.append(answer)

    clients = [threading.Thread(target=client) for _ in range(4)]
    for thread in clients:
        thread.start()
    for index in (0, 1, 0):
        time.sleep(1)
        assert replicas[index].end(signal.SIGKILL) == -signal.SIGKILL
        replicas[index] = Served(path, port=ports[index], **SECRET)
    ended.set()
    for thread in clients:
        thread.join()
    for replica in replicas:
        replica.end(signal.SIGTERM)
    assert num_answers > 0 and wrong == []


def test_the_manifests_are_yaml() -> None:
    kinds = [
        part["kind"] for part in yaml.safe_load_all((DEPLOYMENT / "kubernetes.yaml").read_text())
    ]
    assert kinds == ["Deployment", "Service", "HorizontalPodAutoscaler"]
