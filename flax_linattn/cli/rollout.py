"""``flax-linattn rollout POLICY``."""

from __future__ import annotations

import hashlib
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tyro

from flax_linattn.checks import OptionError, at_least
from flax_linattn.control import (
    Agent,
    Environments,
    Noisy,
    RandomPolicy,
    StoppedError,
    SwingUp,
    check_drawing,
    collect,
    draw,
    make_environments,
    play,
    read_policy,
)
from flax_linattn.data.episodes import Episodes, scores_of

PROG = "flax-linattn rollout POLICY"
ABOUT = "Plays episodes in an environment of gymnasium, and prints or keeps them."
EPISODES = 10
"""That are played where nothing says how many."""
_NAMES = {
    "env_id": "env",
    "path": "out",
    "num_steps": "steps",
    "num_episodes": "episodes",
    "deviation": "noise",
}
"""What the library calls an option -> what the command does."""
_KEPT = (
    *("env", "out", "steps", "episodes", "num_envs", "seed", "noise"),
    *("target_return", "act", "checkpoint", "gif"),
)

MakeAgent = Callable[[Environments], Agent]


@dataclass(frozen=True)
class _Policy:
    """What plays, and what it says of where.

    Attributes:
        make: Makes the agent.
        about: What is to be written of it.
        observation_dim: Numbers in the observations that it takes, where it says so.
        env_id: The environment that it was trained for, where it says so.
        seed: Of the first episode of its own test.
    """

    make: MakeAgent
    about: dict[str, str]
    observation_dim: int | None = None
    env_id: str | None = None
    seed: int = 0


@dataclass(frozen=True)
class _OfRun:
    """Options that are of a run alone."""

    target_return: float | None = None
    act: str | None = None
    checkpoint: Literal["best", "last"] = "best"

    def refuse(self) -> None:
        """For policies that are no runs."""
        if self.target_return is not None:
            raise OptionError(
                "a return to reach is of a run, not of other policies.", "target_return"
            )
        if self.act is not None:
            raise OptionError("how to act is of a run, not of other policies.", "act")
        if self.checkpoint != "best":
            raise OptionError("a checkpoint is of a run, not of other policies.", "checkpoint")

    def given(self) -> dict[str, Any]:
        """Those for the agent that were given."""
        options = {"act": self.act, "target_return": self.target_return}
        return {name: value for name, value in options.items() if value is not None}


def rollout_command(args: Sequence[str]) -> int:
    """Plays, and prints or keeps what was played.

    Args:
        args: the command line, the policy first.

    Returns:
        The exit status.
    """
    with _own_names():
        tyro.cli(rollout, args=args, prog="flax-linattn rollout", description=ABOUT)
    return 0


def rollout(
    policy: str,
    /,
    env: str | None = None,
    out: Path | None = None,
    steps: int | None = None,
    episodes: int | None = None,
    num_envs: int = 16,
    seed: int | None = None,
    noise: float = 0.0,
    target_return: float | None = None,
    act: str | None = None,
    checkpoint: Literal["best", "last"] = "best",
    gif: Path | None = None,
) -> None:
    """Plays episodes in an environment of gymnasium, and prints or keeps them.

    Args:
        policy: an .npz file of weights (as Stable-Baselines3 names them), "random", "swing-up"
            (of Pendulum-v1), or a run folder.
        env: the environment, such as Hopper-v5, or package:Name-v0, which imports the package;
            default that of the run, where it has one.
        out: an .hdf5 or .npz file for the episodes, in the keys of D4RL. A run that was stopped
            goes on when the same command is given again.
        steps: whole episodes until there are so many steps; with out.
        episodes: so many; default 10 where there is no file.
        num_envs: how many are played side by side.
        seed: of the first episode; the next ones have the next numbers. Default that of the run's
            test, where nothing is written to a file, so that no episode begins as one of the data
            does; else 0.
        noise: the standard deviation of Gaussian noise on the actions.
        target_return: what a run is asked to reach.
        act: how a run acts, in the words of its training; default as it was trained.
        checkpoint: of a run: best are the parameters that were selected, last those that training
            ended with.
        gif: a file to draw the first episode to, which must not exist.
    """
    if out is None and steps is not None:
        raise OptionError(
            "a number of steps goes with a file for them; give that, or a number of episodes.",
            "steps",
            out="FILE",
        )
    at_least(1, episodes=episodes)
    if gif is not None and gif.suffix != ".gif":
        raise OptionError(f"pictures: expected a file .gif, got {gif}.", "gif")
    if gif is not None and gif.exists():
        raise OptionError(f"{gif} exists already; give another file, or remove it.", "gif")
    chosen = _policy(policy, _OfRun(target_return, act, checkpoint))
    env_id = _env_id(env, chosen)
    is_given = env is not None  # by the user, who may have a package imported; a file may not
    if seed is None:
        seed = chosen.seed if out is None else 0
    first = seed

    def noisy(environments: Environments) -> Agent:
        agent = chosen.make(environments)
        if noise == 0:
            return agent
        return Noisy(agent, noise, environments.action_low, environments.action_high, first)

    with make_environments(
        env_id, num_envs, observation_dim=chosen.observation_dim, allow_import=is_given
    ) as environments:
        agent = noisy(environments)
        if gif is not None:  # before hours of play
            check_drawing(env_id, observation_dim=chosen.observation_dim, allow_import=is_given)
        if out is None:
            seeds = range(seed, seed + (EPISODES if episodes is None else episodes))
            played = play(agent, environments, seeds)
            _print_table(played, seed)
        else:
            with _until_signal() as stop:
                played = collect(
                    *(agent, environments, steps, out),
                    num_episodes=episodes,
                    seed=seed,
                    about=chosen.about | {"noise": str(noise)},
                    stop=stop,
                )
            print(f"{out}: {played.num_steps:,} steps of {played.num_episodes:,} episodes")
            _print_summary(played)
    if gif is not None:
        draw(
            *(noisy, env_id, gif),
            observation_dim=chosen.observation_dim,
            seed=seed,
            allow_import=is_given,
        )
        print(f"the first episode is drawn: {gif}")


def _env_id(env: str | None, policy: _Policy) -> str:
    env_id = policy.env_id if env is None else env
    if env_id is None:
        raise OptionError("the policy names no environment; give one, such as Pendulum-v1.", "env")
    return env_id


def _policy(policy: str, of_run: _OfRun) -> _Policy:
    path = Path(policy)
    if path.is_dir():
        return _run(path, of_run)
    of_run.refuse()
    if policy == "random":
        return _Policy(
            lambda environments: RandomPolicy(environments.action_low, environments.action_high),
            {"policy": policy},
        )
    if policy == "swing-up":
        return _Policy(lambda environments: SwingUp(), {"policy": policy})
    if not path.exists():
        raise ValueError(
            f"POLICY must be an .npz file of weights, a run folder, random or swing-up, and there "
            f"is no file or folder {policy}."
        )
    observation_dim = read_policy(path).observation_dim
    about = {"policy": path.name, "policy_sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    return _Policy(
        lambda environments: read_policy(path, max_steps=environments.max_steps),
        about,
        observation_dim,
    )


def _run(path: Path, options: _OfRun) -> _Policy:
    from flax_linattn import tasks
    from flax_linattn.tasks.protocols import Acting

    run = tasks.load_run(path, checkpoint=options.checkpoint)
    task = run.task
    if not isinstance(task, Acting):
        raise OptionError(f"a run of {task.name} takes no actions; give another run.", "run")
    played = getattr(run.config, "play", None)
    own = {
        "act": getattr(played, "act", None),
        "target_return": getattr(run.problem, "target_return", None),
    }

    return _Policy(
        lambda environments: task.agent(run, environments, **options.given()),
        {
            "policy": f"run {path.name}",
            "policy_sha256": _parameters_sha256(run.model),
            **{name: str(value) for name, value in (own | options.given()).items()},
        },
        getattr(run.problem, "observation_dim", None),
        getattr(run.problem, "env_id", None),
        getattr(played, "play_seed", 0),
    )


def _parameters_sha256(model: Any) -> str:
    """Of all parameters, by their names: another training of the run has another one."""
    import jax
    from flax import nnx

    digest = hashlib.sha256()
    for name, value in jax.tree.leaves_with_path(nnx.state(model, nnx.Param)):
        digest.update(jax.tree_util.keystr(name).encode())
        digest.update(np.asarray(value).tobytes())
    return digest.hexdigest()


@contextmanager
def _until_signal() -> Iterator[Callable[[], bool]]:
    """A context in which Ctrl-C and SIGTERM end the collecting after the step."""
    from flax_linattn.training.signals import Interrupted, StopRequest

    with StopRequest() as request:
        try:
            yield lambda: request.signum is not None
        except StoppedError as error:
            signum = request.signum or signal.SIGINT
            message = str(error).replace("same call", "same command")
            print(f"{signal.Signals(signum).name}: {message}.", file=sys.stderr)
            raise Interrupted(signum, message) from error


@contextmanager
def _own_names() -> Iterator[None]:
    """A context whose errors name the options of this command."""
    try:
        yield
    except OptionError as error:
        names = (_NAMES.get(name, name) for name in error.options)
        error.options = tuple(name for name in names if name in _KEPT)
        raise


def _print_table(episodes: Episodes, seed: int) -> None:
    scores = scores_of(episodes.returns, episodes.env_id)
    header = ["seed", "steps", "return", "ended"] + ([] if scores is None else ["score"])
    print("  ".join(f"{name:>10}" for name in header))
    for row in range(episodes.num_episodes):
        ended = "terminal" if episodes.terminated[row] else "time"
        cells = [str(seed + row), str(episodes.lengths[row]), f"{episodes.returns[row]:.2f}", ended]
        cells += [] if scores is None else [f"{scores[row]:.2f}"]
        print("  ".join(f"{cell:>10}" for cell in cells))
    _print_summary(episodes)


def _print_summary(episodes: Episodes) -> None:
    line = f"return {_spread(episodes.returns)}, length {_spread(episodes.lengths)}"
    scores = scores_of(episodes.returns, episodes.env_id)
    if scores is not None:
        line += f", normalized score {_spread(scores)}"
    print(f"{line} (mean, and standard deviation over episodes)")


def _spread(values: np.ndarray) -> str:
    deviation = f"{values.std(ddof=1):.2f}" if len(values) > 1 else "unknown"
    return f"{values.mean():.2f} (sd {deviation})"
