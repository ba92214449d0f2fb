"""Meshes as ``jax.make_mesh`` makes them, with explicit axes: the numbers of one device."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from flax_linattn import ops
from tests.contract import cases, programs
from tests.contract.programs import LENGTH
from tests.contract.tolerances import assert_close
from tests.meshes import make_mesh

TOKENS = PartitionSpec("data", None, "model")
"""Of [B, T, H, K]: batch and heads."""


def find_explicit_mesh() -> Any:
    """Two axes of the default kind, and an automatic one beside them."""
    kinds = (AxisType.Explicit, AxisType.Explicit, AxisType.Auto)
    return jax.make_mesh((2, 2, 2), ("data", "model", "other"), axis_types=kinds)


def place(mesh: Any, tree: Any, spec: PartitionSpec) -> Any:
    return jax.device_put(tree, NamedSharding(mesh, spec))


def place_tokens(mesh: Any, tokens: cases.Tokens) -> cases.Tokens:
    """A learned query [H, K] is split over heads; parameters are whole."""
    of_query = TOKENS if tokens.q.ndim == 4 else PartitionSpec("model")
    q, (k, v) = place(mesh, tokens.q, of_query), place(mesh, tokens[1:3], TOKENS)
    gates = {
        name: place(mesh, gate, PartitionSpec(*TOKENS[: gate.ndim]))
        for name, gate in tokens.gates.items()
    }
    return cases.Tokens(q, k, v, place(mesh, tokens.parameters, PartitionSpec()), gates)


def partition_axes(x: Any) -> tuple[Any, ...]:
    return tuple(jax.typeof(x).sharding.spec)


@pytest.mark.parametrize(
    ("mechanism", "is_causal"), cases.slow_unless(cases.of_each_family, cases.DIRECTIONS)
)
def test_attend_and_its_gradients(mechanism: ops.Mechanism, is_causal: bool) -> None:
    """With padding, packed segments and a state; results are split as what they are made of."""
    run = programs.Central(mechanism, is_causal, cases.central_form(mechanism))
    numbers = cases.make_numbers(mechanism, LENGTH)
    arguments = run.arguments(numbers, cases.make_mask(LENGTH), cases.make_ids(LENGTH))
    want = run.program(*arguments)
    mesh, rows = find_explicit_mesh(), PartitionSpec("data")
    tokens, state, mask, ids, weights = arguments
    with jax.enable_x64(True), jax.set_mesh(mesh):
        weights = programs.Weights(place(mesh, weights.y, TOKENS), place(mesh, weights.state, rows))
        placed = place_tokens(mesh, tokens), *place(mesh, (state, mask, ids), rows), weights
        got = run.program.compiled(*placed)
        assert partition_axes(got.y) == ("data", None, "model", None)
        assert all(partition_axes(leaf)[0] == "data" for leaf in jax.tree.leaves(got.state))
        assert partition_axes(got.tokens.k) == partition_axes(placed[0].k)
        got = jax.tree.map(np.asarray, got)
    programs.assert_results_close(got, want, np.float64)


@pytest.mark.parametrize(
    "mechanism", cases.slow_unless(cases.main, cases.offering(lambda can: can.recurrent))
)
def test_a_loop_carries_the_state(mechanism: ops.Mechanism) -> None:
    """From ``init_state``, which is not split: a state goes out as it came in."""

    @jax.jit
    def run(tokens: Any) -> Any:
        state = cases.make_state(mechanism, 4, np.float32)
        y, state = cases.step_loop(mechanism, tokens, state)
        if mechanism.capabilities.mergeable:
            state = mechanism.merge(state, state)
        return y, cases.meaning(state)

    tokens = cases.make_tokens(mechanism, 2, np.float32)
    want, mesh = run(tokens), find_explicit_mesh()
    with jax.set_mesh(mesh):
        got = run(place_tokens(mesh, tokens))
    assert_close(jax.tree.map(np.asarray, got), want, np.float32)


@pytest.mark.parametrize("name", ["softmax", "aaren", "elementwise_series", "taylorshift"])
def test_a_new_state_is_split_as_its_tokens(name: str) -> None:
    """Over the batch, and over heads, wherever these stand in it; outside ``jit``, too."""
    mechanism = cases.MADE[name]
    tokens, mesh = cases.make_tokens(mechanism, 2, np.float32), find_explicit_mesh()
    with jax.set_mesh(mesh):
        placed = place_tokens(mesh, tokens)
        q, k, v, own = *placed[:3], placed.own
        _, state = mechanism.attend(q, k, v, is_causal=True, return_state=True, **own)
        for leaf in jax.tree.leaves(state):
            heads = [axis == cases.HEADS for axis in leaf.shape]
            assert partition_axes(leaf)[0] == "data"
            assert ("model" in partition_axes(leaf)) == any(heads)
        _, after = mechanism.step(q if q.ndim == 2 else q[:, 0], k[:, 0], v[:, 0], state, **own)
    assert jax.tree.map(partition_axes, after) == jax.tree.map(partition_axes, state)


def test_time_may_be_split() -> None:
    """Without ``sequence_parallel``: XLA moves what has to be moved."""
    mechanism, length = ops.get_mechanism("elementwise_series"), 8
    q, k, v = jax.random.normal(jax.random.key(0), (3, 4, length, 2, 3))
    ids = jnp.arange(4 * length).reshape(4, length) // 5
    mesh = make_mesh(AxisType.Explicit, data=2, seq=2)

    @jax.jit
    def run(q: Any, k: Any, v: Any, ids: Any) -> Any:
        return mechanism.attend(q, k, v, is_causal=True, segment_ids=ids)

    with jax.set_mesh(mesh):
        y = run(*place(mesh, (q, k, v, ids), PartitionSpec("data", "seq")))
        assert partition_axes(y) == ("data", "seq", None, None)
    assert_close(np.asarray(y), run(q, k, v, ids), np.float32)


def test_the_reference_and_the_weights() -> None:
    mechanism, mesh = ops.get_mechanism("softmax"), make_mesh(AxisType.Explicit, data=2)
    q, k, v = jax.random.normal(jax.random.key(0), (3, 2, 4, 2, 3))

    @jax.jit
    def run(q: Any, k: Any, v: Any) -> Any:
        return mechanism.reference(q, k, v), ops.weights(mechanism, q, k)

    want = run(q, k, v)
    with jax.set_mesh(mesh):
        got = run(*place(mesh, (q, k, v), PartitionSpec("data")))
    assert_close(jax.tree.map(np.asarray, got), want, np.float32)
