"""Padding changes nothing, wherever it stands and whatever it holds."""

import functools

import jax
import numpy as np
from flax import nnx

from tests.contract.tolerances import assert_close, assert_same_bits
from tests.models.contract.heads import (
    EVERYWHERE,
    HEADS,
    LENGTH,
    ROWS,
    STREAMING,
    fillers,
    heads,
    model_of,
    observations,
    run,
)
from tests.nn.cases import call, normal, pulled, run_steps

PLACES = ([0, 1, 2, 3, 4], [3, 4, 5, 6, 7], [0, 2, 3, 5, 6])
"""Where five real observations of eight stand: padding right, left, in the middle."""


def spread(x, places, filler):
    """Real observations [rows, 5, ...] at some places of eight, and the mask of these."""
    padded = np.full((len(x), LENGTH, *x.shape[2:]), filler, x.dtype)
    mask = np.zeros((len(x), LENGTH), bool)
    padded[:, places], mask[:, places] = x, True
    return padded, mask


@STREAMING
def test_outputs_and_states_do_not_depend_on_padding(name, mechanism):
    """In parallel and by steps; whatever stands there changes no bit."""
    model, x = model_of(name, mechanism), observations(name, length=5)
    found = []
    for filler in fillers(x):
        for places in PLACES:
            padded, mask = spread(x, places, filler)
            y, state = run(name, model, padded, mask)
            found.append((y[:, places], state))
            streamed, after = run_steps(model, padded, model.init_state(ROWS), mask)
            assert_close(streamed[:, places], y[:, places], "float32")
            assert_close(after, state, "float32")
    for other in found[1:]:
        assert_close(other, found[0], "float32")
    for one, other in zip(found[:3], found[3:], strict=True):
        assert_same_bits(one, other)


@STREAMING
def test_a_row_of_padding_alone_stays_as_it_is(name, mechanism):
    """Beside a row of observations, which it does not change."""
    model, x = model_of(name, mechanism), observations(name)
    whole, _ = run(name, model, x)
    x[1], mask = fillers(x)[0], EVERYWHERE & np.array([[True], [False]])
    y, state = run(name, model, x, mask)
    assert_same_bits(y[0], whole[0])
    row = functools.partial(jax.tree.map, lambda leaf: np.asarray(leaf[1]))
    assert_close(row(state), row(model.init_state(ROWS)), "float32")


def gradients(name, model, x, mask):
    """Outputs at real places, and gradients of their weighted sum."""
    every = HEADS[name].every or {}
    y = jax.eval_shape(lambda x: model(x, mask=mask, **every), x)
    weights = np.asarray(normal(9, *y.shape)).astype(y.dtype)
    if y.shape[:2] == mask.shape:
        # The same weights for the same observations, none for padding.
        order = np.argsort(np.argsort(~mask, axis=1, kind="stable"), axis=1)
        of_place = order.reshape(order.shape + (1,) * (weights.ndim - 2))
        weights = np.take_along_axis(weights, of_place, axis=1)
        weights[~mask] = 0
    return pulled(model, x, weights, mask=mask, **every)


@heads(fast="aaren", slow_variants=True)
def test_gradients_do_not_depend_on_padding(name, mechanism):
    """Each parameter has one, but for biases of keys, of which a softmax knows nothing.

    Variables that are fitted after training may have none.
    """
    model, x = model_of(name, mechanism), observations(name, length=5)
    found = []
    for places, filler in zip(PLACES, (0, *fillers(x)), strict=True):
        padded, mask = spread(x, places, filler)
        got = gradients(name, model, padded, mask)
        y = got.y[:, places] if got.y.shape[:2] == mask.shape else got.y
        found.append((y, got.params))
        if x.dtype.kind == "f":
            assert not got.x[~mask].any()
            assert np.isfinite(got.x).all()
    for other in found[1:]:
        assert_close(other, found[0], "float32")
    leaves = jax.tree_util.tree_leaves_with_path(nnx.state(model, nnx.Param))
    trained = {jax.tree_util.keystr(path) for path, _ in leaves}
    assert trained
    for path, leaf in jax.tree_util.tree_leaves_with_path(found[0][1]):
        at = jax.tree_util.keystr(path)
        assert leaf.dtype == jax.dtypes.float0 or np.isfinite(leaf).all(), at
        if at in trained:
            assert np.any(leaf) or ("key_projection" in at and "bias" in at), at


@heads(lambda case: not case.streams)
def test_whole_sequences_do_not_depend_on_padding(name, mechanism):
    model, x = model_of(name, mechanism), observations(name, length=5)
    want = call(model, x)
    for filler in fillers(x):
        for places in PLACES:
            padded, mask = spread(x, places, filler)
            assert_close(call(model, padded, mask=mask), want, "float32")
