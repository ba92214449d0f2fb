"""Every form = the loop of ``step`` = the reference: outputs, final state, gradients.

The loop is compared with the reference over a prefix and a sequence; the forms are compared
with the loop over the sequence, from the prefix's state, into whose leaves gradients go too.
Where there is no ``step``, the forms are compared with the reference, and there is no prefix.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_linattn import ops
from flax_linattn.ops import masks
from tests.contract import cases
from tests.contract.cases import Tokens
from tests.contract.tolerances import assert_close

LAYOUTS = [
    (63, "mask"),
    (63, "mask+segments"),
    (1, "mask+segments"),
    (2, "plain"),
    (2, "mask+segments"),
    (1, "plain"),
    (63, "plain"),
    (63, "segments"),
    (100, "mask"),
    (100, "mask+segments"),
]


def with_layouts(mechanism_cases: list[Any]) -> list[Any]:
    return [
        pytest.param(*case.values, length, kind, id=f"{case.id}-{length}-{kind}")
        for case in mechanism_cases
        for length, kind in LAYOUTS
        if "segments" not in kind or case.values[0].capabilities.packed
    ]


def layout(prefix: int, length: int, kind: str) -> tuple[Any, Any]:
    """Mask and ids over prefix and sequence; the last row holds nothing real at all."""
    mask = ids = None
    if "mask" in kind:
        before = cases.make_mask(prefix, seed=1)[[0, 5, 2, 3, 1, 5]]
        mask = np.concatenate([before, cases.make_mask(length)], axis=1)
        if prefix:
            mask[2, prefix:] = False  # nothing real after a prefix
    if "segments" in kind:
        ids = cases.make_ids(prefix + length)
    return mask, ids


class Layout:
    """The mask and the runs of one case, as arrays of the current precision."""

    def __init__(self, mechanism: ops.Mechanism, length: int, kind: str) -> None:
        prefix = 5 if mechanism.capabilities.recurrent else 0
        self.mask, self.ids = layout(prefix, length, kind)
        shape = (cases.BATCH, prefix + length)
        self.real = np.ones(shape, bool) if self.mask is None else self.mask
        self.runs = masks.segment_runs(
            jnp.asarray(np.zeros(shape, np.int32) if self.ids is None else self.ids), self.real
        )
        self.starts, self.index = np.asarray(self.runs.starts), np.asarray(self.runs.index)
        self.prefix = slice(0, prefix)
        self.rest = slice(prefix, prefix + length)
        self.length = prefix + length


def steps(
    mechanism: ops.Mechanism, tokens: Tokens, at: Layout, span: slice, state: Any, is_causal: bool
) -> tuple[Any, Any]:
    """The loop of ``step`` over a span that follows ``state``."""
    empty = cases.make_state(mechanism, at.real.shape[1], tokens.k.dtype)
    part = cases.take(mechanism, tokens, span)
    real, starts, index = (jnp.asarray(a[:, span]) for a in (at.real, at.starts, at.index))
    y, final = cases.step_loop(mechanism, part, state, real, starts, empty)
    if is_causal:
        return y, final

    @jax.checkpoint
    def of_query(now: Any) -> Any:
        q, run, wanted = now
        # The run that the state ended in is the one of the position before the span.
        begin = cases.select(run == at.index[:, span.start - 1], state, empty)
        q = tokens.q if q is None else q
        y, _ = cases.last_output(mechanism, q, part, begin, real & (index == run[:, None]))
        return jnp.where(wanted[:, None, None], y, 0)

    q = None if mechanism.capabilities.learned_query else jnp.moveaxis(part.q, 1, 0)
    return jnp.moveaxis(jax.lax.map(of_query, (q, index.T, real.T)), 0, 1), final


@functools.cache
def prefix_state(mechanism: ops.Mechanism, length: int, kind: str, dtype: Any) -> Any:
    """The state after the prefix in the dtype that it has for inputs of ``dtype``."""
    if not mechanism.capabilities.recurrent:
        return None
    at = Layout(mechanism, length, kind)
    with jax.enable_x64(True):
        tokens = cases.make_tokens(mechanism, at.prefix.stop, np.float64, seed=5)
        empty = cases.make_state(mechanism, at.length, np.float64)
        loop = jax.jit(lambda t: steps(mechanism, t, at, at.prefix, empty, True)[1])
        state = jax.tree.map(np.asarray, loop(tokens))
    like = cases.make_state(mechanism, 1, jnp.float32)
    narrow = [leaf.dtype for leaf in cases.float_leaves(like)]
    if np.dtype(dtype) == np.float64:
        return state
    leaves = zip(cases.float_leaves(state), narrow, strict=True)
    return cases.with_floats(state, [leaf.astype(d) for leaf, d in leaves])


def evaluate(
    run: Any, mechanism: ops.Mechanism, length: int, kind: str, dtype: Any, compute: Any
) -> Any:
    """``run`` and its gradients for inputs rounded to ``dtype``, computed in ``compute``."""
    at = Layout(mechanism, length, kind)
    state = prefix_state(mechanism, length, kind, dtype)
    with jax.enable_x64(np.dtype(compute) == np.float64):
        tokens = cases.make_tokens(mechanism, at.length, dtype)
        tokens = jax.tree.map(lambda a: a.astype(compute), tokens)
        floats = cases.float_leaves(state)
        if np.dtype(compute) == np.float64:
            floats = [leaf.astype(compute) for leaf in floats]

        def function(tokens: Tokens, floats: list[Any]) -> Any:
            return run(tokens, at, cases.with_floats(state, floats))

        outputs, gradients = jax.tree.map(
            np.array, jax.jit(cases.with_gradients(function))(tokens, floats)
        )
    # Into the state of no tokens there is no gradient: nobody can change it.
    for gradient in gradients[1]:
        gradient[~at.real[:, at.prefix].any(axis=1)] *= 0
    return outputs, (per_random_sum(gradients[0], at.real.size), gradients[1])


def per_random_sum(gradient: Tokens, terms: int) -> Tokens:
    """Gradients of what batch and time share, relative to the size of a random sum of terms.

    The terms cancel: at T = 100 those of Aaren's scale have absolute sum 175 and sum 2, so that
    a single rounding of each is already more than the tolerance of their sum.
    """
    size = np.sqrt(terms)
    q = gradient.q.astype(np.float64) / size if gradient.q.ndim == 2 else gradient.q
    parameters = {name: g.astype(np.float64) / size for name, g in gradient.parameters.items()}
    return gradient._replace(q=q, parameters=parameters)


def by_reference(mechanism: ops.Mechanism, is_causal: bool) -> Any:
    def run(tokens: Tokens, at: Layout, state: Any) -> Any:
        y = mechanism.reference(
            *tokens[:3],
            is_causal=is_causal,
            mask=at.mask,
            segment_ids=at.ids,
            **tokens.parameters,
        )
        return y[:, at.rest], []

    return run


def by_steps(mechanism: ops.Mechanism, is_causal: bool) -> Any:
    def run(tokens: Tokens, at: Layout, state: Any) -> Any:
        y, final = steps(mechanism, tokens, at, at.rest, state, is_causal)
        return y, cases.meaning(final)

    return run


@functools.cache
def expected(mechanism: ops.Mechanism, is_causal: bool, length: int, kind: str, dtype: Any) -> Any:
    simplest = by_steps if mechanism.capabilities.recurrent else by_reference
    run = simplest(mechanism, is_causal)
    return evaluate(run, mechanism, length, kind, dtype, np.float64)


def check_form(
    mechanism: ops.Mechanism, is_causal: bool, form: str, length: int, kind: str, dtype: Any
) -> None:
    def run(tokens: Tokens, at: Layout, state: Any) -> Any:
        part = cases.take(mechanism, tokens, at.rest)
        if at.ids is not None:
            before = masks.segment_runs(jnp.asarray(at.ids[:, at.prefix]), at.real[:, at.prefix])
            # A row without a prefix continues in whatever id comes first, as the loop does.
            state = ops.PackedState(state, before.last)
        y, final = cases.attend(
            mechanism,
            part,
            state,
            is_causal=is_causal,
            mask=None if at.mask is None else at.mask[:, at.rest],
            segment_ids=None if at.ids is None else jnp.asarray(at.ids[:, at.rest]),
            form=form,
        )
        return y, cases.meaning(final)

    (y, state), gradients = evaluate(run, mechanism, length, kind, dtype, dtype)
    assert y.dtype == dtype
    assert all(leaf.dtype == (np.float64 if dtype == np.float64 else np.float32) for leaf in state)
    want = expected(mechanism, is_causal, length, kind, dtype)
    assert_close((y, state), want[0], dtype, "output")
    assert_close(gradients, want[1], dtype, "gradient")


RECURRENT = cases.offering(lambda can: can.recurrent, cases.DIRECTIONS)


@pytest.mark.parametrize(("mechanism", "is_causal", "length", "kind"), with_layouts(RECURRENT))
def test_the_loop_of_step_is_the_reference(
    mechanism: ops.Mechanism, is_causal: bool, length: int, kind: str
) -> None:
    def run(tokens: Tokens, at: Layout, state: Any) -> Any:
        empty = cases.make_state(mechanism, at.length, tokens.k.dtype)
        _, state = steps(mechanism, tokens, at, at.prefix, empty, True)
        return steps(mechanism, tokens, at, at.rest, state, is_causal)[0], []

    f64 = np.float64
    got, got_gradients = evaluate(run, mechanism, length, kind, f64, f64)
    reference = by_reference(mechanism, is_causal)
    want, want_gradients = evaluate(reference, mechanism, length, kind, f64, f64)
    assert_close(got, want, f64, "y")
    assert_close(got_gradients[0], want_gradients[0], f64, "gradient")


@pytest.mark.parametrize(
    ("mechanism", "is_causal", "form", "length", "kind"), with_layouts(cases.DIRECTIONS_FORMS)
)
def test_forms_are_the_loop_of_step(
    mechanism: ops.Mechanism, is_causal: bool, form: str, length: int, kind: str
) -> None:
    check_form(mechanism, is_causal, form, length, kind, np.float64)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16], ids=cases.dtype_name)
@pytest.mark.parametrize(("mechanism", "form"), cases.FORMS)
def test_forms_in_every_dtype(mechanism: ops.Mechanism, form: str, dtype: Any) -> None:
    check_form(mechanism, mechanism.capabilities.causal, form, 63, "mask", dtype)
