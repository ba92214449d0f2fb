"""Blocks of channelwise weights with a gradient of their own: what the contract does not ask."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_linattn import ops
from flax_linattn.ops.engine.forms import block_sizes
from tests.ops.mechanisms.tokens import jitted

LENGTH, HEADS, KEY_DIM = 70, 6, 16
FAST = (("elementwise", True, "packed"), ("aft", False, "padded"))
SLOW = pytest.mark.slow


def tokens_and_table(dtype: Any) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    q, k, v = rng.normal(size=(3, 2, LENGTH, HEADS, KEY_DIM))
    table = rng.normal(size=(LENGTH + 5, LENGTH + 5))
    return jax.tree.map(lambda x: jnp.asarray(x, dtype), ((q, k, v), table))


def seen(how: str) -> dict[str, Any]:
    """Padding on both sides of a row, or two sequences in a row."""
    real = np.ones((2, LENGTH), bool)
    if how == "all":
        return {}
    if how == "padded":
        real[0, -9:] = real[1, :20] = False
        return {"mask": real}
    return {"segment_ids": np.arange(LENGTH) // np.array([[40], [LENGTH]])}


@pytest.mark.parametrize(
    ("name", "is_causal", "how"),
    [
        pytest.param(name, is_causal, how, marks=[] if (name, is_causal, how) in FAST else SLOW)
        for name in ("elementwise", "aft")
        for is_causal in (True, False)
        for how in ("all", "padded", "packed")
    ],
)
def test_gradients_over_several_turns(name: str, is_causal: bool, how: str) -> None:
    """Some channels of one batch at a time, in blocks that the length is no multiple of."""
    sizes = block_sizes(2, HEADS * KEY_DIM, 64, LENGTH, LENGTH).cpu
    assert sizes.batches == 1 and 1 < sizes.heads < HEADS * KEY_DIM and LENGTH % sizes.queries
    with jax.enable_x64(True):
        tokens, table = tokens_and_table(np.float64)
        parameters = {"position_bias": table} if name == "aft" else {}
        mechanism = ops.get_mechanism(name)
        options = {"is_causal": is_causal, **seen(how)}

        def outputs(attend: Any) -> Any:
            y, pull = jax.vjp(lambda x, p: attend(*x, **options, **p), tokens, parameters)
            return y, pull(jnp.cos(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape))

        got = jax.jit(lambda: outputs(lambda *x, **o: mechanism.attend(*x, form="chunked", **o)))()
        want = jax.jit(lambda: outputs(mechanism.reference))()
    jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, rtol=1e-11, atol=1e-11), got, want)


def test_a_gradient_of_what_nothing_is_near() -> None:
    """Distances that no float32 can square have no gradient, and it is no NaN."""
    q, k, v = jnp.array([[[3e38]], [[-3e38]]]), jnp.full((2, 1, 1), 1e38), jnp.ones((2, 1, 1))
    q, k, v = (jnp.broadcast_to(x[None], (1, 2, 1, 1)) for x in (q, k, v))
    attend = jitted("elementwise", form="chunked")
    gradients = jax.grad(lambda *x: attend(*x).sum(), argnums=(0, 1, 2))(q, k, v)
    assert all(np.isfinite(x).all() for x in gradients)
    np.testing.assert_array_equal(gradients[0], 0)


def test_a_table_of_half_precision_and_one_too_small() -> None:
    """Entries are numbers of the sums, wherever they are read; beyond the table there are none."""
    (q, k, v), table = tokens_and_table(np.float32)
    mask = np.arange(LENGTH) < np.array([[LENGTH], [9]])
    rounded = table.astype(jnp.bfloat16)
    attend = jitted("aft", is_causal=True, form="chunked")
    got = attend(q, k, v, mask=mask, position_bias=rounded)
    want = attend(q, k, v, mask=mask, position_bias=rounded.astype(jnp.float32))
    np.testing.assert_array_equal(got, want)
    gradient = jax.grad(lambda p: attend(q, k, v, mask=mask, position_bias=p).sum())(rounded)
    assert gradient.dtype == jnp.bfloat16 and np.isfinite(gradient.astype(np.float32)).all()
    y = attend(q, k, v, mask=mask, position_bias=table[:10, :10])
    assert np.isnan(y[0, 10:]).all() and np.isfinite(y[0, :10]).all() and np.isfinite(y[1]).all()


def test_large_values_have_finite_gradients() -> None:
    """Their differences may be beyond the dtype, and those weigh nothing by themselves."""
    q = k = jnp.zeros((1, 3, 1, 1))
    v = jnp.array([3e38, -3e38, 3e38])[None, :, None, None]
    attend = jitted("elementwise", is_causal=True, form="chunked")
    gradients = jax.grad(lambda *x: attend(*x)[:, :1].sum(), argnums=(0, 1, 2))(q, k, v)
    assert all(np.isfinite(x).all() for x in gradients)
