"""Episodes of offline reinforcement learning, and the files that hold them."""

from flax_linattn.data.episodes.d4rl import check_episode_file, read_d4rl, write_episodes
from flax_linattn.data.episodes.episodes import Episodes, join_episodes, split_episodes
from flax_linattn.data.episodes.load import EpisodeFormat, load_episodes
from flax_linattn.data.episodes.minari import read_minari
from flax_linattn.data.episodes.statistics import (
    REFERENCE_RETURNS,
    episodes_as_text,
    find_family,
    normalized_score,
    normalized_scores,
)

__all__ = [
    "REFERENCE_RETURNS",
    "EpisodeFormat",
    "Episodes",
    "check_episode_file",
    "episodes_as_text",
    "find_family",
    "join_episodes",
    "load_episodes",
    "normalized_score",
    "normalized_scores",
    "read_d4rl",
    "read_minari",
    "split_episodes",
    "write_episodes",
]
