"""Steps of models, exported with their state as it is, run elsewhere to equal bits."""

import functools
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_linattn import inference, models
from tests.contract.tolerances import assert_same_bits
from tests.models.contract.heads import FIRST, HEADS, LAYERS, ROWS, model_of, observations
from tests.nn.cases import normal

FAST = ("classifier", "convolved tokens", "decisions", "events", "forecaster", "language", "window")
"""Whose parts are those of the others."""
GROWING = ("classifier", "decisions")
"""They carry caches."""
DECODER = "encoder-decoder"
CASES = [
    pytest.param(mark.id, id=mark.id, marks=() if mark.id in FAST else pytest.mark.slow)
    for mark in FIRST.args[1]
    if HEADS[mark.id].streams
] + [DECODER]


def decoder() -> Any:
    """A model, an observation and a state of two rows."""
    model = models.EncoderDecoder(
        3, 4, **LAYERS, label_length=2, mechanism="taylorshift", embedding_padding="causal",
        num_covariates=1, rngs=nnx.Rngs(0),
    )  # fmt: skip
    state = jax.jit(model.init_state)(normal(1, 2, 5, 3), normal(2, 2, 5, 1))
    return model, normal(0, 2, 1), state


def head(name: str) -> Any:
    first = {mark.id: mark.values[1] for mark in FIRST.args[1]}
    model = model_of(name, "softmax" if name in GROWING else first[name])
    return model, jnp.asarray(observations(name)[:, 1]), model.init_state(ROWS, 3)


@functools.cache
def exported(name: str) -> tuple[bytes, Any, Any]:
    """The step in bytes, what it is called with, and what it returns."""
    model, x, state = decoder() if name == DECODER else head(name)
    step = jax.jit(lambda x, state: model.step(x, state))
    return bytes(jax.export.export(step)(x, state).serialize()), (x, state), step(x, state)


@pytest.mark.parametrize("name", CASES)
def test_a_step_is_exported_with_its_state(name: str) -> None:
    saved, (x, state), (y, after) = exported(name)
    again = jax.export.deserialize(bytearray(saved)).call(x, state)
    assert_same_bits(again, (y, after))
    assert type(again[1]) is type(state)


def test_what_generates_is_exported() -> None:
    model = model_of("language", "elementwise")
    prompt = jnp.array([[1, 2]])
    generate = jax.jit(lambda prompt: inference.generate(model, prompt, 2))
    loaded = jax.export.deserialize(jax.export.export(generate)(prompt).serialize())
    assert_same_bits(loaded.call(prompt), generate(prompt))


ELSEWHERE = """
import sys, jax, numpy as np
from flax_linattn import models
for folder in sys.argv[1:]:
    step = jax.export.deserialize(bytearray(open(f"{folder}/step.bin", "rb").read()))
    given = [np.asarray(a) for a in np.load(f"{folder}/given.npz").values()]
    x, state = jax.tree.unflatten(step.in_tree, given)[0]
    out = jax.tree.leaves(step.call(x, state))
    np.savez(f"{folder}/out.npz", *map(np.asarray, out))
"""


@pytest.mark.slow
def test_another_process_runs_exported_steps(tmp_path: Any) -> None:
    for name in (*FAST, DECODER):
        saved, given, _ = exported(name)
        (tmp_path / name).mkdir()
        (tmp_path / name / "step.bin").write_bytes(saved)
        np.savez(tmp_path / name / "given.npz", *map(np.asarray, jax.tree.leaves(given)))
    folders = map(str, tmp_path.iterdir())
    command = [sys.executable, "-c", ELSEWHERE, *folders]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for name in (*FAST, DECODER):
        _, _, want = exported(name)
        with np.load(tmp_path / name / "out.npz") as file:
            assert_same_bits(list(file.values()), jax.tree.leaves(want))
