"""Out of the process and back: exported functions, saved states."""

import functools
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from flax_linattn import inference, ops
from tests.contract import cases
from tests.contract.tolerances import assert_same_bits

LENGTH = 3
RECURRENT = cases.slow_unless(cases.representative, cases.offering(lambda can: can.recurrent))


@functools.cache
def functions(mechanism: ops.Mechanism) -> tuple[Any, Any, Any]:
    """A jitted prefill and step, and the first state."""
    tokens = cases.make_tokens(mechanism, LENGTH + 1, np.float32)

    @jax.jit
    def prefill(q: Any, k: Any, v: Any, gates: Any, state: Any) -> Any:
        part = tokens._replace(q=q, k=k, v=v, gates=gates)
        return cases.attend(mechanism, part, state, is_causal=mechanism.capabilities.causal)

    @jax.jit
    def step(q: Any, k: Any, v: Any, gates: Any, state: Any) -> Any:
        return mechanism.step(q, k, v, state, **tokens.parameters, **gates)

    return prefill, step, cases.make_state(mechanism, 2 * LENGTH, np.float32)


def arguments(mechanism: ops.Mechanism) -> tuple[Any, Any]:
    tokens = cases.make_tokens(mechanism, LENGTH + 1, np.float32)
    first = cases.take(mechanism, tokens, slice(0, LENGTH))
    token = cases.take(mechanism, tokens, LENGTH)
    return (*first[:3], first.gates), (*token[:3], token.gates)


@pytest.mark.parametrize("mechanism", RECURRENT)
def test_export_round_trip(mechanism: ops.Mechanism) -> None:
    prefill, step, empty = functions(mechanism)
    first, token = arguments(mechanism)

    def exported(function: Any, *example: Any) -> Any:
        """The state goes in and out as it is."""
        shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), example)
        stored = jax.export.export(function)(*shapes).serialize()
        return jax.export.deserialize(stored).call

    y, after = prefill(*first, empty)
    assert_same_bits(exported(prefill, *first, empty)(*first, empty), (y, after))
    assert_same_bits(exported(step, *token, after)(*token, after), step(*token, after))


@pytest.mark.parametrize("mechanism", RECURRENT)
def test_a_saved_state_continues_with_equal_bits(mechanism: ops.Mechanism, tmp_path: Path) -> None:
    prefill, step, empty = functions(mechanism)
    first, token = arguments(mechanism)
    _, state = prefill(*first, empty)

    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", state)
    with ocp.StandardCheckpointer() as checkpointer:
        like = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), state)
        restored = checkpointer.restore(tmp_path / "state", like)
    assert_same_bits(restored, state)
    inference.save_state(tmp_path / "state.npz", state, {})
    assert_same_bits(inference.load_state(tmp_path / "state.npz", empty)[0], state)
    assert_same_bits(step(*token, restored), step(*token, state))
