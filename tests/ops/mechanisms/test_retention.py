"""Retention: a peer's recurrence and parallel form, and the formulas of Sun et al. (2023)."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_linattn import ops
from flax_linattn.ops.mechanisms.gated_linear import GatedLinearState
from tests.contract.tolerances import assert_close
from tests.ops.mechanisms.peers import check

RETENTION = ops.get_mechanism("retention", chunk_size=4)
FORMS = ["parallel", "chunked", "recurrent"]
B, T, H, K, V = 2, 13, 3, 4, 5


def make_tokens(length: int = T) -> Any:
    rng = np.random.default_rng(0)
    q, k = rng.normal(size=(2, B, length, H, K))
    return q, k, rng.normal(size=(B, length, H, V))


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


@pytest.mark.parametrize("form", FORMS)
def test_equation_5_in_its_parallel_form(form: str) -> None:
    """(Q K^T * D) V, D_nm = gamma^(n - m) for n >= m, with the decays of equation 8."""
    q, k, v = make_tokens()
    gamma = 1 - 2.0 ** (-5 - np.arange(H))
    apart = np.arange(T)[:, None] - np.arange(T)
    decay = np.where(apart >= 0, gamma[:, None, None] ** np.maximum(apart, 0), 0)
    scores = np.einsum("bnhk,bmhk->bhnm", q, k) * K**-0.5
    want = np.einsum("bhnm,bmhv->bnhv", scores * decay, v)
    with jax.enable_x64(True):
        got = RETENTION.attend(q, k, v, is_causal=True, form=form)
    assert_close(np.asarray(got), want, np.float64)


def test_it_is_gated_linear_attention_with_fixed_decays() -> None:
    q, k, v = make_tokens()
    gamma = np.log1p(-(2.0 ** (-5 - np.arange(H))))
    decays = np.broadcast_to(gamma[:, None], k.shape)
    gated = ops.get_mechanism("gated_linear", chunk_size=4)
    with jax.enable_x64(True):
        want = gated.attend(q, k, v, is_causal=True, log_decay=decays)
        got = RETENTION.attend(q, k, v, is_causal=True)
    assert_close(np.asarray(got), np.asarray(want), np.float64)


def test_a_constant_sequence_adds_up_to_the_geometric_sum() -> None:
    """1 / (1 - gamma) = 32, 64, 128 in the end."""
    retention = ops.get_mechanism("retention", scale=1.0)
    one = jnp.ones((1, 3_000, H, 1))
    y = jax.jit(lambda x: retention.attend(x, x, x, is_causal=True))(one)
    np.testing.assert_allclose(y[0, -1, :, 0], [32, 64, 128], rtol=1e-5)


def test_padding_does_not_decay() -> None:
    """The departure that the docstring names: positions are those of real tokens."""
    q, k, v = (x.astype(np.float32) for x in make_tokens())
    mask: Any = np.random.default_rng(1).random(T) < 0.6
    y = RETENTION.attend(q, k, v, is_causal=True, mask=jnp.tile(mask, (B, 1)))
    alone = RETENTION.attend(*(x[:, mask] for x in (q, k, v)), is_causal=True)
    assert_close(y[:, mask], alone, np.float32)
