"""Small models for the tests of this folder."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_linattn import models
from tests.nn.cases import CAUSAL

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

    graph, params = nnx.split(model, nnx.Param)
    leaves, tree = jax.tree.flatten(params)
    leaves = [np.asarray(leaf) + 0.1 * noise(i, leaf.shape) for i, leaf in enumerate(leaves)]
    return nnx.merge(graph, jax.tree.map(jnp.asarray, jax.tree.unflatten(tree, leaves)))


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
