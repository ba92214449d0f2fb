"""Grouped-query attention: several query heads for each key head = a call for each of them.

The queries of a key head are the members of its group. One call with all members gives the outputs
of a call for each member, the state of any of these calls, and the sum of their gradients. So does
``step``. For mechanisms whose heads are alike, it is also a call with repeated keys and values.
"""

import functools
import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

from flax_linattn import ops
from flax_linattn.ops.contract.masks import NO_SEGMENT
from tests.contract import cases, programs
from tests.contract.cases import Tokens
from tests.contract.programs import LENGTH, Result, Weights
from tests.contract.test_sequence_parallel import check_devices_are_one
from tests.contract.tolerances import assert_close, assert_same_bits

MEMBERS = 3
GROUPED = operator.attrgetter("grouped_queries")


def fast(mechanism: ops.Mechanism, *rest: Any) -> bool:
    """A cache and a monoid, in one direction and form: grouping is part of ``ops/contract``."""
    return mechanism.name in ("softmax", "taylorshift") and cases.main(mechanism, *rest)


def join(members: list[Any]) -> Any:
    """Arrays [..., G, K] of each member as one array [..., H, K]."""
    x = np.stack(members, axis=-2)
    return x.reshape(*x.shape[:-3], -1, x.shape[-1])


def member(x: Any, index: int) -> Any:
    """[..., G, K] of one member."""
    return x[..., index::MEMBERS, :]


def make_numbers(mechanism: ops.Mechanism, length: int = LENGTH, *, seed: int = 0) -> Tokens:
    seeds = range(seed, seed + MEMBERS)
    queries = [cases.make_numbers(mechanism, length, seed=each).q for each in seeds]
    return cases.make_numbers(mechanism, length, seed=seed)._replace(q=join(queries))


def make_weights(tokens: Tokens, state: Any) -> Weights:
    return programs.weigh(np.empty((*tokens.q.shape[:-1], tokens.v.shape[-1])), state)


def each_member(run: Any, tokens: Tokens, weights: Weights) -> Result:
    """The calls of all members as one result: the state counts in the first call only."""
    one = [
        run(
            tokens._replace(q=member(tokens.q, i)),
            weights._replace(y=member(weights.y, i), state=(weights if i == 0 else silent).state),
        )
        for i, silent in enumerate([weights.silent] * MEMBERS)
    ]
    for other in one[1:]:
        assert_same_bits(other.state, one[0].state, "state")
    q = join([each.tokens.q for each in one])
    total = functools.reduce(lambda a, b: jax.tree.map(np.add, a, b), [r.tokens for r in one])
    before = functools.reduce(lambda a, b: jax.tree.map(np.add, a, b), [r.before for r in one])
    return Result(join([r.y for r in one]), one[0].state, total._replace(q=q), before)


@functools.cache
def state_before(mechanism: ops.Mechanism) -> Any:
    """The state after some tokens, and after none in one row."""
    if not mechanism.capabilities.recurrent:
        return None
    tokens = cases.make_numbers(mechanism, LENGTH, seed=MEMBERS)
    empty = programs.begin(mechanism, packed=False)
    starts, weights = np.zeros((cases.BATCH, LENGTH), bool), programs.weigh(tokens.v, empty).silent
    return programs.loop(mechanism)(tokens, empty, cases.make_mask(LENGTH), starts, weights).state


@pytest.mark.parametrize(
    ("mechanism", "is_causal", "form"),
    cases.slow_unless(fast, cases.offering(GROUPED, cases.DIRECTIONS_FORMS)),
)
def test_a_call_is_one_for_each_member(
    mechanism: ops.Mechanism, is_causal: bool, form: str
) -> None:
    tokens, mask, ids = make_numbers(mechanism), cases.make_mask(LENGTH, seed=1), None
    state = state_before(mechanism) if mechanism.capabilities.causal else None
    if mechanism.capabilities.packed and state is not None:
        ids = cases.make_ids(LENGTH)
        state = ops.PackedState(state, np.full(cases.BATCH, NO_SEGMENT, np.int32))
        state.segment_id[: cases.BATCH // 2] = ids[: cases.BATCH // 2, 0]
    program, weights = programs.attend(mechanism, is_causal, form), make_weights(tokens, state)

    def run(tokens: Tokens, weights: Weights) -> Result:
        return program(tokens, state, mask, ids, weights)

    got, want = run(tokens, weights), each_member(run, tokens, weights)
    # Into the state of no tokens there is no gradient: nobody can change it.
    came = cases.make_mask(LENGTH).any(axis=1)
    got, want = (r._replace(before=[leaf[came] for leaf in r.before]) for r in (got, want))
    programs.assert_results_close(got, want, np.float64, terms=mask.size)


@pytest.mark.parametrize(
    "mechanism",
    cases.slow_unless(
        fast,
        cases.offering(lambda can: can.grouped_queries and can.recurrent and can.causal),
    ),
)
def test_a_step_is_one_for_each_member(mechanism: ops.Mechanism) -> None:
    tokens, mask, state = make_numbers(mechanism), cases.make_mask(LENGTH), state_before(mechanism)
    starts = np.zeros((cases.BATCH, LENGTH), bool)

    def run(tokens: Tokens, weights: Weights) -> Result:
        return programs.loop(mechanism)(tokens, state, mask, starts, weights)

    weights = make_weights(tokens, state)
    got, want = run(tokens, weights), each_member(run, tokens, weights)
    programs.assert_results_close(got, want, np.float64, terms=mask.size)


def repeated(mechanism: ops.Mechanism, tokens: Tokens) -> Tokens:
    """The same tokens with a key head for each query head, and the parameters of heads likewise."""

    def repeat(x: Any, axis: int) -> Any:
        return jnp.repeat(x, MEMBERS, axis)

    return Tokens(
        tokens.q,
        repeat(tokens.k, 2),
        repeat(tokens.v, 2),
        {
            name: repeat(x, 0) if x.shape[:1] == (cases.HEADS,) else x
            for name, x in tokens.parameters.items()
        },
        {
            each.name: repeat(tokens.gates[each.name], 2 + each.axes.index("H"))
            for each in mechanism.token_arguments
        },
    )


@pytest.mark.parametrize("computed", ["attend", "reference"])
@pytest.mark.parametrize(
    "mechanism",
    cases.slow_unless(
        fast,
        [
            case
            for case in cases.offering(GROUPED)
            if case.values[0].name != "retention"  # each head has its own decay
        ],
    ),
)
def test_a_call_is_one_with_repeated_keys_and_values(
    mechanism: ops.Mechanism, computed: str
) -> None:
    how = {"is_causal": mechanism.capabilities.causal, "mask": cases.make_mask(LENGTH)}

    def run(repeats: bool) -> Any:
        def outputs(tokens: Tokens) -> Any:
            tokens = repeated(mechanism, tokens) if repeats else tokens
            return getattr(mechanism, computed)(*tokens[:3], **how, **tokens.own)

        return jax.jit(cases.with_gradients(outputs))

    with jax.enable_x64(True):
        tokens = jax.tree.map(jnp.asarray, make_numbers(mechanism))
        (y, (got,)), (want_y, (want,)) = (run(repeats)(tokens) for repeats in (False, True))
    assert_close(y, want_y, np.float64, "y")
    programs.assert_gradients_close(got, want, np.float64, terms=how["mask"].size)


STREAMED = cases.offering(lambda can: can.grouped_queries and can.recurrent and can.causal)


@pytest.mark.parametrize("mechanism", cases.slow_unless(fast, STREAMED))
def test_half_precision_and_exported_functions(mechanism: ops.Mechanism) -> None:
    """Outputs and states of bfloat16 against float64; an exported call and step are the same."""
    tokens = cases.rounded(make_numbers(mechanism), jnp.bfloat16)
    state = cases.make_state(mechanism, 2 * LENGTH, jnp.bfloat16)
    mask, first = cases.make_mask(LENGTH), slice(0, LENGTH - 1)

    def run(tokens: Tokens, state: Any, mask: Any) -> Any:
        if tokens.k.ndim == 4:
            return cases.attend(mechanism, tokens, state, is_causal=True, mask=mask)
        return mechanism.step(*tokens[:3], state, mask, **tokens.own)

    def call(tokens: Tokens, state: Any, mask: Any) -> Any:
        """Outputs and state, equal to those of the exported function."""
        function = jax.jit(lambda own, *rest: run(Tokens(*own), *rest))
        arguments = jax.tree.map(jnp.asarray, (tuple(tokens), state, mask))
        stored = jax.export.export(function)(*arguments).serialize()
        got = function(*arguments)
        assert_same_bits(jax.export.deserialize(stored).call(*arguments), got)
        return got

    y, state = call(cases.take(mechanism, tokens, first), state, mask[:, first])
    y_last, _ = call(cases.take(mechanism, tokens, LENGTH - 1), state, mask[:, -1])
    assert y.dtype == y_last.dtype == jnp.bfloat16
    exact = cases.rounded(tokens, np.float64)
    with jax.enable_x64(True):
        want = mechanism.reference(
            *map(jnp.asarray, exact[:3]), is_causal=True, mask=mask, **exact.own
        )
    got = np.concatenate([y, y_last[:, None]], axis=1)
    assert_close(got[mask], np.asarray(want)[mask], jnp.bfloat16)


@pytest.mark.slow  # tests/models/test_layer_options.py has a fast one
@pytest.mark.parametrize(
    "mechanism", cases.offering(lambda can: can.grouped_queries and can.mergeable and can.causal)
)
def test_sequences_split_over_devices(mechanism: ops.Mechanism) -> None:
    """Packed and padded, with gradients, as ``test_sequence_parallel.py`` without groups."""
    check_devices_are_one(mechanism, True, True, AxisType.Auto, make_numbers)


@pytest.mark.parametrize(
    "mechanism",
    cases.slow_unless(fast, cases.offering(lambda can: can.grouped_queries and can.causal)),
)
def test_a_query_that_is_nan_changes_no_other_output(mechanism: ops.Mechanism) -> None:
    central, tokens = programs.central(mechanism), make_numbers(mechanism)
    mask = np.ones((cases.BATCH, LENGTH), bool)
    state = central.begin()
    weights = make_weights(tokens, state)
    arguments = mask, 0 * mask, weights, state
    clean = central(tokens, *arguments)
    poisoned = tokens.q.copy()
    poisoned[1, 5, MEMBERS] = np.nan  # the first member of the second key head
    got = central(tokens._replace(q=poisoned), *arguments)
    is_poisoned = np.isnan(poisoned).any(axis=-1)
    assert np.isnan(got.y[is_poisoned]).all()
    assert_same_bits(got.y[~is_poisoned], clean.y[~is_poisoned], "y")
    assert_same_bits(got.state, clean.state, "state")
    assert all(np.isfinite(g).all() for g in jax.tree.leaves(got.tokens))


def test_inputs_per_pair_belong_to_query_heads() -> None:
    """A mask and a bias for each query head; dropout differs between the heads of a group."""
    softmax = ops.get_mechanism("softmax", chunk_size=cases.CHUNK_SIZE)
    tokens = make_numbers(softmax)
    rng, shape = np.random.default_rng(4), (1, tokens.q.shape[2], LENGTH, LENGTH)
    pairs = {"bias": rng.normal(size=shape), "pair_mask": rng.random(shape) < 0.7}
    with jax.enable_x64(True):
        every = repeated(softmax, tokens)
        for form in ("parallel", "chunked"):
            got = softmax.attend(*map(jnp.asarray, tokens[:3]), **pairs, form=form)
            want = softmax.attend(*map(jnp.asarray, every[:3]), **pairs, form=form)
            assert_close(got, want, np.float64, form)
        want = softmax.reference(*map(jnp.asarray, tokens[:3]), **pairs)
        assert_close(got, want, np.float64, "reference")
        with pytest.raises(ValueError, match="axis 1 of bias must have size 1 or 6, one for each"):
            softmax.attend(*map(jnp.asarray, tokens[:3]), bias=pairs["bias"][:, : cases.HEADS])
        q = jnp.zeros_like(tokens.q)
        dropped = {"dropout_rate": 0.5, "dropout_key": jax.random.key(0)}
        y = softmax.attend(q, jnp.asarray(tokens.k), jnp.ones_like(tokens.v), **dropped)
    assert not np.array_equal(y[:, :, 0], y[:, :, 1])
