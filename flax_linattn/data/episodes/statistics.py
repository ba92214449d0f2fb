"""What there is in a set of episodes, in numbers and as text, and scores on D4RL's scale."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flax_linattn.checks import shown
from flax_linattn.data.episodes.episodes import Episodes

NO_TIMEOUTS = "no timeouts: only terminal states end episodes"
"""Of a file whose episodes that time cut cannot be told from the next ones."""


def count_cut_short(lengths: NDArray[np.int64], terminated: NDArray[np.bool_]) -> int:
    """Episodes without a terminal state that are shorter than the longest.

    Args:
        lengths: Steps of each episode, int64 [E].
        terminated: Whether it ended in a terminal state, bool [E].

    Example:
        >>> count_cut_short(np.array([3, 9, 9, 2]), np.array([False, False, True, True]))
        1
    """
    return int((~terminated & (lengths < lengths.max())).sum())


def about_cut_short(lengths: NDArray[np.int64], terminated: NDArray[np.bool_]) -> list[str]:
    """The note on them, if there are any.

    Example:
        >>> about_cut_short(np.array([3, 9]), np.array([False, False]))
        ['cut before step 9 without a terminal state: 1 episode, whose return may be of a part']
        >>> about_cut_short(np.array([3, 9]), np.array([True, False]))
        []
    """
    number = count_cut_short(lengths, terminated)
    if not number:
        return []
    returns = "return" if number == 1 else "returns"
    return [
        f"cut before step {int(lengths.max()):,} without a terminal state: "
        f"{counted(number, 'episode')}, whose {returns} may be of a part"
    ]


def about_left_out(number: int, what: str, where: str) -> list[str]:
    """The note on what has no end, if there is any.

    Example:
        >>> about_left_out(137, "step", "behind the last end")
        ['137 steps behind the last end are left out; keep_unfinished keeps them']
        >>> about_left_out(0, "step", "behind the last end")
        []
    """
    if not number:
        return []
    verb, them = ("is", "it") if number == 1 else ("are", "them")
    return [f"{counted(number, what)} {where} {verb} left out; keep_unfinished keeps {them}"]


def counted(number: int, what: str) -> str:
    """A number of things.

    Example:
        >>> counted(1, "step"), counted(1200, "step")
        ('1 step', '1,200 steps')
    """
    return f"{number:,} {what}{'' if number == 1 else 's'}"


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


def describe_episodes(episodes: Episodes) -> dict[str, Any]:
    """Statistics of episodes, as plain numbers that JSON can hold.

    Args:
        episodes: Of N steps.

    Returns:
        ``env_id``; ``steps``, ``episodes``, ``observation_dim``, ``action_dim``; of ``lengths`` and
        ``returns`` the ``min``, quartiles, ``mean`` and ``max``; ``terminated``, the share of
        episodes that ended in a terminal state; ``cut_short``, how many were cut although they are
        shorter than the longest, so that their returns may be of a part; ``normalized_score``, the
        mean, None where D4RL has no references; of ``actions`` the ``min``, ``max``, and the share
        of numbers ``outside`` of -1 to 1; ``constant_observations``, the indices of numbers that
        are the same in all observations; of ``rewards`` the ``mean`` and ``sd`` over all steps.

    Example:
        >>> one = Episodes("toy", np.ones((4, 2)), np.zeros((4, 1)), np.arange(4.0),
        ...                np.array([0, 1, 4]), np.array([True, False]))
        >>> found = describe_episodes(one)
        >>> found["lengths"]["max"], found["returns"]["max"], found["constant_observations"]
        (3, 6.0, [0, 1])
    """
    scores = scores_of(episodes.returns, episodes.env_id)
    outside = np.abs(episodes.actions) > 1
    constant = (episodes.observations == episodes.observations[0]).all(0)
    rewards = episodes.rewards.astype(np.float64)
    return {
        "env_id": episodes.env_id,
        "steps": episodes.num_steps,
        "episodes": episodes.num_episodes,
        "observation_dim": episodes.observation_dim,
        "action_dim": episodes.action_dim,
        "lengths": _spread(episodes.lengths)
        | {
            "min": int(episodes.lengths.min()),
            "max": int(episodes.lengths.max()),
        },
        "returns": _spread(episodes.returns),
        "terminated": float(episodes.terminated.mean()),
        "cut_short": count_cut_short(episodes.lengths, episodes.terminated),
        "normalized_score": None if scores is None else float(scores.mean()),
        "actions": {
            "min": float(episodes.actions.min()),
            "max": float(episodes.actions.max()),
            "outside": float(outside.mean()),
        },
        "constant_observations": [int(index) for index in np.flatnonzero(constant)],
        "rewards": {"mean": float(rewards.mean()), "sd": float(rewards.std())},
    }


def _spread(values: np.ndarray) -> dict[str, Any]:
    lower, median, upper = np.quantile(values, (0.25, 0.5, 0.75))
    return {
        "min": float(values.min()),
        "lower_quartile": float(lower),
        "median": float(median),
        "mean": float(values.mean()),
        "upper_quartile": float(upper),
        "max": float(values.max()),
    }


def episodes_as_text(episodes: Episodes) -> str:
    """The same for people, a line for each.

    Example:
        >>> one = Episodes("toy", np.zeros((4, 2)), np.zeros((4, 1)), np.arange(4.0),
        ...                np.array([0, 1, 4]), np.array([True, False]), "Pendulum-v1")
        >>> print(episodes_as_text(one))
        toy: 2 episodes of Pendulum-v1, 4 steps
        observations: 2 numbers, of which 2 never change (0 to 1)
        actions: 1 number, from 0 to 0, none outside -1 to 1
        lengths: 1 to 3, median 2
        returns: mean 3, least 0, quartiles 1.5, 3 and 4.5, most 6
        rewards: mean 1.5, standard deviation 1.118
        ended in a terminal state: 50 % of episodes
    """
    found = describe_episodes(episodes)
    returns, lengths = found["returns"], found["lengths"]
    actions, rewards = found["actions"], found["rewards"]
    outside = f"{100 * actions['outside']:.3g} % of them" if actions["outside"] else "none"
    lines = [
        size_as_text(episodes),
        f"observations: {counted(found['observation_dim'], 'number')}"
        f"{_constant(found['constant_observations'])}",
        f"actions: {counted(found['action_dim'], 'number')}, from {actions['min']:.4g} to "
        f"{actions['max']:.4g}, {outside} outside -1 to 1",
        f"lengths: {lengths['min']:,} to {lengths['max']:,}, median {lengths['median']:.6g}",
        f"returns: mean {returns['mean']:.6g}, least {returns['min']:.6g}, quartiles "
        f"{returns['lower_quartile']:.6g}, {returns['median']:.6g} and "
        f"{returns['upper_quartile']:.6g}, most {returns['max']:.6g}",
        f"rewards: mean {rewards['mean']:.4g}, standard deviation {rewards['sd']:.4g}",
        f"ended in a terminal state: {100 * found['terminated']:.3g} % of episodes",
    ]
    lines += about_cut_short(episodes.lengths, episodes.terminated)
    if found["normalized_score"] is not None:
        lines.append(
            f"mean score as D4RL normalizes: {found['normalized_score']:.1f} (0 a random policy, "
            "100 an expert)"
        )
    return "\n".join(lines)


def size_as_text(episodes: Episodes) -> str:
    """How many there are, as the first line of that.

    Example:
        >>> one = Episodes("toy", np.zeros((1, 1)), np.zeros((1, 1)), np.zeros(1),
        ...                np.array([0, 1]), np.array([True]), "Hopper-v5")
        >>> size_as_text(one)
        'toy: 1 episode of Hopper-v5, 1 step'
    """
    of = f" of {episodes.env_id}" if episodes.env_id else ""
    return (
        f"{episodes.name}: {counted(episodes.num_episodes, 'episode')}{of}, "
        f"{counted(episodes.num_steps, 'step')}"
    )


def _constant(indices: list[int]) -> str:
    """Which never change, as ranges."""
    if not indices:
        return ""
    groups = np.split(np.array(indices), np.flatnonzero(np.diff(indices) > 1) + 1)
    ranges = [str(own[0]) if len(own) == 1 else f"{own[0]} to {own[-1]}" for own in groups]
    more = f" and {len(ranges) - 8} more" if len(ranges) > 8 else ""
    verb = "changes" if len(indices) == 1 else "change"
    return f", of which {len(indices)} never {verb} ({', '.join(ranges[:8])}{more})"
