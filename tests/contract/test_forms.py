"""Every form = the loop of ``step`` = the reference: outputs, final state, gradients.

The loop is compared with the reference over a prefix and a sequence; the forms are compared
with the loop over the sequence, from the prefix's state, into whose leaves gradients go too.
Where there is no ``step``, the forms are compared with the reference, and there is no prefix.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_linattn import ops
from flax_linattn.ops import masks
from tests.contract import cases
from tests.contract.cases import Tokens
from tests.contract.tolerances import assert_close

FAST = 11  # three chunks, the last of them filled up
LAYOUTS = [
    (FAST, "mask+segments"),
    (FAST, "mask"),
    (FAST, "plain"),
    (1, "mask+segments"),
    (1, "plain"),
    (2, "mask+segments"),
    (2, "plain"),
    (63, "mask+segments"),
    (63, "mask"),
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


class Span(NamedTuple):
    """What the loop of ``step`` has to know of a span of tokens.

    Attributes:
        real: bool [B, T].
        starts: bool [B, T], a run begins.
        run: int [B, T], starts so far.
        before: int [B], the run that came in.
    """

    real: Any
    starts: Any
    run: Any
    before: Any


class Layout:
    """Mask and ids of a prefix and a sequence."""

    def __init__(self, prefix: int, length: int, kind: str) -> None:
        self.mask, self.ids = layout(prefix, length, kind)
        self.length, self.shape = prefix + length, (cases.BATCH, prefix + length)
        self.real = np.ones(self.shape, bool) if self.mask is None else self.mask
        self.prefix, self.rest = slice(0, prefix), slice(prefix, prefix + length)

    def span(self, span: slice) -> Span:
        ids = np.zeros(self.shape, np.int32) if self.ids is None else self.ids
        runs = masks.segment_runs(jnp.asarray(ids), self.real)
        starts, run = np.asarray(runs.starts), np.asarray(runs.index)
        before = run[:, span.start - 1] if span.start else 0 * run[:, 0]
        return Span(self.real[:, span], starts[:, span], run[:, span], before)


def stepwise(mechanism: ops.Mechanism, is_causal: bool) -> bool:
    """Whether ``step`` gives these outputs; that of a positional mechanism is always the last."""
    positional = getattr(mechanism, "positional", False)
    return mechanism.capabilities.recurrent and (is_causal or not positional)


def prefix_length(mechanism: ops.Mechanism, is_causal: bool) -> int:
    return 5 if stepwise(mechanism, is_causal) else 0


def make_tokens(mechanism: ops.Mechanism, prefix: int, length: int, dtype: Any) -> Tokens:
    """The tokens of a sequence that follows a prefix."""
    tokens = cases.make_tokens(mechanism, prefix + length, dtype)
    return cases.take(mechanism, tokens, slice(prefix, None))


def exact_tokens(mechanism: ops.Mechanism, prefix: int, length: int, dtype: Any) -> Tokens:
    """The same, rounded to ``dtype``, in float64."""
    tokens = make_tokens(mechanism, prefix, length, dtype)
    return jax.tree.map(lambda a: a.astype(np.float64), tokens)


# Masks, runs and states are arguments of the loops and of the reference: all layouts and dtypes
# of one length share their compilations.


@functools.cache
def loop(mechanism: ops.Mechanism, is_causal: bool, capacity: int) -> Any:
    """(tokens, state, span, 1 or 0) -> outputs, the state's meaning and gradients by ``step``.

    With 0 the final state counts for nothing, as in the reference, which has none.
    """

    def steps(tokens: Tokens, state: Any, span: Span) -> tuple[Any, Any]:
        empty = cases.make_state(mechanism, capacity, tokens.k.dtype)
        y, final = cases.step_loop(mechanism, tokens, state, span.real, span.starts, empty)
        if is_causal:
            return y, final

        @jax.checkpoint
        def of_query(now: Any) -> Any:
            q, run, wanted = now
            begin = cases.select(run == span.before, state, empty)
            seen = span.real & (span.run == run[:, None])
            q = tokens.q if q is None else q
            y, _ = cases.last_output(mechanism, q, tokens, begin, seen)
            return jnp.where(wanted[:, None, None], y, 0)

        q = None if mechanism.capabilities.learned_query else jnp.moveaxis(tokens.q, 1, 0)
        return jnp.moveaxis(jax.lax.map(of_query, (q, span.run.T, span.real.T)), 0, 1), final

    @jax.jit
    def run(tokens: Tokens, state: Any, span: Span, of_state: Any) -> Any:
        def outputs(tokens: Tokens, floats: list[Any]) -> Any:
            y, final = steps(tokens, cases.with_floats(state, floats), span)
            return y, [of_state * leaf for leaf in cases.meaning(final)]

        return cases.with_gradients(outputs)(tokens, cases.float_leaves(state))

    return run


@functools.cache
def reference(mechanism: ops.Mechanism, is_causal: bool) -> Any:
    """(tokens, mask, ids) -> outputs and gradients, in the form of those of ``loop``."""

    @jax.jit
    def run(tokens: Tokens, mask: Any, ids: Any) -> Any:
        how = {"is_causal": is_causal, "mask": mask, "segment_ids": ids}

        def outputs(tokens: Tokens, floats: list[Any]) -> Any:
            return mechanism.reference(*tokens[:3], **how, **tokens.parameters), []

        return cases.with_gradients(outputs)(tokens, [])

    return run


def by_reference(mechanism: ops.Mechanism, is_causal: bool, tokens: Tokens, at: Layout) -> Any:
    """The reference of a sequence without a prefix."""
    ids = at.ids
    if ids is None and mechanism.capabilities.packed:
        ids = np.zeros(at.shape, np.int32)
    return finished(reference(mechanism, is_causal)(tokens, at.real, ids), at)


@functools.cache
def prefix_loop(mechanism: ops.Mechanism, capacity: int) -> Any:
    @jax.jit
    def run(tokens: Tokens, span: Span) -> Any:
        empty = cases.make_state(mechanism, capacity, tokens.k.dtype)
        return cases.step_loop(mechanism, tokens, empty, span.real, span.starts, empty)[1]

    return run


@functools.cache
def prefix_state(mechanism: ops.Mechanism, prefix: int, length: int, kind: str, dtype: Any) -> Any:
    """The state after the prefix in the dtype that it has for inputs of ``dtype``."""
    if not prefix:
        return None
    at = Layout(prefix, length, kind)
    with jax.enable_x64(True):
        tokens = cases.make_tokens(mechanism, prefix, np.float64, seed=5)
        state = prefix_loop(mechanism, at.length)(tokens, at.span(at.prefix))
        state = jax.tree.map(np.asarray, state)
    if np.dtype(dtype) == np.float64:
        return state
    like = cases.make_state(mechanism, 1, jnp.float32)
    narrow = [leaf.dtype for leaf in cases.float_leaves(like)]
    leaves = zip(cases.float_leaves(state), narrow, strict=True)
    return cases.with_floats(state, [leaf.astype(d) for leaf, d in leaves])


def finished(values_and_gradients: Any, at: Layout) -> Any:
    outputs, gradients = jax.tree.map(np.array, values_and_gradients)
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


@functools.cache
def expected(mechanism: ops.Mechanism, is_causal: bool, length: int, kind: str, dtype: Any) -> Any:
    """What a form has to give from the prefix's state on; without states, from nothing."""
    prefix = prefix_length(mechanism, is_causal)
    at = Layout(prefix, length, kind)
    with jax.enable_x64(True):
        tokens = exact_tokens(mechanism, prefix, length, dtype)
        if not stepwise(mechanism, is_causal):
            return by_reference(mechanism, is_causal, tokens, at)
        state = prefix_state(mechanism, prefix, length, kind, dtype)
        floats = [leaf.astype(np.float64) for leaf in cases.float_leaves(state)]
        state = cases.with_floats(state, floats)
        got = loop(mechanism, is_causal, at.length)(tokens, state, at.span(at.rest), 1.0)
        return finished(got, at)


def check_form(
    mechanism: ops.Mechanism, is_causal: bool, form: str, length: int, kind: str, dtype: Any
) -> None:
    prefix = prefix_length(mechanism, is_causal)
    at = Layout(prefix, length, kind)
    state = prefix_state(mechanism, prefix, length, kind, dtype)

    def run(tokens: Tokens, floats: list[Any]) -> Any:
        start = cases.with_floats(state, floats)
        if at.ids is not None:
            before = masks.segment_runs(jnp.asarray(at.ids[:, at.prefix]), at.real[:, at.prefix])
            # A row without a prefix continues in whatever id comes first, as the loop does.
            start = ops.PackedState(start, before.last) if prefix else None
        y, final = cases.attend(
            mechanism,
            tokens,
            start,
            is_causal=is_causal,
            mask=None if at.mask is None else at.mask[:, at.rest],
            segment_ids=None if at.ids is None else jnp.asarray(at.ids[:, at.rest]),
            form=form,
        )
        return y, cases.meaning(final) if stepwise(mechanism, is_causal) else []

    with jax.enable_x64(np.dtype(dtype) == np.float64):
        tokens = make_tokens(mechanism, prefix, length, dtype)
        got = jax.jit(cases.with_gradients(run))(tokens, cases.float_leaves(state))
    y, leaves = got[0]
    assert y.dtype == dtype
    assert all(leaf.dtype == (np.float64 if dtype == np.float64 else np.float32) for leaf in leaves)
    got, want = finished(got, at), expected(mechanism, is_causal, length, kind, dtype)
    assert_close(got[0], want[0], dtype, "output")
    assert_close(got[1], want[1], dtype, "gradient")


def full(mechanism: ops.Mechanism, length: int, kind: str) -> bool:
    return (length, kind) == (FAST, "mask+segments" if mechanism.capabilities.packed else "mask")


def fast_loop(mechanism: ops.Mechanism, is_causal: bool, length: int, kind: str) -> bool:
    return full(mechanism, length, kind) and cases.central(mechanism, is_causal)


@pytest.mark.parametrize(
    ("mechanism", "is_causal", "length", "kind"),
    cases.slow_unless(
        fast_loop, with_layouts([c for c in cases.DIRECTIONS if stepwise(*c.values)])
    ),
)
def test_the_loop_of_step_is_the_reference(
    mechanism: ops.Mechanism, is_causal: bool, length: int, kind: str
) -> None:
    f64, at = np.float64, Layout(0, length, kind)
    prefix = prefix_length(mechanism, is_causal)
    capacity = prefix + length
    with jax.enable_x64(True):
        tokens = exact_tokens(mechanism, prefix, length, f64)
        empty = cases.make_state(mechanism, capacity, f64)
        got = loop(mechanism, is_causal, capacity)(tokens, empty, at.span(at.rest), 0.0)
        got, want = finished(got, at), by_reference(mechanism, is_causal, tokens, at)
    assert_close(got[0][0], want[0][0], f64, "y")
    assert_close(got[1][0], want[1][0], f64, "gradient")


def fast_form(mechanism: ops.Mechanism, is_causal: bool, form: str, length: int, kind: str) -> bool:
    own, main = cases.own(mechanism), cases.central(mechanism, is_causal)
    one = cases.central(mechanism, form)
    return full(mechanism, length, kind) and ((own and main) or ((own or main) and one))


@pytest.mark.parametrize(
    ("mechanism", "is_causal", "form", "length", "kind"),
    cases.slow_unless(fast_form, with_layouts(cases.DIRECTIONS_FORMS)),
)
def test_forms_are_the_loop_of_step(
    mechanism: ops.Mechanism, is_causal: bool, form: str, length: int, kind: str
) -> None:
    check_form(mechanism, is_causal, form, length, kind, np.float64)


slow = pytest.mark.slow
DTYPES = [pytest.param(jnp.float32, marks=slow), jnp.bfloat16, jnp.float16]


@pytest.mark.parametrize("length", [FAST, pytest.param(63, marks=slow)])
@pytest.mark.parametrize("dtype", DTYPES, ids=cases.dtype_name)
@pytest.mark.parametrize(("mechanism", "form"), cases.slow_unless(cases.quick, cases.FORMS))
def test_forms_in_every_dtype(mechanism: ops.Mechanism, form: str, dtype: Any, length: int) -> None:
    check_form(mechanism, mechanism.capabilities.causal, form, length, "mask", dtype)
