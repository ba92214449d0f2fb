"""The bundle that the tests of this folder serve."""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest

from flax_linattn import inference
from tests.inference.cases import CHANNELS, classifier

TASK = {
    "name": "classify",
    "inputs": [{"kind": "values", "names": list("abc"), "mean": [0.5] * 3, "std": [2.0] * 3}],
    "outputs": {"kind": "classes", "names": list("wxyz")},
}


@pytest.fixture(scope="session")
def path(tmp_path_factory: Any) -> Path:
    path = tmp_path_factory.mktemp("bundle") / "model.linattn"
    inference.export(
        path, classifier("aaren"), jnp.ones((1, CHANNELS)), chunk_sizes=(), platforms=("cpu",),
        task=TASK,
    )  # fmt: skip
    return path
