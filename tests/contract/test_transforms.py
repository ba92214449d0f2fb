"""jit, vmap, eight devices: the same numbers; and one compilation for all steps."""

from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from flax_linattn import ops
from tests.contract import cases
from tests.contract.cases import Tokens
from tests.contract.tolerances import assert_close

LENGTH = 2
RECURRENT = cases.offering(lambda can: can.recurrent)
DIRECTIONS = cases.slow_unless(cases.central, cases.DIRECTIONS)


def attend(mechanism: ops.Mechanism, is_causal: bool, tokens: Tokens, mask: Any) -> Any:
    """Outputs and the state of a prefill of ``LENGTH``."""
    state = cases.make_state(mechanism, LENGTH, np.float32, batch=tokens.k.shape[0])
    return cases.attend(mechanism, tokens, state, is_causal=is_causal, mask=mask)


@pytest.mark.parametrize(("mechanism", "is_causal"), DIRECTIONS)
def test_jit_is_no_jit(mechanism: ops.Mechanism, is_causal: bool) -> None:
    """The mechanism is hashable, hence a static argument."""
    tokens, mask = cases.make_tokens(mechanism, LENGTH, np.float32), cases.make_mask(LENGTH)
    want = attend(mechanism, is_causal, tokens, mask)
    got = jax.jit(attend, static_argnums=(0, 1))(mechanism, is_causal, tokens, mask)
    assert_close(got, want, np.float32)


@pytest.mark.parametrize(("mechanism", "is_causal"), DIRECTIONS)
def test_vmap_is_a_loop(mechanism: ops.Mechanism, is_causal: bool) -> None:
    several = [cases.make_tokens(mechanism, LENGTH, np.float32, seed=s) for s in range(3)]
    masks = [cases.make_mask(LENGTH, seed=s) for s in range(3)]

    run = jax.jit(lambda tokens, mask: attend(mechanism, is_causal, tokens, mask))
    want = jax.tree.map(lambda *leaves: np.stack(leaves), *map(run, several, masks))
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *several)
    got = jax.jit(jax.vmap(run))(stacked, np.stack(masks))
    assert_close(got, want, np.float32)


@pytest.mark.parametrize("mechanism", RECURRENT)
def test_vmap_over_step(mechanism: ops.Mechanism) -> None:
    tokens = cases.make_tokens(mechanism, 3, np.float32)
    state = cases.make_state(mechanism, 4, np.float32)
    states = jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), state)

    def step(q: Any, k: Any, v: Any, state: Any) -> Any:
        return mechanism.step(q, k, v, state, **tokens.parameters)

    learned = mechanism.capabilities.learned_query
    got, _ = jax.vmap(step, in_axes=(None if learned else 1, 1, 1, 0))(*tokens[:3], states)
    for t in range(3):
        want, _ = step(*cases.take(mechanism, tokens, t)[:3], state)
        assert_close(got[t], want, np.float32)


@pytest.mark.parametrize(("mechanism", "is_causal"), DIRECTIONS)
def test_eight_devices_are_one(mechanism: ops.Mechanism, is_causal: bool) -> None:
    """Batch over devices by ``jax.jit`` and by ``jax.pmap``, gradients included."""
    devices = jax.devices()
    assert len(devices) == 8
    tokens = cases.make_tokens(mechanism, LENGTH, np.float32, batch=8)
    mask = np.concatenate([cases.make_mask(LENGTH), cases.make_mask(LENGTH, seed=1)[:2]])

    def run(k: Any, v: Any, q: Any, mask: Any) -> Any:
        def outputs(k: Any, v: Any, q: Any) -> Any:
            y, state = attend(mechanism, is_causal, Tokens(q, k, v, tokens.parameters), mask)
            return y, cases.meaning(state)

        (y, state), pull = jax.vjp(outputs, k, v, q)
        return y, state, pull((y, state))[:2]

    learned = mechanism.capabilities.learned_query
    want = jax.jit(run)(tokens.k, tokens.v, tokens.q, mask)

    mesh = Mesh(np.array(devices), ("batch",))
    split = NamedSharding(mesh, PartitionSpec("batch"))
    everywhere = NamedSharding(mesh, PartitionSpec())
    arrays = [jax.device_put(a, split) for a in (tokens.k, tokens.v)]
    q = jax.device_put(tokens.q, everywhere if learned else split)
    got = jax.jit(run)(*arrays, q, jax.device_put(mask, split))
    assert_close(got, want, np.float32, "jit")
    assert got[0].sharding.is_equivalent_to(split, got[0].ndim)

    def per_device(a: Any) -> Any:
        return a.reshape(8, 1, *a.shape[1:])

    q = tokens.q if learned else per_device(tokens.q)
    got = jax.pmap(run, in_axes=(0, 0, None if learned else 0, 0))(
        per_device(tokens.k), per_device(tokens.v), q, per_device(mask)
    )
    got = jax.tree.map(lambda a: np.asarray(a).reshape(8, *a.shape[2:]), got)
    assert_close(got, want, np.float32, "pmap")


@pytest.mark.parametrize("mechanism", RECURRENT)
def test_fifty_steps_compile_once(mechanism: ops.Mechanism) -> None:
    tokens = cases.take(mechanism, cases.make_tokens(mechanism, 1, np.float32), 0)
    state = cases.make_state(mechanism, 50, np.float32)
    chex.clear_trace_counter()

    @jax.jit
    @chex.assert_max_traces(n=1)
    def step(q: Any, k: Any, v: Any, state: Any) -> Any:
        return mechanism.step(q, k, v, state, **tokens.parameters)

    for t in range(50):
        y, state = step(tokens.q, tokens.k + t / 50, tokens.v, state)
    assert np.isfinite(y).all()
    assert step._cache_size() == 1
