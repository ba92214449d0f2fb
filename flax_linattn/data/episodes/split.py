"""Training and validation parts of episodes."""

from __future__ import annotations

import numpy as np

from flax_linattn.checks import LARGEST_SEED, OptionError, at_least
from flax_linattn.data.episodes.episodes import Episodes


def split_episodes(episodes: Episodes, validation: float, seed: int) -> tuple[Episodes, Episodes]:
    """Draws whole episodes for validation; the others are for training.

    Args:
        episodes: At least two.
        validation: Which share of the episodes, above 0 and below 1; rounded to whole ones, with
            at least one in each part.
        seed: Of what is drawn.

    Returns:
        Those for training and those for validation, each in their order.

    Raises:
        OptionError: The share is outside that, or there is only one episode.

    Example:
        >>> one = Episodes("toy", np.zeros((4, 2)), np.zeros((4, 1)), np.arange(4.0),
        ...                np.arange(5), np.ones(4, bool))
        >>> train, held_out = split_episodes(one, 0.25, seed=0)
        >>> train.num_episodes, held_out.num_episodes
        (3, 1)
    """
    at_least(0, LARGEST_SEED, seed=seed)
    if not 0 < validation < 1:
        raise OptionError(
            f"validation must be a share above 0 and below 1, got {validation}.", "validation"
        )
    number = episodes.num_episodes
    if number < 2:
        raise OptionError(
            f"{episodes.name}: expected at least 2 episodes to set some aside for validation, got "
            "1; give more episodes, or train without validation.",
            "validation",
        )
    count = min(max(round(validation * number), 1), number - 1)
    chosen = np.random.default_rng(seed).permutation(number)[:count]
    held_out = np.zeros(number, bool)
    held_out[chosen] = True
    return episodes.take(np.flatnonzero(~held_out)), episodes.take(np.flatnonzero(held_out))
