"""States that are sums of features times values."""

from typing import Any

import jax
import numpy as np
import pytest

from flax_linattn import ops
from tests.compilation import AS_USERS, optimised

NAMES = ["taylorshift", "expressive_quadratic", "linear", "taylor_features", "rfa"]


@pytest.mark.parametrize("name", NAMES)
def test_a_donated_step_copies_nothing(name: str) -> None:
    """All of the state is written in place, and the rest is a few features."""
    mechanism: Any = ops.get_mechanism(name)
    state = jax.eval_shape(lambda: mechanism.init_state(2, 2, 32, 32))
    x = jax.ShapeDtypeStruct((2, 2, 32), np.float32)
    take_in = jax.jit(lambda state, x: mechanism.step(x, x, x, state), donate_argnums=0)
    with optimised():
        memory = take_in.lower(state, x).compile(AS_USERS).memory_analysis()
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    assert memory.alias_size_in_bytes >= size
    assert memory.temp_size_in_bytes < size / 2
