"""C of a model's step, compiled by the C compiler of this machine, equals the model."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_linattn import inference, models
from flax_linattn.checks import OptionError
from tests.inference.cases import CHANNELS, classifier
from tests.inference.test_bundle import CHANNEL_TASK

COMPILER = shutil.which("cc")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler")
QUICK = ("aaren", "gated_delta")
CONSTANT = [
    pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
    for name in (
        *QUICK, "elementwise_series", "taylorshift", "expressive_quadratic", "forgetting_aaren",
        "gated_linear", "retention", "rwkv", "linear", "aft_simple", "taylor_features",
        "performer", "rfa", "softmax:window=4", "softmax:window=4,sinks=2",
    )
]  # fmt: skip
STRICT = ("-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror", "-O1")
MAIN = """\
#include <stdio.h>
#include "model.h"
int main(void) {
    static model_state state;
    static model_workspace workspace;
    INPUT x[MODEL_INPUTS];
    float y[MODEL_OUTPUTS];
    model_init(&state);
    while (fread(x, sizeof x, 1, stdin) == 1) {
        model_step(x, &state, y, &workspace);
        fwrite(y, sizeof y, 1, stdout);
    }
    return 0;
}
"""


def run(folder: Path, x: np.ndarray, *flags: str) -> np.ndarray:
    """Outputs of the compiled header for each row."""
    (folder / "main.c").write_text(MAIN)
    kind = "float" if x.dtype == np.float32 else "int32_t"
    names = (f"-DINPUT={kind}", str(folder / "main.c"), "-o", str(folder / "main"), "-lm")
    subprocess.run([str(COMPILER), *STRICT, *flags, *names], check=True)
    done = subprocess.run([folder / "main"], input=x.tobytes(), capture_output=True, check=True)
    return np.frombuffer(done.stdout, np.float32).reshape(len(x), -1)


def observations(length: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(length, CHANNELS)).astype(np.float32)


@needs_compiler
@pytest.mark.parametrize("mechanism", CONSTANT)
def test_c_is_the_model(mechanism: str, tmp_path: Path) -> None:
    model, x = classifier(mechanism), observations(100 if mechanism in QUICK else 1000)
    sizes = inference.export_c(tmp_path / "model.h", model, jnp.ones((1, CHANNELS)))
    own = np.asarray(inference.unroll(model, x[None])[0])
    np.testing.assert_allclose(run(tmp_path, x), own, rtol=0, atol=1e-5)
    assert sizes["state"] == inference.state_bytes(model.init_state(1))


LANGUAGE = {
    "gates, a convolution and RMS norms": {
        "mechanism": "gated_delta", "short_conv": 4, "output_norm": "rms", "norm": "pre",
        "norm_type": "rms", "activation": "swiglu", "hidden_features": 24, "use_bias": False,
    },
    "rotary positions": {"mechanism": "retention", "rotary": True},
    "learned positions": {"mechanism": "aaren", "position": "learned", "max_length": 60},
    "grouped queries": {"mechanism": "taylorshift", "num_kv_heads": 2, "normalize_qk": "rms"},
}  # fmt: skip


@needs_compiler
@pytest.mark.parametrize(
    "options",
    [
        pytest.param(options, id=name, marks=() if "gates" in name else pytest.mark.slow)
        for name, options in LANGUAGE.items()
    ],
)
def test_c_reads_tokens(options: Any, tmp_path: Path) -> None:
    """Without undefined behavior, as the compiler's checks see it."""
    model = models.LanguageModel(31, features=16, num_layers=2, num_heads=4, rngs=nnx.Rngs(0),
                                 **options)  # fmt: skip
    model.eval()
    x = np.random.default_rng(0).integers(0, 31, 50, np.int32)
    inference.export_c(tmp_path / "model.h", model, jnp.ones((1,), jnp.int32))
    own = np.asarray(inference.unroll(model, x[None])[0])
    given = run(tmp_path, x, "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    np.testing.assert_allclose(given, own, rtol=0, atol=1e-5)


class Step(nnx.Module):
    """A model of one function, which need not be called on sequences."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def __call__(self, x: Any, **_: Any) -> Any:
        raise NotImplementedError

    def init_state(self, batch_size: int, max_length: Any = None, *, dtype: Any = None) -> Any:
        zeros = jnp.zeros((batch_size, CHANNELS))
        return {"float": zeros, "0": zeros + 1, "empty": zeros[:, :0]}

    def step(self, x: Any, state: Any, *, mask: Any = None) -> Any:
        new = {"float": state["0"], "0": state["float"] + x, "empty": 2 * state["empty"]}
        return self.function(x, state["float"]), new


FUNCTIONS = {
    "broadcast": lambda x, s: (x - x.mean(-1, keepdims=True)) / (1 + jnp.abs(s)),
    "layout": lambda x, s: jnp.concatenate([x[:, ::-1], s[:, 1:], jnp.pad(x, ((0, 0), (2, 1)))], 1),
    "reductions": lambda x, s: jnp.stack([x.max(1), s.min(1), (x * s).sum(1), x.prod(1)], 1),
    "cumulative": lambda x, s: jnp.cumsum(x, 1) + jnp.cumsum(s[:, ::-1], 1)[:, ::-1],
    "products": lambda x, s: jnp.einsum("bi,bj,jk->bik", x, s, jnp.eye(3, 2) + 1).reshape(1, -1),
    "numbers": lambda x, s: jnp.where(jnp.isfinite(x / s), jnp.sign(x) * jnp.round(3 * x), s**3),
    "lookup": lambda x, s: jnp.arange(10.0)[jnp.clip(jnp.floor(9 * x), 0, 9).astype(jnp.int32)],
    "NaN is last": lambda x, s: jnp.sort(jnp.concatenate([jnp.log(x), -x, jnp.sqrt(s)], 1)),
    "cases": lambda x, s: jax.lax.select_n(jnp.where(x > 1, 1, jnp.arange(3)), x, 2 * x, s),
    "counters": lambda x, s: (jnp.where(x > 0, 2**31 - 1, 7) + jnp.arange(3)).astype(jnp.float32),
    "order": lambda x, s: jnp.sort(x + s) - jnp.take_along_axis(x, jnp.array([[2, 0, 2]]), 1),
    "empty arrays": lambda x, s: jnp.concatenate(
        [jnp.broadcast_to(x[:, None, :0], (1, 2, 0)).reshape(1, 0), s, x[:, :0]], 1
    ),
    "integers": lambda x, s: ((x * 100).astype(jnp.int32) % 7 + jnp.arange(3)).astype(jnp.float32),
}


@needs_compiler
@pytest.mark.parametrize("name", FUNCTIONS)
def test_operations(name: str, tmp_path: Path) -> None:
    """States that change places are written after both were read."""
    model, x = Step(FUNCTIONS[name]), observations(20)
    inference.export_c(tmp_path / "model.h", model, jnp.ones((1, CHANNELS)))
    state, own = model.init_state(1), []
    for row in x:
        y, state = model.step(jnp.asarray(row[None]), state)
        own.append(np.asarray(y)[0])
    given = run(tmp_path, x, "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    np.testing.assert_allclose(given, own, rtol=1e-6, atol=1e-6)


def test_what_is_refused(tmp_path: Path) -> None:
    path, x = tmp_path / "model.h", jnp.ones((1, CHANNELS))
    with pytest.raises(OptionError, match="whose state grows with the number of observations"):
        inference.export_c(path, classifier("softmax"), x)
    with pytest.raises(OptionError, match="expected a name in C, got 'a-b'"):
        inference.export_c(path, classifier("aaren"), x, name="a-b")
    with pytest.raises(OptionError, match="operation 'cholesky', which has no translation to C"):
        inference.export_c(path, Step(lambda x, s: jnp.linalg.cholesky(x[..., None] * s)), x)
    with pytest.raises(OptionError, match="an array of bfloat16; C has float32, int32"):
        inference.export_c(path, Step(lambda x, s: (x + s).astype(jnp.bfloat16)), x)
    with pytest.raises(OptionError, match="has writes at indices that are clipped, which has no"):
        index = lambda x: x[0, 0].astype(jnp.int32)  # noqa: E731
        inference.export_c(path, Step(lambda x, s: s.at[0, index(x)].set(1, mode="clip")), x)
    with pytest.raises(OptionError, match="'max' of unsigned integers, which has no translation"):
        bits = lambda x: jax.lax.bitcast_convert_type(x, jnp.uint32)  # noqa: E731
        inference.export_c(path, Step(lambda x, s: jnp.maximum(bits(x), bits(s))), x)
    assert not path.exists()


@needs_compiler
def test_scales_and_classes(tmp_path: Path) -> None:
    """Of any characters, by a program that includes the headers of two models."""
    names = ['a "b"', "c\\d", "\u00e9\U0001f600\x01", "what??!"]
    inputs = {**CHANNEL_TASK["inputs"][0], "names": ["a/*b", "*/", "\U0001f600\\"]}
    task = {"inputs": [inputs], "outputs": {"kind": "classes", "names": names}}
    model, x = Step(lambda x, s: jnp.maximum(x, s)), jnp.ones((1, CHANNELS))
    inference.export_c(tmp_path / "model.h", model, x, task=task)
    inference.export_c(tmp_path / "other.h", model, x, name="other")
    main = """\
#include <stdio.h>
#include "model.h"
#include "other.h"
int main(void) {
    float x[3] = {3.0f, 4.0f, 4.0f};
    model_scale(x);
    printf("%g %g %g", x[0], x[1], x[2]);
    for (int i = 0; i < 4; ++i) printf("\\n%s", model_class(i));
    return 0;
}
"""
    (tmp_path / "main.c").write_text(main)
    command = [str(COMPILER), *STRICT, "-o", str(tmp_path / "main"), str(tmp_path / "main.c")]
    subprocess.run([*command, "-lm"], check=True)
    given = subprocess.check_output([tmp_path / "main"], text=True).split("\n")
    assert given == ["1 1 0.5", *names]
