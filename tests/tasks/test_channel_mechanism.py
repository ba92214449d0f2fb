"""Channels that look at each other: learned from, streamed; what is refused."""

import json

import numpy as np
import pytest

from flax_linattn import cli, tasks
from tests.tasks.commands import fail, no_drawing

ROWS = 600
OPTIONS = [
    *("--features", "16", "--num-layers", "1", "--num-heads", "2", "--hidden-features", "16"),
    *("--context-length", "8", "--horizon", "2", "--patch-length", "4", "--no-calendar"),
    *("--epochs", "8", "--learning-rate", "0.01", "--parallel", "none", "--model", "patch"),
    *("--no-ridge", "--schedule", "halving", "--patience", "3"),
    *("--targets", "orders,sales", "--channel-mechanism", "softmax"),
]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """Sales are the orders of two rows before, which nothing tells beforehand."""
    folder = tmp_path_factory.mktemp("channels")
    orders = np.random.default_rng(0).normal(size=ROWS)
    sales = np.concatenate([[0.0, 0.0], orders[:-2]])
    rows = "\n".join(f"{a!r},{b!r}" for a, b in zip(orders.tolist(), sales.tolist(), strict=True))
    (folder / "sales.csv").write_text(f"orders,sales\n{rows}\n")
    with no_drawing():
        args = ["train", "forecast", "--csv", str(folder / "sales.csv"), *OPTIONS]
        assert cli.main([*args, "--run", str(folder / "run")]) == 0
    return folder / "run"


@pytest.mark.slow
def test_a_run_learns_what_another_channel_tells(run_dir):
    """No channel by itself tells anything: then no forecast has an error below the variance.

    The other tells of sales, half of all, how far they are from the mean of a window of 8.
    """
    report = json.loads((run_dir / "test.json").read_text())
    assert report["channel_mechanism"] == "softmax"
    test = np.loadtxt(run_dir.parent / "sales.csv", delimiter=",", skiprows=1)[480:]
    scale = tasks.load_run(run_dir).data_spec.standardizer.std
    variance = np.mean(np.var(test, axis=0) / np.square(scale))
    assert report["test_mse"] < 0.9 * variance < variance < report["ridge_mse"]


def test_a_stream_forecasts_as_the_whole_does(run_dir):
    assert tasks.evaluate_run(run_dir)["stream_max_error"] < 1e-4


def test_others_are_refused(capsys):
    train = ["train", "forecast", "--channel-mechanism"]
    assert "since channels have no order" in fail(
        capsys, *train, "gated_linear", "--model", "patch"
    )
    assert "must be a non-causal mechanism, one of" in fail(
        capsys, *train, "sofmax", "--model", "patch"
    )
    assert "an option of the model 'patch'" in fail(capsys, *train, "softmax", "--model", "decoder")
