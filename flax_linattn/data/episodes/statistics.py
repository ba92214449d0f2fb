"""Statistics of episodes in numbers and as text, and normalized scores of D4RL."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flax_linattn.checks import format_count, quote
from flax_linattn.data.episodes.episodes import Episodes


def about_cut_short(lengths: NDArray[np.int64], terminated: NDArray[np.bool_]) -> list[str]:
    """Returns a note on episodes truncated before the maximum length, if there are any."""
    number = int((~terminated & (lengths < lengths.max())).sum())
    if not number:
        return []
    returns = "return" if number == 1 else "returns"
    return [
        f"cut before step {int(lengths.max()):,} without a terminal state: "
        f"{format_count(number, 'episode')}, whose {returns} may be incomplete"
    ]


def about_left_out(number: int, what: str, where: str) -> list[str]:
    """Returns a note on steps or episodes without an end, if there are any."""
    if not number:
        return []
    verb, them = ("is", "it") if number == 1 else ("are", "them")
    return [f"{format_count(number, what)} {where} {verb} left out; keep_unfinished keeps {them}"]


def about_choices(actions: NDArray) -> list[str]:
    """Returns a note on floating-point actions that look discrete, if they do."""
    if actions.dtype.kind != "f" or actions.ndim > 2 or not actions.size:
        return []
    columns = actions.reshape(len(actions), -1)
    width, high = columns.shape[1], float(columns.max())
    if not (high >= 1 and columns.min() >= 0 and (columns == np.floor(columns)).all()):
        return []
    fix = "actions.astype(numpy.int32)"
    if width > 1:
        if high > 1 or (columns.sum(axis=1) != 1).any():
            return []
        fix = "actions.argmax(axis=1)"
    form = "whole numbers from 0" if width == 1 else "one-hot"
    return [
        f"all actions are {form}, but stored as {actions.dtype}: they are treated as "
        f"continuous actions; for discrete actions save {fix}"
    ]


REFERENCE_RETURNS: dict[str, tuple[float, float]] = {
    "HalfCheetah": (-280.178953, 12135.0),
    "Hopper": (-20.272305, 3234.3),
    "Walker2d": (1.629008, 4592.3),
    "Ant": (-325.6, 3879.7),
}
"""Returns of a random policy and of an expert by environment family, from ``d4rl/infos.py``."""

_OF_GYMNASIUM = re.compile(r"(\w+)-v\d+")
_OF_D4RL = re.compile(
    r"(\w+)-(?:random|medium|expert|medium-replay|medium-expert|full-replay)-v\d+"
)
"""Both say nothing of names with a namespace: ``dm_control/hopper-hop-v0`` is another robot, with
other rewards."""


def find_family(env_id: str) -> str | None:
    """Finds the family of an environment in ``REFERENCE_RETURNS``, for any version.

    Args:
        env_id: A name of gymnasium's own, "Hopper-v5", or of one of D4RL's sets,
            "hopper-medium-v2"; robots of other packages have other rewards.

    Returns:
        Name of the family; None if there are no reference returns.

    Example:
        >>> find_family("Hopper-v5"), find_family("halfcheetah-medium-v2")
        ('Hopper', 'HalfCheetah')
        >>> find_family("Pendulum-v1") is None
        True
    """
    if match := _OF_GYMNASIUM.fullmatch(env_id):
        return match[1] if match[1] in REFERENCE_RETURNS else None
    if match := _OF_D4RL.fullmatch(env_id):
        return {name.lower(): name for name in REFERENCE_RETURNS}.get(match[1])
    return None


def normalized_scores(returns: ArrayLike, env_id: str | None) -> NDArray[np.float64] | None:
    """Returns ``normalized_score``, or None if there are no reference returns.

    Example:
        >>> normalized_scores([3234.3], "Hopper-v5"), normalized_scores([1.0], "Pendulum-v1")
        (array([100.]), None)
    """
    if env_id is None or find_family(env_id) is None:
        return None
    return normalized_score(returns, env_id)


def normalized_score(returns: ArrayLike, env_id: str) -> NDArray[np.float64]:
    """Normalizes returns as D4RL does: 0 is a random policy, 100 an expert.

    ``100 (return - random) / (expert - random)``.

    Source: J. Fu et al., "D4RL: Datasets for deep data-driven reinforcement learning", 2020. Its
        reference returns are for ``-v2`` environments; with later versions, or with data that are
        not from D4RL, scores are only approximately comparable with the literature.

    Args:
        returns: Sums of the rewards of whole episodes, of any shape.
        env_id: Environment of a family in ``REFERENCE_RETURNS``.

    Returns:
        Scores, float64 of the shape of ``returns``.

    Raises:
        ValueError: If the family has no references.

    Example:
        >>> normalized_score([-20.272305, 3234.3], "Hopper-v5").tolist()
        [0.0, 100.0]
    """
    family = find_family(env_id)
    if family is None:
        raise ValueError(
            "expected one of the environments with D4RL reference returns "
            f"({', '.join(REFERENCE_RETURNS)}), got {quote(env_id)}; compare returns "
            "instead of normalized scores."
        )
    random, expert = REFERENCE_RETURNS[family]
    return 100 * (np.asarray(returns, np.float64) - random) / (expert - random)


def episodes_as_text(episodes: Episodes) -> str:
    """Summarizes sizes, lengths, returns, actions and rewards of episodes, one line each.

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
        >>> choices = Episodes("toy", np.zeros((4, 2)), np.array([1, 1, 0, 1]), np.arange(4.0),
        ...                    np.array([0, 4]), np.array([True]), "CartPole-v1")
        >>> episodes_as_text(choices).splitlines()[2]
        'actions: 2 discrete, 1 in 75 % of steps, 0 in 25 % of steps'
    """
    returns, lengths = episodes.returns, episodes.lengths
    rewards = episodes.rewards.astype(np.float64)
    lower, median, upper = np.quantile(returns, (0.25, 0.5, 0.75))
    constant = np.flatnonzero((episodes.observations == episodes.observations[0]).all(0))
    lines = [
        size_as_text(episodes),
        f"observations: {format_count(episodes.observation_dim, 'number')}{_constant(constant)}",
        f"actions: {_actions(episodes)}",
        f"lengths: {lengths.min():,} to {lengths.max():,}, median {np.median(lengths):.6g}",
        f"returns: mean {returns.mean():.6g}, least {returns.min():.6g}, quartiles {lower:.6g}, "
        f"{median:.6g} and {upper:.6g}, most {returns.max():.6g}",
        f"rewards: mean {rewards.mean():.4g}, standard deviation {rewards.std():.4g}",
        f"ended in a terminal state: {100 * episodes.terminated.mean():.3g} % of episodes",
    ]
    lines += about_cut_short(episodes.lengths, episodes.terminated)
    scores = normalized_scores(returns, episodes.env_id)
    if scores is not None:
        lines.append(
            f"mean score as D4RL normalizes: {scores.mean():.1f} (0 a random policy, 100 an expert)"
        )
    return "\n".join(lines)


MAX_LISTED_ACTIONS = 8
"""Maximum number of discrete actions whose fractions are listed, the most frequent first."""


def _actions(episodes: Episodes) -> str:
    """Describes the range of continuous actions, or the fractions of discrete ones."""
    actions = episodes.actions
    if episodes.num_actions is None:
        outside = float((np.abs(actions) > 1).mean())
        return (
            f"{format_count(episodes.action_dim, 'number')}, from {actions.min():.4g} to "
            f"{actions.max():.4g}, {f'{100 * outside:.3g} % of them' if outside else 'none'} "
            "outside -1 to 1"
        )
    counts = np.bincount(actions, minlength=episodes.num_actions)
    listed = np.argsort(-counts, kind="stable")[:MAX_LISTED_ACTIONS]
    cells = [
        f"{action} in {100 * counts[action] / counts.sum():.3g} % of steps" for action in listed
    ]
    more = len(counts) - len(listed)
    return f"{len(counts):,} discrete, {', '.join(cells)}{f' and {more:,} more' if more else ''}"


def size_as_text(episodes: Episodes) -> str:
    """Returns the first line of ``episodes_as_text``: the number of episodes and steps."""
    of = f" of {episodes.env_id}" if episodes.env_id else ""
    return (
        f"{episodes.name}: {format_count(episodes.num_episodes, 'episode')}{of}, "
        f"{format_count(episodes.num_steps, 'step')}"
    )


def _constant(indices: NDArray[np.intp]) -> str:
    """Describes the indices of numbers that never change, as ranges."""
    if not indices.size:
        return ""
    groups = np.split(indices, np.flatnonzero(np.diff(indices) > 1) + 1)
    ranges = [str(own[0]) if len(own) == 1 else f"{own[0]} to {own[-1]}" for own in groups]
    more = f" and {len(ranges) - 8} more" if len(ranges) > 8 else ""
    verb = "changes" if len(indices) == 1 else "change"
    return f", of which {len(indices)} never {verb} ({', '.join(ranges[:8])}{more})"
