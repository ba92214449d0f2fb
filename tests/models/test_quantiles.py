"""Quantiles of forecasters: their equation, their streams, what learns from them."""

import functools
from statistics import NormalDist

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_linattn import models, training
from tests.contract.tolerances import assert_close, assert_same_bits
from tests.nn.cases import call, moved, normal

LEVELS, CHANNELS, HORIZON, LENGTH, TARGETS = (0.05, 0.5, 0.6, 0.95), 3, 4, 9, (2, 0)
KINDS = {
    "patch": functools.partial(models.PatchForecaster, patch_length=3, context=5),
    "decoder": models.Forecaster,
}

BOTH = ["patch", pytest.param("decoder", marks=pytest.mark.slow)]
"""The patch forecaster fast, the decoder, which has the same head, slow."""


@functools.cache
def forecaster(kind, quantiles=LEVELS):
    """Both of a kind draw the same parameters, but for the quantiles'."""
    return KINDS[kind](
        CHANNELS, HORIZON, targets=TARGETS, quantiles=quantiles, features=8, num_heads=2,
        num_layers=1, hidden_features=12, mechanism="aaren", memory=5.0, rngs=nnx.Rngs(0),
    )  # fmt: skip


def corrected(kind):
    """One whose every variable is away from its initial value, and whose quantiles would cross."""
    model = moved(forecaster(kind))
    shape = model.quantile_head.correction.shape
    model.quantile_head.correction[...] = np.asarray(normal(5, *shape))
    return model


@pytest.mark.parametrize("per_target", [True, False])
def test_quantiles_are_the_equation(per_target):
    head = moved(
        models.QuantileHead(LEVELS, 6, HORIZON, 2, per_target=per_target, rngs=nnx.Rngs(0))
    )
    head.correction[...] = np.asarray(normal(1, HORIZON, 2, len(LEVELS)))
    h = np.asarray(normal(2, 3, *([2] if per_target else []), 6))
    point, std = np.asarray(normal(3, 3, HORIZON, 2)), np.exp(np.asarray(normal(4, 3, 2)))
    kernel, bias, correction, wide = (
        np.asarray(a, np.float64)
        for a in (head.projection.kernel, head.projection.bias, head.correction, h)
    )
    want = np.zeros((3, HORIZON, 2, 1 + len(LEVELS)))
    for place in np.ndindex(3, HORIZON, 2):
        row, step, target = place
        found = []
        for q, level in enumerate(LEVELS):
            column = step * len(LEVELS) + q
            if not per_target:
                column = (step * 2 + target) * len(LEVELS) + q
            features = wide[row, target] if per_target else wide[row]
            offset = NormalDist().inv_cdf(level) + features @ kernel[:, column] + bias[column]
            found.append(point[place] + std[row, target] * offset)
        want[place] = [point[place], *sorted(sorted(found) + correction[step, target])]
    assert_close(call(head, h, point, std), want, "float32")


@pytest.mark.parametrize("kind", BOTH)
def test_the_mean_is_that_of_a_model_without_quantiles(kind):
    x = np.asarray(normal(0, 2, LENGTH, CHANNELS))
    y = call(forecaster(kind), x)
    assert y.shape == (2, HORIZON, 2, 1 + len(LEVELS)) and y.dtype == np.float32
    assert_close(y[..., 0], call(forecaster(kind, ()), x), "float32")
    assert (np.diff(y[..., 1:], axis=-1) > 0).all()


@pytest.mark.parametrize("kind", BOTH)
def test_the_mean_s_own_weights_learn_nothing_from_quantiles(kind):
    model, x = moved(forecaster(kind)), np.asarray(normal(0, 2, LENGTH, CHANNELS))
    truth = np.asarray(normal(1, 2, HORIZON, 2))

    def loss(model):
        return training.pinball_loss(truth, model(x)[..., 1:], LEVELS).sum()

    grads = nnx.to_pure_dict(nnx.jit(nnx.grad(loss, argnums=nnx.DiffState(0, nnx.Param)))(model))
    own = grads.pop("quantile_head")
    assert set(own) == {"projection"}  # a correction is no parameter
    learns = {
        name: any(np.asarray(leaf).any() for leaf in jax.tree.leaves(part))
        for name, part in grads.items()
    }
    assert all(np.asarray(leaf).any() for leaf in jax.tree.leaves(own))
    assert learns == {name: name == "backbone" for name in learns} and len(learns) >= 2


def test_sorting_costs_nothing():
    """Of any truth, and of quantiles in any order."""
    rng = np.random.default_rng(0)
    truth, quantiles = rng.normal(size=500), rng.normal(size=(500, len(LEVELS)))

    def cost(quantiles):
        above = truth[:, None] - quantiles
        return np.where(above > 0, np.multiply(LEVELS, above), np.subtract(LEVELS, 1) * above).sum(
            1
        )

    gained = cost(quantiles) - cost(np.sort(quantiles, axis=1))
    assert gained.min() > -1e-12 and gained.max() > 0.1


@pytest.mark.parametrize("kind", BOTH)
def test_a_saved_model_keeps_its_correction(kind, tmp_path):
    model, x = corrected(kind), np.asarray(normal(0, 2, LENGTH, CHANNELS))
    models.save_model(tmp_path / "model", model)
    loaded = models.load_model(tmp_path / "model")
    assert loaded.quantile_head.levels == LEVELS
    assert_same_bits(call(loaded, x), call(model, x))


@pytest.mark.parametrize("levels", [(0.5, 0.1), (0.1, 0.1), (0.0, 0.5), (0.5, 1.0), (np.nan,)])
@pytest.mark.parametrize("kind", KINDS)
def test_levels_that_are_none_are_refused(kind, levels):
    with pytest.raises(ValueError, match="increasing levels between 0 and 1, such as"):
        KINDS[kind](CHANNELS, HORIZON, quantiles=levels, rngs=nnx.Rngs(0))


def test_corrections_are_of_the_sorted_quantiles():
    """Where the levels that a head maps to cross, the first correction is of the lowest one."""
    head = models.QuantileHead((0.1, 0.9), 3, 1, 1, rngs=nnx.Rngs(0))
    head.projection.bias[...] = jnp.array([9.0, -9.0])  # crossed by far
    h, point, std = jnp.zeros((1, 3)), jnp.zeros((1, 1, 1)), jnp.ones((1, 1))
    low, high = head(h, point, std)[0, 0, 0, 1:]
    head.correction[...] = jnp.array([[[-1.0, 2.0]]])
    np.testing.assert_allclose(head(h, point, std)[0, 0, 0, 1:], [low - 1, high + 2], rtol=1e-6)
