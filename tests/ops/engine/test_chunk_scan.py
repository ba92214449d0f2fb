"""Chunks one after another: what their gradient keeps, and which forms have tangents."""

from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params
from jax.scipy.linalg import solve_triangular

from flax_linattn import ops
from flax_linattn.ops.mechanisms import gated_delta
from tests.compilation import compile_as_users
from tests.contract import cases, programs
from tests.contract.tolerances import assert_close

GATED = ["gated_linear", "retention", "gated_delta"]


def make_tokens(mechanism: ops.Mechanism, dtype: Any = np.float64) -> cases.Tokens:
    return jax.tree.map(
        lambda x: x.astype(dtype), cases.make_numbers(mechanism, 9, batch=2)._replace(parameters={})
    )


def attend(mechanism: ops.Mechanism, tokens: cases.Tokens, form: str) -> Any:
    q, k, v, _, gates = tokens
    return mechanism.attend(q, k, v, is_causal=True, form=form, **gates)


@pytest.mark.parametrize("name", ["gated_linear", pytest.param("linear", marks=pytest.mark.slow)])
def test_the_chunks_of_auto_are_any_chunks(name: str) -> None:
    """Outputs and gradients of packed and padded rows longer than a chunk is on any platform."""
    length, rng = 140, np.random.default_rng(2)
    mask = rng.random((2, length)) < 0.9
    segments = np.cumsum(rng.random((2, length)) < 0.02, axis=1).astype(np.int32)
    mechanism = ops.get_mechanism(name)
    tokens = cases.make_numbers(mechanism, length, batch=2)._replace(parameters={})

    @jax.jit
    def gradients(tokens: cases.Tokens) -> Any:
        def loss(tokens: cases.Tokens, mechanism: ops.Mechanism, form: str) -> Any:
            how: Any = {"is_causal": True, "mask": mask, "segment_ids": segments, "form": form}
            y = mechanism.attend(*tokens[:3], **how, **tokens.gates)
            return jax.numpy.sum(jax.numpy.sin(y)), y

        gradient = jax.value_and_grad(loss, has_aux=True)
        plain = ops.get_mechanism(name, chunk_size=50)
        return gradient(tokens, mechanism, "auto"), gradient(tokens, plain, "chunked")

    with jax.enable_x64(True):
        ours, plain = map(jax.tree.leaves, gradients(tokens))
    for a, b in zip(ours, plain, strict=True):
        assert_close(a, b, np.float64)


@pytest.mark.parametrize(
    "name", ["gated_delta", *(pytest.param(name, marks=pytest.mark.slow) for name in GATED[:2])]
)
def test_auto_trains_grouped_queries_and_under_vmap(name: str) -> None:
    """Of more than one chunk, whose gradient is a ``custom_vjp``: as a call for each query."""
    mechanism = ops.get_mechanism(name)
    tokens = cases.make_numbers(mechanism, 140, batch=2)._replace(parameters={})
    queries = np.stack([tokens.q, np.flip(tokens.q, axis=1)])  # of two heads for each key head

    def one(q: Any, tokens: cases.Tokens, form: str = "auto") -> Any:
        return attend(mechanism, tokens._replace(q=q), form)

    def grouped(queries: Any, tokens: cases.Tokens) -> Any:
        q = jax.numpy.moveaxis(queries, 0, 3)
        y = one(q.reshape(*q.shape[:2], -1, q.shape[-1]), tokens)
        return jax.numpy.moveaxis(y.reshape(*q.shape[:-1], -1), 3, 0)

    def mapped(queries: Any, tokens: cases.Tokens) -> Any:
        return jax.vmap(one, in_axes=(0, None))(queries, tokens)

    def plain(queries: Any, tokens: cases.Tokens) -> Any:
        return jax.numpy.stack([one(q, tokens, "chunked") for q in queries])

    def gradients(run: Any) -> Any:
        def loss(queries: Any, tokens: cases.Tokens) -> Any:
            return jax.numpy.sum(jax.numpy.sin(run(queries, tokens)))

        return jax.jit(jax.grad(loss, argnums=(0, 1)))(queries, tokens)

    with jax.enable_x64(True):
        want = gradients(plain)
        for run in (grouped, mapped):
            assert_close(gradients(run), want, np.float64)


def count(primitive: str, jaxpr: Any) -> int:
    """How often a program names it."""
    inner = (each for eqn in jaxpr.eqns for each in jaxprs_in_params(eqn.params))
    return sum(eqn.primitive.name == primitive for eqn in jaxpr.eqns) + sum(
        count(primitive, each) for each in inner
    )


@pytest.mark.parametrize("length", [9, pytest.param(150, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == "gated_linear" else pytest.mark.slow)
        for name in (*GATED, "rwkv")
    ],
)
def test_auto_gives_the_same_numbers_differentiated_or_not(name: str, length: int) -> None:
    """Outputs, states, gradients: on a CPU token by token forward alone; within a block or not."""
    mechanism = ops.get_mechanism(name)
    tokens = cases.make_numbers(mechanism, length)
    packed = {"mask": cases.make_mask(length), "segment_ids": cases.make_ids(length)}
    weights = np.random.default_rng(1).normal(size=tokens.v.shape)

    @jax.jit
    def both(tokens: Any) -> Any:
        def run(form: str, tokens: Any) -> Any:
            _, state = cases.attend(mechanism, tokens, is_causal=True, form=form, **packed)
            how = {"is_causal": True, "form": form, **packed, **tokens.own}
            return mechanism.attend(*tokens[:3], **how), cases.meaning(state)

        def outputs(form: str) -> Any:
            _, pull = jax.vjp(lambda tokens: run(form, tokens)[0], tokens)
            return run(form, tokens), pull(weights)[0]

        return outputs("auto"), outputs("chunked")

    with jax.enable_x64(True):
        got, want = jax.tree.map(np.asarray, both(tokens))
    assert_close(got[0], want[0], np.float64)
    programs.assert_gradients_close(got[1], want[1], np.float64, terms=weights[..., 0, 0].size)


def test_a_packed_chunk_of_the_delta_rule_is_solved_once(monkeypatch) -> None:
    """But where a state is returned, whose transition is that of the last segment alone.

    LAPACK's solve stands in for the products of ``invert_unit_lower``, which no primitive counts.
    """

    def solve(below: jax.Array) -> jax.Array:
        identity = jax.numpy.eye(below.shape[-1], dtype=below.dtype)
        right = jax.numpy.broadcast_to(identity, below.shape)
        return solve_triangular(below, right, lower=True, unit_diagonal=True)

    monkeypatch.setattr(gated_delta, "invert_unit_lower", solve)
    mechanism = ops.get_mechanism("gated_delta", chunk_size=4)
    tokens = make_tokens(mechanism, np.float32)
    ids = cases.make_ids(9)[:2]

    def solves(**options: Any) -> int:
        q, k, v, _, gates = tokens
        how = {"is_causal": True, "form": "chunked", **options}
        jaxpr = jax.make_jaxpr(partial(mechanism.attend, **how))(q, k, v, **gates)
        return count("triangular_solve", jaxpr.jaxpr)

    assert solves() == solves(segment_ids=ids) == solves(return_state=True) == 1
    assert solves(segment_ids=ids, return_state=True) == 2


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
