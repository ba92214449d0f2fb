"""C of a model's step, compiled by the C compiler of this machine, equals the model."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import jax
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

COMPILER = shutil.which("cc")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler")
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


@needs_compiler
@pytest.mark.parametrize("mechanism", CONSTANT)
def test_c_is_the_model(mechanism: str, tmp_path: Path) -> None:
    model, x = classifier(mechanism), observations(100 if mechanism in QUICK else 1000)
    sizes = inference.export_c(tmp_path / "model.h", model, jnp.ones((1, CHANNELS)))
    own = np.asarray(inference.unroll(model, x[None])[0])
    np.testing.assert_allclose(run(tmp_path, x), own, rtol=0, atol=1e-5)
    assert sizes["state"] == inference.state_bytes(model.init_state(1))


@needs_compiler
@pytest.mark.parametrize("options", LANGUAGE)
def test_c_reads_tokens(options: Any, tmp_path: Path) -> None:
    """Without undefined behavior, as the compiler's checks see it."""
    model, x = language_model(options), tokens()
    inference.export_c(tmp_path / "model.h", model, jnp.ones((1,), jnp.int32))
    own = np.asarray(inference.unroll(model, x[None])[0])
    given = run(tmp_path, x, "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    np.testing.assert_allclose(given, own, rtol=0, atol=1e-5)


@needs_compiler
@pytest.mark.parametrize("name", FUNCTIONS)
def test_operations(name: str, tmp_path: Path) -> None:
    """States that change places are written after both were read."""
    model, x = Step(FUNCTIONS[name]), observations(20)
    inference.export_c(tmp_path / "model.h", model, jnp.ones((1, CHANNELS)))
    given = run(tmp_path, x, "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    np.testing.assert_allclose(given, stepped(model, x), rtol=1e-6, atol=1e-6)


def test_what_is_refused(tmp_path: Path) -> None:
    path, x = tmp_path / "model.h", jnp.ones((1, CHANNELS))
    with pytest.raises(OptionError, match="whose state grows with the number of observations"):
        inference.export_c(path, classifier("softmax"), x)
    with pytest.raises(OptionError, match="expected name as a C identifier, got 'a-b'"):
        inference.export_c(path, classifier("aaren"), x, name="a-b")
    with pytest.raises(OptionError, match="operation 'cholesky', which has no translation to C"):
        inference.export_c(path, Step(lambda x, s: jnp.linalg.cholesky(x[..., None] * s)), x)
    with pytest.raises(OptionError, match="an array of bfloat16, but C has only float32, int32"):
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
