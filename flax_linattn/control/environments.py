"""Environments of gymnasium, several side by side in one process."""

from __future__ import annotations

import difflib
import importlib
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import OptionError, at_least

MISSING = 'playing takes gymnasium: pip install "flax-linattn[rl]"'
MISSING_MUJOCO = 'playing {env_id} takes MuJoCo: pip install "flax-linattn[rl]"'

ANT = "Ant"
ANT_ROBOT, ANT_D4RL = 27, 111
"""Observations of Ant without contact forces, and in D4RL's files: 84 contact forces follow."""

_RUNNERS = ("Ant", "HalfCheetah", "Hopper", "Humanoid", "HumanoidStandup", "Swimmer", "Walker2d")
"""Robots whose models have a camera that goes with them; gymnasium 1.4 looks from another one."""

_DEPRECATED = "compiler attribute 'settotalmass' is deprecated"
"""MuJoCo 4 of gymnasium's own robots, which concerns nobody who plays with them."""


class Environments:
    """B environments of one kind, each of which is begun and stepped for itself.

    Nothing is reset by itself: an episode that has ended stays as it is until its row is reset.
    ``make_environments`` makes them.

    Args:
        envs: the environments, of gymnasium, all alike.
        env_id: their name, such as "Hopper-v5".
        observation_dim: S; observations with fewer numbers are followed by zeros.

    Raises:
        TypeError: there are none.
        ValueError: they are not of the kind that can be played here; says what is.
    """

    def __init__(
        self, envs: Sequence[Any], env_id: str, *, observation_dim: int | None = None
    ) -> None:
        if not envs:
            raise TypeError("there must be at least one environment, got none.")
        self._envs = list(envs)
        self.env_id = env_id
        """The name by which gymnasium knows it."""
        self._seen_dim = _observation_dim(envs[0], env_id)
        self.observation_dim = self._seen_dim if observation_dim is None else observation_dim
        """S, the numbers in an observation."""
        self.action_low, self.action_high = _action_bounds(envs[0], env_id)
        self.max_steps = _limit(envs[0], env_id)
        """The steps after which an episode is cut off."""
        self._observations = np.zeros((len(envs), self.observation_dim), np.float32)
        self._playing = np.zeros(len(envs), bool)

    @property
    def num_envs(self) -> int:
        """B, how many there are."""
        return len(self._envs)

    @property
    def action_dim(self) -> int:
        """A, the numbers in an action."""
        return len(self.action_low)

    @property
    def frames_per_second(self) -> int:
        """Of pictures, such that a film of them runs as fast as what it shows."""
        return int(self._envs[0].metadata.get("render_fps", 30))

    def reset(self, rows: Sequence[int], seeds: Sequence[int]) -> NDArray[np.float32]:
        """Begins an episode in some rows.

        Args:
            rows: which, from 0.
            seeds: of each, from 0: an episode depends on its seed and on the actions only.

        Returns:
            What is seen first, float32 [len(rows), S].

        Raises:
            ValueError: there is not one seed a row, or no such row.
        """
        if len(rows) != len(seeds):
            raise ValueError(
                f"there must be a seed for each row, got {len(seeds)} for {len(rows)}."
            )
        for row, seed in zip(rows, seeds, strict=True):
            at_least(0, self.num_envs - 1, row=row)
            at_least(0, seed=seed)
            observation, _ = self._envs[row].reset(seed=int(seed))
            self._see(row, observation)
            self._playing[row] = True
        return self._observations[np.asarray(rows, np.intp)]

    def step(
        self, actions: NDArray[np.float32], rows: NDArray[np.bool_] | None = None
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_]]:
        """Acts in some rows.

        Args:
            actions: float32 [B, A]; clipped to the bounds, as D4RL's environments do
                (``NormalizedBoxEnv``).
            rows: bool [B], in which; default all.

        Returns:
            What is seen then, float32 [B, S] (in other rows what was seen last), rewards float32
            [B] (0 in other rows), and bool [B] whether the episode has come to a terminal state,
            and whether it was cut off by the limit of time.

        Raises:
            ValueError: sizes differ, an action is not finite, an episode of these rows has not
                begun or has ended, or the environment shows a number that is not finite.
        """
        rows = np.ones(self.num_envs, bool) if rows is None else np.asarray(rows, bool)
        actions = self.clip(actions, rows)
        rewards = np.zeros(self.num_envs, np.float32)
        terminated, truncated = np.zeros((2, self.num_envs), bool)
        for row in np.flatnonzero(rows).tolist():
            if not self._playing[row]:
                raise ValueError(f"no episode is under way in row {row}; reset it first.")
            observation, reward, ended, cut, _ = self._envs[row].step(actions[row])
            self._see(row, observation)
            rewards[row], terminated[row], truncated[row] = reward, ended, cut
            if not np.isfinite(rewards[row]):
                raise ValueError(f"{self.env_id} gave the reward {reward} in row {row}.")
            self._playing[row] = not (ended or cut)
        return self._observations.copy(), rewards, terminated, truncated

    def clip(
        self, actions: NDArray[np.float32], rows: NDArray[np.bool_] | None = None
    ) -> NDArray[np.float32]:
        """Actions [B, A] as the environments take them: between the bounds.

        Args:
            actions: float32 [B, A].
            rows: bool [B], those that count; default all.

        Raises:
            ValueError: sizes differ, or an action that counts is not finite.
        """
        rows = np.ones(self.num_envs, bool) if rows is None else np.asarray(rows, bool)
        actions = np.asarray(actions, np.float32)
        if actions.shape != (self.num_envs, self.action_dim) or rows.shape != (self.num_envs,):
            raise ValueError(
                f"{self.num_envs} environments of {self.env_id} take actions "
                f"[{self.num_envs}, {self.action_dim}] and rows [{self.num_envs}], got "
                f"{list(actions.shape)} and {list(rows.shape)}."
            )
        wrong = rows & ~np.isfinite(actions).all(axis=1)
        if wrong.any():
            row = int(np.argmax(wrong))
            raise ValueError(f"actions must be finite, got {actions[row]} in row {row}.")
        return np.clip(actions, self.action_low, self.action_high)

    def render(self, row: int = 0) -> NDArray[np.uint8]:
        """Draws a row as it is now, for environments made with ``render=True``.

        Returns:
            A picture, uint8 [height, width, 3].

        Raises:
            ValueError: this machine cannot draw; says what is missing.
        """
        try:
            return np.asarray(self._envs[row].render(), np.uint8)
        except Exception as error:  # of MuJoCo, OpenGL or pygame: each has its own
            raise ValueError(_cannot_draw(self.env_id, error)) from error

    def close(self) -> None:
        """Lets go of them."""
        for env in self._envs:
            env.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _see(self, row: int, observation: Any) -> None:
        seen = np.asarray(observation, np.float32)
        if not np.isfinite(seen).all():
            raise ValueError(f"{self.env_id} shows numbers that are not finite in row {row}.")
        self._observations[row, : self._seen_dim] = seen


def make_environments(
    env_id: str,
    num_envs: int,
    *,
    observation_dim: int | None = None,
    render: bool = False,
    allow_import: bool = False,
) -> Environments:
    """Makes environments of gymnasium.

    Args:
        env_id: one that gymnasium knows, such as "Pendulum-v1"; a package of your own registers
            its environments when it is imported, as by "package:Name-v0" with ``allow_import``.
        num_envs: B, how many to step side by side.
        observation_dim: S, of the data that an agent was trained on; default what the environment
            shows. Ant shows 27 or, with D4RL's 84 contact forces, which are zeros here, 111.
        render: whether pictures will be asked for.
        allow_import: whether "package:Name-v0" imports the package, which runs its code: for a name
            that the user gives, not for one out of a file.

    Raises:
        ValueError: gymnasium, or what the environment needs, is not installed.
        OptionError: there is no such environment, or none with observations of that size; a package
            is not to be imported, or cannot be.

    Example:
        >>> with make_environments("Pendulum-v1", 2) as environments:
        ...     environments.reset([0, 1], seeds=[5, 6]).shape
        ...     _, rewards, _, truncated = environments.step(np.zeros((2, 1), np.float32))
        (2, 3)
        >>> environments.max_steps, environments.action_low, rewards.shape, truncated
        (200, array([-2.], dtype=float32), (2,), array([False, False]))
    """
    at_least(1, num_envs=num_envs)
    at_least(1, observation_dim=observation_dim)
    try:
        import gymnasium
    except ImportError as error:
        raise ValueError(MISSING) from error
    name = _import_package(env_id, allow_import)
    spec = _find(name, gymnasium.registry)
    options: dict[str, Any] = {}
    if spec.name == ANT and spec.version == 5 and observation_dim in (ANT_ROBOT, ANT_D4RL):
        options["include_cfrc_ext_in_observation"] = False
    if render:
        options["render_mode"] = "rgb_array"
        if _is_of_mujoco(spec) and spec.name in _RUNNERS:
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
        seen = _observation_dim(envs[0], env_id)
        is_padded = spec.name == ANT and (seen, observation_dim) == (ANT_ROBOT, ANT_D4RL)
        if observation_dim not in (None, seen) and not is_padded:
            raise OptionError(
                f"observations of {env_id} have {seen} numbers, and {observation_dim} are "
                "expected; give the environment that the data are of.",
                "env_id",
            )
        environments = Environments(envs, env_id, observation_dim=observation_dim)
        made.pop_all()
    return environments


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


def _is_of_mujoco(spec: Any) -> bool:
    return str(spec.entry_point).startswith("gymnasium.envs.mujoco.")


@contextmanager
def _quiet_models(spec: Any) -> Iterator[None]:
    """Keeps one line of MuJoCo's from stderr, and from a file MUJOCO_LOG.TXT, while it compiles.

    Its other lines become Python's warnings.
    """
    if not _is_of_mujoco(spec):
        yield
        return
    try:
        import mujoco
    except ImportError as error:
        raise ValueError(MISSING_MUJOCO.format(env_id=spec.id)) from error
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


def _observation_dim(env: Any, env_id: str) -> int:
    """S, where observations are vectors."""
    space = env.observation_space
    if type(space).__name__ != "Box" or len(space.shape) != 1:
        raise OptionError(
            f"observations must be vectors, a Box [S], and those of {env_id} are {space}.",
            "env_id",
        )
    return int(space.shape[0])


def _action_bounds(env: Any, env_id: str) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The least and the largest actions, float32 [A] both, where they are continuous."""
    space = env.action_space
    is_box = type(space).__name__ == "Box" and len(space.shape) == 1
    if not is_box or not np.issubdtype(space.dtype, np.floating):
        raise OptionError(
            f"actions must be continuous, a Box [A], and those of {env_id} are {space}.", "env_id"
        )
    return space.low.astype(np.float32), space.high.astype(np.float32)


def _limit(env: Any, env_id: str) -> int:
    limit = env.spec.max_episode_steps if env.spec is not None else None
    if limit is None:
        raise OptionError(
            f"episodes of {env_id} have no limit of steps; register it with max_episode_steps.",
            "env_id",
        )
    return int(limit)


def _cannot_draw(env_id: str, error: Exception) -> str:
    if type(error).__name__ == "DependencyNotInstalled":
        return f"{env_id} cannot be drawn here: {error}."
    return (
        f"{env_id} cannot be drawn here ({type(error).__name__}: {error}). Without a screen MuJoCo "
        "takes EGL (a graphics driver, or the packages libegl1 and libgl1) or OSMesa (libosmesa6): "
        "set MUJOCO_GL=egl or MUJOCO_GL=osmesa."
    )
