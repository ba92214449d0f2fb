"""Returns on the scale of D4RL."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flax_linattn.checks import shown

REFERENCE_RETURNS: dict[str, tuple[float, float]] = {
    "HalfCheetah": (-280.178953, 12135.0),
    "Hopper": (-20.272305, 3234.3),
    "Walker2d": (1.629008, 4592.3),
    "Ant": (-325.6, 3879.7),
}
"""The returns of a random policy and of an expert, by family, as ``d4rl/infos.py`` has them."""

_OF_GYMNASIUM = re.compile(r"(\w+)-v\d+")
_OF_D4RL = re.compile(
    r"(\w+)-(?:random|medium|expert|medium-replay|medium-expert|full-replay)-v\d+"
)
"""Both say nothing of names with a namespace: ``dm_control/hopper-hop-v0`` is another robot, with
other rewards."""


def family_of(env_id: str) -> str | None:
    """The family of an environment in ``REFERENCE_RETURNS``, whatever its version.

    Args:
        env_id: A name of gymnasium's own, "Hopper-v5", or of one of D4RL's sets,
            "hopper-medium-v2"; robots of other packages have other rewards.

    Returns:
        Its name there; None where it has no references.

    Example:
        >>> family_of("Hopper-v5"), family_of("halfcheetah-medium-v2"), family_of("Pendulum-v1")
        ('Hopper', 'HalfCheetah', None)
    """
    if found := _OF_GYMNASIUM.fullmatch(env_id):
        return found[1] if found[1] in REFERENCE_RETURNS else None
    if found := _OF_D4RL.fullmatch(env_id):
        return {name.lower(): name for name in REFERENCE_RETURNS}.get(found[1])
    return None


def scores_of(returns: ArrayLike, env_id: str | None) -> NDArray[np.float64] | None:
    """``normalized_score``, or None where the environment has no references, or is not known.

    Example:
        >>> scores_of([3234.3], "Hopper-v5"), scores_of([1.0], "Pendulum-v1")
        (array([100.]), None)
    """
    if env_id is None or family_of(env_id) is None:
        return None
    return normalized_score(returns, env_id)


def normalized_score(returns: ArrayLike, env_id: str) -> NDArray[np.float64]:
    """Returns as D4RL scores them: 0 is a random policy, 100 an expert.

    ``100 (return - random) / (expert - random)``.

    Source: J. Fu et al., "D4RL: Datasets for deep data-driven reinforcement learning", 2020. Its
    references are of the environments of its day (``-v2``); with later versions, and with data that
    are not D4RL's, scores are no more than near those of the literature.

    Args:
        returns: Sums of the rewards of whole episodes, of any shape.
        env_id: The environment, of a family in ``REFERENCE_RETURNS``.

    Returns:
        float64, of the shape of ``returns``.

    Raises:
        ValueError: The family has no references.

    Example:
        >>> normalized_score([-20.272305, 3234.3], "Hopper-v5").tolist()
        [0.0, 100.0]
    """
    family = family_of(env_id)
    if family is None:
        raise ValueError(
            f"expected an environment of {', '.join(REFERENCE_RETURNS)}, for which D4RL has "
            f"references, got {shown(env_id)}; compare returns instead."
        )
    random, expert = REFERENCE_RETURNS[family]
    return 100 * (np.asarray(returns, np.float64) - random) / (expert - random)
