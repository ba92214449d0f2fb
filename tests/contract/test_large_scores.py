"""Scores of +-1e4: finite, and right."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_linattn import ops
from tests.contract import cases
from tests.contract.cases import Tokens
from tests.contract.tolerances import assert_close

LENGTH = 16  # two chunks
LARGE_Q, LARGE_K = 32, 320
PER_UNIT = {
    "scale": LARGE_Q * LARGE_K,
    "projection": LARGE_K,
    "key_projection": LARGE_K,
    "feature_scale": 8,
}
"""What a unit of a mechanism's own argument adds to the scores, if more than about 1; for
``feature_scale``, the absolute sum of what all outputs give to its gradient over that gradient."""


def large_tokens(mechanism: ops.Mechanism, dtype: Any) -> Tokens:
    """Scores q.k near 0 and +-10240, exact in every dtype: eighths beside multiples of 10240.

    Rounding a score of 1e4 to float32 alone would change its weight by 1e-3, which would test
    the inputs and not the mechanism.
    """
    rng = np.random.default_rng(4)
    tokens = cases.make_tokens(mechanism, LENGTH, np.float32)
    q = np.ones(tokens.q.shape)
    q[..., 0] = LARGE_Q
    k = rng.integers(-16, 17, tokens.k.shape) / 8
    # A row each: all far below, all far above, far above then below, and mixtures.
    far = LARGE_K * rng.choice([-1, 0, 1], size=(cases.BATCH, LENGTH))
    far[0], far[1] = -LARGE_K, LARGE_K
    far[2] = np.repeat([LARGE_K, -LARGE_K], LENGTH // 2)
    far[3] = np.repeat([-LARGE_K, LARGE_K], LENGTH // 2)
    k[..., 0] = far[:, :, None]
    parameters = {name: jnp.round(8 * p) / 8 for name, p in tokens.parameters.items()}
    if "scale" in parameters:
        parameters["scale"] = 1.0
    exact = Tokens(q, k, tokens.v, parameters)
    return jax.tree.map(lambda a: jnp.asarray(a, dtype), exact)


def per_term(gradient: Tokens) -> Tokens:
    """Gradients relative to the terms that they sum: those into q are as large as the keys.

    The terms cancel (equal shifts of all scores change nothing), so their size is what
    rounding errors are relative to.
    """
    return Tokens(
        np.asarray(gradient.q, np.float64) / LARGE_K,
        np.asarray(gradient.k, np.float64) / LARGE_Q,
        gradient.v,
        {
            name: np.asarray(g, np.float64) / PER_UNIT.get(name, 1)
            for name, g in gradient.parameters.items()
        },
    )


CASES = cases.slow_unless(cases.central, cases.DIRECTIONS_FORMS)


@pytest.mark.parametrize(("mechanism", "is_causal", "form"), CASES)
def test_large_scores(mechanism: ops.Mechanism, is_causal: bool, form: str) -> None:
    check(mechanism, is_causal, form, jnp.float32)


@pytest.mark.slow  # half precision is computed in float32
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16], ids=cases.dtype_name)
@pytest.mark.parametrize(("mechanism", "is_causal"), cases.DIRECTIONS)
def test_large_scores_in_half_precision(
    mechanism: ops.Mechanism, is_causal: bool, dtype: Any
) -> None:
    check(mechanism, is_causal, cases.FORMS_OF[mechanism][-1], dtype)


def check(mechanism: ops.Mechanism, is_causal: bool, form: str, dtype: Any) -> None:
    tokens = large_tokens(mechanism, dtype)

    def run(attend: Any, tokens: Tokens, **how: Any) -> Any:
        return cases.with_gradients(
            lambda t: attend(t.q, t.k, t.v, is_causal=is_causal, **how, **t.parameters)
        )(tokens)

    got, (gradient,) = jax.jit(lambda t: run(mechanism.attend, t, form=form))(tokens)
    with jax.enable_x64(True):
        exact = jax.tree.map(lambda a: a.astype(np.float64), tokens)
        want, (want_gradient,) = jax.jit(lambda t: run(mechanism.reference, t))(exact)
    assert_close(got, want, dtype, "y")
    assert_close(per_term(gradient), per_term(want_gradient), dtype, "gradient")
