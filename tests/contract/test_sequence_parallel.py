"""Sequences split over devices = the same sequences on one."""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from flax_linattn import ops
from flax_linattn.bench import communication_bytes
from tests.contract import cases, programs
from tests.contract.cases import Tokens
from tests.contract.programs import LENGTH
from tests.contract.test_causality import attends, check_state, poison
from tests.contract.test_merge import WITH_MERGE_FIELD
from tests.contract.tolerances import assert_close, assert_same_bits
from tests.meshes import make_mesh

DEVICES = 3
"""One of them has others before and behind it."""

TOKENS = DEVICES * 4
"""Two chunks of 2 a device; one token more than the program of one device takes, a padded one."""

MERGEABLE = cases.offering(lambda can: can.mergeable, cases.DIRECTIONS)


def place(mesh: Any, tree: Any, length: int, batch: str | None = None) -> Any:
    """Arrays [B, T, ...] split over time, and over the batch."""
    split = NamedSharding(mesh, PartitionSpec(batch, "seq"))
    whole = NamedSharding(mesh, PartitionSpec())

    def put(x: Any) -> Any:
        return jax.device_put(x, split if np.shape(x)[:2] == (cases.BATCH, length) else whole)

    return jax.tree.map(put, tree)


def one_more(x: Any) -> Any:
    """[B, T, ...] -> [B, T + 1, ...]; what has no time axis stays."""
    if np.ndim(x) < 2 or x.shape[:2] != (cases.BATCH, LENGTH):
        return x
    return np.pad(x, ((0, 0), (0, TOKENS - LENGTH), *((0, 0),) * (x.ndim - 2)))


def one_less(x: Any) -> Any:
    return x[:, :LENGTH] if np.ndim(x) > 1 and x.shape[:2] == (cases.BATCH, TOKENS) else x


def fast(mechanism: ops.Mechanism, is_causal: bool, packed: bool) -> bool:
    """A monoid in both directions, a sum over features in one that is not causal, affine maps."""
    directions = {"aaren": (True, False), "taylorshift": (False,), "gated_delta": (True,)}
    return packed and is_causal in directions.get(cases.spec_of(mechanism), ())


@pytest.mark.parametrize(
    ("mechanism", "is_causal", "packed"),
    cases.slow_unless(
        fast,
        [
            pytest.param(*case.values, packed, id=f"{case.id}-{'packed' if packed else 'one'}")
            for case in MERGEABLE
            for packed in (True, False)
        ],
    ),
)
def test_devices_are_one(mechanism: ops.Mechanism, is_causal: bool, packed: bool) -> None:
    """Values, states and gradients, with padding, after an earlier call."""
    check_devices_are_one(mechanism, is_causal, packed, AxisType.Auto)


@pytest.mark.parametrize(
    "mechanism",
    cases.slow_unless(lambda m: m.name == "aaren", cases.offering(lambda can: can.mergeable)),
)
def test_devices_are_one_on_explicit_axes(mechanism: ops.Mechanism) -> None:
    check_devices_are_one(mechanism, True, True, AxisType.Explicit)


@pytest.mark.parametrize(
    "mechanism", cases.slow_unless(lambda m: m.name == "gated_delta", WITH_MERGE_FIELD)
)
def test_devices_are_one_for_states_of_layers(mechanism: ops.Mechanism) -> None:
    check_devices_are_one(mechanism, True, True, AxisType.Auto, mergeable=False)


def check_devices_are_one(
    mechanism: ops.Mechanism,
    is_causal: bool,
    packed: bool,
    kind: AxisType,
    make_numbers: Any = cases.make_numbers,
    *,
    mergeable: bool = True,
) -> None:
    form = cases.central_form(mechanism)
    run = programs.attend(mechanism, is_causal, form)
    begin = programs.begin(mechanism, packed=packed, mergeable=mergeable)
    ids, mask = cases.make_ids(2 * LENGTH), cases.make_mask(2 * LENGTH)
    earlier, tokens = (make_numbers(mechanism, LENGTH, seed=seed) for seed in (1, 0))
    heads = cases.HEADS if tokens.q.ndim == 2 else tokens.q.shape[2]
    y = np.empty((*tokens.v.shape[:2], heads, tokens.v.shape[-1]))
    weights = programs.weigh(y, begin)
    early, late = slice(0, LENGTH), slice(LENGTH, None)
    ids_early, ids_late = (ids[:, early], ids[:, late]) if packed else (None, None)
    state = run(earlier, begin, mask[:, early], ids_early, weights).state
    want = run(tokens, state, mask[:, late], ids_late, weights)

    mesh = make_mesh(kind, data=2, seq=DEVICES)
    split = ops.sequence_parallel(dataclasses.replace(mechanism, chunk_size=2), mesh, "seq")
    arguments = jax.tree.map(one_more, (tokens, state, mask[:, late], ids_late, weights))
    tokens, state, *rest = arguments
    with jax.enable_x64(True):
        tokens, rest = place(mesh, (tokens, rest), TOKENS, "data")
        got = programs.attend(split, is_causal, "auto").compiled(tokens, state, *rest)
        got = jax.tree.map(lambda x: one_less(np.asarray(x)), got)
    programs.assert_results_close(got, want, np.float64)


@pytest.mark.parametrize(
    "mechanism",
    cases.slow_unless(
        lambda mechanism: fast(mechanism, True, True),
        cases.offering(lambda can: can.mergeable and can.causal),
    ),
)
def test_nan_on_one_device_does_not_reach_earlier_ones(mechanism: ops.Mechanism) -> None:
    """Outputs and gradients, by the program of ``test_devices_are_one``."""
    mesh = make_mesh(data=2, seq=DEVICES)
    split = ops.sequence_parallel(dataclasses.replace(mechanism, chunk_size=2), mesh, "seq")
    tokens, begin = cases.make_numbers(mechanism, TOKENS), programs.begin(mechanism, packed=True)
    mask, ids = np.ones((cases.BATCH, TOKENS), bool), cases.make_ids(TOKENS)
    weights = programs.weigh(np.empty_like(tokens.v), begin)
    for at in (1, 6):
        affected = attends(mechanism, "v", at, ids)
        only = weights.silent._replace(y=np.where(affected[..., None], 0, weights.y))

        def run(tokens: Tokens, only: Any = only) -> Any:
            with jax.enable_x64(True):
                arguments = place(mesh, (tokens, mask, ids, only), TOKENS, "data")
                placed, *rest = arguments
                got = programs.attend(split, True, "auto").compiled(placed, begin, *rest)
                return jax.tree.map(np.asarray, got)

        got, want = run(poison(tokens, "v", at)), run(tokens)
        assert_same_bits(got.y[~affected], want.y[~affected], f"token {at}")
        assert np.isnan(got.y[0][affected[0]]).all()
        programs.assert_gradients_close(got.tokens, want.tokens, np.float64)
        check_state(got.state, want.state, affected[:, -1].any(axis=1), "v")


CAUSAL = cases.slow_unless(
    lambda mechanism, is_causal: cases.spec_of(mechanism) == "aaren" and is_causal,
    MERGEABLE,
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
            return split.attend(*tokens[:3], **tokens.own, **how)

        return attend(tokens)

    def sent(length: int) -> dict[str, int]:
        tokens = cases.make_tokens(mechanism, length, np.float32)
        mask, ids = cases.make_mask(length), cases.make_ids(length)
        arguments = place(mesh, (tokens, mask, ids), length)
        return communication_bytes(jax.jit(run).lower(*arguments).compile())

    short, long = sent(8 * cases.CHUNK_SIZE), sent(8 * 4 * cases.CHUNK_SIZE)
    assert short == long and short["all-gather"] > 0


@pytest.mark.parametrize(
    "mechanism", cases.slow_unless(cases.main, cases.offering(lambda can: can.mergeable))
)
def test_it_is_the_mechanism_otherwise(mechanism: ops.Mechanism) -> None:
    """Steps and states, which are not split."""
    split = ops.sequence_parallel(mechanism, make_mesh(seq=2), "seq")
    tokens = cases.take(mechanism, cases.make_tokens(mechanism, 1, np.float32), 0)
    state = cases.make_state(split, None, np.float32)
    want = mechanism.step(*tokens[:3], state, **tokens.own)
    assert_close(split.step(*tokens[:3], state, **tokens.own), want, np.float32)
    assert split.name == mechanism.name and split.parameters == mechanism.parameters
    assert hash(split) == hash(ops.sequence_parallel(mechanism, make_mesh(seq=2), "seq"))
