"""What holds of every layer that streams, by two programs: in parallel, and a step.

A layer is ``nn.Attention`` or ``nn.TransformerBlock`` of ``WIDTH`` features.
"""

import jax.numpy as jnp
import numpy as np

from flax_linattn import nn, ops
from flax_linattn.ops.contract.masks import NO_SEGMENT
from tests.contract.tolerances import assert_close, assert_same_bits
from tests.nn.cases import LAYOUTS, WIDTH, at_real, normal, padded, positions, pulled, run_steps

ROWS, LENGTH = LAYOUTS.shape
EVERYWHERE = np.ones((ROWS, LENGTH), bool)
ONE_SEGMENT = np.zeros((ROWS, LENGTH), np.int32)
WEIGHTS = normal(1, ROWS, LENGTH, WIDTH)
"""Of the sum of outputs whose gradients are taken."""


def run(layer, x, mask=EVERYWHERE, ids=ONE_SEGMENT, state=None, weights=WEIGHTS, start=0):
    """The causal program that all checks of a streaming mechanism share."""
    places = positions(layer, mask, ids, start)
    if capabilities(layer).packed:
        state = with_id(begin(layer)) if state is None else state
    else:
        state, ids = begin(layer) if state is None else state, None
    how = {"mask": mask, "segment_ids": ids, "state": state} | places
    return pulled(layer, x, weights, is_causal=True, return_state=True, **how)


def with_id(state):
    """A state before any packed segment."""
    if isinstance(state, nn.ShortConvState):
        return state._replace(attention=with_id(state.attention))
    return ops.PackedState(state, np.full(ROWS, NO_SEGMENT, np.int32))


def unpacked(state):
    if isinstance(state, nn.ShortConvState):
        return state._replace(attention=unpacked(state.attention))
    return state.state if isinstance(state, ops.PackedState) else state


def begin(layer):
    return layer.init_state(ROWS, 2 * LENGTH)


def streams_and_packs(layer):
    """All checks of a layer that streams."""
    x = normal(2, ROWS, LENGTH, WIDTH)
    whole = run(layer, x)
    is_the_loop_of_steps(layer, x, whole)
    goes_on_from_any_split(layer, x, whole)
    packed_is_separate(layer, x)
    future_changes_no_bit_of_the_past(layer, x, whole)
    return whole, padding_changes_nothing(layer)


def capabilities(layer):
    return getattr(layer, "attention", layer).mechanism.capabilities


def is_the_loop_of_steps(layer, x, whole):
    """Outputs and states; also with padding anywhere, NaN in it, which keeps the state."""
    y, state = run_steps(layer, x, begin(layer), EVERYWHERE)
    assert_close(whole.y, y, "float32")
    assert_close(unpacked(whole.state), state, "float32")
    real = x[:, : LAYOUTS[0].sum()]
    y_padded, state_padded = run_steps(layer, padded(real), begin(layer), LAYOUTS)
    y_real, state_real = run_steps(layer, real, begin(layer), EVERYWHERE)
    assert_close(at_real(y_padded), y_real, "float32")
    assert_close(state_padded, state_real, "float32")


def goes_on_from_any_split(layer, x, whole):
    for split in (1, 4):
        first = np.tile(np.arange(LENGTH) < split, (ROWS, 1))
        head = run(layer, x, first)
        tail = run(layer, x, ~first, state=head.state, start=split)
        assert_close(head.y[:, :split], whole.y[:, :split], "float32")
        assert_close(tail.y[:, split:], whole.y[:, split:], "float32")


def packed_is_separate(layer, x):
    """A segment among others is the segment alone, in values and gradients."""
    if not capabilities(layer).packed:
        return
    ids = np.array([[4, 4, 4, 1, 1, 1], [0, 7, 7, 7, 7, 7], [5] * 6, [2, 2, 3, 3, 2, 2]], np.int32)
    runs = np.array([[0, 0, 0, 1, 1, 1], [0, 1, 1, 1, 1, 1], [0] * 6, [0, 0, 1, 1, 2, 2]])
    packed = run(layer, x, ids=ids)
    alone = [run(layer, x, mask=runs == i) for i in range(3)]
    of_run = runs[..., None]
    assert_close(packed.y, np.choose(of_run, [one.y for one in alone]), "float32")
    assert_close(packed.x, np.choose(of_run, [one.x for one in alone]), "float32")


def future_changes_no_bit_of_the_past(layer, x, whole):
    """Neither other tokens nor other padding; gradients do not flow back either."""
    for split in (1, 4):
        later = np.tile(np.arange(LENGTH) >= split, (ROWS, 1))
        changed = run(layer, x.at[:, split:].add(100.0))
        masked = run(layer, x, ~later)
        for other in (changed, masked):
            assert_same_bits(other.y[:, :split], whole.y[:, :split])
            assert np.abs(other.y - whole.y)[:, split:].max() > 1e-3
        past = run(layer, x, weights=jnp.where(later[..., None], 0.0, WEIGHTS))
        assert past.x[:, :split].any() and not past.x[:, split:].any()


def padding_changes_nothing(layer):
    """Values and gradients; all layouts of padding agree, and with steps that never saw any."""
    real, weights = normal(3, ROWS, 4, WIDTH), normal(4, ROWS, 4, WIDTH)
    right = np.tile(LAYOUTS[:1], (ROWS, 1))
    got = run(layer, padded(real), LAYOUTS, weights=padded(weights, 0.0))
    want = run(layer, padded(real, 0.0, right), right, weights=padded(weights, 0.0, right))
    y, state = run_steps(layer, real, begin(layer), EVERYWHERE)
    assert_close(want.y[:, :4], y, "float32")
    assert_close(at_real(got.y), y, "float32")
    assert_close(unpacked(got.state), state, "float32")
    assert_close(at_real(got.x), want.x[:, :4], "float32")
    assert_close(got.params, want.params, "float32")
    assert not got.x[~LAYOUTS].any()
    return got
