"""``flax-linattn rollout RUN``."""

from __future__ import annotations

import hashlib
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flax_linattn.checks import OptionError, check_integers, format_count
from flax_linattn.tasks.options import Checkpoint

if TYPE_CHECKING:
    import numpy as np
    from gymnasium.vector import VectorEnv

    from flax_linattn.control import Agent
    from flax_linattn.data.episodes import Episodes


def rollout(
    run: Path,
    /,
    env: str | None = None,
    out: Path | None = None,
    episodes: int = 10,
    num_envs: int = 16,
    seed: int | None = None,
    target_return: float | None = None,
    act: str | None = None,
    checkpoint: Checkpoint = "best",
    gif: Path | None = None,
) -> None:
    """Plays episodes with an agent in a Gymnasium environment, and prints or saves them.

    Args:
        run: Folder of an offline-RL run.
        env: Gymnasium environment, such as Hopper-v5; package:Name-v0 imports the package first.
            Default: the environment of the run, if it has one.
        out: New .hdf5 or .npz file to save the episodes in, with the keys of D4RL.
        episodes: Number of episodes.
        num_envs: Number of episodes to play in parallel.
        seed: Seed of the first episode; each next episode adds 1. Default: 0 with ``out``,
            otherwise the seed of the run's test episodes, so that no episode starts like an episode
            of the training data.
        target_return: Target return (return-to-go at the start of an episode). Default: the target
            return of the run.
        act: How the agent handles the context: "restart", "stream" or "window", as in training.
            Default: the value of the run.
        checkpoint: Parameters to use: "best" (those with the best validation) or "last" (those at
            the end of training).
        gif: New .gif file for an animation of the first episode.
    """
    from flax_linattn import tasks
    from flax_linattn.control import check_rendering, make_environments, play, save_animation
    from flax_linattn.data.episodes import check_episode_file, write_episodes
    from flax_linattn.tasks.protocols import Acting

    check_integers(1, episodes=episodes, num_envs=num_envs)
    if out is not None:
        check_episode_file(out)
    if gif is not None and gif.suffix != ".gif":
        raise OptionError(f"expected a .gif file for the animation, got {gif}.", "gif")
    for name, file in (("gif", gif), ("out", out)):
        if file is not None and file.exists():
            raise OptionError(f"{file} already exists; choose another file, or remove it.", name)
    loaded: Any = tasks.load_run(run, checkpoint=checkpoint)
    task = loaded.task
    if not isinstance(task, Acting):
        raise OptionError(
            f"'rollout' needs an offline-RL run, but {run} is a run of {task.name}.", "run"
        )
    env_id = getattr(loaded.data_spec, "env_id", None) if env is None else env
    if env_id is None:
        raise OptionError("the run has no environment; pass one, such as --env Pendulum-v1.", "env")
    options = {"act": act, "target_return": target_return}
    how = {name: value for name, value in options.items() if value is not None}
    trained = getattr(loaded.config, "play", None)
    first = getattr(trained, "play_seed", 0) if out is None else 0
    first = first if seed is None else seed
    # Named by the user, who may have a package imported; a file may not.
    where: dict[str, Any] = {
        "observation_dim": getattr(loaded.data_spec, "observation_dim", None),
        "allow_import": env is not None,
    }

    def make_agent(environments: VectorEnv) -> Agent:
        return task.agent(loaded, environments, **how)

    with closing(make_environments(env_id, num_envs, **where)) as environments:
        agent = make_agent(environments)
        if gif is not None:  # before hours of play
            check_rendering(env_id, **where)
        played = play(agent, environments, range(first, first + episodes))
    if out is None:
        _print_table(played, first)
    else:
        about = {
            "policy": f"run {run.name}",
            "policy_sha256": _parameters_sha256(loaded.model),
            "act": getattr(trained, "act", None),
            "target_return": getattr(loaded.data_spec, "target_return", None),
            "seed": first,
            **how,
        }
        write_episodes(out, played, {name: str(value) for name, value in about.items()})
        num_episodes = format_count(played.num_episodes, "episode")
        print(f"{out}: {format_count(played.num_steps, 'step')} of {num_episodes}")
    _print_summary(played)
    if gif is not None:
        save_animation(make_agent, env_id, gif, seed=first, **where)
        print(f"animation of the first episode: {gif}")


def _parameters_sha256(model: Any) -> str:
    """Checksum of the names and values of all parameters, which differs for another training."""
    import jax
    import numpy as np
    from flax import nnx

    digest = hashlib.sha256()
    for name, value in jax.tree.leaves_with_path(nnx.state(model, nnx.Param)):
        digest.update(jax.tree_util.keystr(name).encode())
        digest.update(np.asarray(value).tobytes())
    return digest.hexdigest()


def _print_table(episodes: Episodes, seed: int) -> None:
    from flax_linattn.data.episodes import normalized_scores

    scores = normalized_scores(episodes.returns, episodes.env_id)
    header = ["seed", "steps", "return", "ended"] + ([] if scores is None else ["score"])
    print("  ".join(f"{name:>10}" for name in header))
    for row in range(episodes.num_episodes):
        ended = "terminal" if episodes.terminated[row] else "time"
        cells = [str(seed + row), str(episodes.lengths[row]), f"{episodes.returns[row]:.2f}", ended]
        cells += [] if scores is None else [f"{scores[row]:.2f}"]
        print("  ".join(f"{cell:>10}" for cell in cells))


def _print_summary(episodes: Episodes) -> None:
    from flax_linattn.data.episodes import normalized_scores

    line = f"return {_spread(episodes.returns)}, length {_spread(episodes.lengths)}"
    scores = normalized_scores(episodes.returns, episodes.env_id)
    if scores is not None:
        line += f", normalized score {_spread(scores)}"
    print(f"{line} (mean and standard deviation over episodes)")


def _spread(values: np.ndarray) -> str:
    std = f"{values.std(ddof=1):.2f}" if len(values) > 1 else "unknown"
    return f"{values.mean():.2f} (std {std})"
