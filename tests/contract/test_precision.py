"""Float32 as users compile it, scores of +-1e4, half precision: against float64 references."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_linattn import ops
from flax_linattn.ops.engine.gated import GatedMechanism
from tests.compilation import compile_as_users
from tests.contract import cases, programs
from tests.contract.cases import Tokens
from tests.contract.programs import LENGTH, Result
from tests.contract.representatives import CONTRACT
from tests.contract.test_forms import check_causal, check_whole, full_kind
from tests.contract.tolerances import assert_close

slow = pytest.mark.slow

LONG = 67
"""Two tiles of 32 and an odd rest."""


CASES = cases.slow_unless(cases.main, cases.DIRECTIONS_FORMS)
"""Compiled as users do, which takes the longest."""


def in_tiles(mechanism: ops.Mechanism) -> ops.Mechanism:
    if hasattr(mechanism, "chunk_size"):
        return dataclasses.replace(mechanism, chunk_size=32)
    return mechanism


def both(
    mechanism: ops.Mechanism,
    is_causal: bool,
    form: str,
    tokens: Tokens,
    dtype: Any,
    outputs: int = LONG,
) -> tuple[Result, Result]:
    """Without mask or states, as most users call it: optimized, and the float64 reference.

    Gradients are those of the last ``outputs`` positions.
    """
    mechanism = in_tiles(mechanism)
    tokens = cases.rounded(tokens, dtype)
    state = None
    if mechanism.capabilities.recurrent:
        state = cases.make_state(mechanism, LONG, dtype)
    weights = programs.weigh(np.empty(tokens.v.shape, dtype), state)
    weights.y[:, : LONG - outputs] = 0
    run = programs.attend(mechanism, is_causal, form, optimize=True)
    # Only outputs count: the reference knows of no state.
    got = run(tokens, None, None, None, weights.silent._replace(y=weights.y))
    exact = cases.rounded(tokens, np.float64)
    run = programs.reference(mechanism, is_causal)
    return got, run(exact, None, None, weights.y.astype(np.float64))


# -- scores of +-1e4: finite, and right --------------------------------------------------

LARGE_Q, LARGE_K = 32, 320
PER_UNIT = {
    "scale": LARGE_Q * LARGE_K,
    "projection": LARGE_K,
    "key_projection": LARGE_K,
    "feature_scale": 8,
    "mean_query_kernel": LARGE_K * LARGE_K,
    "mean_query_bias": LARGE_K,
    "mean_key_kernel": LARGE_K * LARGE_K,
    "mean_key_bias": LARGE_K,
    "noise": LARGE_K,
}
"""What a unit of a mechanism's own argument adds to the scores, if more than about 1; for
``feature_scale``, the absolute sum of what all outputs give to its gradient over that gradient."""


def large_tokens(mechanism: ops.Mechanism) -> Tokens:
    """Scores q.k near 0 and +-10240, exact in every dtype: eighths beside multiples of 10240.

    Rounding a score of 1e4 to float32 alone would change its weight by 1e-3, which would test
    the inputs and not the mechanism.
    """
    rng = np.random.default_rng(4)
    tokens = cases.make_numbers(mechanism, LONG)
    q = np.ones(tokens.q.shape)
    q[..., 0] = LARGE_Q
    k = rng.integers(-16, 17, tokens.k.shape) / 8
    # A row each: all far below, all far above, far above then below, and mixtures.
    far = LARGE_K * rng.choice([-1, 0, 1], size=(cases.BATCH, LONG))
    far[0], far[1] = -LARGE_K, LARGE_K
    far[2] = np.where(np.arange(LONG) < LONG // 2, LARGE_K, -LARGE_K)
    far[3] = -far[2]
    k[..., 0] = far[:, :, None]
    if mechanism.capabilities.unit_vectors:  # all of the size is the query's
        q, k = LARGE_K * q, k / np.maximum(np.linalg.norm(k, axis=-1, keepdims=True), 1)
    if mechanism.capabilities.shared_query_key:  # of exact directions: powers of 2 on an axis
        axis = np.eye(cases.KEY_DIM)[rng.integers(0, cases.KEY_DIM, k.shape[:3])]
        size = np.where(k[..., 0] == 0, 2.0 ** rng.integers(-3, 2, k.shape[:3]), 2**13)
        k = axis * (size * np.where(k[..., 0] < 0, -1, 1))[..., None]
    parameters = {name: np.round(8 * p) / 8 for name, p in tokens.parameters.items()}
    if "scale" in parameters:
        parameters["scale"] = np.float64(1.0)
    gates = {name: gate.astype(np.float32) for name, gate in tokens.gates.items()}
    return Tokens(q, k, tokens.v.astype(np.float32), parameters, gates)


def per_term(gradient: Tokens) -> Tokens:
    """Gradients relative to the terms that they sum: those into q are as large as the keys.

    The terms cancel (equal shifts of all scores change nothing), so their size is what
    rounding errors are relative to.
    """
    return Tokens(
        gradient.q.astype(np.float64) / LARGE_K,
        gradient.k.astype(np.float64) / LARGE_Q,
        gradient.v,
        {
            name: g.astype(np.float64) / PER_UNIT.get(name, 1)
            for name, g in gradient.parameters.items()
        },
        gradient.gates,
    )


@pytest.mark.parametrize(
    ("mechanism", "is_causal", "form", "scores"),
    [  # neighbors share their program, wherever tests are handed to several processes
        pytest.param(*case.values, scores, id=f"{case.id}-{scores}", marks=case.marks)
        for case in CASES
        for scores in ("normal", "large")
    ],
)
def test_float32_is_the_reference(
    mechanism: ops.Mechanism, is_causal: bool, form: str, scores: str
) -> None:
    if scores == "large":
        check_large(mechanism, is_causal, form, jnp.float32)
        return
    tokens = cases.make_numbers(mechanism, LONG)
    got, want = both(mechanism, is_causal, form, tokens, np.float32)
    assert got.y.dtype == np.float32
    assert_close(got.y, want.y, np.float32, "y")
    programs.assert_gradients_close(
        got.tokens, want.tokens, np.float32, terms=tokens.k[..., 0, 0].size
    )


@pytest.mark.slow  # half precision is computed in float32
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16], ids=cases.dtype_name)
@pytest.mark.parametrize(("mechanism", "is_causal"), cases.DIRECTIONS)
def test_large_scores_in_half_precision(
    mechanism: ops.Mechanism, is_causal: bool, dtype: Any
) -> None:
    if dtype == jnp.float16 and isinstance(mechanism, GatedMechanism):
        pytest.skip("its outputs have no denominator: such scores are beyond float16's 65,504")
    check_large(mechanism, is_causal, cases.FORMS_OF[mechanism][-1], dtype)


def check_large(mechanism: ops.Mechanism, is_causal: bool, form: str, dtype: Any) -> None:
    # Of few outputs: gradients into what all share sum terms of 1e4 that cancel.
    got, want = both(mechanism, is_causal, form, large_tokens(mechanism), dtype, outputs=12)
    assert_close(got.y, want.y, dtype, "y")
    assert_close(per_term(got.tokens), per_term(want.tokens), dtype, "gradient", least=1.0)


# -- scores of 1e10, 1e20 and 1e30: finite ------------------------------------------------

SIZES = [(q * size, k * size) for size in (1e10, 1e20, 1e30) for q, k in ((1, 0), (0, 1))]
SIZES += [(size**0.5, size**0.5) for size in (1e10, 1e20, 1e30)]
"""Factors of queries and keys; 0 = as they are."""


@pytest.mark.parametrize(("mechanism", "is_causal", "form"), CASES)
def test_enormous_scores_are_finite(mechanism: ops.Mechanism, is_causal: bool, form: str) -> None:
    """Outputs, states and gradients, by the program of ``test_float32_is_the_reference``."""
    mechanism = in_tiles(mechanism)
    run = programs.attend(mechanism, is_causal, form, optimize=True)
    tokens = cases.rounded(cases.make_numbers(mechanism, LONG), np.float32)
    state = None
    if mechanism.capabilities.recurrent:
        state = cases.make_state(mechanism, LONG, np.float32)
    weights = programs.weigh(np.empty(tokens.v.shape, np.float32), state)
    weights = weights.silent._replace(y=weights.y)
    for of_q, of_k in SIZES:
        if mechanism.capabilities.unit_vectors and of_k:
            continue  # with keys that long its outputs have no bound
        q, k = (np.float32(size or 1) * x for size, x in ((of_q, tokens.q), (of_k, tokens.k)))
        got = run(tokens._replace(q=q, k=k), None, None, None, weights)
        trees = {"y": got.y, "state": cases.float_leaves(got.state), "gradient": got.tokens}
        for what, tree in trees.items():
            for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
                where = f"{what}{jax.tree_util.keystr(path)} of q * {of_q:g}, k * {of_k:g}"
                assert np.isfinite(leaf).all(), f"{where}: {(~np.isfinite(leaf)).sum()} not finite"


@pytest.mark.parametrize(
    "name",
    [
        "softmax",
        "aaren",
        *(pytest.param(n, marks=slow) for n in ("nystrom", "linear", "linformer")),
    ],
)
def test_enormous_scores_of_one_channel_are_finite(name: str) -> None:
    """K = V = 1, where compilers make products of sums, and join these with what comes next."""
    mechanism = in_tiles(ops.get_mechanism(name))
    q, k, v = np.random.default_rng(0).normal(size=(3, 2, 12, 2, 1)).astype(np.float32)
    q = q[0, 0] if mechanism.capabilities.learned_query else q
    can = mechanism.capabilities

    def outputs(form: str, *tokens: Any) -> Any:
        return mechanism.attend(*tokens, is_causal=can.causal, form=form)

    def of_all_forms(*tokens: Any) -> Any:
        def weighted(*tokens: Any) -> Any:
            y = [outputs(form, *tokens) for form in can.forms]
            return sum(map(jnp.sum, y)), y

        return jax.value_and_grad(weighted, (0, 1, 2), has_aux=True)(*tokens)

    run = compile_as_users(of_all_forms, q, k, v)
    for of_q, of_k in SIZES:
        for leaf in jax.tree.leaves(run(np.float32(of_q or 1) * q, np.float32(of_k or 1) * k, v)):
            assert np.isfinite(leaf).all(), f"q * {of_q:g}, k * {of_k:g}"


# -- every dtype, in every form ----------------------------------------------------------


def fast(mechanism: ops.Mechanism, form: str, dtype: Any, length: int) -> bool:
    """Both halves are computed in float32; what differs is rounded by each family alike."""
    halves = (
        (jnp.bfloat16, jnp.float16) if cases.spec_of(mechanism) in CONTRACT else (jnp.bfloat16,)
    )
    return dtype in halves and length == LENGTH and cases.main(mechanism, form)


@pytest.mark.parametrize(
    ("mechanism", "form", "dtype", "length"),
    cases.slow_unless(
        fast,
        [
            pytest.param(*case.values, dtype, n, id=f"{case.id}-{cases.dtype_name(dtype)}-{n}")
            for case in cases.FORMS
            for dtype in (jnp.bfloat16, jnp.float16, jnp.float32)
            for n in (LENGTH, 63)
        ],
    ),
)
def test_forms_in_every_dtype(mechanism: ops.Mechanism, form: str, dtype: Any, length: int) -> None:
    """From a state on, with padding; segments, too, but in bfloat16."""
    check = check_causal if mechanism.capabilities.causal else check_whole
    kind = "mask" if dtype == jnp.bfloat16 else full_kind(mechanism)
    check(mechanism, form, length, kind, dtype)
