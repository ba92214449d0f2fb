"""Devices change the speed of a run, not its numbers."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from flax_linattn.data import Batches
from flax_linattn.training import Parallel
from tests.training import problem
from tests.training.problem import loss_fn, make_batches, signal_at


def without_dropout(model: Any, batch: Any, dropout_key: Any) -> Any:
    """Each device and each part of a batch draws its own dropout; this compares all the rest."""
    return loss_fn(model, batch, None)


def train(run_dir: Path, parallel: Parallel, loss: Any = without_dropout, **options: Any) -> Any:
    """The loss curve and the parameters."""
    model, result = problem.train(
        run_dir, seed=1, loss=loss, validation=make_batches(seed=None), parallel=parallel, **options
    )
    curves = [[line["train_loss"], line["validation_loss"]] for line in result.history]
    return np.array(curves), jax.tree.map(np.asarray, [m.kernel[...] for m in model.layers])


def assert_close(got: Any, want: Any, tolerance: float = 1e-5) -> None:
    for a, b in zip(*map(jax.tree.leaves, (got, want)), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


SPLIT = [
    *(Parallel("jit", f"data={n}") for n in (1, 4, 8)),
    *(Parallel("pmap", f"data={n}") for n in (1, 2, 4, 8)),
    *(Parallel("jit", f"data={n}", shard_parameters=True) for n in (2, 4)),
    Parallel("none", accumulate=4),
    Parallel("jit", "data=2", accumulate=4),
    Parallel("pmap", "data=4", accumulate=2),
]


def describe(parallel: Parallel) -> str:
    mesh = "".join(f"-{n}" for _, n in parallel.mesh or ())
    parts = f"-in-{parallel.accumulate}" if parallel.accumulate > 1 else ""
    return parallel.strategy + mesh + parts + "-fsdp" * parallel.shard_parameters


@pytest.fixture(scope="module")
def one_device(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return train(tmp_path_factory.mktemp("one"), Parallel("none"))


def fast(parallel: Parallel) -> Any:
    """Eight devices are fast tests, fewer slow ones but where they hold the parameters in parts."""
    devices = dict(parallel.mesh or ()).get("data", 8)
    few = 2 if parallel.shard_parameters else 8
    slow = parallel.accumulate == 1 and devices not in (few, 8)
    return pytest.param(parallel, marks=pytest.mark.slow) if slow else parallel


@pytest.mark.parametrize("parallel", [fast(parallel) for parallel in SPLIT], ids=describe)
def test_the_loss_curve_is_that_of_one_device(
    parallel: Parallel, one_device: Any, tmp_path: Path
) -> None:
    """With a last batch whose filler rows leave some devices without an example."""
    assert_close(train(tmp_path, parallel), one_device)


UNDER_A_MESH = [
    pytest.param(Parallel("none", accumulate=2), marks=pytest.mark.slow),
    pytest.param(Parallel("jit", "data=4", shard_parameters=True), marks=pytest.mark.slow),
    Parallel("pmap", "data=2"),
]


@pytest.mark.parametrize("parallel", UNDER_A_MESH, ids=describe)
def test_a_mesh_that_the_caller_set_changes_nothing(
    parallel: Parallel, one_device: Any, tmp_path: Path
) -> None:
    """Of explicit axes, JAX's default: a training has a mesh of its own."""
    with jax.set_mesh(jax.make_mesh((8,), ("data",))):
        assert_close(train(tmp_path, parallel), one_device)


def test_two_devices_give_the_same_bits_each_time(one_device: Any, tmp_path: Path) -> None:
    """Also under a mesh that the caller set. One device adds in another order, so it is close."""
    parallel = Parallel("jit", "data=2")
    first = train(tmp_path / "first", parallel)
    with jax.set_mesh(jax.make_mesh((8,), ("data",))):
        again = train(tmp_path / "again", parallel)
    assert_close(again, first, tolerance=0)
    assert_close(first, one_device)


def test_dropout_is_that_of_one_device(tmp_path: Path) -> None:
    """Under ``jit`` a mask of a whole batch is drawn wherever its rows are."""
    want = train(tmp_path / "none", Parallel("none"), loss_fn)
    got = train(tmp_path / "jit", Parallel("jit"), loss_fn)
    assert_close(got, want)


@pytest.mark.parametrize("strategy", ["jit", "pmap"])
def test_a_run_goes_on_on_other_devices(strategy: Any, one_device: Any, tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        train(tmp_path, Parallel("jit", "data=8"), train=signal_at(make_batches(), 7))
    got = train(tmp_path, Parallel(strategy, "data=2"), resume=True)
    assert_close(got, one_device, 1e-6)


def test_parameters_lie_where_they_are_said_to() -> None:
    placement = Parallel("jit", "data=4", shard_parameters=True).place(8)
    state = placement.state({"kernel": np.ones((3, 8), np.float32), "bias": np.ones(3, np.float32)})
    kernel, bias = state["kernel"].sharding, state["bias"].sharding
    assert kernel.spec == PartitionSpec(None, "data") and kernel.shard_shape((3, 8)) == (3, 2)
    assert bias.is_fully_replicated


def test_auto_takes_the_devices_that_divide_the_batch() -> None:
    assert str(Parallel().place(16)) == "8 devices (jit, data=8)"
    assert str(Parallel().place(12)) == "6 of 8 devices (jit, data=6)"
    assert str(Parallel().place(16, 6)) == "2 of 8 devices (jit, data=2)"
    assert str(Parallel().place(11)) == "one of 8 devices"


@pytest.mark.parametrize(
    ("options", "rows", "message"),
    [
        ({"strategy": "spmd"}, 8, "strategy must be one of auto, none, jit, pmap, got 'spmd'"),
        ({"mesh": "data:4"}, 8, "such as data=4,seq=2, got"),
        ({"mesh": "model=4"}, 8, "the axes data and seq, each at most once, got model=4"),
        ({"mesh": {"data": 0}}, 8, "at least one device, got 'data=0'"),
        ({"mesh": "data=16"}, 16, "needs 16 devices, but there are 8"),
        ({"strategy": "none", "mesh": "data=2"}, 8, "strategy 'none' uses one"),
        ({"strategy": "none", "shard_parameters": True}, 8, "strategy 'none' uses one"),
        ({"mesh": {}}, 8, "at least one device, got ''"),
        ({"strategy": "pmap", "mesh": "data=2,seq=2"}, 8, "splits batches only"),
        ({"accumulate": 0}, 8, "accumulate must be at least 1, got 0"),
        ({"accumulate": 3}, 8, "a batch of 8 rows cannot be split into accumulate=3 equal parts"),
        ({"strategy": "jit"}, 12, "batches of 12 rows cannot be split evenly over 8 devices"),
    ],
)
def test_bad_settings_are_refused(options: dict[str, Any], rows: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Parallel(**options).place(rows)


@pytest.mark.parametrize(
    "parallel", [Parallel("jit"), Parallel("jit", "seq=2"), Parallel("none", accumulate=4)]
)
def test_a_batch_of_another_size_is_refused(parallel: Parallel) -> None:
    placement = parallel.place(8)
    with pytest.raises(ValueError, match=r"expected 'x' .* got shape \(6, 2\); all batches need"):
        placement.batch({"x": np.ones((6, 2))}, 8)
    with pytest.raises(ValueError, match=r"expected 'rate' .* got shape \(\)"):
        placement.batch({"rate": np.float32(1)}, 8)


def test_validation_is_not_taken_in_parts(tmp_path: Path) -> None:
    """Its batches may have a number of rows that the parts of training do not share."""
    placement = Parallel("none", accumulate=4).place(8, 6)
    assert placement.batch({"x": np.ones((6, 2))}, 6, whole=True)["x"].shape == (6, 2)
    six = Batches({"x": np.ones((6, 3), np.float32), "y": np.ones(6, np.float32)}, 6, seed=None)
    problem.train(tmp_path, epochs=1, validation=six, parallel=Parallel("none", accumulate=4))
