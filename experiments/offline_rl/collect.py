"""Collects a data set of episodes, saved in parts so that an interruption loses little.

``python -m experiments.offline_rl.collect policy.npz --env Hopper-v5 --out hopper.hdf5``
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import hashlib
import json
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from experiments.offline_rl.policies import Balance, Noisy, NoisyChoices, RandomPolicy, SwingUp
from experiments.offline_rl.weights import read_policy
from flax_linattn.checks import OptionError, check_integers, quote
from flax_linattn.control import (
    Agent,
    action_bounds,
    make_environments,
    max_episode_steps,
    num_actions,
    play,
)
from flax_linattn.data.episodes import (
    Episodes,
    check_episode_file,
    join_episodes,
    load_episodes,
    write_episodes,
)
from flax_linattn.storage import file_lock, remove_unfinished, write_text
from flax_linattn.training.signals import StopRequest

ROUNDS = 2
"""Episodes of a part, for each environment: what a stop loses at most."""


class StoppedError(RuntimeError):
    """Collecting was asked to stop; the finished parts are on the disk."""


def collect(
    agent: Agent,
    environments: Any,
    path: str | Path,
    *,
    num_steps: int | None = None,
    num_episodes: int | None = None,
    seed: int = 0,
    about: Mapping[str, str] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Episodes:
    """Plays whole episodes until there are enough, and writes them to a file.

    Parts go to a folder next to it, ``<path>.parts``, each written whole. After a stop or a kill
    the same call continues from there, and the file is the same to the bit.

    Args:
        agent: What plays.
        environments: Where; see ``control.make_environments``.
        path: A new file ".hdf5" or ".h5" (takes h5py), or ".npz".
        num_steps: The least number of steps; the last episode is played to its end.
        num_episodes: The exact number of episodes, instead of ``num_steps``.
        seed: Of the first episode; the next ones have the next numbers.
        about: What made the agent, such as its file and checksum, to be written to the file; it
            has to be the same when the call is made again.
        stop: Asked after each step whether to stop, as a handler of a signal may want.

    Raises:
        OptionError: The file exists, or has another suffix; the parts there are of other options.
        LockedError: Another process collects to this file.
        StoppedError: ``stop`` returned True; says how much is kept.
    """
    path = Path(path)
    if (num_steps is None) == (num_episodes is None):
        message = "give either the number of steps or the number of episodes."
        raise OptionError(message, "num_steps", "num_episodes")
    check_integers(1, num_steps=num_steps, num_episodes=num_episodes)
    check_integers(0, seed=seed)
    check_episode_file(path)
    if path.exists():
        raise OptionError(f"{path} exists already; give another file, or remove it.", "path")
    folder = path.with_name(f"{path.name}.parts")
    options = {
        "environment": environments.spec.id,
        "environments": environments.num_envs,
        "observation_dim": environments.single_observation_space.shape[0],
        "seed": seed,
        "versions": _versions(),
        **(about or {}),
    }
    with file_lock(folder / "lock", str(path)):
        _save_options(folder / "options.json", options)
        remove_unfinished(folder)
        parts: list[Episodes] = []
        steps = count = 0

        def on_step(*_: int) -> None:
            if stop():
                raise StoppedError(
                    f"stopped with {count} episodes of {steps:,} steps on the disk; the same "
                    "command continues from there."
                )

        while count < num_episodes if num_episodes is not None else steps < (num_steps or 0):
            file = folder / f"{len(parts):06d}.npz"
            if not file.exists():
                size = ROUNDS * environments.num_envs
                size = size if num_episodes is None else min(size, num_episodes - count)
                seeds = range(seed + count, seed + count + size)
                write_episodes(file, play(agent, environments, seeds, on_step=on_step))
            parts.append(load_episodes(file))
            steps += parts[-1].num_steps
            count += parts[-1].num_episodes
        joined = join_episodes(parts)
        if num_episodes is None:
            num_episodes = 1 + int(np.searchsorted(joined.starts[1:], num_steps or 0))
        episodes = dataclasses.replace(joined, name=str(path)).take(range(num_episodes))
        write_episodes(path, episodes, {name: str(value) for name, value in options.items()})
    shutil.rmtree(folder)
    return episodes


def _save_options(file: Path, options: Mapping[str, Any]) -> None:
    """Writes the options, or checks that parts on the disk have the same ones."""
    if not file.exists():
        write_text(file, json.dumps(options, indent=1) + "\n")
        return
    try:
        saved = dict(json.loads(file.read_text()))
    except (ValueError, TypeError):
        raise ValueError(
            f"{file}: expected the options of the parts, and it is damaged; remove that folder to "
            "start again."
        ) from None
    for name in sorted({*saved, *options}):
        if saved.get(name) != options.get(name):
            raise OptionError(
                f"{file.parent} was begun with {name} {quote(saved.get(name), 100)}, and now it is "
                f"{quote(options.get(name), 100)}; give the same, or another file, or remove it."
            )


def _versions() -> str:
    """Versions of the packages that decide the numbers."""
    versions = []
    for name in ("flax-linattn", "gymnasium", "jax", "jaxlib", "mujoco", "numpy"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions.append(f"{name} {metadata.version(name)}")
    return ", ".join(versions)


def main(args: Sequence[str] | None = None) -> None:
    """Runs the command, which plays a policy."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.offline_rl.collect",
        description="Plays a policy and writes its episodes to a file, in the keys of D4RL.",
    )
    parser.add_argument(
        "policy",
        help=".npz weights of Stable-Baselines3, random, swing-up (Pendulum-v1) or balance "
        "(CartPole-v1)",
    )
    parser.add_argument("--env", required=True, help="such as Hopper-v5, or package:Name-v0")
    parser.add_argument("--out", required=True, type=Path, help="a new .hdf5, .h5 or .npz file")
    parser.add_argument("--steps", type=int, help="minimum number of steps, in whole episodes")
    parser.add_argument("--episodes", type=int, help="number of episodes")
    parser.add_argument("--num-envs", type=int, default=16, help="played side by side")
    parser.add_argument("--seed", type=int, default=0, help="of the first episode")
    parser.add_argument("--noise", type=float, default=0.0, help=NOISE)
    options = parser.parse_args(args)
    try:
        episodes = _collect(options)
    except (ValueError, FileNotFoundError) as error:
        parser.error(str(error))
    print(f"{options.out}: {episodes.num_steps:,} steps of {episodes.num_episodes:,} episodes")
    print(f"mean return {episodes.returns.mean():.2f}")


NOISE = "std of noise on continuous actions, or fraction of discrete actions that are random"
RULES: dict[str, Callable[[], Agent]] = {"swing-up": SwingUp, "balance": Balance}
"""Policies without weights, by name."""


def _collect(options: argparse.Namespace) -> Episodes:
    about, observation_dim = {"policy": options.policy, "noise": str(options.noise)}, None
    file = Path(options.policy)
    if options.policy != "random" and options.policy not in RULES:
        observation_dim = read_policy(file).observation_dim
        checksum = hashlib.sha256(file.read_bytes()).hexdigest()
        about |= {"policy": file.name, "policy_sha256": checksum}
    with (
        closing(
            make_environments(
                options.env, options.num_envs, observation_dim=observation_dim, allow_import=True
            )
        ) as environments,
        StopRequest() as request,
    ):
        agent: Agent | None = None
        if options.policy in RULES:
            agent = RULES[options.policy]()
        elif options.policy != "random":
            agent = read_policy(file, max_steps=max_episode_steps(environments))
        choices = num_actions(environments)
        if choices is not None:
            agent = NoisyChoices(agent, options.noise, choices, options.seed)
        else:
            low, high = action_bounds(environments)
            agent = RandomPolicy(low, high) if agent is None else agent
            if options.noise:
                agent = Noisy(agent, options.noise, low, high, options.seed)
        try:
            return collect(
                agent,
                environments,
                options.out,
                num_steps=options.steps,
                num_episodes=options.episodes,
                seed=options.seed,
                about=about,
                stop=lambda: request.signum is not None,
            )
        except StoppedError as error:
            print(error, file=sys.stderr)
            raise SystemExit(128 + (request.signum or 0)) from None


if __name__ == "__main__":
    main()
