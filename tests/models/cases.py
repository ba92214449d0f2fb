"""Small models for the tests of this folder."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_linattn import models
from tests.contract.tolerances import assert_close, assert_same_bits
from tests.nn.cases import CAUSAL, call, run_steps

CHANNELS, CLASSES, MAX_LENGTH = 3, 4, 8
slow = pytest.mark.slow

STREAMING = [
    pytest.param(
        *case.values,
        pooling,
        id=f"{case.id}-{pooling}",
        marks=case.marks or (() if case.id == "aaren" else pytest.mark.slow),
    )
    for case, pooling in itertools.product(CAUSAL, models.POOLINGS)
]
"""Every mechanism that can stream with every pooling; quick is Aaren with all."""


@functools.cache
def classifier(mechanism="aaren", pooling="mean", **options):
    """One of a kind, of one layer, all of whose parameters are away from their initial values."""
    options = {"max_length": MAX_LENGTH, "num_layers": 1, "rngs": nnx.Rngs(0)} | options
    model = models.SequenceClassifier(
        CHANNELS,
        CLASSES,
        features=8,
        num_heads=2,
        hidden_features=12,
        mechanism=mechanism,
        pooling=pooling,
        **options,
    )
    return moved(model)


@functools.cache
def backbone(mechanism="aaren", **options):
    """One of a kind, of two layers, all of whose parameters are away from their initial values."""
    options = {"num_layers": 2, "max_length": MAX_LENGTH} | options
    model = models.Backbone(
        CHANNELS, 8, num_heads=2, hidden_features=12, mechanism=mechanism, rngs=nnx.Rngs(0),
        **options,
    )  # fmt: skip
    return moved(model)


def moved(model):
    """Biases and norms start at 0 and 1, which would hide that one is left out."""

    def noise(seed, shape):
        return np.random.default_rng(seed).normal(size=shape).astype(np.float32)

    graph, params, others = nnx.split(model, nnx.Param, ...)
    leaves, tree = jax.tree.flatten(params)
    leaves = [np.asarray(leaf) + 0.1 * noise(i, leaf.shape) for i, leaf in enumerate(leaves)]
    params = jax.tree.map(jnp.asarray, jax.tree.unflatten(tree, leaves))
    return nnx.merge(graph, params, others)


def rows_of_segments():
    """Two rows that each pack sequences of 1, 2 and 3 real tokens, with padding in between.

    Returns:
        ids, mask, and per sequence (row, positions).
    """
    ids = np.array([[3, 3, 3, 3, 1, 2, 2, 2], [5, 9, 9, 9, 9, 9, 4, 4]])
    mask = np.array([[1, 0, 1, 1, 1, 1, 0, 1], [1, 0, 1, 1, 0, 1, 1, 1]], bool)
    sequences = [
        (0, [0, 2, 3]), (0, [4]), (0, [5, 7]), (1, [0]), (1, [2, 3, 5]), (1, [6, 7]),
    ]  # fmt: skip
    return ids, mask, sequences


PLACES = ([0, 1, 2, 3, 4], [3, 4, 5, 6, 7], [0, 2, 3, 5, 6])
"""Where five real tokens of eight stand: padding right, left, in the middle."""


def run_whole(model, x, mask, state=None):
    """Outputs and the state after: one program, whatever is real and came before."""
    state = model.init_state(len(x)) if state is None else state
    return call(model, x, mask=mask, state=state, return_state=True)


def check_padding(model, x):
    """Padding changes nothing wherever it is and whatever it holds, in parallel and streamed.

    Args:
        model: one whose state has a position and a window.
        x: float32 [2, 5, W].

    Returns:
        The positions after a row of real tokens, and one of padding alone.
    """
    found = []
    for filler in (np.nan, 1e30):
        for kept in PLACES:
            padded, mask = np.full((2, 8, x.shape[-1]), filler, np.float32), np.zeros((2, 8), bool)
            padded[:, kept], mask[:, kept] = x, True
            y, state = run_whole(model, padded, mask)
            found.append((y[:, kept], state.position, state.window))
            streamed, after = run_steps(model, padded, model.init_state(2), mask)
            assert_close(streamed[:, kept], y[:, kept], "float32")
            assert_close(after, state, "float32")
    for other in found[1:]:
        assert_close(other, found[0], "float32")
    for one, other in zip(found[:3], found[3:], strict=True):
        assert_same_bits(one, other)  # whatever stands there
    padded, mask = np.full((2, 8, x.shape[-1]), np.nan, np.float32), np.zeros((2, 8), bool)
    padded[0, :5], mask[0, :5] = x[0], True
    y, state = run_whole(model, padded, mask)
    assert_same_bits(y[0, :5], found[0][0][0])
    return state.position.tolist()


def check_packed(model, x):
    """Packed sequences, as ``rows_of_segments`` has them, are by themselves: x [2, 8, W]."""
    ids, mask, sequences = rows_of_segments()
    found = call(model, np.where(mask[..., None], x, np.nan), mask=mask, segment_ids=ids)
    for row, places in sequences:
        alone, first = np.zeros_like(x), np.zeros((2, 8), bool)
        alone[:, : len(places)], first[:, : len(places)] = x[row, places], True
        want = run_whole(model, alone, first)[0][0, : len(places)]
        assert_close(found[row, places], want, "float32")
