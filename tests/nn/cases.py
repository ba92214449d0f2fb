"""What the tests of modules and models share: mechanisms, layouts of padding, the slow loop."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_linattn import ops

HYPERPARAMETERS = {
    "aft": "max_length=16",
    "linformer": "max_length=16,num_projections=4",
    "nystrom": "num_landmarks=3",
    "rfa": "num_features=512",
}
"""What layers of some mechanisms need to be told. The weights of ``rfa`` are estimates, whose sums
may nearly vanish, and magnify rounding, where features are few."""

REPRESENTATIVES = ("softmax", "aaren", "taylorshift")
"""One of each kind that a layer treats differently: a cache, a learned query, a learned argument.
The others run in the slow tests."""


def _cases(condition: Callable[[ops.Capabilities], bool]) -> list[Any]:
    """The mechanisms of these capabilities, as names with their hyperparameters."""
    return [
        pytest.param(
            f"{name}:{HYPERPARAMETERS[name]}" if name in HYPERPARAMETERS else name,
            id=name,
            marks=() if name in REPRESENTATIVES else pytest.mark.slow,
        )
        for name in ops.list_mechanisms()
        if condition(ops.get_mechanism(name).capabilities)
    ]


MECHANISMS = _cases(lambda can: True)
CAUSAL = _cases(lambda can: can.causal)
PACKED = _cases(lambda can: can.causal and can.packed)
CROSS = _cases(lambda can: can.cross)
NOT_CROSS = _cases(lambda can: not can.cross)
CONSTANT_MEMORY = _cases(lambda can: can.constant_memory)
WHOLE = _cases(lambda can: not can.recurrent)

# Four real tokens of six: padding right, left, in the middle, and at several places.
LAYOUTS = np.array(
    [
        [1, 1, 1, 1, 0, 0],
        [0, 0, 1, 1, 1, 1],
        [1, 1, 0, 0, 1, 1],
        [0, 1, 1, 0, 1, 1],
    ],
    bool,
)


def normal(seed: int, *shape: int) -> jax.Array:
    """Random numbers, the same every time."""
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def padded(real: jax.Array, filler: float = np.nan, layouts: np.ndarray = LAYOUTS) -> jax.Array:
    """Spreads the real tokens [B, n, C] over the layouts' real positions."""
    batch, _, channels = real.shape
    x = np.full((*layouts.shape, channels), filler, np.float32)
    x[layouts] = np.asarray(real).reshape(-1, channels)
    assert batch == len(layouts)
    return jnp.asarray(x)


def at_real(y: Any, layouts: np.ndarray = LAYOUTS) -> np.ndarray:
    """The outputs [B, n, C] at the layouts' real positions."""
    y = np.asarray(y)
    return y[layouts].reshape(len(layouts), -1, y.shape[-1])


def run_steps(module: Any, x: Any, state: Any, mask: Any = None) -> tuple[np.ndarray, Any]:
    """The recurrent network, one token after the other: outputs [B, T, ...] and the last state."""
    step = jax.jit(lambda x, state, mask: module.step(x, state, mask=mask))
    x, mask = np.asarray(x), None if mask is None else np.asarray(mask)
    outputs = []
    for t in range(x.shape[1]):
        y, state = step(x[:, t], state, None if mask is None else mask[:, t])
        outputs.append(np.asarray(y))
    return np.stack(outputs, axis=1), state
