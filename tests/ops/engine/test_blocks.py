"""Blocks of queries and keys with a gradient of their own: what the contract does not ask."""

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_linattn import ops
from flax_linattn.ops.contract.masks import Visibility
from flax_linattn.ops.engine import blocks
from flax_linattn.ops.engine.block_plan import BlockPlan
from flax_linattn.ops.engine.cache import Pairs
from flax_linattn.ops.engine.forms import MAX_BLOCK_SCORES, BlockSizes, PerPlatform, block_sizes
from flax_linattn.ops.engine.scored import ScoredAttention

SCORED = ["softmax", "expressive"]


def make_tokens(
    queries: int, keys: int, dtype: Any = np.float64, value_dim: int = 4
) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(0)
    shapes = (2, queries, 2, 3), (2, keys, 2, 3), (2, keys, 2, value_dim)
    return tuple(jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes)  # type: ignore[return-value]


def close(got: Any, want: Any, tolerance: float = 1e-12) -> None:
    jax.tree.map(
        lambda g, w: np.testing.assert_allclose(g, w, rtol=tolerance, atol=tolerance), got, want
    )


@pytest.mark.parametrize(("queries", "keys", "causal"), [(11, 11, True), (11, 7, False)])
@pytest.mark.parametrize("name", SCORED)
def test_gradients_of_tokens_and_scale(name: str, queries: int, keys: int, causal: bool) -> None:
    """Lengths that blocks of 4 do not divide, and a scale that is learned."""
    with jax.enable_x64(True):
        mechanism = ops.get_mechanism(name, chunk_size=4)
        tokens = make_tokens(queries, keys)

        def gradients(attend: Any, **form: str) -> Any:
            def loss(tokens: Any, scale: Any) -> Any:
                return jnp.sum(jnp.sin(attend(*tokens, is_causal=causal, scale=scale, **form)))

            return jax.jit(jax.grad(loss, argnums=(0, 1)))(tokens, jnp.asarray(0.7))

        close(gradients(mechanism.attend, form="chunked"), gradients(mechanism.reference))


@pytest.mark.parametrize(
    "name", ["softmax", pytest.param("expressive", marks=pytest.mark.slow), "elementwise", "aft"]
)
def test_second_derivatives(name: str) -> None:
    with jax.enable_x64(True):
        mechanism = ops.get_mechanism(name, chunk_size=2)
        tokens = make_tokens(5, 5, value_dim=3 if mechanism.capabilities.channelwise else 4)

        def second(attend: Any, **form: str) -> Any:
            def loss(tokens: Any) -> Any:
                return jnp.sum(jnp.sin(attend(*tokens, is_causal=True, **form)))

            def steepness(tokens: Any) -> Any:
                return sum(jnp.sum(g**2) for g in jax.grad(loss)(tokens))

            return jax.jit(jax.grad(steepness))(tokens)

        close(second(mechanism.attend, form="chunked"), second(mechanism.reference), 1e-10)


@pytest.mark.parametrize(("batch", "queries", "keys"), [(0, 3, 3), (2, 0, 3), (2, 3, 0), (2, 0, 0)])
@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("softmax", "chunked"),
        ("taylorshift", "direct"),
        ("linear", "chunked"),
        ("elementwise", "chunked"),
    ],
)
def test_nothing_to_see(name: str, form: str, batch: int, queries: int, keys: int) -> None:
    """No row, no query or no key: outputs are 0, and so are gradients."""
    mechanism = ops.get_mechanism(name)
    value_dim = 3 if mechanism.capabilities.channelwise else 4
    tokens = tuple(x[:batch] for x in make_tokens(queries, keys, np.float32, value_dim))
    y, pull = jax.vjp(partial(mechanism.attend, form=form), *tokens)
    close(y, np.zeros((batch, queries, 2, value_dim)))
    close(pull(y), jax.tree.map(jnp.zeros_like, tokens))


def test_no_block_above_the_diagonal() -> None:
    plan = BlockPlan(BlockSizes(1, 1, 4, 2), queries=7, keys=10)
    # Three keys come before the first query: queries 0 ... 3 see keys 0 ... 6.
    causal = plan.block_pairs(Visibility(is_causal=True, cached=3))
    assert causal.tolist() == [[0, 0], [0, 1], [0, 2], [0, 3], *([1, j] for j in range(5))]
    assert len(plan.block_pairs(Visibility())) == 2 * 5


@cache
def outputs_and_gradient(form: str) -> Any:
    """(q, k, v) -> outputs of ``expressive`` and the gradient of their sum into q."""
    mechanism = ops.get_mechanism("expressive", chunk_size=2)
    attend = mechanism.reference if form == "reference" else partial(mechanism.attend, form=form)

    def run(q: Any, k: Any, v: Any) -> Any:
        y, pull = jax.vjp(lambda q: attend(q, k, v, is_causal=True), q)
        return y, *pull(jnp.ones_like(y))

    return jax.jit(run)


@pytest.mark.parametrize("size", [1e-30, 1e-10, 1.0, 1e10, 1e30])
@pytest.mark.parametrize("form", ["parallel", "chunked"])
def test_expressive_has_the_range_of_its_scores(form: str, size: float) -> None:
    """z^2 / (1 + z^2) and its gradient, whatever the size of z, in float32."""
    q, k, v = (np.asarray(x) for x in make_tokens(5, 5, np.float32))
    q = q * np.float32(size)
    y, dq = outputs_and_gradient(form)(q, k, v)
    with jax.enable_x64(True):
        exact = outputs_and_gradient("reference")(*(np.float64(x) for x in (q, k, v)))
    want, dq_want = (np.asarray(x) for x in exact)
    np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-5)
    if size < 1e5:  # beyond, weights do not depend on q
        np.testing.assert_allclose(dq * size, dq_want * size, rtol=1e-4, atol=1e-4)
    assert np.isfinite(dq).all()


def test_second_derivatives_of_tiny_scores() -> None:
    """Levels cancel: their own derivatives, which overflow, are left out."""
    mechanism = ops.get_mechanism("expressive", chunk_size=2)
    q, k, v = make_tokens(5, 5, np.float32)

    def steepness(q: Any) -> Any:
        attend = lambda v: jnp.sum(jnp.sin(mechanism.attend(q, k, v, form="chunked")))  # noqa: E731
        return jnp.sum(jax.grad(attend)(v) ** 2)

    assert np.isfinite(jax.jit(jax.grad(steepness))(q * 1e-20)).all()


def test_blocks_of_a_cpu_fit_its_cache_and_are_filled_by_little() -> None:
    for batch, heads in ((1, 1), (16, 8), (7, 4), (64, 16), (1, 512)):
        for length in (7, 152, 300, 700, 4096, 4097):
            sizes = block_sizes(batch, heads, 512, length, length).cpu
            number = -(-length // sizes.queries)
            assert sizes.queries <= 176
            assert sizes.queries == length or number * sizes.queries - length < 8 * number
            assert batch % sizes.batches == 0
            assert heads % sizes.heads == 0
            assert sizes.heads == heads or sizes.batches == 1
            scores = sizes.batches * sizes.heads * sizes.queries * sizes.keys
            assert scores <= MAX_BLOCK_SCORES["cpu"]
    few, many = block_sizes(16, 8, 512, 1, 4096).cpu[2:]
    assert (few, many) == (1, 512)
    assert block_sizes(1, 1, 3, 100, 100).cpu == (1, 1, 3, 3)


def test_blocks_of_an_accelerator_hold_all_batches() -> None:
    for rows in (1, 8, 64, 512):
        for length in (7, 300, 700, 4096, 4097):
            sizes = block_sizes(rows, 1, 512, length, length).accelerator
            assert sizes.batches == rows
            assert sizes.queries <= 512
            assert (
                sizes.queries == length
                or rows * sizes.queries**2 <= MAX_BLOCK_SCORES["accelerator"]
            )
            assert sizes.queries <= 32 or -length % sizes.queries <= max(31, length / 8)


@pytest.mark.parametrize("name", ["softmax", "forgetting"])
def test_heads_in_turns_are_heads_at_once(name: str) -> None:
    """Outputs and all gradients, the scale's too, of some batches and heads at a time."""
    mechanism = ops.get_mechanism(name)
    assert isinstance(mechanism, ScoredAttention)
    rng = np.random.default_rng(0)
    q, k, v = (jnp.asarray(x, jnp.float32) for x in rng.normal(size=(3, 4, 11, 2, 3)))
    extra = {"log_decay": -jnp.abs(q[..., 0])} if name == "forgetting" else {}
    real = jnp.asarray(rng.random((4, 11)) < 0.7)

    def run(batches: int, heads: int) -> Any:
        sizes = BlockSizes(batches, heads, 4, 4)

        def loss(q: Any, k: Any, v: Any, scale: Any, extra: Any) -> Any:
            pairs = Pairs(
                q, k, v, None, {"scale": scale}, *[mechanism.prepare_per_token(extra)] * 2
            )
            visibility = Visibility(is_causal=True, real=real)
            return jnp.sum(jnp.sin(mechanism._attend_chunked(pairs, visibility)))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(blocks, "block_sizes", lambda *_: PerPlatform(sizes, sizes))
            gradient = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2, 3, 4)))
            return gradient(q, k, v, jnp.float32(0.7), extra)

    close(run(2, 2), run(4, 2), 1e-5)
    close(run(1, 1), run(4, 2), 1e-5)
