"""The figures of what mechanisms attend to, and the measurements beside them, run."""

import jax
import numpy as np
import pytest

from experiments.attention import (
    conditioning,
    expansion_point,
    sequence,
    spikiness,
    taylor,
    taylorshift_order,
    weights,
)
from experiments.verdicts import FAILS, HOLDS, IN_PART
from flax_linattn import ops


def test_weights_are_an_average_of_what_is_visible() -> None:
    w = weights.measure("elementwise_series", is_causal=True)
    assert w.shape == (2, 24, 24)
    assert np.array_equal(np.isnan(w[0]), ~np.tri(24, dtype=bool))
    np.testing.assert_allclose(np.nansum(w, axis=-1), 1, rtol=1e-5)


def test_gates_of_a_figure_are_those_of_a_layer_before_training() -> None:
    x = sequence.observations()
    gates = sequence.first_gates(x, ops.get_mechanism("gated_delta").token_arguments, key_dim=16)
    assert {name: gate.shape for name, gate in gates.items()} == {
        "log_decay": (1, 24, 2),
        "beta": (1, 24, 2),
    }
    short, long = gates["log_decay"][0].mean(axis=0)
    assert short < 10 * long < 0  # memories of 8 and of 1,024 tokens
    w = weights.measure("forgetting_aaren", is_causal=True)
    np.testing.assert_allclose(np.nansum(w, axis=-1), 1, rtol=1e-5)


def test_negative_weights_have_a_symmetric_scale() -> None:
    norm, _, colors = weights.scale([np.array([[0.5, -0.25], [np.nan, 1.0]])])
    assert norm.vmin == -norm.vmax and colors == "RdBu_r"


@pytest.mark.slow
def test_series_come_near_as_their_order_grows() -> None:
    with jax.enable_x64(True):
        q, k, v = taylor.sources()["speech"]
        errors = [taylor.errors(q, k, v, 0.5, order)["output"] for order in taylor.COLORS]
    assert errors == sorted(errors, reverse=True) and errors[0] < 0.1


def test_a_higher_order_is_nearer_to_softmax() -> None:
    with jax.enable_x64(True):
        q, k, _ = (x[:, :8] for x in taylor.sources()["normal"])
        near = [taylorshift_order.distance(q, k, 2.0, order)["weights"] for order in (2, 4, 6)]
    assert near == sorted(near, reverse=True) and near[0] < 0.1


def test_another_expansion_point_is_a_shift_of_the_scores() -> None:
    with jax.enable_x64(True):
        q, k, _ = (x[:, :8] for x in taylor.sources()["normal"])
        found = expansion_point.distances(q, k, 2.0, 1.0)
    assert max(found["unscaled"], found["shifted"]) < 1e-15 < 0.01 < found["around_0"]


def test_spikiness_is_judged_by_both_numbers() -> None:
    size = spikiness.Size(queries=4, keys=256, dim=4)
    with jax.enable_x64(True):
        found = spikiness.sharpness(size, "softmax", 1.0, 0)
    assert found["largest"] > 2 / 256 and found["missing_entropy"] > 0.1

    def rows(*of_a: float, std: float = 1.0) -> list[dict]:
        return [
            {"mechanism": name, "std": std, "largest": 1 / 256 + x, "missing_entropy": y}
            for name in "ab"
            for noise in (1.0, 1.1, 1.2)
            for x, y in [[n * noise for n in of_a] if name == "a" else (1.0, 1.0)]
        ]

    cases = ((0.8, 0.8), (0.2, 0.8), (0.2, 0.2))
    words = [spikiness.keeps(("a",), "b")(rows(*case)).word for case in cases]
    assert words == [HOLDS, IN_PART, FAILS]
    both = rows(*cases[0]) + rows(*cases[2], std=2.0)
    assert spikiness.keeps(("a",), "b")(both).word == IN_PART


@pytest.mark.slow
def test_an_orthogonal_query_loses_digits() -> None:
    inputs = conditioning.sample(np.random.default_rng(0), 1, 1, 1e-2)
    error, predicted = conditioning.errors(*inputs)
    assert 1e-6 < error < predicted


@pytest.mark.slow
def test_a_figure_is_drawn() -> None:
    figure = weights.plot("nystrom")
    assert [axis.get_title() for axis in figure.axes[:2]] == ["not causal", ""]
