"""Fixed random matrices."""

import numpy as np

from flax_linattn.ops.engine import random_features


def test_draws_are_those_of_the_seed() -> None:
    rows = random_features.orthogonal_gaussian(5, 3, seed=1)
    np.testing.assert_allclose(rows[0] @ rows[1:3].T, 0, atol=1e-12)
    assert (rows == random_features.orthogonal_gaussian(5, 3, seed=1)).all()
    assert (rows != random_features.orthogonal_gaussian(5, 3, seed=2)).all()
    many = random_features.orthogonal_gaussian(3000, 3, seed=0)
    np.testing.assert_allclose(many.mean(axis=0), 0, atol=0.1)
    np.testing.assert_allclose(many.T @ many / len(many), np.eye(3), atol=0.1)
