"""Scans with a gradient of their own: forms, orders of differentiation, memory, platforms.

The contract compares their forms with the loop of ``step``; here is what it does not ask.
"""

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_linattn import ops
from flax_linattn.ops.engine.forms import AUTO_SCAN_FORMS as SCANS_BY_PLATFORM
from tests.compilation import compile_as_users

FAST_SCANS = ["aaren", "elementwise_series:order=2"]
AUTO_SCAN_FORMS = [*FAST_SCANS, "aft_simple"]
"""Powers up to the second are enough of a series, each of which is compiled."""
KERNELS = ["linear", "taylorshift", "expressive_quadratic"]
BATCH, HEADS, DIM = 2, 2, 3


def and_slow(cases: list[Any], *more: Any) -> list[Any]:
    return [*cases, *(pytest.param(*case, marks=pytest.mark.slow) for case in more)]


def make_tokens(
    name: str, length: int, dtype: Any = np.float64, dim: int = DIM
) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(0)
    shape = (BATCH, length, HEADS, dim)
    q_shape = shape[2:] if ops.get_mechanism(name).capabilities.learned_query else shape
    return tuple(jnp.asarray(rng.normal(size=s), dtype) for s in (q_shape, shape, shape))


def close(got: Any, want: Any, tolerance: float) -> None:
    def check(g: Any, w: Any) -> None:
        size = max(1, np.max(np.abs(w), initial=0, where=np.isfinite(w)))
        np.testing.assert_allclose(g, w, rtol=0, atol=tolerance * size)

    jax.tree.map(check, got, want)


@cache
def evaluate(name: str, form: str) -> Any:
    """(tokens, state, mask, ids, weights) -> outputs, state and gradients.

    "accelerator" is what ``auto`` is on one, with the gradient by hand.
    """
    # Of other tokens a chunk, since programs of "auto" are kept by mechanism.
    mechanism = ops.get_mechanism(name, chunk_size=96 if form == "accelerator" else 128)
    form = "auto" if form == "accelerator" else form

    def run(tokens: Any, state: Any, mask: Any, ids: Any, weights: Any) -> Any:
        def attend(tokens: Any, state: Any) -> Any:
            options = {"mask": mask, "segment_ids": ids, "initial_state": state}
            return mechanism.attend(
                *tokens, is_causal=True, return_state=True, form=form, **options
            )

        (y, after), pull = jax.vjp(attend, tokens, state)
        nothing = np.zeros(BATCH, jax.dtypes.float0)
        return y, after, pull((weights[0], ops.PackedState(weights[1], nothing)))

    return jax.jit(run)


@pytest.fixture
def platforms(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the form is "accelerator" a CPU counts as one."""
    if form == "accelerator":
        for scan, passes in SCANS_BY_PLATFORM.items():
            there = {which: dict.fromkeys(on, on["accelerator"]) for which, on in passes.items()}
            monkeypatch.setitem(SCANS_BY_PLATFORM, scan, there)


@pytest.mark.usefixtures("platforms")
@pytest.mark.parametrize("form", ["auto", "parallel", "chunked", "accelerator"])
@pytest.mark.parametrize("name", and_slow(FAST_SCANS, ["aft_simple"], ["elementwise_series"]))
def test_forms_agree_over_many_tiles(name: str, form: str) -> None:
    """Padding, packed segments and a state on both sides, over three tiles and a part."""
    length, rng = 107, np.random.default_rng(1)
    with jax.enable_x64(True):
        mechanism, tokens = ops.get_mechanism(name), make_tokens(name, length)
        mask = rng.random((BATCH, length)) < 0.8
        ids = np.cumsum(rng.random((BATCH, length)) < 0.03, axis=1).astype(np.int32)
        ids[0] = 0  # one row goes on from the state to the end
        assert len(set(ids[1][mask[1]])) > 1
        before = mechanism.init_state(BATCH, HEADS, DIM, DIM, dtype=np.float64)
        weights = jax.tree.map(lambda x: rng.normal(size=x.shape), (tokens[2], before))
        _, earlier, _ = evaluate(name, "recurrent")(tokens, before, mask, ids, weights)
        got, want = (
            evaluate(name, which)(tokens, earlier.state, mask, ids, weights)
            for which in (form, "recurrent")
        )
        close(got, want, 2e-14)


@cache
def second(name: str, form: str) -> Any:
    """The gradient of a gradient's square; of the reference where ``form`` says so."""
    mechanism, tokens = ops.get_mechanism(name, chunk_size=2), make_tokens(name, 5)
    attend = mechanism.reference if form == "reference" else partial(mechanism.attend, form=form)

    def loss(tokens: Any) -> Any:
        return jnp.sum(jnp.sin(attend(*tokens, is_causal=True)))

    def steepness(tokens: Any) -> Any:
        return sum(jnp.sum(g**2) for g in jax.grad(loss)(tokens))

    return jax.jit(jax.grad(steepness))(tokens)


@pytest.mark.parametrize(
    ("name", "form"),
    and_slow(
        [("aaren", "parallel"), ("aaren", "recurrent"), ("taylorshift", "chunked")],
        *(
            (name, form)
            for name in (*AUTO_SCAN_FORMS, "elementwise_series")
            for form in ("recurrent", "parallel")
            if name != "aaren"
        ),
    ),
)
def test_gradients_have_gradients(name: str, form: str) -> None:
    with jax.enable_x64(True):
        close(second(name, form), second(name, "reference"), 1e-12)


@pytest.mark.parametrize("name", ["linear", "elementwise_series:order=2"])
def test_hessians_of_any_form(name: str) -> None:
    """``jax.hessian`` is forward over reverse, which gradients by hand have too."""
    mechanism = ops.get_mechanism(name, chunk_size=2)

    def hessian(attend: Any) -> Any:
        def loss(k: Any) -> Any:
            return jnp.sum(jnp.sin(attend(q, k, v, is_causal=True)))

        return jax.jit(jax.hessian(loss))(k)

    with jax.enable_x64(True):
        q, k, v = make_tokens(name, 3)
        got, want = hessian(partial(mechanism.attend, form="chunked")), hessian(mechanism.reference)
        close(got, want, 1e-12)


@pytest.mark.parametrize("name", and_slow(["aft_simple", "linear"], *([n] for n in KERNELS[1:])))
def test_training_keeps_a_few_numbers_a_token(name: str) -> None:
    """Temporary memory is less than 14 inputs: no weights, no sums, no states of chunks.

    The state of ``taylorshift`` is 20 times as large as a chunk here. The contract asks the same
    of mechanisms of the papers at their own chunk sizes.
    """
    mechanism = ops.get_mechanism(name, chunk_size=8 if name in KERNELS else 128)
    length, dim = 4096, 16
    tokens = jax.ShapeDtypeStruct((BATCH, length, HEADS, dim), np.float32)

    def train(*tokens: Any) -> Any:
        y, pull = jax.vjp(lambda *t: mechanism.attend(*t, is_causal=True), *tokens)
        return pull(y)

    compiled = compile_as_users(train, tokens, tokens, tokens)
    one = BATCH * length * HEADS * dim * 4
    assert compiled.memory_analysis().temp_size_in_bytes <= 14 * one


@pytest.mark.parametrize(
    "name",
    and_slow(
        [*FAST_SCANS, "taylorshift", "softmax"],
        *(["aft_simple"], ["linear"], ["expressive_quadratic"], ["expressive"]),
    ),
)
def test_gradients_under_checkpoint(name: str) -> None:
    """Recomputing the forward pass changes nothing."""
    mechanism, tokens = ops.get_mechanism(name), make_tokens(name, 40, np.float32)
    options = {} if name in KERNELS else {"form": "chunked"}

    def gradients(wrap: Any) -> Any:
        attend = wrap(partial(mechanism.attend, is_causal=True, **options))
        return jax.jit(jax.grad(lambda t: jnp.sum(jnp.sin(attend(*t)))))(tokens)

    close(gradients(jax.checkpoint), gradients(lambda f: f), 1e-6)
