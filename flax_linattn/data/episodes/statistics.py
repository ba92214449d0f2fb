"""What there is in a set of episodes, in numbers and as text."""

from __future__ import annotations

from typing import Any

import numpy as np

from flax_linattn.data.episodes.episodes import Episodes
from flax_linattn.data.episodes.notes import about_cut_short, count_cut_short, counted
from flax_linattn.data.episodes.scores import scores_of


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
