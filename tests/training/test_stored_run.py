"""A run that an earlier commit made is read, and goes on."""

import json
import tarfile
from pathlib import Path

import jax
import numpy as np
import pytest

from flax_linattn.training import list_checkpoints, load_best
from tests.training.problem import Net, train

STORED = Path(__file__).parent / "stored" / "run.tar.gz"
"""Of 0.1.0: ``train(run_dir, train=signal_at(make_batches(), 12), keep_latest=1,
monitor="accuracy", mode="max")``, interrupted in the third of three epochs."""


@pytest.fixture
def run_dir(tmp_path):
    with tarfile.open(STORED) as archive:
        archive.extractall(tmp_path / "run", filter="data")
    return tmp_path / "run"


def test_its_best_is_read(run_dir):
    assert load_best(Net(seed=1), run_dir).name == "step_000000005_epoch_00001"


def test_it_goes_on(run_dir, tmp_path):
    """To what a run of today comes to, but for the rounding of another machine."""
    lines = (run_dir / "metrics.jsonl").read_text()
    how = {"monitor": "accuracy", "mode": "max", "keep_latest": 1}
    resumed, result = train(run_dir, resume=True, **how)
    assert (run_dir / "metrics.jsonl").read_text().startswith(lines)
    assert [line["step"] for line in result.history] == [5, 10, 15]
    whole, _ = train(tmp_path / "whole", **how)
    for got, want in zip(*(jax.tree.leaves(_arrays(m)) for m in (resumed, whole)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    assert list_checkpoints(run_dir)[-1].step == 15
    record = json.loads((list_checkpoints(run_dir)[-1].path / "progress.json").read_text())
    assert record["progress"]["record"]["validate_every"] == 5


def _arrays(model):
    return [layer.kernel[...] for layer in model.layers]


def test_another_run_is_refused(run_dir):
    with pytest.raises(ValueError, match="monitor='accuracy', but now monitor is 'loss'"):
        train(run_dir, resume=True)
