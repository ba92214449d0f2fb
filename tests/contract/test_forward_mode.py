"""Forward mode by ``form="parallel"``: tangents, and second derivatives in every order of modes.

Judged by the reference, differentiated backwards alone, in float64. The tokens have padding and,
where a mechanism packs, segments; ``jax.hessian`` and ``jax.jacfwd`` are the same derivatives for
all tangents at once.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_linattn import ops
from tests.contract import cases
from tests.contract.cases import Tokens
from tests.contract.programs import assert_gradients_close
from tests.contract.tolerances import assert_close

LENGTH = 5
Attend = Callable[[Tokens], Any]

AUTO_SCAN_FORMS = ("aaren", "linear", "gated_linear")
"""Scans with a gradient by hand, of maxima, sums and decays; all other cases are slow."""

CASES = [
    *(
        pytest.param(ops.get_mechanism(spec, chunk_size=4), True, id=spec)
        for spec in AUTO_SCAN_FORMS
    ),
    *cases.slow_unless(lambda *case: False, cases.DIRECTIONS),
]


def attend(mechanism: ops.Mechanism, is_causal: bool, form: str) -> Attend:
    """tokens -> outputs with padding and, where it packs, segments; ``form`` may be "reference"."""
    how = {"is_causal": is_causal, "mask": cases.make_mask(LENGTH)}
    if mechanism.capabilities.packed:
        how["segment_ids"] = cases.make_ids(LENGTH)
    call = (
        mechanism.reference
        if form == "reference"
        else functools.partial(mechanism.attend, form=form)
    )
    return lambda tokens: call(*tokens[:3], **how, **tokens.own)


def inner(a: Any, b: Any) -> Any:
    """<a, b> of two trees."""
    return sum(jnp.vdot(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


class Derivatives(NamedTuple):
    """Along tangents: of the outputs, weighed, and of the gradient of a loss."""

    first: Any
    second: Tokens


class Point(NamedTuple):
    """Where they are taken: tokens, tangents, weights of the outputs."""

    tokens: Tokens
    tangents: Tokens
    weights: Any

    def loss(self, run: Attend, tokens: Tokens) -> Any:
        return jnp.sum(self.weights * jnp.sin(run(tokens)))


def backwards(run: Attend, point: Point) -> Derivatives:
    """Reverse over reverse."""

    def along(tokens: Tokens) -> Any:
        return inner(jax.grad(functools.partial(point.loss, run))(tokens), point.tangents)

    _, pull = jax.vjp(run, point.tokens)
    first = inner(pull(point.weights)[0], point.tangents)
    return Derivatives(first, jax.grad(along)(point.tokens))


def forwards(run: Attend, point: Point) -> dict[str, Derivatives]:
    """Forward over reverse, and reverse over forward."""
    loss = functools.partial(point.loss, run)

    def tangent(function: Any, tokens: Tokens) -> Any:
        return jax.jvp(function, (tokens,), (point.tangents,))[1]

    _, linear = jax.linearize(run, point.tokens)
    slope = functools.partial(tangent, loss)
    return {
        "jvp": Derivatives(
            inner(point.weights, tangent(run, point.tokens)),
            tangent(jax.grad(loss), point.tokens),
        ),
        "linearize": Derivatives(
            inner(point.weights, linear(point.tangents)), jax.grad(slope)(point.tokens)
        ),
    }


def make_point(mechanism: ops.Mechanism) -> Point:
    tokens = cases.make_numbers(mechanism, LENGTH)
    rng = np.random.default_rng(4)
    tangents = jax.tree.map(lambda x: rng.normal(size=np.shape(x)), tokens)
    return Point(tokens, tangents, rng.normal(size=tokens.v.shape))


def compiled(function: Any, run: Attend, point: Point) -> Any:
    with jax.enable_x64(True):
        return jax.tree.map(np.asarray, jax.jit(functools.partial(function, run))(point))


@pytest.mark.parametrize(("mechanism", "is_causal"), CASES)
def test_tangents_and_hessians_of_the_parallel_form(
    mechanism: ops.Mechanism, is_causal: bool
) -> None:
    point = make_point(mechanism)
    want = compiled(backwards, attend(mechanism, is_causal, "reference"), point)
    for how, got in compiled(forwards, attend(mechanism, is_causal, "parallel"), point).items():
        assert_close(got.first, want.first, np.float64, how)
        tokens = point.weights[..., 0, 0].size
        assert_gradients_close(got.second, want.second, np.float64, how, terms=tokens)


@pytest.mark.parametrize(
    ("form", "name"),
    [
        *(("auto", name) for name in ("aaren", "elementwise_series:order=2", "aft_simple")),
        *(("chunked", name) for name in ("softmax", "expressive", "elementwise", "aft")),
        *(("chunked", name) for name in ("gated_linear", "retention", "gated_delta")),
    ],
)
def test_a_form_with_a_gradient_by_hand_has_no_tangents(form: str, name: str) -> None:
    mechanism = ops.get_mechanism(name, chunk_size=2)
    tokens = cases.make_tokens(mechanism, 4, np.float32)._replace(parameters={})
    how: dict[str, Any] = {"is_causal": True, "form": form}
    with pytest.raises(
        TypeError, match=rf"form='{form}' has a hand-derived gradient .*='parallel'"
    ):
        jax.jvp(lambda t: mechanism.attend(*t[:3], **how, **t.gates), (tokens,), (tokens,))
