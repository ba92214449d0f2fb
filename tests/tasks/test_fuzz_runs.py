"""Run folders that were damaged or written by hand: what is wrong is named, in seconds.

``FLAX_LINATTN_FUZZ=2000 pytest -m slow tests/tasks/test_fuzz_runs.py`` doctors as many.
"""

import json
import os
import random
import tarfile
import time
from pathlib import Path

import pytest

from flax_linattn import tasks, training
from flax_linattn.tasks.run import read_config
from tests.tasks.doctor import copy, doctor

STORED = Path(__file__).parent / "stored" / "runs.tar.gz"
CASES = int(os.environ.get("FLAX_LINATTN_FUZZ", "1000"))
SECONDS = 20
"""Of one core, for one folder."""

SMALL = {
    "features": 8,
    "num_layers": 2,
    "num_heads": 2,
    "hidden_features": 8,
    "mechanism": "aaren:chunk_size=32",
    "epochs": 2,
}
OPTIONS = {
    "classify": {"batch_size": 90, **SMALL},
    "forecast": {"input_length": 12, "horizon": 4, "split": "300/60/100", "stride": 4, **SMALL},
    "decide": {
        "num_episodes": 8,
        "context": 4,
        "play_episodes": 1,
        "clone_steps": 2,
        **SMALL,
    },
}
STORED_TASKS = ("classify", "forecast")
"""Those of which there are stored runs."""

pytestmark = pytest.mark.usefixtures("no_figures")


@pytest.fixture(scope="module", params=STORED_TASKS)
def stored(request, tmp_path_factory) -> Path:
    """A stored run, which takes no training."""
    folder = tmp_path_factory.mktemp("stored")
    with tarfile.open(STORED) as archive:
        archive.extractall(folder, filter="data")
    path = folder / "forecast" / "config.json"
    config = json.loads(path.read_text()) | {"csv": str(folder / "waves.csv")}
    path.write_text(json.dumps(config))
    return folder / request.param


@pytest.fixture(scope="module", params=OPTIONS)
def trained(request, tmp_path_factory) -> Path:
    run_dir = tmp_path_factory.mktemp("runs") / request.param
    config = tasks.get_task(request.param).Config.of(**OPTIONS[request.param])
    tasks.train(request.param, config, _session(run_dir))
    return run_dir


def _session(run_dir: Path, *, resume: bool = False) -> training.Session:
    parallel = training.Parallel("none")
    return training.Session(run_dir, resume=resume, progress=False, parallel=parallel)


def _resume(run_dir: Path) -> None:
    """With its own options, and an epoch more where the file says so."""
    config = read_config(run_dir)
    if config.fit.epochs <= 3 and not config.fit.steps:
        task = tasks.get_task(run_dir.name)
        tasks.train(task, config, _session(run_dir, resume=True))


def check(trained: Path, tmp_path: Path, number: int) -> str | None:
    """Doctors a copy and uses it; what went wrong in words, or None."""
    rng = random.Random(number)
    run_dir = copy(trained, tmp_path / trained.name)
    what = f"case {number} of {trained.name}: {doctor(run_dir, rng)}"
    (use,) = rng.choices((tasks.load_run, tasks.evaluate_run, _resume), (7, 2, 1))
    begin = time.process_time()
    try:
        use(run_dir)
    except (ValueError, FileNotFoundError, TypeError) as error:
        named = str(run_dir) in str(error) or "the data of the run have changed" in str(error)
        if not named or len(str(error)) > 3000:
            return f"{what}: {use.__name__} says {type(error).__name__}: {str(error)[:500]}"
    except BaseException as error:
        return f"{what}: {use.__name__} raises {type(error).__name__}: {str(error)[:500]}"
    seconds = time.process_time() - begin
    return f"{what}: {seconds:.0f} s" if seconds > SECONDS else None


@pytest.mark.parametrize("number", range(10))
def test_some(stored, tmp_path, number, capfd):
    assert check(stored, tmp_path, number) is None


@pytest.mark.slow
def test_many(trained, tmp_path, capfd):
    wrong = [found for number in range(CASES) if (found := check(trained, tmp_path, number))]
    assert wrong == []
