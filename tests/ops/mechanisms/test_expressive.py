"""Quadratic expressive attention where its weights nearly cancel the precision of its features."""

from functools import partial

import jax
import numpy as np
import pytest

from flax_linattn import ops

B, T, H, K, V = 300, 3, 2, 3, 4  # few tokens: now and then all are orthogonal to the query
QUADRATIC = ops.get_mechanism("expressive_quadratic", chunk_size=2)


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("form", QUADRATIC.capabilities.forms)
def test_the_error_is_that_of_the_features(form: str, is_causal: bool) -> None:
    """A few eps times sum_j |q|^2 |k_j|^2 / sum_j z_j^2, however small the scores z are.

    Features make z^2 as a sum of products as large as |q|^2 |k|^2, rounded there.
    """
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(B, T, H, n)).astype(np.float32) for n in (K, K, V))
    run = jax.jit(partial(QUADRATIC.attend, is_causal=is_causal, form=form))
    got = np.asarray(run(q, k, v), np.float64)

    q, k, v = (a.astype(np.float64) for a in (q, k, v))
    seen = np.tril(np.ones((T, T))) if is_causal else np.ones((T, T))
    weight = np.einsum("bthk,bshk->bhts", q, k) ** 2 * seen
    size = np.einsum("bthk,bshl->bhts", q**2, k**2) * seen  # |q|^2 |k|^2
    total = weight.sum(axis=-1)
    want = np.einsum("bhts,bshv->bthv", weight / total[..., None], v)
    condition = np.moveaxis(size.sum(axis=-1) / total, 1, 2)[..., None]
    error = np.abs(got - want) / (condition * np.abs(v).max())
    assert condition.max() > 100  # some rows are ill-conditioned
    assert error.max() <= 10 * np.finfo(np.float32).eps
