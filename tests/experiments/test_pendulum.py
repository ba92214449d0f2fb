"""The set that comes with the package is the one that its command makes."""

from importlib import resources

import numpy as np
import pytest

from experiments.offline_rl.pendulum import make_pendulum
from flax_linattn.data.episodes import Episodes, load_episodes


@pytest.fixture(scope="module")
def shipped() -> Episodes:
    with resources.as_file(resources.files("flax_linattn.data") / "sets" / "pendulum.npz") as path:
        assert path.stat().st_size < 500_000
        return load_episodes(path)


def test_it_is_made_again(shipped):
    """To the bit where NumPy is the same; sines of other versions may differ in their last one."""
    made = make_pendulum()
    np.testing.assert_allclose(made.observations, shipped.observations, atol=1e-3)
    np.testing.assert_allclose(made.actions, shipped.actions, atol=1e-3)
    np.testing.assert_allclose(made.rewards, shipped.rewards, atol=1e-3)
    assert made.env_id == shipped.env_id == "Pendulum-v1"


def test_it_ranges_from_bad_to_good(shipped):
    returns = shipped.returns.reshape(5, 20)  # random, then less and less noise
    assert (np.diff(returns.mean(1)) > 0).all()
    assert returns[0].mean() < -1000 and returns[-1].mean() > -200
    assert (shipped.lengths == 200).all() and not shipped.terminated.any()
    # Of all data the mean action is worse than what the best fifth does.
    assert shipped.returns.mean() < -500
