"""``reference`` = the papers' equations in NumPy: outputs, and derivatives along any direction."""

from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

from flax_linattn import ops
from tests.contract import cases, equations, programs
from tests.contract.programs import LENGTH
from tests.contract.tolerances import assert_close


def test_every_mechanism_has_its_equation() -> None:
    assert set(equations.EQUATIONS) == set(ops.list_mechanisms())


@pytest.mark.parametrize(("mechanism", "is_causal"), cases.DIRECTIONS)
def test_the_reference_is_the_equation(mechanism: ops.Mechanism, is_causal: bool) -> None:
    """Padding anywhere and packed segments; the derivative into each argument by itself."""
    length = 2 * LENGTH if mechanism.capabilities.recurrent else LENGTH
    mask = cases.make_mask(length)
    ids = cases.make_ids(length) if mechanism.capabilities.packed else None
    tokens = cases.make_numbers(mechanism, length)
    names = list(tokens.own)
    arguments = [*tokens[:3], *tokens.own.values()]

    def equation(q: Any, k: Any, v: Any, *parameters: Any) -> np.ndarray:
        own = dict(zip(names, parameters, strict=True))
        how = {"is_causal": is_causal, "mask": mask, "segment_ids": ids}
        return equations.attend(mechanism, q, k, v, **how, **own)

    want = equation(*arguments)
    rng = np.random.default_rng(6)
    weights = rng.normal(size=want.shape)
    got = programs.reference(mechanism, is_causal)(tokens, mask, ids, weights)
    assert_close(got.y, want, np.float64, "y")

    gradients = [*got.tokens[:3], *(got.tokens.own[name] for name in names)]
    for i, name in enumerate(["q", "k", "v", *names]):
        direction = [np.zeros(np.shape(x)) for x in arguments]
        direction[i] = rng.normal(size=np.shape(arguments[i]))
        slope = np.sum(weights * equations.derivative(equation, arguments, direction))
        along = np.sum(gradients[i] * direction[i])
        # A sum over all outputs: relative to the size of a random sum of as many terms.
        size = np.sqrt(want.size)
        what = f"gradient into {name}"
        assert_close(along / size, slope / size, np.float64, what, least=1.0)


def fast(mechanism: ops.Mechanism) -> bool:
    """Representatives are compared with the reference, in ``test_forms.py``."""
    return not cases.representative(mechanism)


@pytest.mark.parametrize("mechanism", cases.slow_unless(fast, cases.MECHANISMS))
def test_attend_is_the_equation(mechanism: ops.Mechanism) -> None:
    """In the main form and direction, whose gradients and states are the engine's."""
    mask = cases.make_mask(LENGTH)
    how = {"mask": mask, "is_causal": mechanism.capabilities.causal}
    how["segment_ids"] = cases.make_ids(LENGTH) if mechanism.capabilities.packed else None
    tokens = cases.make_numbers(mechanism, LENGTH)
    want = equations.attend(mechanism, *tokens[:3], **how, **tokens.own)
    how["form"] = cases.central_form(mechanism)

    def attend(tokens: cases.Tokens) -> Any:
        return mechanism.attend(*tokens[:3], **how, **tokens.own)

    with jax.enable_x64(True):
        got = np.asarray(jax.jit(attend)(tokens))
    assert_close(got, want, np.float64)


def test_derivatives_of_equations_are_exact() -> None:
    got = equations.derivative(partial(np.exp), [np.array([0.0, 1.0])], [np.array([1.0, 2.0])])
    np.testing.assert_allclose(got, [1, 2 * np.e], rtol=1e-15)
