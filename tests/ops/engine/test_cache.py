"""A step reads the used part of a cache, in blocks, and writes in place where it may."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_linattn import ops
from flax_linattn.ops.engine.cache import CacheMechanism
from tests.compilation import AS_USERS, optimized
from tests.contract import cases
from tests.contract.tolerances import assert_close

LENGTH, CAPACITY = 20, 22
"""Beyond the blocks of 4 and 8 slots that mechanisms of small chunks read, the last cut short."""

CACHES = cases.offering(lambda can: can.recurrent and not can.constant_memory)
"""Whose cache has keys and values alone; that of ``forgetting`` has all that theirs have."""

READS: list[Any] = [case for case in CACHES if case.values[0].block < CAPACITY]


def held(mechanism: Any, dtype: Any = np.float64) -> tuple[Any, cases.Tokens]:
    """A cache of other lengths in each row, none and all of it too, and the token that comes."""
    tokens = cases.make_tokens(mechanism, LENGTH + 1, dtype)
    mask = np.arange(LENGTH) < np.array([LENGTH, 0, 1, 7, 8, 9, 15, 16])[:, None]
    before = cases.take(mechanism, tokens, slice(0, LENGTH))

    @jax.jit
    def run(before: cases.Tokens) -> Any:
        state = cases.make_state(mechanism, CAPACITY, dtype)
        return cases.attend(mechanism, before, state, mask=mask, is_causal=True)[1]

    return run(before), cases.take(mechanism, tokens, LENGTH)


def whole(mechanism: Any) -> Any:
    """The same one, that reads all slots at once."""

    @dataclasses.dataclass(frozen=True)
    class Whole(type(mechanism)):  # type: ignore[misc]
        block = CAPACITY

    return Whole(**{f.name: getattr(mechanism, f.name) for f in dataclasses.fields(mechanism)})


def step(mechanism: Any, state: Any, token: cases.Tokens) -> Any:
    return mechanism.step(*token[:3], state, **token.own)


@pytest.mark.parametrize("mechanism", READS)
def test_blocks_are_the_whole(mechanism: CacheMechanism) -> None:
    """Outputs and cache, whatever stands in the slots that are not used."""
    with jax.enable_x64(True):
        state, token = held(mechanism)
        run = jax.jit(functools.partial(step, mechanism))
        got, want = (
            run(state, token),
            jax.jit(functools.partial(step, whole(mechanism)))(state, token),
        )
        assert_close(got, want, np.float64)
        used = state.is_used[:, None, :, None]
        hidden = dataclasses.replace(
            state, key=jnp.where(used, state.key, 1e6), value=jnp.where(used, state.value, 1e6)
        )
        assert_close(run(hidden, token)[0], want[0], np.float64)


@pytest.mark.parametrize(
    "mechanism", cases.slow_unless(lambda mechanism: mechanism.name == "forgetting", READS)
)
def test_a_step_in_blocks_has_both_derivatives(mechanism: CacheMechanism) -> None:
    with jax.enable_x64(True):
        state, token = held(mechanism)

        def output(m: Any, token: Any, floats: Any) -> Any:
            return step(m, cases.with_floats(state, floats), token)[0]

        point = token, cases.float_leaves(state)

        @functools.partial(jax.jit, static_argnums=0)
        def both(m: Any, *point: Any) -> Any:
            y, pull = jax.vjp(functools.partial(output, m), *point)
            _, dy = jax.jvp(functools.partial(output, m), point, point)
            return dy, pull(y)

        assert_close(both(mechanism, *point), both(whole(mechanism), *point), np.float64)


@pytest.mark.parametrize(
    ("name", "fraction", "dtype"),
    [
        ("forgetting", 1 / 4, "float32"),  # which has all that other caches have
        ("forgetting", 1 / 4, "float16"),
        *(
            pytest.param(name, 1 / 4, "float32", marks=pytest.mark.slow)
            for name in ("softmax", "elementwise", "expressive", "aft")
        ),
        *(
            (name, 1 / 2, "float32")
            for name in ("taylorshift", "expressive_quadratic", "linear", "taylor_features", "rfa")
        ),
    ],
)
def test_a_donated_step_copies_nothing(name: str, fraction: float, dtype: str) -> None:
    """All of the state is written in place; a few of 32,768 slots, or of the features, are made."""
    mechanism: Any = ops.get_mechanism(name)
    dim = 32 if mechanism.capabilities.constant_memory else 8
    state = jax.eval_shape(lambda: mechanism.init_state(2, 2, dim, dim, 32768, dtype=dtype))
    x = jax.ShapeDtypeStruct((2, 2, dim), dtype)
    own = {
        each.name: jax.ShapeDtypeStruct((2, 2), np.float32) for each in mechanism.token_arguments
    }
    take_in = jax.jit(lambda state, x, own: mechanism.step(x, x, x, state, **own), donate_argnums=0)
    with optimized():
        memory = take_in.lower(state, x, own).compile(AS_USERS).memory_analysis()
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    assert memory.alias_size_in_bytes >= size
    assert memory.temp_size_in_bytes < size * fraction


def test_an_infinite_key_stays_within_its_head():
    """Blocks take products of all heads at once."""
    shape = (2, 12, 2, 4)
    q, k, v = (np.random.default_rng(i).normal(size=shape).astype(np.float32) for i in range(3))
    k[:, 3, 0, 0] = np.inf
    mechanism = ops.get_mechanism("softmax:chunk_size=4")
    state = mechanism.init_state(2, 2, 4, 4, max_length=32)
    for t in range(12):
        y, state = mechanism.step(q[:, t], k[:, t], v[:, t], state)
    want = mechanism.attend(q, k, v, is_causal=True, form="parallel")[:, -1]
    np.testing.assert_allclose(y[:, 1], want[:, 1], atol=1e-5)
    assert np.isfinite(y[:, 1]).all()
