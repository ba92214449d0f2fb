"""Retention: a peer's recurrence and parallel form, and the formulas of Sun et al. (2023)."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_linattn import ops
from flax_linattn.ops.mechanisms.gated_linear import GatedLinearState
from tests.ops.mechanisms.peers import check

RETENTION = ops.get_mechanism("retention", chunk_size=4)
FORMS = ["parallel", "chunked", "recurrent"]
B, T, H, K, V = 2, 13, 3, 4, 5


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [np.float64, pytest.param(np.float32, marks=pytest.mark.slow)])
def test_the_recurrence_of_flash_linear_attention(form: str, dtype: Any) -> None:
    """Outputs, last state and gradients, from a state of tokens before."""

    def run(q: Any, k: Any, v: Any, state: Any) -> Any:
        before = GatedLinearState(jnp.zeros((*state.shape[:2], 1), state.dtype), state)
        y, after = RETENTION.attend(
            q, k, v, is_causal=True, initial_state=before, return_state=True, form=form
        )
        return {"y": y, "last": after.value}

    check("retention_state", run, dtype)


def test_the_parallel_form_of_flash_linear_attention() -> None:
    def run(q: Any, k: Any, v: Any) -> Any:
        return {"y": RETENTION.attend(q, k, v, is_causal=True, form="chunked")}

    check("retention", run, np.float64)


def test_a_constant_sequence_adds_up_to_the_geometric_sum() -> None:
    """1 / (1 - gamma) = 32, 64, 128 in the end."""
    retention = ops.get_mechanism("retention", scale=1.0)
    one = jnp.ones((1, 3_000, H, 1))
    y = jax.jit(lambda x: retention.attend(x, x, x, is_causal=True))(one)
    np.testing.assert_allclose(y[0, -1, :, 0], [32, 64, 128], rtol=1e-5)
