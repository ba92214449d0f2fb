"""Small models for the tests of this folder."""

import functools
import itertools

import numpy as np
import pytest
from flax import nnx

from flax_linattn import models
from tests.nn.cases import CAUSAL, call, moved

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


def values(seed, rows, length):
    """Observations of three channels: float32 [rows, length, 3]."""
    return np.random.default_rng(seed).normal(size=(rows, length, CHANNELS)).astype(np.float32)


def levels(seed, rows, length):
    """The same on different levels."""
    return values(seed, rows, length) * np.float32([3, 1, 0.1]) + np.float32([5, 0, -2])


def symbols(seed, rows, length, num_tokens=7):
    return np.random.default_rng(seed).integers(0, num_tokens, (rows, length)).astype(np.int32)


def events(seed, rows, length, num_event_types=3, periods=2):
    """Observations of an ``EventForecaster`` whose begin is known: float32 [rows, length, W]."""
    rng = np.random.default_rng(seed)
    x = np.zeros((rows, length, 3 + 2 * periods))
    x[..., 0] = 2 * rng.normal(size=(rows, length))
    x[..., 1] = 1
    x[..., 2] = rng.integers(0, num_event_types, (rows, length))
    x[:, 0, :3] = [0, 0, num_event_types]
    turns = rng.uniform(size=(rows, length, periods))
    x[..., 3:] = np.concatenate([np.cos(2 * np.pi * turns), np.sin(2 * np.pi * turns)], axis=-1)
    return x.astype(np.float32)


def episodes(seed, rows, length, observation_dim=3, action_dim=2):
    """Steps of a ``DecisionTransformer``, of whole episodes: float32 [rows, length, W]."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, length, 3 + observation_dim + action_dim))
    x[..., 0] = np.arange(length)
    x[..., 1] = np.arange(length) > 0
    x[..., -action_dim:] = np.tanh(x[..., -action_dim:])
    return x.astype(np.float32)


def choices(seed, rows, length, observation_dim=3, num_actions=4):
    """``episodes`` whose actions are discrete: float32 [rows, length, W]."""
    x = episodes(seed, rows, length, observation_dim, 1)
    x[..., -1] = np.random.default_rng([seed, 1]).integers(0, num_actions, (rows, length))
    return x


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


def run_whole(model, x, mask=None, state=None):
    """Outputs and the state after: one program, whatever is real and came before."""
    mask = np.ones(x.shape[:2], bool) if mask is None else mask
    state = model.init_state(len(x)) if state is None else state
    return call(model, x, mask=mask, state=state, return_state=True)
