"""A run, and several seeds, that an earlier commit made are read, and go on."""

import json
import tarfile
from pathlib import Path

import jax
import numpy as np
import pytest

from flax_linattn.training import list_checkpoints, load_best, load_run
from tests.training.problem import Net, train

STORED = Path(__file__).parent / "stored"
"""Of 0.1.0: ``train(run_dir, train=signal_at(make_batches(), 12), keep_latest=1,
monitor="accuracy", mode="max")``, interrupted in the third of three epochs; with ``runs=3`` for
seeds.tar.gz."""
HOW = {"monitor": "accuracy", "mode": "max", "keep_latest": 1}


@pytest.fixture
def extract(tmp_path):
    def to_folder(name):
        with tarfile.open(STORED / name) as archive:
            archive.extractall(tmp_path / "run", filter="data")
        return tmp_path / "run"

    return to_folder


def test_its_best_is_read(extract):
    run_dir = extract("run.tar.gz")
    assert load_best(Net(seed=1), run_dir).name == "step_000000005_epoch_00001"


def test_the_best_of_a_seed_is_read(extract):
    run_dir = extract("seeds.tar.gz")
    assert [load_run(Net(seed=9), run_dir, r).best_step for r in range(3)] == [5, 5, 5]


@pytest.mark.parametrize(
    ("name", "runs"), [("run.tar.gz", None), ("seeds.tar.gz", 3)], ids=["one run", "three seeds"]
)
def test_it_goes_on(extract, tmp_path, name, runs):
    """To what a run of today comes to, but for the rounding of another machine."""
    run_dir = extract(name)
    lines = (run_dir / "metrics.jsonl").read_text()
    resumed, result = train(run_dir, runs=runs, resume=True, **HOW)
    assert (run_dir / "metrics.jsonl").read_text().startswith(lines)
    assert [line["step"] for line in result.history] == [5, 10, 15]
    whole, _ = train(tmp_path / "whole", runs=runs, **HOW)
    for got, want in zip(*(jax.tree.leaves(_arrays(m)) for m in (resumed, whole)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    assert list_checkpoints(run_dir)[-1].step == 15
    record = json.loads((list_checkpoints(run_dir)[-1].path / "progress.json").read_text())
    assert record["progress"]["record"]["validate_every"] == 5


def _arrays(model):
    models = model if isinstance(model, list) else [model]
    return [layer.kernel[...] for one in models for layer in one.layers]


def test_another_run_is_refused(extract):
    with pytest.raises(ValueError, match="monitor='accuracy', but now monitor is 'loss'"):
        train(extract("run.tar.gz"), resume=True)
