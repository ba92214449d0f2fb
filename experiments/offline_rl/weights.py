"""Policies of Stable-Baselines3 from files of weights, as plain NumPy arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from experiments.offline_rl.policies import Flags, Floats
from flax_linattn.checks import check_integers, itemize, quote
from flax_linattn.data.errors import DataFormatError
from flax_linattn.data.files.arrays import read_arrays
from flax_linattn.safe_npz import NpzFile

_MAX_LAYERS = 10
_LINEAR = "action_net"
"""The last layer of PPO, A2C and TRPO, and the only one of ARS: bounded by the environment."""
_SQUASHED = "actor.mu"
"""The last layer of SAC and TQC, whose outputs tanh squashes."""
_HIDDEN = {_LINEAR: "mlp_extractor.policy_net", _SQUASHED: "actor.latent_pi"}
_UNUSED = ("log_std", "actor.log_std.weight", "actor.log_std.bias")
"""Of the noise while training."""
_NORMAL = ("obs_mean", "obs_var", "clip_obs", "epsilon")
_SETTINGS = ("norm_obs", *_NORMAL, "time_feature", "activation")
_ACTIVATIONS = ("tanh", "relu")

_KEYS = [
    *(f"{name}.{part}" for name in _HIDDEN for part in ("weight", "bias")),
    *(
        f"{name}.{2 * layer}.{part}"
        for name in _HIDDEN.values()
        for layer in range(_MAX_LAYERS)
        for part in ("weight", "bias")
    ),
    *_UNUSED,
    *_SETTINGS,
]


@dataclasses.dataclass(frozen=True)
class _Normal:
    """How observations are normalized: ``VecNormalize`` of Stable-Baselines3."""

    mean: NDArray[np.float64]
    std: NDArray[np.float64]
    limit: float

    def __call__(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.clip((values - self.mean) / self.std, -self.limit, self.limit)


class NetworkPolicy:
    """The means of a trained policy: a network of dense layers, without noise.

    A row's actions depend on that row alone to the last bit: each row is a product of its own.

    Args:
        layers: Weights float32 [in, out] and biases float32 [out] of each.
        activation: Between layers, "tanh" or "relu".
        squash: Whether tanh bounds the actions.
        normal: How observations are normalized; None: they are not.
        max_steps: The limit of an episode, of which the remaining share is the last of the inputs;
            None: it is not.
    """

    def __init__(
        self,
        layers: list[tuple[NDArray[np.float32], NDArray[np.float32]]],
        activation: str,
        *,
        squash: bool,
        normal: _Normal | None,
        max_steps: int | None,
    ) -> None:
        self._layers = layers
        self._activation = activation
        self._squash = squash
        self._normal = normal
        self._max_steps = max_steps
        self._elapsed = np.zeros(0, np.int64)

    @property
    def observation_dim(self) -> int:
        """S, the numbers in an observation, without the time."""
        return len(self._layers[0][0]) - (self._max_steps is not None)

    @property
    def action_dim(self) -> int:
        """A, the numbers in an action."""
        return len(self._layers[-1][1])

    def act(self, observations: Floats, rewards: Floats, begins: Flags) -> Floats:
        """Actions, float32 [B, A]; from PPO, A2C, TRPO and ARS perhaps beyond the bounds.

        Raises:
            ValueError: The policy is of other observations; says of how many numbers.
        """
        if observations.shape[1] != self.observation_dim:
            raise ValueError(
                f"the policy takes observations of {self.observation_dim} numbers, and these have "
                f"{observations.shape[1]}; play it in the environment that it was trained in."
            )
        inputs = observations.astype(np.float64)
        if self._max_steps is not None:
            inputs = np.concatenate([inputs, self._remaining(begins)[:, None]], axis=1)
        if self._normal is not None:
            inputs = self._normal(inputs)
        values = inputs.astype(np.float32)
        for index, (weight, bias) in enumerate(self._layers):
            if index:
                values = np.tanh(values) if self._activation == "tanh" else np.maximum(values, 0)
            values = (values[:, None] @ weight)[:, 0] + bias
        return np.tanh(values) if self._squash else values

    def _remaining(self, begins: NDArray[np.bool_]) -> NDArray[np.float64]:
        """The share of the episode that is left: ``TimeFeatureWrapper`` of sb3-contrib."""
        if len(self._elapsed) != len(begins):
            self._elapsed = np.zeros(len(begins), np.int64)
        self._elapsed = np.where(begins, 0, self._elapsed + 1)
        return 1 - self._elapsed / (self._max_steps or 1)


def read_policy(path: str | Path, *, max_steps: int = 1000) -> NetworkPolicy:
    """Reads the weights of a policy.

    The arrays have the names of Stable-Baselines3: ``mlp_extractor.policy_net.*`` and
    ``action_net.*`` (PPO, A2C, TRPO), ``action_net.weight`` alone (ARS), or ``actor.latent_pi.*``
    and ``actor.mu.*`` (SAC, TQC); with them ``activation``, "tanh" or "relu", ``time_feature``,
    and ``norm_obs`` with ``obs_mean``, ``obs_var``, ``clip_obs`` and ``epsilon``. Nothing is
    unpickled.

    Args:
        path: An ``.npz`` file.
        max_steps: The limit of an episode, for a policy that sees how much of it is left.

    Raises:
        FileNotFoundError: There is no such file.
        DataFormatError: It is no such file, or damaged; an array is missing, unknown, or does not
            fit; the message names the array.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "toy.npz")
        >>> np.savez(path, **{"action_net.weight": np.array([[1.0, -1.0]], np.float32)})
        >>> policy = read_policy(path)
        >>> one = np.ones(1, np.float32)
        >>> policy.act(np.array([[3.0, 0.5]], np.float32), one, one.astype(bool))
        array([[2.5]], dtype=float32)
    """
    check_integers(1, max_steps=max_steps)
    path = Path(path)
    arrays = read_arrays(path, _KEYS, expansion=3)
    with open(path, "rb") as file:
        unknown = [quote(name, 80)[1:-1] for name in NpzFile(file).sizes if name not in _KEYS]
    if unknown:
        raise DataFormatError(
            f"{path}: expected the weights of a policy, and knows no array {itemize(unknown, 3)}; "
            "give a file with the names of Stable-Baselines3's weights"
        )
    last = _SQUASHED if f"{_SQUASHED}.weight" in arrays else _LINEAR
    names = [f"{_HIDDEN[last]}.{2 * layer}" for layer in range(_MAX_LAYERS)]
    names = [name for name in names if f"{name}.weight" in arrays]
    layers = [_layer(path, arrays, name) for name in [*names, last]]
    for name, before, (weight, _) in zip([*names[1:], last], layers, layers[1:], strict=False):
        if len(weight) != len(before[1]):
            raise _error(path, f"{name}.weight", f"[n, {len(before[1])}]", weight.T)
    size = len(layers[0][0])
    activation = str(_scalar(path, arrays, "activation", "U", "tanh"))
    if activation not in _ACTIVATIONS:
        raise DataFormatError(
            f"{path}:activation: expected {' or '.join(_ACTIVATIONS)}, got {quote(activation)}"
        )
    return NetworkPolicy(
        layers,
        activation,
        squash=last == _SQUASHED,
        normal=_read_normal(path, arrays, size),
        max_steps=max_steps if _scalar(path, arrays, "time_feature", "b", False) else None,
    )


def _layer(
    path: Path, arrays: Mapping[str, NDArray], name: str
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    if f"{name}.weight" not in arrays:
        raise DataFormatError(f"{path}: expected an array {name}.weight, got none")
    weight = _numbers(path, arrays, f"{name}.weight", None)
    if weight.ndim != 2 or not weight.size:
        raise _error(path, f"{name}.weight", "[out, in]", weight)
    if f"{name}.bias" in arrays:
        bias = _numbers(path, arrays, f"{name}.bias", weight.shape[:1])
    else:
        bias = np.zeros(len(weight))
    return np.ascontiguousarray(weight.T, np.float32), bias.astype(np.float32)


def _read_normal(path: Path, arrays: Mapping[str, NDArray], size: int) -> _Normal | None:
    if not _scalar(path, arrays, "norm_obs", "b", False):
        return None
    if missing := [key for key in _NORMAL if key not in arrays]:
        raise DataFormatError(f"{path}: norm_obs is True, and there is no {', '.join(missing)}")
    mean, variance = (_numbers(path, arrays, key, (size,)) for key in ("obs_mean", "obs_var"))
    clip, epsilon = (float(_scalar(path, arrays, key, "f", 0.0)) for key in ("clip_obs", "epsilon"))
    if (variance + epsilon <= 0).any() or not clip > 0:
        raise DataFormatError(
            f"{path}: expected obs_var + epsilon above 0 and clip_obs above 0, got "
            f"{(variance + epsilon).min()} and {clip}"
        )
    return _Normal(mean, np.sqrt(variance + epsilon), clip)


def _numbers(
    path: Path, arrays: Mapping[str, NDArray], key: str, shape: tuple[int, ...] | None
) -> NDArray[np.float64]:
    array = arrays[key]
    if array.dtype.kind != "f" or (shape is not None and array.shape != shape):
        raise _error(path, key, "numbers" if shape is None else f"numbers {list(shape)}", array)
    if not np.isfinite(array).all():
        raise DataFormatError(f"{path}:{key}: expected finite numbers, got others among them")
    return array.astype(np.float64)


def _scalar(
    path: Path, arrays: Mapping[str, NDArray], key: str, kind: str, default: bool | float | str
) -> bool | float | str:
    if key not in arrays:
        return default
    array = arrays[key]
    if array.dtype.kind != kind or array.size != 1:
        expected = {"U": "a text", "b": "True or False", "f": "a number"}[kind]
        raise _error(path, key, expected, array)
    return array.reshape(-1)[0].item()


def _error(path: Path, key: str, expected: str, array: NDArray) -> DataFormatError:
    return DataFormatError(
        f"{path}:{key}: expected {expected}, got {array.dtype} {list(array.shape)}"
    )
