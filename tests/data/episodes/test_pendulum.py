"""The embedded episodes, against the equations of motion in float64."""

import numpy as np

from flax_linattn.data import pendulum

STEP, GRAVITY, LARGEST_TORQUE, LARGEST_SPEED = 0.05, 10.0, 2.0, 8.0


def test_the_embedded_episodes_obey_the_pendulum():
    episodes = pendulum()
    assert episodes.name == "pendulum" and episodes.env_id == "Pendulum-v1"
    assert set(episodes.lengths) == {200} and not episodes.terminated.any()
    cosine, sine, speed = episodes.observations.astype(np.float64).T
    torque = np.clip(episodes.actions[:, 0].astype(np.float64), -LARGEST_TORQUE, LARGEST_TORQUE)
    angle = np.arctan2(sine, cosine)
    cost = angle**2 + 0.1 * speed**2 + 0.001 * torque**2
    np.testing.assert_allclose(episodes.rewards, -cost, atol=2e-5)
    faster = speed + (1.5 * GRAVITY * np.sin(angle) + 3 * torque) * STEP
    faster = np.clip(faster, -LARGEST_SPEED, LARGEST_SPEED)
    inside = np.ones(episodes.num_steps, bool)
    inside[episodes.starts[1:] - 1] = False  # what came after the last action is not kept
    at = np.flatnonzero(inside)
    np.testing.assert_allclose(speed[at + 1], faster[at], atol=2e-5)
    turned = angle[at] + faster[at] * STEP
    np.testing.assert_allclose(cosine[at + 1], np.cos(turned), atol=2e-6)
    np.testing.assert_allclose(sine[at + 1], np.sin(turned), atol=2e-6)
