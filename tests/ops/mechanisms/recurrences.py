"""A mechanism against a loop over tokens in NumPy: outputs, steps, packing and gradients."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flax_linattn import ops
from tests.contract.tolerances import assert_close

FORMS = ["parallel", "chunked", "recurrent"]
BATCH, LENGTH, HEADS, KEY_DIM, VALUE_DIM = 2, 9, 2, 4, 3
IDS = np.array([[0] * 9, [1] * 4 + [2] * 5])
STEP = 1e-6
"""Of the differences; their error is about its square, and rounding divided by it."""


def make_tokens(seed: int = 0) -> dict[str, Any]:
    """Queries, and keys of length 1, and values, by name."""
    rng = np.random.default_rng(seed)
    q, k = rng.normal(size=(2, BATCH, LENGTH, HEADS, KEY_DIM))
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    return {"q": q, "k": k, "v": rng.normal(size=(BATCH, LENGTH, HEADS, VALUE_DIM))}


def check(
    mechanism: ops.Mechanism,
    loop: Callable[..., Any],
    tokens: dict[str, Any],
    parameters: dict[str, Any],
    form: str,
) -> None:
    """Compares one form, and the steps.

    Args:
        mechanism: a streaming mechanism.
        loop: its outputs [B, T, H, V] for float64 tokens [B, T, ...] and parameters by name.
        tokens: all that is given by token, by name.
        parameters: its other arguments by name.
        form: of ``attend``.
    """
    want = loop(**tokens, **parameters)
    packed = np.concatenate(
        [
            np.concatenate(
                [
                    loop(**{n: x[row : row + 1, ids == i] for n, x in tokens.items()}, **parameters)
                    for i in np.unique(ids)
                ],
                axis=1,
            )
            for row, ids in enumerate(IDS)
        ]
    )
    weights = np.random.default_rng(1).normal(size=want.shape)

    def attend(arguments: Any, ids: Any = None) -> Any:
        return mechanism.attend(**arguments, is_causal=True, segment_ids=ids, form=form)

    def steps(arguments: Any) -> Any:
        def body(state: Any, token: Any) -> Any:
            y, state = mechanism.step(**token, **parameters, state=state)
            return state, y

        start = mechanism.init_state(BATCH, HEADS, KEY_DIM, VALUE_DIM, dtype=np.float64)
        over_time = {name: jnp.moveaxis(arguments[name], 1, 0) for name in tokens}
        return jnp.moveaxis(jax.lax.scan(body, start, over_time)[1], 0, 1)

    arguments = {**tokens, **parameters}
    with jax.enable_x64(True):
        given = jax.tree.map(jnp.asarray, arguments)
        y, pull = jax.vjp(jax.jit(attend), given)
        assert_close(y, want, np.float64, "y")
        assert_close(jax.jit(steps)(given), want, np.float64, "steps")
        assert_close(jax.jit(attend)(given, IDS), packed, np.float64, "packed")
        (gradients,) = pull(jnp.asarray(weights))
    rng = np.random.default_rng(2)
    for name, x in arguments.items():
        direction = rng.normal(size=np.shape(x))
        high, low = (
            np.sum(weights * loop(**{**arguments, name: x + sign * STEP * direction}))
            for sign in (1, -1)
        )
        got = np.sum(np.asarray(gradients[name]) * direction)
        np.testing.assert_allclose(got, (high - low) / (2 * STEP), rtol=1e-7, err_msg=name)
