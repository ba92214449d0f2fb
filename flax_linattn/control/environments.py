"""Vectorized Gymnasium environments in one process."""

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

from flax_linattn.checks import OptionError, check_integers, import_extra

if TYPE_CHECKING:
    from gymnasium.vector import VectorEnv

MISSING = 'environments need gymnasium: pip install "flax-linattn[rl]"'
MISSING_MUJOCO = '{env_id} needs MuJoCo: pip install "flax-linattn[rl]"'

ANT = "Ant"
ANT_ROBOT, ANT_D4RL = 27, 111
"""Observations of Ant without contact forces, and in D4RL's files: 84 contact forces follow."""

_RUNNERS = ("Ant", "HalfCheetah", "Hopper", "Humanoid", "HumanoidStandup", "Swimmer", "Walker2d")
"""Robots with a tracking camera, which gymnasium 1.4 does not use by default."""

_DEPRECATED = "compiler attribute 'settotalmass' is deprecated"
"""Warning of MuJoCo 4 about gymnasium's own robots, which users cannot change."""


class _Environment:
    """Environment for ``SyncVectorEnv``: observations float32 `[S]`, and no infos.

    After a reset without a seed it is idle: it returns zeros, and its steps do nothing. Otherwise
    environments whose last episode has ended would be stepped until the longest episode ends (2.6
    times the steps for 16 episodes of Hopper).

    Args:
        env: The Gymnasium environment.
        observation_dim: Size S of observations; shorter ones are padded by zeros.
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
    """Makes vectorized Gymnasium environments in this process.

    There are no automatic resets. A reset with a list of seeds begins an episode in each
    environment with a seed; an environment without one (``None``) is idle: it returns zeros, and
    its steps do nothing.

    Args:
        env_id: Name of a registered environment, such as "Pendulum-v1", or "package:Name-v0" to
            import a package that registers it, see ``allow_import``.
        num_envs: Number B of environments.
        observation_dim: Size S of the observations that an agent was trained on; default that of
            the environment. Ant has 27 or, with D4RL's 84 contact forces (zeros here), 111.
        render: Whether images will be rendered.
        allow_import: Import the package of "package:Name-v0", which runs its code: for names from
            the user, not from a file.

    Returns:
        A ``gymnasium.vector.SyncVectorEnv`` with observations float32 `[B, S]`, to close at the
        end (``contextlib.closing``). Its ``spec`` has the name and the limit of steps.

    Raises:
        ValueError: If Gymnasium or a package of the environment is not installed.
        OptionError: If the environment does not exist; if its observations have another size; if
            its observations are not vectors; if its actions are neither vectors nor discrete; if
            its episodes have no maximum number of steps; or if a package cannot be imported or is
            not allowed to be.

    Example:
        >>> from contextlib import closing
        >>> with closing(make_environments("Pendulum-v1", 2)) as environments:
        ...     environments.reset(seed=[5, 6])[0].shape
        ...     _, rewards, _, truncated, _ = environments.step(np.zeros((2, 1), np.float32))
        (2, 3)
        >>> max_episode_steps(environments), rewards.shape, truncated
        (200, (2,), array([False, False]))
    """
    check_integers(1, num_envs=num_envs)
    check_integers(1, observation_dim=observation_dim)
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
    with ExitStack() as made:  # closes the environments if anything fails
        envs: list[Any] = []
        try:
            with _quiet_models(spec), warnings.catch_warnings():
                # A warning about environments that cannot render; an error follows below.
                warnings.filterwarnings("ignore", ".*initiali.ed with render_mode")
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
            raise ValueError(f"{env_id} cannot render images: {error}.") from error
        env_dim = _check_spaces(envs[0], env_id)
        is_padded = spec.name == ANT and (env_dim, observation_dim) == (ANT_ROBOT, ANT_D4RL)
        if observation_dim not in (None, env_dim) and not is_padded:
            raise OptionError(
                f"expected observations of {observation_dim} numbers, got {env_dim} in {env_id}; "
                "pass the environment of the data.",
                "env_id",
            )
        wrapped: list[Any] = [_Environment(env, observation_dim or env_dim) for env in envs]
        environments = gymnasium.vector.SyncVectorEnv(
            [lambda env=env: env for env in wrapped],
            autoreset_mode=gymnasium.vector.AutoresetMode.DISABLED,
        )
        environments.spec = dataclasses.replace(envs[0].spec, id=env_id)
        made.pop_all()
    return environments


def max_episode_steps(environments: VectorEnv) -> int:
    """Maximum number of steps of an episode, after which it is truncated."""
    if environments.spec is None or environments.spec.max_episode_steps is None:
        raise ValueError(
            "the environments have no maximum number of steps; make them by make_environments."
        )
    return environments.spec.max_episode_steps


def num_actions(environments: VectorEnv) -> int | None:
    """Number of discrete actions of environments; None if actions are continuous."""
    space: Any = environments.single_action_space
    return int(space.n) if type(space).__name__ == "Discrete" else None


def action_bounds(environments: VectorEnv) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Minimum and maximum of the continuous actions of environments, float32 `[A]` each."""
    space: Any = environments.single_action_space
    if num_actions(environments) is not None:
        raise ValueError(f"discrete actions have no bounds, got actions {space}.")
    return space.low.astype(np.float32), space.high.astype(np.float32)


def _import_package(env_id: str, is_allowed: bool) -> str:
    """Imports the package of a name, if any; returns the name without the package."""
    package, colon, name = env_id.rpartition(":")
    if not colon:
        return env_id
    if package in sys.modules:
        return name
    if not is_allowed:
        raise OptionError(
            f"{env_id!r} needs a package, which is not imported for a name from a file; import the "
            "package first, or pass the environment yourself.",
            "env_id",
        )
    try:
        importlib.import_module(package)
    except Exception as error:  # whatever its code raises
        raise OptionError(
            f"the package {package!r} of {name} cannot be imported ({type(error).__name__}: "
            f"{error}); install it, or add its folder to PYTHONPATH.",
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
    """Silences one warning of MuJoCo on stderr and in MUJOCO_LOG.TXT while it compiles models.

    Other messages of MuJoCo become Python warnings.
    """
    if not _is_mujoco(spec):
        yield
        return
    mujoco = import_extra("mujoco", MISSING_MUJOCO.format(env_id=spec.id))
    messages: list[str] = []
    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(messages.append)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)
    for line in messages:
        if not line.startswith(_DEPRECATED):
            warnings.warn(f"MuJoCo: {line}", RuntimeWarning, stacklevel=4)


def _check_spaces(env: Any, env_id: str) -> int:
    """Returns S; checks the spaces of observations and actions, and that episodes end."""
    observations, actions = env.observation_space, env.action_space
    kind = type(actions).__name__
    is_box = kind == "Box" and len(actions.shape) == 1
    is_continuous = is_box and np.issubdtype(actions.dtype, np.floating)
    is_discrete = kind == "Discrete" and actions.start == 0
    if type(observations).__name__ != "Box" or len(observations.shape) != 1:
        fault = f"observations of {env_id} must be vectors (a Box [S]), got {observations}."
    elif not (is_continuous or is_discrete):
        fault = (
            f"actions of {env_id} must be continuous vectors (a Box [A]), or one choice from 0 "
            f"(Discrete), got {actions}."
        )
    elif env.spec is None or env.spec.max_episode_steps is None:
        fault = f"{env_id} has no maximum number of steps; register it with max_episode_steps."
    else:
        return int(observations.shape[0])
    raise OptionError(fault, "env_id")
