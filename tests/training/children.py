"""Processes that start at once: a Python that has imported everything forks itself for each."""

import json
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PATIENCE = 300
"""Seconds after which a process that has not ended fails its test."""


class Child:
    """A process; what it prints goes into two files."""

    def __init__(self, children: "Children", pid: int, output: str) -> None:
        self.children, self.pid, self.output = children, pid, output
        self.status: int | None = None

    def poll(self) -> int | None:
        """Its exit status, as that of ``subprocess``, or None while it runs."""
        if self.status is None:
            self.status = self.children.ask(poll=self.pid)
        return self.status

    def wait(self) -> int:
        end = time.monotonic() + PATIENCE
        while (status := self.poll()) is None:
            assert time.monotonic() < end, f"it has not ended: {self.stderr}"
            time.sleep(0.02)
        return status

    def send_signal(self, signum: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, signum)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    @property
    def stdout(self) -> str:
        return Path(f"{self.output}.out").read_text()

    @property
    def stderr(self) -> str:
        return Path(f"{self.output}.err").read_text()


class Children:
    """The Python that forks: it reads orders, one a line, and answers each with a line."""

    def __init__(self, server: subprocess.Popen, folder: Path) -> None:
        self.server, self.folder = server, folder
        self.started: list[Child] = []

    def ask(self, **order: Any) -> Any:
        assert self.server.stdin is not None and self.server.stdout is not None
        self.server.stdin.write(json.dumps(order) + "\n")
        self.server.stdin.flush()
        answer = self.server.stdout.readline()
        assert answer, "the Python that forks has ended"
        return json.loads(answer)

    def start(self, module: str, *arguments: object) -> Child:
        """Like ``python -W error -m module arguments``."""
        output = str(self.folder / str(len(self.started)))
        pid = self.ask(module=module, arguments=[str(a) for a in arguments], output=output)
        self.started.append(Child(self, pid, output))
        return self.started[-1]


@contextmanager
def children(folder: Path) -> Iterator[Children]:
    """Starts and ends them; their output goes into the folder."""
    # Python forks without a warning where there is one thread.
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    # A process that was killed may have left a program half written: it is compiled instead.
    half_written = "ignore:Error reading persistent compilation cache entry:UserWarning"
    command = [sys.executable, "-W", "error", "-W", half_written, "-m", "tests.training.children"]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True, env=environment
    ) as server:
        found = Children(server, folder)
        try:
            yield found
        finally:
            for child in found.started:
                child.kill()


def serve() -> None:
    """What the Python that forks does; in a forked process, the program it was asked for."""
    import tests.training.problem  # noqa: F401  # with all that takes long to import

    for line in sys.stdin:
        order = json.loads(line)
        if "poll" in order:
            pid, status = os.waitpid(order["poll"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        else:
            answer = os.fork()
            if not answer:
                return run(**order)
        print(json.dumps(answer), flush=True)


def run(module: str, arguments: list[str], output: str) -> None:
    for number, name in enumerate((os.devnull, f"{output}.out", f"{output}.err")):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT), number)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__")


if __name__ == "__main__":
    serve()
