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
from tests.inference.cases import CHANNELS, TOKENS
from tests.nn.cases import normal

SMALL = {"features": 4, "num_layers": 1, "num_heads": 1, "hidden_features": 4}


def _steps_of(model: Any, x: Any, **options: Any) -> tuple[Any, Any, Any]:
    return model, x, model.init_state(x.shape[0], **options)


def classifier() -> Any:
    model = models.SequenceClassifier(CHANNELS, 4, **SMALL, mechanism=["softmax"], rngs=nnx.Rngs(0))
    return _steps_of(model, normal(0, 2, CHANNELS), max_length=3)


def token_classifier() -> Any:
    """Whose window is that of three convolutions."""
    embedding = models.ConvTokenEmbedding(TOKENS, 4, padding="causal", rngs=nnx.Rngs(0))
    layers = models.Layers(**SMALL, layer_scale=0.1)
    backbone = models.Backbone(embedding, layers, rngs=nnx.Rngs(1))
    model = models.SequenceClassifier(backbone, 4, head_activation="none", rngs=nnx.Rngs(2))
    return _steps_of(model, jnp.array([3, 5]))


def forecaster() -> Any:
    model = models.Forecaster(CHANNELS, 4, **SMALL, rngs=nnx.Rngs(0))
    return _steps_of(model, normal(0, 2, CHANNELS))


def encoder_decoder() -> Any:
    model = models.EncoderDecoder(
        CHANNELS,
        4,
        **SMALL,
        label_length=2,
        mechanism="taylorshift",
        embedding_padding="causal",
        num_marks=1,
        rngs=nnx.Rngs(0),
    )
    state = jax.jit(model.init_state)(normal(1, 2, 5, CHANNELS), normal(2, 2, 5, 1))
    return model, normal(0, 2, 1), state


def language_model() -> Any:
    model = models.LanguageModel(TOKENS, **SMALL, mechanism="elementwise_series", rngs=nnx.Rngs(0))
    return _steps_of(model, jnp.array([3, 5]))


def window_model() -> Any:
    return _steps_of(models.WindowModel(TOKENS, 3, rngs=nnx.Rngs(0)), jnp.array([3, 5]))


def decision_transformer() -> Any:
    model = models.DecisionTransformer(
        CHANNELS, 2, **SMALL, mechanism=["softmax"], max_length=3, rngs=nnx.Rngs(0)
    )
    x = np.array(normal(0, 2, 3 + CHANNELS + 2))
    x[:, 0], x[:, 1] = [0, 2], [0, 1]
    return _steps_of(model, jnp.asarray(x))


CASES = [
    classifier,
    decision_transformer,
    forecaster,
    encoder_decoder,
    language_model,
    token_classifier,
    window_model,
]


@functools.cache
def exported(case: Any) -> tuple[bytes, Any, Any]:
    """The step in bytes, what it is called with, and what it returns."""
    model, x, state = case()
    step = jax.jit(lambda x, state: model.step(x, state))
    return bytes(jax.export.export(step)(x, state).serialize()), (x, state), step(x, state)


@pytest.mark.parametrize("case", CASES)
def test_a_step_is_exported_with_its_state(case: Any) -> None:
    saved, (x, state), (y, after) = exported(case)
    again = jax.export.deserialize(bytearray(saved)).call(x, state)
    assert_same_bits(again, (y, after))
    assert type(again[1]) is type(state)


def test_what_generates_is_exported() -> None:
    model, *_ = language_model()
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
    folders = []
    for case in CASES:
        saved, given, _ = exported(case)
        folder = tmp_path / case.__name__
        folder.mkdir()
        (folder / "step.bin").write_bytes(saved)
        np.savez(folder / "given.npz", *map(np.asarray, jax.tree.leaves(given)))
        folders.append(str(folder))
    command = [sys.executable, "-c", ELSEWHERE, *folders]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for case in CASES:
        _, _, want = exported(case)
        with np.load(tmp_path / case.__name__ / "out.npz") as file:
            assert_same_bits(list(file.values()), jax.tree.leaves(want))
