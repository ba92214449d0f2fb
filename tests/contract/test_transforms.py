"""jit, vmap, eight devices: the same numbers; and one compilation for all steps."""

import functools
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from flax_linattn import ops
from tests.contract import cases, programs
from tests.contract.cases import Tokens
from tests.contract.programs import LENGTH, Result
from tests.contract.representatives import CONTRACT
from tests.contract.tolerances import assert_close

RECURRENT = cases.slow_unless(cases.main, cases.offering(lambda can: can.recurrent))


def attend(mechanism: ops.Mechanism, is_causal: bool, tokens: Any, mask: Any) -> Any:
    """Outputs and the state of a prefill."""
    length = tokens.k.shape[1]
    state = cases.make_state(mechanism, length, np.float32, batch=tokens.k.shape[0])
    return cases.attend(mechanism, tokens, state, is_causal=is_causal, mask=mask)


@pytest.mark.parametrize(
    ("mechanism", "is_causal"), cases.slow_unless(cases.of_each_family, cases.DIRECTIONS)
)
def test_jit_and_vmap_change_nothing(mechanism: ops.Mechanism, is_causal: bool) -> None:
    """The mechanism is hashable, hence a static argument."""
    several = [cases.make_tokens(mechanism, 2, np.float32, seed=s) for s in range(3)]
    masks = [cases.make_mask(2, seed=s) for s in range(3)]
    compiled = jax.jit(attend, static_argnums=(0, 1))
    want = [compiled(mechanism, is_causal, *each) for each in zip(several, masks, strict=True)]
    eager = attend(mechanism, is_causal, several[0], masks[0])
    assert_close(eager, want[0], np.float32, "no jit")

    want = jax.tree.map(lambda *leaves: np.stack(leaves), *want)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *several)
    over = jax.vmap(lambda tokens, mask: attend(mechanism, is_causal, tokens, mask))
    assert_close(jax.jit(over)(stacked, np.stack(masks)), want, np.float32, "vmap")


@pytest.mark.parametrize(
    ("mechanism", "is_causal"), cases.slow_unless(cases.of_each_family, cases.DIRECTIONS)
)
def test_a_batch_of_no_rows(mechanism: ops.Mechanism, is_causal: bool) -> None:
    """Shapes alone, without and with gradients."""
    tokens = cases.make_tokens(mechanism, 5, np.float32, batch=0)
    run = functools.partial(attend, mechanism, is_causal, mask=None)
    y, _ = jax.eval_shape(run, tokens)
    assert y.shape == (0, 5, cases.HEADS, cases.value_dim(mechanism))
    gradient = jax.grad(lambda tokens: jnp.sum(run(tokens)[0]))
    assert jax.eval_shape(gradient, tokens).k.shape == tokens.k.shape


def mechanism_step(mechanism: ops.Mechanism, tokens: Tokens) -> Any:
    def step(q: Any, k: Any, v: Any, gates: Any, state: Any) -> Any:
        return mechanism.step(q, k, v, state, **tokens.parameters, **gates)

    return step


@pytest.mark.parametrize("mechanism", RECURRENT)
def test_steps_compile_once(mechanism: ops.Mechanism) -> None:
    """Fifty of them, and the same by vmap over several streams."""
    tokens = cases.make_tokens(mechanism, 3, np.float32)
    state = cases.make_state(mechanism, 50, np.float32)
    learned = mechanism.capabilities.learned_query
    chex.clear_trace_counter()

    step = jax.jit(chex.assert_max_traces(mechanism_step(mechanism, tokens), n=1))
    want = []
    for t in range(3):
        now = cases.take(mechanism, tokens, t)
        want.append(step(*now[:3], now.gates, state))
    after, first = want[0][1], cases.take(mechanism, tokens, 0)
    for t in range(49):
        y, after = step(first.q, first.k + t / 50, first.v, first.gates, after)
    assert np.isfinite(y).all()
    assert step._cache_size() == 1

    want = jax.tree.map(lambda *leaves: np.stack(leaves), *want)
    states = jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), state)
    over = jax.vmap(mechanism_step(mechanism, tokens), in_axes=(None if learned else 1, 1, 1, 1, 0))
    assert_close(jax.jit(over)(*tokens[:3], tokens.gates, states), want, np.float32)


def fast_devices(mechanism: ops.Mechanism, is_causal: bool, how: str) -> bool:
    """As above; ``pmap`` of a cache and a monoid."""
    return cases.of_each_family(mechanism, is_causal) and (
        how == "jit" or cases.spec_of(mechanism) in CONTRACT
    )


@pytest.mark.parametrize(
    ("mechanism", "is_causal", "how"),
    cases.slow_unless(
        fast_devices,
        [
            pytest.param(*case.values, how, id=f"{case.id}-{how}")
            for case in cases.DIRECTIONS
            for how in ("jit", "pmap")
        ],
    ),
)
def test_eight_devices_are_one(mechanism: ops.Mechanism, is_causal: bool, how: str) -> None:
    """Batch over devices by ``jax.jit`` and by ``jax.pmap``: values, states and gradients."""
    devices = jax.devices()
    assert len(devices) == 8 == cases.BATCH
    run = programs.Central(mechanism, is_causal, cases.central_form(mechanism))
    tokens = cases.make_numbers(mechanism, LENGTH)
    arguments = run.arguments(tokens, cases.make_mask(LENGTH), cases.make_ids(LENGTH))
    want = run.program(*arguments)

    mesh = Mesh(np.array(devices), ("batch",))
    split = NamedSharding(mesh, PartitionSpec("batch"))
    everywhere = NamedSharding(mesh, PartitionSpec())
    learned = mechanism.capabilities.learned_query

    def batched(tree: Any, of_batch: Any, of_all: Any) -> Any:
        """Applies ``of_batch`` to what has a row for each sequence, ``of_all`` to the rest."""

        def choose(path: Any, leaf: Any) -> Any:
            names = [getattr(key, "name", None) for key in path]
            whole = "parameters" in names or (learned and names[-1] == "q")
            return (of_all if whole else of_batch)(leaf)

        return jax.tree_util.tree_map_with_path(choose, tree)

    with jax.enable_x64(True):
        if how == "jit":
            placed = batched(
                arguments,
                lambda x: jax.device_put(x, split),
                lambda x: jax.device_put(x, everywhere),
            )
            got = run.program.compiled(*placed)
            assert got.y.sharding.is_equivalent_to(split, got.y.ndim)
            got = jax.tree.map(np.asarray, got)
        else:
            spread = batched(arguments, lambda x: x[:, None], lambda x: np.stack([x] * 8))
            got = jax.pmap(run.program.traced)(*spread)
            got = jax.tree.map(np.asarray, got)
            # Each device has its own part of the gradient of what they share.
            got: Result = batched(got, lambda x: x[:, 0], lambda x: x.sum(axis=0))
    programs.assert_results_close(got, want, np.float64)
