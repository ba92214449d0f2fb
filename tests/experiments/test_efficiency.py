"""The papers' efficiency figures, each run at a tiny size."""

import dataclasses
import importlib.util
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import pytest

from experiments.accelerator.small_sizes import SMALL_SIZES
from experiments.efficiency.crossing import crossing, spread_crossing, where
from experiments.rules import Range
from experiments.verdicts import VERDICTS

ON_ACCELERATORS = {"checks", "floor", "attention", "streams", "errors"}
ON_ACCELERATORS |= {"flash_linear_attention", "pytorch"}
"""Of other folders, or of what may not be here."""

TINY: dict[str, Mapping[str, Any]] = {
    **{name: size for name, size in SMALL_SIZES.items() if name not in ON_ACCELERATORS},
    "cache": {
        "mechanisms": ("forgetting", "elementwise", "aft"),
        "caches": ((2, 8, 8), (1, 8, 16)),
        "dim": 4,
        "rounds": 3,
    },
    "cold_starts": {"repeats": 1, "epochs": 1},
    "exported_prefill": {
        "mechanisms": ("rwkv",),
        "attention": ("linear",),
        "length": 8,
        "chunk_size": 4,
        "rounds": 1,
    },
    "growth": {
        "mechanisms": ("aaren", "linear", "linformer", "aft", "gated_delta"),
        "lengths": (8, 16),
        "held": (4, 8),
        "dim": 4,
        "rounds": 3,
        "steps": 2,
    },
    "language_models": {
        "mechanisms": ("aaren",),
        "lengths": (8,),
        "batch_size": 1,
        "positions": (8,),
        "rounds": 1,
    },
    "layer_options": {
        "options": ("plain", "pair_mask"),
        "shape": (1, 8),
        "features": 8,
        "num_heads": 2,
        "rounds": 3,
    },
    "non_finite": {"mechanisms": ("aaren",), "shapes": ((1, 8),), "dim": 4, "rounds": 2},
    "overheads": {"features": (16,), "save_every": (2,), "waits": (1.0,), "epochs": 3, "rounds": 1},
    "residuals": {"mechanisms": ("aaren",), "lengths": (16,), "num_heads": 1, "dim": 4},
    "stacked_blocks": {
        "mechanisms": ("aaren",),
        "depths": (2,),
        "batch_size": 1,
        "length": 8,
        "features": 8,
        "num_heads": 2,
        "rounds": 1,
    },
    "strategies": {"mechanisms": ("aaren",), "devices": (2,), "epochs": 1},
    "stream_steps": {
        "mechanisms": ("aaren",),
        "held": (8,),
        "rows": (1, 2),
        "features": 16,
        "work": 4,
        "rounds": 1,
    },
    "taylorshift_floor": {"rows": (1,), "tokens": 8, "dim": 4, "rounds": 1, "steps": 2},
    "taylorshift_order": {"dims": (4,), "orders": (4,), "lengths": (8, 16), "rounds": 1},
}
SLOW = {
    "cold_starts",
    "language_models",
    "gated",
    "elementwise_inference",
    "elementwise_training",
    "taylorshift_crossover",
}
SLOW |= {"bert_training", "exported_prefill", "overheads", "strategies", "taylorshift_transformer"}
SLOW |= {
    "taylorshift_training",
    "taylorshift_order",
    "long_sequence",
    "non_finite",
    "layer_options",
}
SLOW |= {"aaren_stream", "growth", "stacked_blocks", "stream_steps", "taylorshift_heads"}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in TINY]
)
def test_an_experiment_writes_its_files(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module(f"experiments.efficiency.{name}")
    experiment = module.EXPERIMENT
    if name == "language_models":
        pytest.importorskip("torch")
    if name == "long_sequence":
        monkeypatch.setattr(module, "MECHANISMS", ("aaren",))
    size = dataclasses.replace(experiment.sizes["cpu"], **TINY[name])
    experiment = dataclasses.replace(experiment, sizes={"cpu": size})
    with jax.numpy_dtype_promotion("standard"):
        experiment.collect("cpu", tmp_path, progress=False)
    page = experiment.render("cpu", tmp_path)
    assert (tmp_path / f"{name}-cpu.md").read_text() == page
    assert f"experiments.efficiency.{name} --scale cpu" in page
    results = json.loads((tmp_path / f"{name}-cpu.json").read_text())
    assert results["finished"] and results["rows"] and results["device"]
    for statement in experiment.statements:
        assert statement.says in page and statement.verdict(results["rows"]).word in VERDICTS
    figure = tmp_path / f"efficiency-{name.replace('_', '-')}-cpu.png"
    if name == "aaren_stream":  # a block has the parameters that the paper counts
        assert "| aaren | 3,152,896 | 3,152,896 |" in page
        assert "| softmax | 3,152,384 | 3,152,384 |" in page
    drawn = importlib.util.find_spec("matplotlib") and experiment.plot is not None
    assert figure.exists() == bool(drawn)


def test_crossing() -> None:
    assert where([(1, 1.0, 2.0), (4, 2.0, 1.0), (16, 3.0, 1.0)]) == "2"
    assert where([(64, 2.0, 1.0), (128, 3.0, 1.0)]) == "below 64"
    assert where([(64, 1.0, 2.0), (1024, 1.0, 1.5)]) == "above 1,024"
    assert where([]) == "not measured"


def test_a_crossing_beyond_what_was_measured_is_bounded() -> None:
    assert crossing([(1, 1.0, 2.0), (4, 2.0, 1.0)]) == Range.exact(2.0)
    assert crossing([(64, 1.0, 2.0), (128, 1.0, 1.5)]) == (128, 128, float("inf"))
    assert crossing([(64, 2.0, 1.0)]) == (64, 0, 64)
    slow, fast = Range(1.0, 0.5, 2.0), Range.exact(1.0)
    assert spread_crossing([(1, slow.per(2), fast), (4, slow.per(0.5), fast)]) == (
        pytest.approx((2, 0, 4))
    )
    # What is overtaken again at the longest length is not overtaken for good.
    assert where([(1, 1.0, 2.0), (4, 2.0, 1.0), (16, 1.0, 2.0)]) == "above 16"


def test_a_part_of_a_stream_counts_as_a_round() -> None:
    from experiments.streaming.latency import spread_of_parts

    times = [1.0, 1.0, 9.0, 1.0] + [2.0] * 4
    assert spread_of_parts(times, 2) == {"median": 2.0, "min": 1.0, "max": 2.0}
    assert spread_of_parts([3.0], 8) == {"median": 3.0, "min": 3.0, "max": 3.0}


def test_the_greatest_batch_fits() -> None:
    from experiments.efficiency.elementwise_training import greatest_batch

    def needed(batch: int) -> int:
        return 100 + 7 * batch + batch // 10

    best = max(batch for batch in range(1, 1000) if needed(batch) <= 1000)
    found = greatest_batch(needed, needed(1), 90, 1000)
    assert 0.95 * best <= found <= best
    assert greatest_batch(needed, needed(1), 0, 100) == 0
    assert greatest_batch(needed, needed(1), 0, needed(1)) == 1


def test_pytorch_computes_the_same(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from experiments.efficiency.pytorch import EXPERIMENT

    size = dataclasses.replace(EXPERIMENT.sizes["cpu"], lengths=(16,), rounds=1, repeats=1)
    experiment = dataclasses.replace(EXPERIMENT, sizes={"cpu": size})
    experiment.collect("cpu", tmp_path, progress=False)
    assert experiment.render("cpu", tmp_path).count("| PyTorch, plain |") == 6


@pytest.mark.slow
@pytest.mark.parametrize("name", ["whole_models", "whole_forecasters"])
def test_whole_models_beside_pytorch(name: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    experiment = importlib.import_module(f"experiments.efficiency.{name}").EXPERIMENT

    tiny = {"features": 16, "hidden": 32, "num_layers": 1, "num_heads": 4, "rounds": 1}
    lengths, mechanisms = ((16, 2),), ("aaren",)
    size = dataclasses.replace(
        experiment.sizes["cpu"], lengths=lengths, mechanisms=mechanisms, **tiny
    )
    experiment = dataclasses.replace(experiment, sizes={"cpu": size})
    with jax.numpy_dtype_promotion("standard"):
        experiment.collect("cpu", tmp_path, progress=False)
    assert experiment.render("cpu", tmp_path).count("| 16 | 2 |") == 9


@pytest.mark.slow
def test_whole_models_without_memory_for_the_first_mechanism(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from experiments.efficiency.trials import Size, Trial
    from experiments.efficiency.whole_models import CLASSIFIER

    size = Size(
        lengths=(),
        mechanisms=("aaren",),
        features=16,
        hidden=32,
        num_layers=1,
        max_temporary_bytes=0.0,
    )
    with jax.numpy_dtype_promotion("standard"):
        results = Trial(CLASSIFIER, size, 16, 2).results()
    assert "not_run" in results["aaren"] and "milliseconds" in results["PyTorch, GRU"]


def test_without_pytorch_the_message_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    from experiments.efficiency.pytorch import import_torch

    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(SystemExit, match="pip install torch"):
        import_torch()


def test_kernels_for_gpus_are_refused_elsewhere(tmp_path: Path) -> None:
    from experiments.efficiency.flash_linear_attention import EXPERIMENT

    with pytest.raises(SystemExit, match="need a GPU"):
        EXPERIMENT.collect("paper", tmp_path, progress=False)
