"""The one table of tolerances, and the one comparison that reads it.

An error counts relative to the largest expected magnitude of its array: sums of many terms,
gradients above all, cancel, so an element-wise relative error says little. Arrays all of whose
numbers are small count as if one were ``LEAST``; what is a sum of many terms that cancel as a whole
has a larger least size, which its test states.
"""

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

TOLERANCES = {
    # Machine epsilon is 2.2e-16 and 1.2e-7; sums over 100 tokens through a few hundred
    # operations, forward and back, lose less than a hundred of them.
    "float64": 2e-14,
    "float32": 1e-5,
    # Sums are float32, so only what is stored in the dtype is rounded: outputs, gradients
    # and, in fused attention, the weights. Four roundings of epsilon 9.8e-4 and 7.8e-3.
    "float16": 4e-3,
    "bfloat16": 3.2e-2,
}

LEAST = 0.03
"""With it a bfloat16 gradient is compared down to 0.001."""


class Error(NamedTuple):
    """What ``assert_close`` found of one array: where, how much, and how much it may be."""

    where: str
    error: float
    tolerance: float


_RECORDS: list[list[Error]] = []


@contextlib.contextmanager
def recorded() -> Iterator[list[Error]]:
    """The errors of all that is compared in this context."""
    record: list[Error] = []
    _RECORDS.append(record)
    try:
        yield record
    finally:
        _RECORDS.remove(record)


def assert_close(got: Any, want: Any, dtype: Any, what: str = "", *, least: float = LEAST) -> None:
    """Compares two trees leaf by leaf; ``want`` may be of higher precision.

    Infinities have to stand at the same places, NaN is never right. Magnitudes below ``least``
    count as if they were ``least``.
    """
    tolerance = TOLERANCES[np.dtype(dtype).name]
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for (path, g), w in zip(
        jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(want), strict=True
    ):
        where = what + jax.tree_util.keystr(path)
        g, w = np.asarray(g), np.asarray(w)
        assert g.shape == w.shape, f"{where}: shape {g.shape}, expected {w.shape}"
        if not jnp.issubdtype(g.dtype, jnp.floating):
            np.testing.assert_array_equal(g, w, err_msg=where)
            continue
        g, w = g.astype(np.float64), w.astype(np.float64)
        assert not np.isnan(w).any(), f"{where}: the expected values hold NaN"
        finite = np.isfinite(w)
        np.testing.assert_array_equal(g[~finite], w[~finite], err_msg=where)
        largest = max(least, np.max(np.abs(w[finite]), initial=0.0))
        error = np.max(np.abs(g[finite] - w[finite]), initial=0.0) / largest
        for record in _RECORDS:
            record.append(Error(where, float(error), tolerance))
        assert error <= tolerance, f"{where}: error {error:.3g} > {tolerance:.3g}"


def assert_same_bits(got: Any, want: Any, what: str = "") -> None:
    """Compares two trees for equality."""
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for (path, g), w in zip(
        jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(want), strict=True
    ):
        np.testing.assert_array_equal(
            np.asarray(g), np.asarray(w), err_msg=what + jax.tree_util.keystr(path), strict=True
        )
