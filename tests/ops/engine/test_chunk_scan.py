"""Chunks one after another: what their gradient keeps, and which forms have tangents."""

from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

from flax_linattn import ops
from tests.compilation import compile_as_users
from tests.contract import cases
from tests.contract.tolerances import assert_close

GATED = ["gated_linear", "retention", "gated_delta"]


def make_tokens(mechanism: ops.Mechanism, dtype: Any = np.float64) -> cases.Tokens:
    return jax.tree.map(
        lambda x: x.astype(dtype), cases.make_numbers(mechanism, 9, batch=2)._replace(parameters={})
    )


def attend(mechanism: ops.Mechanism, tokens: cases.Tokens, form: str) -> Any:
    q, k, v, _, gates = tokens
    return mechanism.attend(q, k, v, is_causal=True, form=form, **gates)


@pytest.mark.parametrize("name", GATED)
def test_tangents_of_the_parallel_form(name: str) -> None:
    """<weights, J t> = <J^T weights, t>, by the forward and the backward pass."""
    mechanism = ops.get_mechanism(name)
    tokens = make_tokens(mechanism)
    rng = np.random.default_rng(1)
    tangents = jax.tree.map(lambda x: rng.normal(size=x.shape), tokens)
    weights = rng.normal(size=tokens.v.shape)

    @jax.jit
    def both(tokens: Any, tangents: Any) -> Any:
        run = partial(attend, mechanism, form="parallel")
        _, forward = jax.jvp(run, (tokens,), (tangents,))
        return forward, jax.vjp(run, tokens)[1](weights)[0]

    with jax.enable_x64(True):
        forward, backward = jax.tree.map(np.asarray, both(tokens, tangents))
    pairs = zip(jax.tree.leaves(backward), jax.tree.leaves(tangents), strict=True)
    assert_close(np.sum(forward * weights), sum(np.sum(g * t) for g, t in pairs), np.float64)


@pytest.mark.parametrize("name", GATED)
def test_the_chunked_form_has_no_tangents(name: str) -> None:
    mechanism = ops.get_mechanism(name, chunk_size=4)
    tokens = make_tokens(mechanism, np.float32)
    with pytest.raises(TypeError, match=r"forward-mode.*custom_vjp"):
        jax.jvp(partial(attend, mechanism, form="chunked"), (tokens,), (tokens,))


@pytest.mark.parametrize("name", GATED)
def test_from_the_forward_pass_no_state_is_kept(name: str) -> None:
    """What the gradient keeps is the same for chunks of 2 tokens, of 64, and of all."""

    def kept(chunk_size: int) -> int:
        mechanism = ops.get_mechanism(name, chunk_size=chunk_size)
        numbers = cases.make_numbers(mechanism, 1024, batch=1)._replace(parameters={})
        tokens = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, np.float32), numbers)
        run = partial(attend, mechanism, form="chunked")
        _, pull = jax.eval_shape(lambda tokens: jax.vjp(run, tokens), tokens)
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(pull))

    assert kept(2) == kept(64) < kept(1024)  # which JAX differentiates, with all its products


@pytest.mark.slow
@pytest.mark.parametrize("name", GATED)
def test_training_takes_the_memory_of_its_inputs(name: str) -> None:
    """From 2,048 to 4,096 tokens; a state a token would be 16 x 16 numbers beside inputs of 64."""
    mechanism, dim = ops.get_mechanism(name), 16

    def temporary(length: int) -> int:
        token = jax.ShapeDtypeStruct((1, length, 2, dim), np.float32)
        gates = {
            each.name: jax.ShapeDtypeStruct((1, length, *each.shape(2, dim, dim)), np.float32)
            for each in mechanism.token_arguments
        }
        tokens = cases.Tokens(token, token, token, {}, gates)

        def train(tokens: Any) -> Any:
            y, pull = jax.vjp(partial(attend, mechanism, form="chunked"), tokens)
            return y, pull(y)

        return int(compile_as_users(train, tokens).memory_analysis().temp_size_in_bytes)

    growth = (temporary(4096) - temporary(2048)) / (2048 * 2 * dim * 4)
    print(f"{name}: {growth:.2f} inputs")
    assert growth <= 12
