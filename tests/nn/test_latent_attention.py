"""Latents: softmax cross-attention in value, a recurrent network in memory."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_linattn import nn, ops
from tests.nn.cases import run_steps

B, T, C, L, H = 2, 9, 8, 3, 2


def make(mechanism: str = "aaren", **options: Any) -> nn.LatentAttention:
    return nn.LatentAttention(C, H, L, mechanism=mechanism, rngs=nnx.Rngs(0), **options)


def make_tokens(*shape: int) -> Any:
    return jax.random.normal(jax.random.key(1), shape or (B, T, C))


@nnx.jit(static_argnames=("is_causal", "return_state"))
def read(module: nn.LatentAttention, x: Any, **options: Any) -> Any:
    return module(x, **options)


MASK = jnp.ones((B, T), bool).at[0, [0, 4]].set(False)


def test_values_are_those_of_cross_attention() -> None:
    """With the same parameters, from latents to tokens, by softmax; the gradients as well."""
    latents = make()
    softmax = nn.Attention(C, H, mechanism="softmax", rngs=nnx.Rngs(0))
    for name in ("query", "key", "value", "out"):
        setattr(softmax, f"{name}_projection", getattr(latents, f"{name}_projection"))
    x = make_tokens()

    @nnx.jit
    def classical(softmax: nn.Attention, query: Any, x: Any) -> Any:
        def loss(x: Any, query: Any) -> Any:
            rows = jnp.broadcast_to(query, (B, L, C))
            y = softmax(rows, x, mask=jnp.ones((B, L), bool), context_mask=MASK)
            return jnp.sum(jnp.sin(y)), y

        return jax.grad(loss, argnums=(0, 1), has_aux=True)(x, query)

    @nnx.jit
    def ours(latents: nn.LatentAttention, query: Any, x: Any) -> Any:
        def loss(x: Any, query: Any) -> Any:
            y = latents(x, latents=query, mask=MASK)
            return jnp.sum(jnp.sin(y)), y

        return jax.grad(loss, argnums=(0, 1), has_aux=True)(x, query)

    query = latents.query[...]
    want, got = classical(softmax, query, x), ours(latents, query, x)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6), got, want)
    np.testing.assert_allclose(read(latents, x, mask=MASK), got[1], atol=1e-6)


@pytest.mark.parametrize("mechanism", ["aaren", "forgetting_aaren"])
def test_tokens_at_once_in_blocks_or_one_by_one(mechanism: str) -> None:
    latents, x = make(mechanism), make_tokens()
    y, state = read(latents, x, mask=MASK, return_state=True)
    each = read(latents, x, mask=MASK, is_causal=True)
    _, before = read(latents, x[:, :5], mask=MASK[:, :5], return_state=True)
    blocks, after = read(latents, x[:, 5:], mask=MASK[:, 5:], state=before, return_state=True)
    steps, last = run_steps(latents, x, latents.init_state(B), mask=MASK)
    assert y.shape == (B, L, C)
    assert each.shape == (B, T, L, C)
    for one in (blocks, each[:, -1], steps[:, -1]):
        np.testing.assert_allclose(one, y, atol=2e-6)
    for other in (after, last):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6), other, state)


def test_latents_of_each_row() -> None:
    """In the call and in steps, as if each row had a layer of its own."""
    latents, x, own = make(), make_tokens(), make_tokens(B, L, C)
    y, _ = read(latents, x, latents=own, return_state=True)
    for row in range(B):
        alone = read(latents, x[row : row + 1], latents=own[row])
        np.testing.assert_allclose(y[row], alone[0], atol=1e-6)
    step, _ = nnx.jit(lambda m, x, s, own: m.step(x, s, latents=own))(
        latents, x[:, 0], latents.init_state(B), own
    )
    np.testing.assert_allclose(step, read(latents, x[:, :1], latents=own), atol=1e-6)


def test_number_of_parameters() -> None:
    """Four projections with biases, and the latents."""
    count = sum(x.size for x in jax.tree.leaves(nnx.state(make(), nnx.Param)))
    assert count == 4 * (C * C + C) + L * C


REFUSED: list[tuple[Any, str]] = [
    (lambda: nn.LatentAttention(C, H, 0, rngs=nnx.Rngs(0)), "num_latents must be at least 1"),
    (lambda: make("linear"), "choose one of: aaren, forgetting_aaren"),
    (lambda: make()(jnp.ones((B, T, C + 1))), r"expected x as \[B, T, 8\]"),
    (lambda: make()(make_tokens(), latents=jnp.ones((B + 1, L, C))), r"latents of shape \[L, C\]"),
    (lambda: make().step(jnp.ones((B, T, C)), make().init_state(B)), r"expected x as \[B, 8\]"),
    (
        lambda: make()(make_tokens(), segment_ids=jnp.zeros((B, T), int)),
        "packed segments would be mixed",
    ),
]


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_refused(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_a_state_of_other_latents_is_refused() -> None:
    aaren = ops.get_mechanism("aaren")
    with pytest.raises(ValueError, match=r"must have shape \(2, 3, 2\)"):
        make()(make_tokens(), state=aaren.init_state(B, H, C // H, C // H, num_latents=L + 1))
