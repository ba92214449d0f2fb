"""Scans with a gradient of their own: forms, orders of differentiation, memory, platforms.

The contract compares their forms with the loop of ``step``; here is what it does not ask.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_linattn import ops
from flax_linattn.ops.masks import segment_runs

SCANS = ["aaren", "aft_simple", "elementwise_series"]
KERNELS = ["linear", "taylorshift", "expressive_quadratic"]
BATCH, HEADS, DIM = 2, 2, 3


def make_tokens(
    name: str, length: int, dtype: Any = np.float64, dim: int = DIM
) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(0)
    shape = (BATCH, length, HEADS, dim)
    q_shape = shape[2:] if ops.get_mechanism(name).capabilities.learned_query else shape
    return tuple(jnp.asarray(rng.normal(size=s), dtype) for s in (q_shape, shape, shape))


def close(got: Any, want: Any, tolerance: float) -> None:
    def check(g: Any, w: Any) -> None:
        size = max(1, np.max(np.abs(w), initial=0, where=np.isfinite(w)))
        np.testing.assert_allclose(g, w, rtol=0, atol=tolerance * size)

    jax.tree.map(check, got, want)


@pytest.mark.parametrize("form", ["auto", "parallel", "chunked"])
@pytest.mark.parametrize("name", SCANS)
def test_forms_agree_over_many_tiles(name: str, form: str) -> None:
    """Padding, packed segments and a state on both sides, over three tiles and a part."""
    length, rng = 107, np.random.default_rng(1)
    with jax.enable_x64(True):
        mechanism = ops.get_mechanism(name)
        tokens = make_tokens(name, length)
        mask = jnp.asarray(rng.random((BATCH, length)) < 0.8)
        ids = jnp.asarray(np.cumsum(rng.random((BATCH, length)) < 0.03, axis=1), jnp.int32)
        ids = ids.at[0].set(0)  # one row goes on from the state to the end
        assert bool(jnp.any(segment_runs(ids, mask).starts[1]))
        _, before = mechanism.attend(*make_tokens(name, 5), is_causal=True, return_state=True)

        def run(form: str) -> Any:
            def attend(tokens: Any, state: Any) -> Any:
                options = {"mask": mask, "segment_ids": ids, "initial_state": state}
                return mechanism.attend(
                    *tokens, is_causal=True, return_state=True, form=form, **options
                )

            @jax.jit
            def evaluate(tokens: Any, state: Any) -> Any:
                (y, after), pull = jax.vjp(attend, tokens, state)
                weights = jax.tree.map(
                    lambda x: jnp.cos(jnp.arange(x.size, dtype=x.dtype)).reshape(x.shape),
                    after.state,
                )
                packed = ops.PackedState(weights, np.zeros(BATCH, jax.dtypes.float0))
                return (
                    y,
                    after,
                    pull((jnp.sin(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape), packed)),
                )

            return evaluate(tokens, before)

        close(run(form), run("recurrent"), 2e-14)


@pytest.mark.parametrize(
    ("name", "form"),
    [(name, form) for name in SCANS for form in ("recurrent", "parallel")]
    + [("taylorshift", "chunked")],
)
def test_gradients_have_gradients(name: str, form: str) -> None:
    with jax.enable_x64(True):
        mechanism, tokens = ops.get_mechanism(name, chunk_size=2), make_tokens(name, 5)

        def second(attend: Any) -> Any:
            def loss(tokens: Any) -> Any:
                return jnp.sum(jnp.sin(attend(*tokens)))

            def steepness(tokens: Any) -> Any:
                return sum(jnp.sum(g**2) for g in jax.grad(loss)(tokens))

            return jax.jit(jax.grad(steepness))(tokens)

        got = second(lambda *t: mechanism.attend(*t, is_causal=True, form=form))
        close(got, second(lambda *t: mechanism.reference(*t, is_causal=True)), 1e-12)


@pytest.mark.parametrize("name", SCANS)
def test_forward_mode_is_refused(name: str) -> None:
    mechanism, tokens = ops.get_mechanism(name), make_tokens(name, 4, np.float32)
    with pytest.raises(TypeError, match=r"forward-mode autodiff .*custom_vjp"):
        jax.jvp(lambda *t: mechanism.attend(*t, is_causal=True), tokens, tokens)


@pytest.mark.parametrize("name", SCANS + KERNELS)
def test_training_keeps_a_few_numbers_a_token(name: str) -> None:
    """Temporary memory grows by less than 16 inputs: no weights, no sums, no states of chunks.

    The state of ``taylorshift`` is 20 times as large as a chunk here.
    """
    mechanism = ops.get_mechanism(name, chunk_size=8 if name in KERNELS else 128)

    def temporary(length: int) -> int:
        tokens = make_tokens(name, length, np.float32, dim=16)

        @jax.jit
        def train(tokens: Any) -> Any:
            y, pull = jax.vjp(lambda *t: mechanism.attend(*t, is_causal=True), *tokens)
            return pull(y)

        return train.lower(tokens).compile().memory_analysis().temp_size_in_bytes

    short, long = temporary(512), temporary(2048)
    token = BATCH * HEADS * 16 * 4
    assert long - short <= 16 * token * (2048 - 512)


@pytest.mark.parametrize("name", [*SCANS, *KERNELS, "softmax", "expressive"])
def test_gradients_under_checkpoint(name: str) -> None:
    """Recomputing the forward pass changes nothing."""
    mechanism, tokens = ops.get_mechanism(name), make_tokens(name, 40, np.float32)
    options = {} if name in KERNELS else {"form": "chunked"}

    def gradients(wrap: Any) -> Any:
        attend = wrap(partial(mechanism.attend, is_causal=True, **options))
        return jax.jit(jax.grad(lambda t: jnp.sum(jnp.sin(attend(*t)))))(tokens)

    close(gradients(jax.checkpoint), gradients(lambda f: f), 1e-6)
