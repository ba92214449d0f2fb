"""What Orbax's threads print is kept back while arrays are written or read, and only then."""

import logging
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from flax_linattn import checkpoint
from flax_linattn.checkpoint import quiet
from flax_linattn.checkpoint.quiet import quiet_threads


@pytest.fixture(autouse=True)
def nothing_has_failed(monkeypatch: Any) -> None:
    monkeypatch.setattr(quiet, "_failed", False)


@pytest.mark.parametrize("fails", [False, True])
def test_hook_and_logger_are_as_before(fails: bool, tmp_path: Any, monkeypatch: Any) -> None:
    def hook(unraisable: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(sys, "unraisablehook", hook)
    before = list(logging.getLogger("absl").filters)
    arrays = {"model": {"a": np.ones(3)}}
    manifest = checkpoint.write_arrays(tmp_path, arrays)
    if fails:
        with pytest.raises(ValueError, match="already exists"):
            checkpoint.write_arrays(tmp_path, arrays)
    else:
        (tree,) = checkpoint.read_arrays(tmp_path, "model", manifest, {"a": np.ones(3, "float32")})
        assert tree["a"].tolist() == [1, 1, 1]
    # What a failed save has left may end later.
    assert (sys.unraisablehook is hook) == (not fails)
    assert logging.getLogger("absl").filters == before


def test_contexts_of_several_threads(monkeypatch: Any) -> None:
    """The last one that ends puts back what the first one found."""
    told: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    first, second = quiet_threads(), quiet_threads()
    before = sys.unraisablehook
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    closed, other = (
        SimpleNamespace(exc_value=RuntimeError(text)) for text in ("Event loop is closed", "else")
    )
    sys.unraisablehook(closed)  # type: ignore[arg-type]
    sys.unraisablehook(other)  # type: ignore[arg-type]
    assert told == [other]
    second.__exit__(None, None, None)
    assert sys.unraisablehook is before


def test_a_hook_of_somebody_else_stays(monkeypatch: Any) -> None:
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    with quiet_threads():
        sys.unraisablehook = print
    assert sys.unraisablehook is print
