"""The programs of the contract: compiled once for a mechanism, run with many inputs.

Nearly all time of a contract test goes into compiling, hardly any into running. So what a test
varies is data: masks, segment ids, states and the weights of outputs, whose gradients come back
with the values. All run in the dtype of their tokens, float64 in most tests, and give NumPy arrays.
A test of what holds for every mechanism::

    @pytest.mark.parametrize("mechanism", cases.MECHANISMS)
    def test_values_are_linear(mechanism):
        tokens, mask = cases.make_numbers(mechanism, LENGTH), cases.make_mask(LENGTH)
        run = programs.central(mechanism)         # its main direction and form
        once = run(tokens, mask, 0 * mask)
        twice = run(tokens._replace(v=2 * tokens.v), mask, 0 * mask)
        assert_close(twice.y, 2 * once.y, np.float64)
"""

import contextlib
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from flax_linattn import ops
from flax_linattn.ops.contract.masks import NO_SEGMENT
from tests.compilation import AS_USERS, optimized
from tests.contract import cases
from tests.contract.cases import Tokens
from tests.contract.tolerances import assert_close

LENGTH = 11
"""Three chunks, the last of them padded."""


class Weights(NamedTuple):
    """Gradients are those of a weighted sum of all outputs: weights of y and of the state."""

    y: Any
    state: list[Any]

    @property
    def silent(self) -> "Weights":
        """Weights of 0, some of which a test replaces."""
        return jax.tree.map(np.zeros_like, self)


def weigh(y: Any, state: Any, seed: int = 3) -> Weights:
    """Random weights of outputs and of a state of these shapes."""
    rng = np.random.default_rng(seed)
    like = Weights(y, cases.meaning(state))
    return jax.tree.map(lambda x: rng.normal(size=x.shape).astype(x.dtype), like)


class Result(NamedTuple):
    """What a program gives.

    Attributes:
        y: [B, T, H, V].
        state: after the last token; None where there are none.
        tokens: the gradient into q, k, v and the mechanism's own arguments.
        before: the gradient into the floating leaves of the state that came in.
    """

    y: Any
    state: Any
    tokens: Tokens
    before: list[Any]

    @property
    def values(self) -> Any:
        """Outputs and what the state means, to compare."""
        return self.y, cases.meaning(self.state)


def assert_gradients_close(
    got: Tokens, want: Tokens, dtype: Any, what: str = "gradient", *, terms: int = 1
) -> None:
    """Compares gradients into tokens, and into what batch and time share.

    The latter (a learned query, a scale) are sums of many terms: their errors are relative to 1 at
    least, and to a random sum of ``terms`` where the two sides add them in different orders. The
    terms cancel: at T = 100 those of Aaren's scale have absolute sum 175 and sum 2, so that a
    single rounding of each is already more than the tolerance of their sum.
    """
    size = np.sqrt(terms)

    def parts(tokens: Tokens) -> tuple[Any, Any]:
        own = {"k": tokens.k, "v": tokens.v, **tokens.gates}
        shared = tokens.parameters | ({"q": tokens.q} if tokens.q.ndim == 2 else {})
        own |= {} if tokens.q.ndim == 2 else {"q": tokens.q}
        return own, {name: np.asarray(g).astype(np.float64) / size for name, g in shared.items()}

    (got_own, got_shared), (want_own, want_shared) = parts(got), parts(want)
    assert_close(got_own, want_own, dtype, what)
    assert_close(got_shared, want_shared, dtype, what, least=1.0)


def assert_results_close(
    got: Result, want: Result, dtype: Any, what: str = "", *, terms: int = 1
) -> None:
    """Outputs, states as far as they mean anything, and gradients."""
    assert_close(got.values, want.values, dtype, f"{what} output")
    assert_gradients_close(got.tokens, want.tokens, dtype, f"{what} gradient", terms=terms)
    assert_close(got.before, want.before, dtype, f"{what} gradient into the state")


class Program:
    """A function compiled, NumPy in and out; float64 tokens, its first argument, stay float64.

    Attributes:
        traced: the function as it is, of JAX arrays.
        compiled: the same under ``jax.jit``.
        optimize: compile as users do.
    """

    def __init__(self, function: Callable[..., Result], *, optimize: bool = False) -> None:
        self.traced, self.optimize = function, optimize
        self.compiled = jax.jit(function, compiler_options=AS_USERS if optimize else None)

    def __call__(self, tokens: Tokens, *rest: Any) -> Result:
        how = optimized() if self.optimize else contextlib.nullcontext()
        with how, jax.enable_x64(tokens.k.dtype == np.float64):
            return jax.tree.map(np.asarray, self.compiled(tokens, *rest))


def _pulled(attend: Callable[..., Any], tokens: Tokens, state: Any, weights: Weights) -> Result:
    def outputs(tokens: Tokens, floats: list[Any]) -> Any:
        y, after = attend(tokens, cases.with_floats(state, floats))
        return Weights(y, cases.meaning(after)), after

    got, pull, after = jax.vjp(outputs, tokens, cases.float_leaves(state), has_aux=True)
    return Result(got.y, after, *pull(weights))


@functools.cache
def attend(
    mechanism: ops.Mechanism, is_causal: bool, form: str, *, optimize: bool = False
) -> Program:
    """(tokens, state, mask, ids, weights) -> ``attend`` and the gradients of its outputs."""

    def run(tokens: Tokens, state: Any, mask: Any, ids: Any, weights: Weights) -> Result:
        how = {"is_causal": is_causal, "mask": mask, "segment_ids": ids, "form": form}
        return _pulled(
            lambda tokens, state: cases.attend(mechanism, tokens, state, **how),
            tokens,
            state,
            weights,
        )

    return Program(run, optimize=optimize)


@functools.cache
def loop(mechanism: ops.Mechanism) -> Program:
    """(tokens, state, mask, starts, weights) -> what ``attend`` gives, by ``step`` after ``step``.

    ``starts`` bool [B, T] says where a segment begins, with a fresh state.
    """

    def run(tokens: Tokens, state: Any, mask: Any, starts: Any, weights: Weights) -> Result:
        capacity = state.capacity if isinstance(state, ops.KVCache) else None
        empty = cases.make_state(mechanism, capacity, tokens.k.dtype, len(tokens.k))
        return _pulled(
            lambda tokens, state: cases.step_loop(mechanism, tokens, state, mask, starts, empty),
            tokens,
            state,
            weights,
        )

    return Program(run)


@functools.cache
def reference(mechanism: ops.Mechanism, is_causal: bool) -> Program:
    """(tokens, mask, ids, weights of y) -> ``reference``, which knows of no states."""

    def run(tokens: Tokens, mask: Any, ids: Any, weights: Any) -> Result:
        how = {"is_causal": is_causal, "mask": mask, "segment_ids": ids}

        def outputs(tokens: Tokens) -> Any:
            return mechanism.reference(*tokens[:3], **how, **tokens.own)

        y, pull = jax.vjp(outputs, tokens)
        return Result(y, None, *pull(weights), [])

    return Program(run)


def begin(mechanism: ops.Mechanism, *, packed: bool, capacity: int = 2 * LENGTH, **how: Any) -> Any:
    """The state before the first token, float64; None where there are no states."""
    if not mechanism.capabilities.recurrent:
        return None
    with jax.enable_x64(True):
        state = cases.make_state(mechanism, capacity, np.float64, **how)
        state = jax.tree.map(np.asarray, state)
    nowhere = np.full(cases.BATCH, NO_SEGMENT, np.int32)
    return ops.PackedState(state, nowhere) if packed else state


class Central(NamedTuple):
    """The one program of a mechanism that most tests run: its main direction and form."""

    mechanism: ops.Mechanism
    is_causal: bool
    form: str

    @property
    def packed(self) -> bool:
        return self.is_causal and self.mechanism.capabilities.packed

    def begin(self) -> Any:
        return begin(self.mechanism, packed=self.packed)

    def weights(self, seed: int = 3) -> Weights:
        y = np.empty((cases.BATCH, LENGTH, cases.HEADS, cases.value_dim(self.mechanism)))
        return weigh(y, self.begin(), seed)

    @property
    def program(self) -> Program:
        return attend(self.mechanism, self.is_causal, self.form)

    def arguments(
        self, tokens: Tokens, mask: Any, ids: Any, weights: Weights | None = None, state: Any = None
    ) -> tuple[Any, ...]:
        """Arguments of ``program``: from an empty state by default; ids only where ``packed``."""
        weights = self.weights() if weights is None else weights
        state = self.begin() if state is None else state
        return tokens, state, mask, np.asarray(ids, np.int32) if self.packed else None, weights

    def __call__(self, *arguments: Any) -> Result:
        return self.program(*self.arguments(*arguments))


def central(mechanism: ops.Mechanism) -> Central:
    return Central(mechanism, mechanism.capabilities.causal, cases.central_form(mechanism))
