"""Retention: a peer's recurrence and parallel form, and the formulas of Sun et al. (2023)."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_linattn import ops
from flax_linattn.ops.mechanisms.gated_linear import GatedLinearState
from tests.contract.tolerances import assert_close
from tests.ops.mechanisms import recurrences
from tests.ops.mechanisms.peers import check
from tests.ops.mechanisms.recurrences import FORMS

RETENTION = ops.get_mechanism("retention", chunk_size=4)
LEARNED = ops.get_mechanism("retention", chunk_size=4, learned_decay=True)
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


def loop(q: Any, k: Any, v: Any, decay_logit: Any) -> Any:
    """The recurrence, token by token in float64."""
    batch, length, heads, dim = k.shape
    state, y = np.zeros((batch, heads, dim, v.shape[-1])), np.zeros_like(v)
    gamma = 1 / (1 + np.exp(-decay_logit))
    for t in range(length):
        state = gamma[:, None, None] * state + k[:, t, :, :, None] * v[:, t, :, None]
        y[:, t] = np.einsum("bhk,bhkv->bhv", q[:, t], state) / np.sqrt(dim)
    return y


@pytest.mark.parametrize("form", FORMS)
def test_learned_decays(form: str) -> None:
    logit = {"decay_logit": np.array([-0.5, 2.0])}
    recurrences.check(LEARNED, loop, recurrences.make_tokens(), logit, form)


def test_learned_decays_start_at_the_paper_s() -> None:
    q, k, v = (jnp.asarray(x, np.float32) for x in recurrences.make_tokens().values())
    learned = LEARNED.learned_parameters(2, 4)["decay_logit"]
    logit = learned.init(jax.random.key(0), learned.shape, np.float32)
    y = LEARNED.attend(q, k, v, is_causal=True, decay_logit=logit)
    assert_close(y, RETENTION.attend(q, k, v, is_causal=True), np.float32)
    assert_close(y, LEARNED.reference(q, k, v, is_causal=True, decay_logit=logit), np.float32)
    assert_close(LEARNED.attend(q, k, v, is_causal=True), y, np.float32)
    assert RETENTION.learned_parameters(2, 4) == {}
    with pytest.raises(ValueError, match=r"\[H\] = \(2,\), got \(3,\)"):
        LEARNED.attend(q, k, v, is_causal=True, decay_logit=jnp.zeros(3))
