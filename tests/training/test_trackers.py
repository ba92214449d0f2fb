"""A run's numbers while it trains: trackers, and a trace."""

import json
from pathlib import Path
from typing import Any

import pytest

from flax_linattn.training import (
    JsonLines,
    Parallel,
    TensorBoard,
)
from flax_linattn.training.placement import PEAK_FLOPS, peak_flops
from tests.training import problem

EPOCHS = 5


class Kept:
    """A user's own tracker."""

    def __init__(self) -> None:
        self.lines: list[tuple[int, dict[str, float]]] = []
        self.closed = False

    def log(self, step: int, values: Any) -> None:
        self.lines.append((step, dict(values)))

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("runs", [None, 3], ids=["one run", "three seeds"])
def test_trackers_get_steps_and_epochs(tmp_path: Path, runs: int | None) -> None:
    kept, path = Kept(), tmp_path / "steps.jsonl"
    trackers = [kept, JsonLines(path)]
    _, result = problem.train(tmp_path, runs=runs, epochs=EPOCHS, trackers=trackers)
    assert kept.closed
    assert [step for step, _ in kept.lines] == [5, 10, 15, 20, 20, 25]  # 20 = a step, and an epoch
    step, epoch = kept.lines[3][1], kept.lines[4][1]
    assert "train_loss" in step and "validation_loss" not in step
    assert epoch["validation_accuracy"] >= 0
    assert epoch["validation_loss"] == result.history[3]["validation_loss"]
    assert step["examples_per_second"] > 0
    assert "model_flops_per_second" not in epoch  # tokens are not known
    assert epoch["data_seconds"] <= epoch["seconds"]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line.pop("step"), line) for line in lines] == kept.lines


@pytest.mark.parametrize("runs", [None, 3], ids=["one run", "three seeds"])
def test_tokens_and_utilization(
    tmp_path: Path, runs: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 21 parameters; filler rows of the last batch have no tokens."""
    monkeypatch.setitem(PEAK_FLOPS, "cpu", 1e12)
    kept = Kept()
    _, result = problem.train(
        tmp_path, runs=runs, epochs=EPOCHS, trackers=[kept], tokens_per_example=100
    )
    for _, values in kept.lines:
        tokens = values["tokens_per_second"]
        assert tokens == pytest.approx(100 * values["examples_per_second"], rel=1e-3, abs=10)
        assert values["model_flops_per_second"] == pytest.approx(6 * 21 * tokens)
        assert values["model_flops_utilization"] == values["model_flops_per_second"] / 1e12
    assert result.history[-1]["real_token_fraction"] == 38 / 40


def test_utilization_is_of_known_devices() -> None:
    kinds = {
        "NVIDIA H100 80GB HBM3": 989e12, "NVIDIA H100 PCIe": 756e12, "NVIDIA L4": 121e12,
        "NVIDIA L40S": 362e12, "NVIDIA L40": None, "NVIDIA A100-SXM4-40GB": 312e12,
        "TPU v5 lite": 197e12, "TPU v5": 459e12, "TPU v4 lite": 138e12, "cpu": None,
    }  # fmt: skip
    assert {kind: peak_flops(kind) for kind in kinds} == kinds
    assert Parallel().place(8).peak_flops is None


def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    problem.train(tmp_path, epochs=1, trackers=[TensorBoard(tmp_path / "events")])
    (events,) = (tmp_path / "events").iterdir()
    assert b"validation_loss" in events.read_bytes()


@pytest.mark.slow
def test_a_trace_of_some_steps(tmp_path: Path) -> None:
    problem.train(tmp_path, epochs=EPOCHS, profile_steps=3)
    assert list((tmp_path / "profile").rglob("*.xplane.pb"))
