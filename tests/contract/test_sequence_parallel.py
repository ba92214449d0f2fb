"""Sequences split over devices = the same sequences on one."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from flax_linattn import ops
from flax_linattn.bench import communicated
from tests.contract import cases
from tests.contract.cases import Tokens
from tests.contract.tolerances import assert_close
from tests.meshes import make_mesh

DEVICES = 4
LENGTH = DEVICES * (cases.CHUNK_SIZE + 2)  # two chunks a device
BEFORE = 3
"""Tokens of an earlier call."""

MERGEABLE = cases.offering(lambda can: can.mergeable, cases.DIRECTIONS)
PAPERS = cases.slow_unless(lambda mechanism, is_causal: cases.own(mechanism), MERGEABLE)


def place(mesh: Any, tree: Any, batch: str | None = None) -> Any:
    """Arrays [B, T, ...] split over time, and over the batch."""
    split = NamedSharding(mesh, PartitionSpec(batch, "seq"))
    whole = NamedSharding(mesh, PartitionSpec())

    def put(x: Any) -> Any:
        return jax.device_put(x, split if x.ndim > 1 and len(x) == cases.BATCH else whole)

    return jax.tree.map(put, tree)


@pytest.mark.parametrize(
    "packed",
    [pytest.param(False, marks=pytest.mark.slow, id="one"), pytest.param(True, id="packed")],
)
@pytest.mark.parametrize(("mechanism", "is_causal"), PAPERS)
def test_devices_are_one(mechanism: ops.Mechanism, is_causal: bool, packed: bool) -> None:
    """Values, states and gradients, with padding, after an earlier call."""
    tokens = cases.make_tokens(mechanism, LENGTH, np.float32)
    mask, ids = cases.make_mask(LENGTH), cases.make_ids(LENGTH) if packed else None
    earlier = cases.make_tokens(mechanism, BEFORE, np.float32, seed=1)
    how = {} if ids is None else {"segment_ids": np.repeat(ids[:, :1], BEFORE, axis=1)}
    _, state = cases.attend(mechanism, earlier, is_causal=is_causal, **how)

    def run(mechanism: ops.Mechanism, tokens: Tokens, state: Any, mask: Any, ids: Any) -> Any:
        @cases.with_gradients
        def attend(tokens: Tokens, leaves: Any) -> Any:
            how = {"is_causal": is_causal, "mask": mask, "segment_ids": ids}
            y, after = cases.attend(mechanism, tokens, cases.with_floats(state, leaves), **how)
            return y, cases.meaning(after)

        return attend(tokens, cases.float_leaves(state))

    want = jax.jit(partial(run, mechanism))(tokens, state, mask, ids)
    mesh = make_mesh(data=2, seq=DEVICES)
    split = ops.sequence_parallel(mechanism, mesh, "seq")
    tokens, mask, ids = place(mesh, (tokens, jnp.asarray(mask), ids), "data")
    got = jax.jit(partial(run, split))(tokens, state, mask, ids)
    assert_close(got, want, np.float32)


CAUSAL = cases.slow_unless(
    lambda mechanism, is_causal: cases.own(mechanism) and is_causal, MERGEABLE
)


@pytest.mark.parametrize(("mechanism", "is_causal"), CAUSAL)
def test_communication_does_not_grow(mechanism: ops.Mechanism, is_causal: bool) -> None:
    """Forward and backward, with padding and packed segments; and there is some."""
    mesh = make_mesh(seq=8)
    split = ops.sequence_parallel(mechanism, mesh, "seq")

    def run(tokens: Tokens, mask: Any, ids: Any) -> Any:
        @cases.with_gradients
        def attend(tokens: Tokens) -> Any:
            how = {"is_causal": is_causal, "mask": mask, "segment_ids": ids}
            return split.attend(*tokens[:3], **tokens.parameters, **how)

        return attend(tokens)

    def sent(length: int) -> dict[str, int]:
        tokens = cases.make_tokens(mechanism, length, np.float32)
        mask, ids = cases.make_mask(length), cases.make_ids(length)
        arguments = place(mesh, (tokens, jnp.asarray(mask), jnp.asarray(ids)))
        return communicated(jax.jit(run).lower(*arguments).compile())

    short, long = sent(8 * cases.CHUNK_SIZE), sent(8 * 4 * cases.CHUNK_SIZE)
    assert short == long and short["all-gather"] > 0


@pytest.mark.parametrize("mechanism", cases.offering(lambda can: can.mergeable))
def test_it_is_the_mechanism_otherwise(mechanism: ops.Mechanism) -> None:
    """Steps and states, which are not split."""
    split = ops.sequence_parallel(mechanism, make_mesh(seq=2), "seq")
    tokens = cases.take(mechanism, cases.make_tokens(mechanism, 1, np.float32), 0)
    state = cases.make_state(split, None, np.float32)
    want = mechanism.step(*tokens[:3], state, **tokens.parameters)
    assert_close(split.step(*tokens[:3], state, **tokens.parameters), want, np.float32)
    assert split.name == mechanism.name and split.parameters == mechanism.parameters
    assert hash(split) == hash(ops.sequence_parallel(mechanism, make_mesh(seq=2), "seq"))
