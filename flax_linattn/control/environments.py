"""Environments of gymnasium, several side by side in one process."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import OptionError, at_least, import_extra

if TYPE_CHECKING:
    from gymnasium.vector import VectorEnv

MISSING = 'playing takes gymnasium: pip install "flax-linattn[rl]"'
MISSING_MUJOCO = 'playing {env_id} takes MuJoCo: pip install "flax-linattn[rl]"'

ANT = "Ant"
ANT_ROBOT, ANT_D4RL = 27, 111
"""Observations of Ant without contact forces, and in D4RL's files: 84 contact forces follow."""

_RUNNERS = ("Ant", "HalfCheetah", "Hopper", "Humanoid", "HumanoidStandup", "Swimmer", "Walker2d")
"""Robots whose models have a camera that goes with them; gymnasium 1.4 looks from another one."""

_DEPRECATED = "compiler attribute 'settotalmass' is deprecated"
"""MuJoCo 4 of gymnasium's own robots, which concerns nobody who plays with them."""


class _Environment:
    """One environment as ``SyncVectorEnv`` steps it: observations float32 `[S]`, and no infos.

    After a reset without a seed it rests: it shows zeros, and its steps do nothing. A vector of
    environments steps all of them; without rests, those whose last episode has ended would be
    stepped until the longest one ends (2.6 times the steps for 16 episodes of Hopper).

    Args:
        env: The environment, of Gymnasium.
        observation_dim: S; zeros follow the numbers of shorter observations.
    """

    def __init__(self, env: Any, observation_dim: int) -> None:
        from gymnasium.spaces import Box

        self._env = env
        self._rests = True
        self.observation_space = Box(-np.inf, np.inf, (observation_dim,), np.float32)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def reset(self, *, seed: int | None = None, options: object = None) -> tuple[Any, dict]:
        self._rests = seed is None
        return self._pad([] if seed is None else self._env.reset(seed=seed)[0]), {}

    def step(self, action: NDArray) -> tuple[Any, Any, bool, bool, dict]:
        if self._rests:
            return self._pad([]), 0.0, False, False, {}
        observation, reward, terminated, truncated, _ = self._env.step(action)
        return self._pad(observation), reward, terminated, truncated, {}

    def _pad(self, observation: Any) -> NDArray[np.float32]:
        padded = np.zeros(self.observation_space.shape, np.float32)
        padded[: len(observation)] = observation
        return padded


def make_environments(
    env_id: str,
    num_envs: int,
    *,
    observation_dim: int | None = None,
    render: bool = False,
    allow_import: bool = False,
) -> VectorEnv:
    """Makes environments of Gymnasium, side by side in this process.

    Nothing is reset automatically. A reset with a list of seeds begins an episode in each
    environment that has a seed; an environment without one (``None``) rests: it shows zeros, and
    its steps do nothing.

    Args:
        env_id: One that Gymnasium knows, such as "Pendulum-v1"; a package of your own registers
            its environments when it is imported, as by "package:Name-v0" with ``allow_import``.
        num_envs: B, how many to step side by side.
        observation_dim: S, of the data that an agent was trained on; default what the environment
            shows. Ant shows 27 or, with D4RL's 84 contact forces, which are zeros here, 111.
        render: Whether pictures will be asked for.
        allow_import: Whether "package:Name-v0" imports the package, which runs its code: for a name
            that the user gives, not for one out of a file.

    Returns:
        A ``gymnasium.vector.SyncVectorEnv`` with observations float32 `[B, S]`, to close at the
        end (``contextlib.closing``). Its ``spec`` has the name and the limit of steps.

    Raises:
        ValueError: Gymnasium, or what the environment needs, is not installed.
        OptionError: There is no such environment, or none with observations of that size; its
            observations or actions are no vectors of numbers, or its episodes have no limit of
            steps; a package is not to be imported, or cannot be.

    Example:
        >>> from contextlib import closing
        >>> with closing(make_environments("Pendulum-v1", 2)) as environments:
        ...     environments.reset(seed=[5, 6])[0].shape
        ...     _, rewards, _, truncated, _ = environments.step(np.zeros((2, 1), np.float32))
        (2, 3)
        >>> max_episode_steps(environments), rewards.shape, truncated
        (200, (2,), array([False, False]))
    """
    at_least(1, num_envs=num_envs)
    at_least(1, observation_dim=observation_dim)
    gymnasium = import_extra("gymnasium", MISSING)
    name = _import_package(env_id, allow_import)
    spec = _find(name, gymnasium.registry)
    options: dict[str, Any] = {}
    if spec.name == ANT and spec.version == 5 and observation_dim in (ANT_ROBOT, ANT_D4RL):
        options["include_cfrc_ext_in_observation"] = False
    if render:
        options["render_mode"] = "rgb_array"
        if _is_mujoco(spec) and spec.name in _RUNNERS:
            options["camera_name"] = "track"
    with ExitStack() as made:  # closes those that are there where anything fails
        envs: list[Any] = []
        try:
            with _quiet_models(spec), warnings.catch_warnings():
                # Of what draws nothing, which is told below, or by the first picture.
                warnings.filterwarnings("ignore", ".*initialised with render_mode")
                for _ in range(num_envs):
                    envs.append(gymnasium.make(name, disable_env_checker=True, **options))
                    made.callback(envs[-1].close)
        except gymnasium.error.DependencyNotInstalled as error:
            raise ValueError(f"{env_id} cannot be played: {error}") from error
        except (gymnasium.error.Error, ImportError) as error:
            raise OptionError(f"gymnasium cannot make {env_id}: {error}", "env_id") from error
        except TypeError as error:
            if not render:
                raise
            raise ValueError(f"{env_id} draws no pictures: {error}.") from error
        shown_dim = _check_spaces(envs[0], env_id)
        is_padded = spec.name == ANT and (shown_dim, observation_dim) == (ANT_ROBOT, ANT_D4RL)
        if observation_dim not in (None, shown_dim) and not is_padded:
            raise OptionError(
                f"observations of {env_id} have {shown_dim} numbers, and {observation_dim} are "
                "expected; give the environment that the data are of.",
                "env_id",
            )
        wrapped: list[Any] = [_Environment(env, observation_dim or shown_dim) for env in envs]
        environments = gymnasium.vector.SyncVectorEnv(
            [lambda env=env: env for env in wrapped],
            autoreset_mode=gymnasium.vector.AutoresetMode.DISABLED,
        )
        environments.spec = dataclasses.replace(envs[0].spec, id=env_id)
        made.pop_all()
    return environments


def max_episode_steps(environments: VectorEnv) -> int:
    """The steps after which an episode of environments is truncated."""
    if environments.spec is None or environments.spec.max_episode_steps is None:
        raise ValueError("the environments have no limit of steps; make them by make_environments.")
    return environments.spec.max_episode_steps


def action_bounds(environments: VectorEnv) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The least and the largest actions of environments, float32 `[A]` both."""
    space: Any = environments.single_action_space
    return space.low.astype(np.float32), space.high.astype(np.float32)


def _import_package(env_id: str, is_allowed: bool) -> str:
    """The name without its package, which has been imported where there is one."""
    package, colon, name = env_id.rpartition(":")
    if not colon:
        return env_id
    if package in sys.modules:
        return name
    if not is_allowed:
        raise OptionError(
            f"{env_id!r} names a package to import, which is not done for a name out of a file; "
            "import it first, or give the environment yourself.",
            "env_id",
        )
    try:
        importlib.import_module(package)
    except Exception as error:  # whatever its code raises
        raise OptionError(
            f"{package!r}, which registers {name}, cannot be imported ({type(error).__name__}: "
            f"{error}); install it, or name its folder in PYTHONPATH.",
            "env_id",
        ) from error
    return name


def _find(env_id: str, registry: Mapping[str, Any]) -> Any:
    if env_id not in registry:
        names = {name.lower(): name for name in registry}
        near = difflib.get_close_matches(env_id.lower(), names, 3, 0.5)
        hint = f"; did you mean {' or '.join(names[name] for name in near)}?" if near else "."
        raise OptionError(f"gymnasium knows no environment {env_id!r}{hint}", "env_id")
    return registry[env_id]


def _is_mujoco(spec: Any) -> bool:
    return str(spec.entry_point).startswith("gymnasium.envs.mujoco.")


@contextmanager
def _quiet_models(spec: Any) -> Iterator[None]:
    """Keeps one line of MuJoCo's from stderr, and from a file MUJOCO_LOG.TXT, while it compiles.

    Its other lines become Python's warnings.
    """
    if not _is_mujoco(spec):
        yield
        return
    mujoco = import_extra("mujoco", MISSING_MUJOCO.format(env_id=spec.id))
    said: list[str] = []
    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(said.append)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)
    for line in said:
        if not line.startswith(_DEPRECATED):
            warnings.warn(f"MuJoCo: {line}", RuntimeWarning, stacklevel=4)


def _check_spaces(env: Any, env_id: str) -> int:
    """S; refuses observations and actions that are no vectors, and episodes without an end."""
    seen, actions = env.observation_space, env.action_space
    is_box = type(actions).__name__ == "Box" and len(actions.shape) == 1
    if type(seen).__name__ != "Box" or len(seen.shape) != 1:
        problem = f"observations must be vectors, a Box [S], and those of {env_id} are {seen}."
    elif not is_box or not np.issubdtype(actions.dtype, np.floating):
        problem = f"actions must be continuous, a Box [A], and those of {env_id} are {actions}."
    elif env.spec is None or env.spec.max_episode_steps is None:
        problem = f"{env_id} has no limit of steps; register it with max_episode_steps."
    else:
        return int(seen.shape[0])
    raise OptionError(problem, "env_id")
