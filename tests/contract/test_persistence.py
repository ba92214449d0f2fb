"""Out of the process and back: exported functions, saved states."""

import functools
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from flax_linattn import ops
from tests.contract import cases
from tests.contract.tolerances import assert_same_bits

LENGTH = 3
RECURRENT = cases.offering(lambda can: can.recurrent)


@functools.cache
def functions(mechanism: ops.Mechanism) -> tuple[Any, Any, Any]:
    """A jitted prefill and step over the leaves of the state, and its first leaves."""
    tokens = cases.make_tokens(mechanism, LENGTH + 1, np.float32)
    empty = cases.make_state(mechanism, 2 * LENGTH, np.float32)
    leaves, structure = jax.tree.flatten(empty)

    @jax.jit
    def prefill(q: Any, k: Any, v: Any, *leaves: Any) -> Any:
        part, state = tokens._replace(q=q, k=k, v=v), structure.unflatten(leaves)
        y, state = cases.attend(mechanism, part, state, is_causal=mechanism.capabilities.causal)
        return y, *jax.tree.leaves(state)

    @jax.jit
    def step(q: Any, k: Any, v: Any, *leaves: Any) -> Any:
        y, state = mechanism.step(q, k, v, structure.unflatten(leaves), **tokens.parameters)
        return y, *jax.tree.leaves(state)

    return prefill, step, leaves


def arguments(mechanism: ops.Mechanism) -> tuple[Any, Any]:
    tokens = cases.make_tokens(mechanism, LENGTH + 1, np.float32)
    first = cases.take(mechanism, tokens, slice(0, LENGTH))
    return first[:3], cases.take(mechanism, tokens, LENGTH)[:3]


@pytest.mark.parametrize("mechanism", RECURRENT)
def test_export_round_trip(mechanism: ops.Mechanism) -> None:
    prefill, step, leaves = functions(mechanism)
    first, token = arguments(mechanism)

    def exported(function: Any, *example: Any) -> Any:
        shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), example)
        stored = jax.export.export(function)(*shapes).serialize()
        return jax.export.deserialize(stored).call

    y, *after = prefill(*first, *leaves)
    assert_same_bits(exported(prefill, *first, *leaves)(*first, *leaves), (y, *after))
    assert_same_bits(exported(step, *token, *after)(*token, *after), step(*token, *after))


@pytest.mark.parametrize("mechanism", RECURRENT)
def test_a_saved_state_continues_with_equal_bits(mechanism: ops.Mechanism, tmp_path: Path) -> None:
    prefill, step, leaves = functions(mechanism)
    first, token = arguments(mechanism)
    structure = jax.tree.structure(cases.make_state(mechanism, 2 * LENGTH, np.float32))
    _, *after = prefill(*first, *leaves)
    state = structure.unflatten(after)

    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", state)
    with ocp.StandardCheckpointer() as checkpointer:
        like = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), state)
        restored = checkpointer.restore(tmp_path / "state", like)
    assert_same_bits(restored, state)

    y, *last = step(*token, *after)
    resumed, *last_resumed = step(*token, *jax.tree.leaves(restored))
    assert_same_bits((resumed, *last_resumed), (y, *last))
