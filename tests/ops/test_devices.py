"""Sequences longer than a block or a tile, in shard_map, and exported for a batch of any size."""

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from flax_linattn import ops

FAST = ["aaren", "elementwise_series:order=2", "taylorshift"]
LINEAR, EXPRESSIVE = (pytest.param(n, marks=pytest.mark.slow) for n in ("linear", "expressive"))
STREAMING = [*FAST, LINEAR]
CASES = [*STREAMING, "softmax", EXPRESSIVE, "elementwise"]
FURTHER = [pytest.param(form, marks=pytest.mark.slow) for form in ("chunked", "parallel")]


def make_tokens(name: str, batch: int, length: int) -> list[Any]:
    rng = np.random.default_rng(0)
    learned = ops.get_mechanism(name).capabilities.learned_query
    shape = (batch, length, 2, 4)
    shapes = shape[2:] if learned else shape, shape, shape
    return [jnp.asarray(rng.normal(size=s), np.float32) for s in shapes]


@cache
def train(name: str, form: str) -> Any:
    """(q, k, v) -> outputs and gradients."""
    attend = ops.get_mechanism(name, chunk_size=4).attend

    def run(q: Any, k: Any, v: Any) -> Any:
        y, pull = jax.vjp(partial(attend, is_causal=True, form=form), q, k, v)
        return y, pull(y)

    return jax.jit(run)


@pytest.mark.parametrize("form", ["auto", *FURTHER])
@pytest.mark.parametrize("name", CASES)
def test_training_in_shard_map(name: str, form: str) -> None:
    """Each device has rows of its own; the gradient of a shared query is summed."""
    run, tokens = train(name, form), make_tokens(name, 2, 11)
    mesh = Mesh(np.array(jax.devices()[:2]), ("batch",))
    split, everywhere = PartitionSpec("batch"), PartitionSpec()
    specs = (everywhere if tokens[0].ndim == 2 else split, split, split)
    sharded = jax.shard_map(run, mesh=mesh, in_specs=specs, out_specs=(split, specs))
    want = run(*tokens)
    close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    jax.tree.map(close, jax.jit(sharded)(*tokens), want)


@pytest.mark.parametrize("form", ["auto", *FURTHER])
@pytest.mark.parametrize("name", CASES)
def test_export_for_any_batch(name: str, form: str) -> None:
    mechanism = ops.get_mechanism(name, chunk_size=4)
    (b,) = jax.export.symbolic_shape("b")
    tokens = make_tokens(name, 2, 11)

    def attend(q: Any, k: Any, v: Any) -> Any:
        return mechanism.attend(q, k, v, is_causal=True, form=form)

    def symbolic(x: Any) -> Any:
        return jax.ShapeDtypeStruct((b, *x.shape[1:]) if x.ndim == 4 else x.shape, x.dtype)

    exported = jax.export.export(jax.jit(attend))(*map(symbolic, tokens))
    want, _ = train(name, form)(*tokens)
    np.testing.assert_allclose(exported.call(*tokens), want, atol=1e-6)


@pytest.mark.parametrize("name", STREAMING)
def test_export_a_step_for_any_batch(name: str) -> None:
    mechanism = ops.get_mechanism(name)
    (b,) = jax.export.symbolic_shape("b")
    q, k, v = make_tokens(name, 3, 1)
    q = q if mechanism.capabilities.learned_query else q[:, 0]
    state = mechanism.init_state(3, 2, 4, 4)
    leaves, structure = jax.tree.flatten(state)

    def step(q: Any, k: Any, v: Any, *leaves: Any) -> Any:
        y, state = mechanism.step(q, k, v, structure.unflatten(leaves))
        return y, *jax.tree.leaves(state)

    arguments = (q, k[:, 0], v[:, 0], *leaves)
    shapes = [
        jax.ShapeDtypeStruct((b, *x.shape[1:]) if x.shape[0] == 3 else x.shape, x.dtype)
        for x in arguments
    ]
    got = jax.export.export(jax.jit(step))(*shapes).call(*arguments)
    want = jax.jit(step)(*arguments)
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-6), got, want)
