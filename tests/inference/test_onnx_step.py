"""ONNX of a streaming model, run by ONNX Runtime, equals the model."""

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from flax_linattn import inference
from flax_linattn.checks import OptionError
from tests.inference.cases import CHANNELS, classifier
from tests.inference.exported_cases import (
    CONSTANT,
    FUNCTIONS,
    LANGUAGE,
    QUICK,
    Step,
    language_model,
    observations,
    stepped,
    tokens,
)
from tests.inference.test_bundle import CHANNEL_TASK

pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

STEPS_ONLY = {
    "elementwise_series": "gather of partial slices", "forgetting_aaren": "operation 'argmax'",
    "rwkv": "operation 'argmax'", "softmax:window=4": "operation 'cummax'",
    "softmax:window=4,sinks=2": "operation 'cummax'",
}  # fmt: skip
"""Mechanisms whose parallel form has no translation, and the reason."""


def load(path: Path) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def step(session: Any, x: np.ndarray, state: dict[str, np.ndarray]) -> Any:
    """Outputs, and the state as the next inputs."""
    names = [output.name for output in session.get_outputs()]
    values = dict(zip(names, session.run(None, {"x": x, **state}), strict=True))
    return values.pop("y"), {name.removeprefix("next."): v for name, v in values.items()}


@pytest.mark.parametrize("mechanism", CONSTANT)
def test_onnx_is_the_model(mechanism: str, tmp_path: Path) -> None:
    """In one call, and step by step with the state between calls."""
    model, x = classifier(mechanism), observations(100 if mechanism in QUICK else 1000)
    inference.export_onnx(tmp_path / "model.onnx", model, jnp.ones((1, CHANNELS)))
    session, own = load(tmp_path / "model.onnx"), np.asarray(inference.unroll(model, x[None])[0])
    whole, end = step(session, x, {})
    np.testing.assert_allclose(whole, own, rtol=0, atol=1e-5)
    y, state = step(session, x[:40], {})
    for t in range(40, len(x)):
        y, state = step(session, x[t : t + 1], state)
    np.testing.assert_allclose(y[-1], own[-1], rtol=0, atol=1e-5)
    for name, leaf in state.items():
        np.testing.assert_array_equal(leaf, end[name])


@pytest.mark.parametrize("mechanism", CONSTANT)
def test_prefill_in_chunks(mechanism: str, tmp_path: Path) -> None:
    """The file of steps continues from the state of the file of chunks."""
    model, x, x_t = classifier(mechanism), observations(40), jnp.ones((1, CHANNELS))
    if mechanism in STEPS_ONLY:
        with pytest.raises(OptionError, match=STEPS_ONLY[mechanism]):
            inference.export_onnx(tmp_path / "chunks.onnx", model, x_t, chunk_size=16)
        return
    inference.export_onnx(tmp_path / "chunks.onnx", model, x_t, chunk_size=16)
    inference.export_onnx(tmp_path / "steps.onnx", model, x_t)
    own = np.asarray(inference.unroll(model, x[None])[0])
    y, state = step(load(tmp_path / "chunks.onnx"), x[:32].reshape(2, 16, CHANNELS), {})
    np.testing.assert_allclose(y, own[[15, 31]], rtol=0, atol=1e-5)
    y, _ = step(load(tmp_path / "steps.onnx"), x[32:], state)
    np.testing.assert_allclose(y, own[32:], rtol=0, atol=1e-5)


@pytest.mark.parametrize("mechanism", QUICK)
def test_a_required_state(mechanism: str, tmp_path: Path) -> None:
    """Without defaults; empty arrays are the initial state."""
    model, x = classifier(mechanism), observations(20)
    x_t = jnp.ones((1, CHANNELS))
    inference.export_onnx(tmp_path / "model.onnx", model, x_t, require_state=True)
    inputs = [each for each in load(tmp_path / "model.onnx").get_inputs() if each.name != "x"]
    assert {each.shape[0] for each in inputs} == {"0 or 1"}
    dtypes = {"tensor(float)": np.float32, "tensor(int32)": np.int32}
    empty = {each.name: np.zeros((0, *each.shape[1:]), dtypes[each.type]) for each in inputs}
    y, state = step(load(tmp_path / "model.onnx"), x[:10], empty)
    end, _ = step(load(tmp_path / "model.onnx"), x[10:], state)
    own = np.asarray(inference.unroll(model, x[None])[0])
    np.testing.assert_allclose(np.concatenate([y, end]), own, rtol=0, atol=1e-5)


@pytest.mark.parametrize("options", LANGUAGE)
def test_onnx_reads_tokens(options: Any, tmp_path: Path) -> None:
    model, x = language_model(options), tokens()
    inference.export_onnx(tmp_path / "model.onnx", model, jnp.ones((1,), jnp.int32))
    own = np.asarray(inference.unroll(model, x[None])[0])
    y, _ = step(load(tmp_path / "model.onnx"), x, {})
    np.testing.assert_allclose(y, own, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_operations(name: str, tmp_path: Path) -> None:
    model, x = Step(FUNCTIONS[name]), observations(20)
    inference.export_onnx(tmp_path / "model.onnx", model, jnp.ones((1, CHANNELS)))
    y, _ = step(load(tmp_path / "model.onnx"), x, {})
    np.testing.assert_allclose(y, stepped(model, x), rtol=1e-6, atol=1e-6)


def test_the_signature_is_part_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    x = jnp.ones((1, CHANNELS))
    signature = inference.export_onnx(path, classifier("aaren"), x, task=CHANNEL_TASK)
    stored = load(path).get_modelmeta().custom_metadata_map["signature"]
    assert json.loads(stored) == signature and signature["task"] == CHANNEL_TASK
    assert signature["observation"] == {"shape": [CHANNELS], "dtype": "float32"}


def test_what_is_refused(tmp_path: Path) -> None:
    path, x = tmp_path / "model.onnx", jnp.ones((1, CHANNELS))
    with pytest.raises(OptionError, match="whose state grows with the number of observations"):
        inference.export_onnx(path, classifier("softmax"), x)
    with pytest.raises(OptionError, match="operation 'cholesky', which has no translation to ONNX"):
        inference.export_onnx(path, Step(lambda x, s: jnp.linalg.cholesky(x[..., None] * s)), x)
    with pytest.raises(OptionError, match="bfloat16, but ONNX export supports only float32"):
        inference.export_onnx(path, Step(lambda x, s: (x + s).astype(jnp.bfloat16)), x)
    assert not path.exists()
