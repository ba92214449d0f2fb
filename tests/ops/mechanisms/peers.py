"""A mechanism against the numbers of another program, which ``make_peers.py`` has kept."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from tests.contract.tolerances import assert_close
from tests.ops.mechanisms.make_peers import PEERS, draw, weights

ROUNDED = 1e-7
"""Of float64 outputs, relative to the largest: peers' numbers are kept as float32."""


@functools.cache
def numbers() -> dict[str, Any]:
    with np.load(PEERS) as file:
        return dict(file)


def check(peer: str, run: Callable[..., dict[str, Any]], dtype: Any) -> float:
    """Compares outputs, last states and gradients.

    Args:
        peer: its name.
        run: our form of it, from its inputs to its outputs, both by name.
        dtype: float64 to compare formulas, float32 for the error that users see.

    Returns:
        The largest error relative to the largest number of its array.
    """
    kept = {
        name.removeprefix(f"{peer}."): x
        for name, x in numbers().items()
        if name.startswith(f"{peer}.")
    }
    wanted = {name: x for name, x in kept.items() if not name.startswith("gradient.")}

    def pulled(inputs: Any, weights: Any) -> Any:
        outputs, pull = jax.vjp(lambda inputs: run(**inputs), inputs)
        return outputs, pull(weights)[0]

    with jax.enable_x64(dtype == np.float64):
        inputs, weighted = (
            {name: x.astype(dtype) for name, x in tree.items()}
            for tree in (draw(peer), weights(peer, wanted))
        )
        outputs, gradients = jax.tree.map(np.asarray, jax.jit(pulled)(inputs, weighted))
    got = outputs | {f"gradient.{name}": x for name, x in gradients.items()}
    assert_close(got, kept, np.float32, peer)
    worst = max(np.max(np.abs(got[name] - kept[name])) / np.max(np.abs(kept[name])) for name in got)
    if dtype == np.float64:
        assert worst <= ROUNDED
    return float(worst)
