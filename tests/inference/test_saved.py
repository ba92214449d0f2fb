"""States in files: what NumPy's versions and strangers make of them, and what reading costs."""

import tracemalloc
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from flax_linattn import inference, ops
from tests.contract.tolerances import assert_same_bits
from tests.tasks import states


def test_files_are_the_same_with_every_version_of_numpy(tmp_path: Any, monkeypatch: Any) -> None:
    """Before 2.2 ``np.savez`` takes ``allow_pickle`` as the name of one more array."""
    savez = np.savez

    def savez_of_2_0(file: Any, **arrays: Any) -> None:
        savez(file, **{name.replace("allow_pickle", "allow"): a for name, a in arrays.items()})

    monkeypatch.setattr(np, "savez", savez_of_2_0)
    path = tmp_path / "state.npz"
    state = {
        "columns": jnp.asarray(np.arange(6, dtype=np.float32).reshape(2, 3, order="F")),
        "half": jnp.ones(2, "bfloat16"),
        "none": jnp.ones((2, 0), bool),
        "number": jnp.zeros((), jnp.int32),
    }
    inference.save_state(path, state, {"who": 1})
    assert list(states.entries_of(path)) == [*(f"{i}.npy" for i in range(4)), "facts.npy"]
    with np.load(path, allow_pickle=False) as file:
        np.testing.assert_array_equal(file["0"], state["columns"])
    loaded, facts = inference.load_state(path, state)
    assert_same_bits(loaded, state)
    assert facts == {"who": 1}


def test_objects_are_not_saved(tmp_path: Any) -> None:
    with pytest.raises(ValueError, match="Object arrays cannot be saved"):
        inference.save_state(tmp_path / "state.npz", [np.array([1, None], object)], {})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "shape", [f"(0, 0x{'f' * 8000})", "(0, 281474976710656)", f"({'1,' * 4000})"]
)
@pytest.mark.parametrize("read", ["describe", "load"])
def test_headers_that_lie_about_shapes(shape: str, read: str, tmp_path: Any) -> None:
    path, like = tmp_path / "state.npz", {"a": jnp.ones(3)}
    inference.save_state(path, like, {})
    content = b"" if shape.startswith("(0") else b"\0" * 4
    entry = states.npy_header("'<f4'", shape, content)
    states.write_entries(path, states.entries_of(path) | {"0.npy": entry})
    with pytest.raises(ValueError) as caught:
        if read == "describe":
            inference.describe_state(path)
        else:
            inference.load_state(path, like)
    assert str(path) in str(caught.value) and len(str(caught.value)) < 1000


def test_an_array_is_held_once_while_it_is_read(tmp_path: Any) -> None:
    state = {"a": np.ones(2_000_000, np.float32)}
    inference.save_state(tmp_path / "state.npz", state, {})
    tracemalloc.start()
    inference.load_state(tmp_path / "state.npz", state)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 1.5 * state["a"].nbytes  # with the bools that say where NaN is


def test_values_that_lie_at_an_odd_byte(tmp_path: Any) -> None:
    path, want = tmp_path / "state.npz", np.arange(5, dtype=np.float32)
    for spaces in range(4):
        inference.save_state(path, {"a": want}, {})
        entry = states.npy_header("'<f4'", " " * spaces + "(5,)", want.tobytes())
        states.write_entries(path, states.entries_of(path) | {"0.npy": entry})
        state, _ = inference.load_state(path, {"a": want})
        np.testing.assert_array_equal(state["a"], want)


def test_nan_where_it_is_allowed(tmp_path: Any) -> None:
    path, state = tmp_path / "state.npz", {"a": jnp.array([1.0, jnp.nan])}
    with pytest.raises(ValueError, match=r"holds NaN in a, so .*; pass allow_nan=True"):
        inference.save_state(path, state, {})
    inference.save_state(path, state, {}, allow_nan=True)
    with pytest.raises(ValueError, match="holds NaN in a, which no stream saves"):
        inference.load_state(path, state)
    assert_same_bits(inference.load_state(path, state, allow_nan=True)[0], state)


def test_a_file_with_arrays_that_only_merge_uses(tmp_path: Any) -> None:
    """As versions wrote it whose layers had mergeable states."""
    path, gated = tmp_path / "state.npz", ops.get_mechanism("gated_delta")
    inference.save_state(path, gated.init_state(1, 1, 2, 2), {})
    with pytest.raises(ValueError, match=r"only `merge` uses .* start a new stream"):
        inference.load_state(path, gated.init_state(1, 1, 2, 2, mergeable=False))
