"""The inputs of the contract tests, and the loop of steps that they compare with.

A new mechanism needs nothing here, or one line in ``PARAMETERS`` or, for an argument of tokens, in
``GATES`` if it has one of its own that no other mechanism has, and one in ``TOKENS`` if by its
nature it magnifies rounding where tokens are unfavorable, with the reason. Mechanisms without a
state (``capabilities.recurrent``) are compared with the reference where others are compared with
the loop of ``step``.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_linattn import ops
from tests.contract.representatives import ENGINE, MAIN

BATCH, HEADS, KEY_DIM, VALUE_DIM = 8, 2, 3, 4
CHUNK_SIZE = 4

HYPERPARAMETERS = {
    **{"chunk_size": CHUNK_SIZE, "num_landmarks": 4, "num_features": 5},
    **{"bucket_size": 2, "num_hashes": 2, "window_size": 2, "num_chunks": 3},
}
"""What small tests need instead of the defaults, of every mechanism that has it."""

PARAMETERS: dict[str, Callable[[np.random.Generator, int], Any]] = {
    "scale": lambda rng, n: np.float64(0.7),
    "temperature": lambda rng, n: 1 + 0.5 * np.arange(HEADS),
    "position_bias": lambda rng, n: rng.normal(size=(n, n)),
    "feature_scale": lambda rng, n: rng.uniform(0.75, 1.25, (HEADS, KEY_DIM)),
    "projection": lambda rng, n: rng.normal(size=(HYPERPARAMETERS["num_features"], KEY_DIM)),
    "rotations": lambda rng, n: rng.normal(
        size=(HYPERPARAMETERS["num_hashes"], KEY_DIM, n // (2 * HYPERPARAMETERS["bucket_size"]) + 1)
    ),
    "key_projection": lambda rng, n: rng.normal(size=(n, 4)) / np.sqrt(n),
    "value_projection": lambda rng, n: rng.normal(size=(n, 4)) / np.sqrt(n),
    "mean_query_kernel": lambda rng, n: rng.normal(size=(KEY_DIM, KEY_DIM)),
    "mean_query_bias": lambda rng, n: rng.normal(size=KEY_DIM),
    "mean_key_kernel": lambda rng, n: rng.normal(size=(KEY_DIM, KEY_DIM)),
    "mean_key_bias": lambda rng, n: rng.normal(size=KEY_DIM),
    "noise": lambda rng, n: rng.normal(size=(HEADS, HYPERPARAMETERS["num_chunks"], KEY_DIM)),
    "time_decay": lambda rng, n: rng.normal(size=(HEADS, KEY_DIM)),
    "time_first": lambda rng, n: rng.normal(size=(HEADS, KEY_DIM)),
}
"""Makes the value of a mechanism's own argument for sequences of at most n tokens; its gradient
is compared as well."""

GATES: dict[str, Callable[[np.random.Generator, tuple[int, ...]], Any]] = {
    "log_decay": lambda rng, shape: -(10.0 ** rng.uniform(-3, 1.2, shape)),
    "beta": lambda rng, shape: rng.uniform(0.02, 0.98, shape),
}
"""Makes the values of an argument of tokens: decays from nearly none to 1e-7."""

TOKENS = {
    "expressive": (0.75, 0.25),
    "expressive_quadratic": (0.75, 0.25),
    "rfa": (0.75, 0.25),
    "elementwise_series": (0, 0.5),
    "nystrom": (0, 2),
    "gated_delta": (0, 0.5),
}
"""Mean and standard deviation of the queries and keys of some mechanisms; of all others 0 and 1.

By their nature these magnify rounding where tokens are unfavorable. The first three divide by a
sum of weights that can nearly vanish, alone or beside the features that it is summed from
(``tests/ops/mechanisms/test_expressive.py`` bounds that error); the powers that
``elementwise_series`` sums cancel where 2 q k is far below 0; ``nystrom`` inverts a matrix whose
rows are nearly equal where landmarks are near each other; ``gated_delta`` multiplies the state by
1 - beta |k|^2, and grows with longer keys."""


def _make(name: str) -> ops.Mechanism:
    mechanism = ops.get_mechanism(name)
    fields = {field.name for field in dataclasses.fields(mechanism)}
    return dataclasses.replace(
        mechanism, **{field: HYPERPARAMETERS[field] for field in fields & set(HYPERPARAMETERS)}
    )


def _directions(mechanism: ops.Mechanism) -> list[bool]:
    can = mechanism.capabilities
    return [True] * can.causal + [False] * can.noncausal


class Tokens(NamedTuple):
    """Arguments of ``attend``: ``parameters`` are the mechanism's own, ``gates`` its tokens'."""

    q: Any
    k: Any
    v: Any
    parameters: dict[str, Any]
    gates: dict[str, Any]

    @property
    def own(self) -> dict[str, Any]:
        """Both, as keyword arguments."""
        return self.parameters | self.gates


def make_numbers(
    mechanism: ops.Mechanism,
    length: int,
    *,
    batch: int = BATCH,
    source: int | None = None,
    seed: int = 0,
) -> Tokens:
    """Normal numbers, float64 in NumPy; K != V unless the mechanism wants them equal."""
    rng = np.random.default_rng(seed)
    source = length if source is None else source
    learned = mechanism.capabilities.learned_query
    mean, deviation = TOKENS.get(mechanism.name, (0, 1))

    def normal(*shape: int) -> Any:
        return rng.normal(size=shape)

    return Tokens(
        q=mean + deviation * normal(*(() if learned else (batch, length)), HEADS, KEY_DIM),
        k=mean + deviation * normal(batch, source, HEADS, KEY_DIM),
        v=normal(batch, source, HEADS, value_dim(mechanism)),
        parameters={
            name: PARAMETERS[name](rng, max(length, source, 64)) for name in mechanism.parameters
        },
        gates=make_gates(mechanism, rng, (batch, source), HEADS, KEY_DIM, value_dim(mechanism)),
    )


def make_gates(
    mechanism: ops.Mechanism, rng: np.random.Generator, tokens: tuple[int, int], *sizes: int
) -> dict[str, Any]:
    """Its arguments of tokens [B, T], for H, K and V."""
    return {
        each.name: GATES[each.name](rng, (*tokens, *each.shape(*sizes)))
        for each in mechanism.token_arguments
    }


def make_tokens(mechanism: ops.Mechanism, length: int, dtype: Any, **shape: Any) -> Tokens:
    """The same, rounded to ``dtype``, in JAX."""
    numbers = make_numbers(mechanism, length, **shape)
    return jax.tree.map(lambda a: jnp.asarray(a, dtype), numbers)


def value_dim(mechanism: ops.Mechanism) -> int:
    return KEY_DIM if mechanism.capabilities.channelwise else VALUE_DIM


def make_state(
    mechanism: ops.Mechanism, max_length: int | None, dtype: Any, batch: int = BATCH, **how: Any
) -> Any:
    """The state before the first token; None where there are no states."""
    if not mechanism.capabilities.recurrent:
        return None
    sizes = (batch, HEADS, KEY_DIM, value_dim(mechanism))
    return mechanism.init_state(*sizes, max_length, dtype=dtype, **how)


def attend(mechanism: ops.Mechanism, tokens: Tokens, state: Any = None, **how: Any) -> Any:
    """``attend``, going on from ``state``: outputs and state, None where there are no states."""
    arguments = dict(tokens.own, **how)
    if not mechanism.capabilities.recurrent:
        return mechanism.attend(*tokens[:3], **arguments), None
    return mechanism.attend(*tokens[:3], initial_state=state, return_state=True, **arguments)


def rounded(tree: Any, dtype: Any) -> Any:
    """The same numbers in NumPy, as near as ``dtype`` has them."""
    return jax.tree.map(lambda a: np.asarray(a).astype(dtype), tree)


def take(mechanism: ops.Mechanism, tokens: Tokens, span: Any) -> Tokens:
    """Tokens of a span of time, or of one time without its axis; a learned query has none."""
    learned = mechanism.capabilities.learned_query
    q = tokens.q if learned else tokens.q[:, span]
    return over_tokens(tokens._replace(q=q), lambda x: x[:, span])


def over_tokens(tokens: Tokens, function: Callable[[Any], Any]) -> Tokens:
    """Applies ``function`` to all that a token has its own of, but for the query: [B, T, ...]."""
    k, v, gates = jax.tree.map(function, (tokens.k, tokens.v, tokens.gates))
    return tokens._replace(k=k, v=v, gates=gates)


def make_mask(length: int, seed: int = 0) -> np.ndarray:
    """bool [B, T]: full; padding left, right, in the middle, scattered; nothing; scattered."""
    rng = np.random.default_rng([1, seed])
    mask = np.ones((BATCH, length), bool)
    mask[1, : (length + 1) // 3] = False
    mask[2, length - (length + 1) // 3 :] = False
    mask[3, length // 3 : 2 * length // 3 + 1] = False
    mask[4] = rng.random(length) < 0.6
    mask[5] = False
    mask[6:] = rng.random((BATCH - 6, length)) < 0.8
    return mask


def make_ids(length: int, seed: int = 0) -> np.ndarray:
    """int32 [B, T]: runs of random lengths whose ids come back; row 0 is one run."""
    rng = np.random.default_rng([2, seed])
    changes = rng.random((BATCH, length)) < 0.2
    changes[0] = False
    return (np.cumsum(changes, axis=1) % 3).astype(np.int32)


# -- states -----------------------------------------------------------------------


def is_float(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.floating)


def float_leaves(state: Any) -> list[Any]:
    return [leaf for leaf in jax.tree.leaves(state) if is_float(leaf)]


def with_floats(state: Any, leaves: list[Any]) -> Any:
    leaves = iter(leaves)
    return jax.tree.map(lambda s: next(leaves) if is_float(s) else s, state)


def unpacked(state: Any) -> Any:
    return state.state if isinstance(state, ops.PackedState) else state


def meaning(state: Any) -> list[Any]:
    """The float leaves as far as they mean anything: no unused slots, infinities as 0.

    The maximum over no token is -inf, a constant, whatever ``jax.grad`` makes of it.
    """
    state = unpacked(state)
    leaves = float_leaves(state)
    xp = np if all(isinstance(leaf, np.ndarray) for leaf in leaves) else jnp
    if isinstance(state, ops.KVCache | ops.WindowCache):
        slots = (state.key, state.value, *state.per_token.values())
        used = [xp.expand_dims(state.is_used, (1, *range(3, each.ndim))) for each in slots]
        return [xp.where(u, s, xp.zeros_like(s)) for u, s in zip(used, slots, strict=True)]
    return [xp.where(xp.isinf(leaf), xp.zeros_like(leaf), leaf) for leaf in leaves]


def select(condition: Any, on_true: Any, on_false: Any) -> Any:
    """Whole states by row; ``condition`` bool [B]."""
    return jax.tree.map(
        lambda t, f: jnp.where(condition.reshape((-1,) + (1,) * (t.ndim - 1)), t, f),
        on_true,
        on_false,
    )


# -- values and gradients ------------------------------------------------------------


def with_gradients(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, and the gradients of a fixed random weighting of all its outputs."""

    def evaluate(*arguments: Any) -> Any:
        outputs, pull = jax.vjp(function, *arguments)
        rng = np.random.default_rng(3)
        weights = jax.tree.map(lambda o: jnp.asarray(rng.normal(size=o.shape), o.dtype), outputs)
        return outputs, pull(weights)

    return evaluate


# -- the loops of step -----------------------------------------------------------------


def step_loop(
    mechanism: ops.Mechanism,
    tokens: Tokens,
    state: Any,
    mask: Any = None,
    starts: Any = None,
    empty: Any = None,
) -> tuple[Any, Any]:
    """``step`` after ``step``, a fresh state (``empty``) wherever ``starts`` is True."""
    learned = mechanism.capabilities.learned_query

    def body(state: Any, now: Any) -> tuple[Any, Any]:
        q, k, v, gates, mask, start = now
        if start is not None:
            state = select(start, empty, state)
        y, state = mechanism.step(
            tokens.q if learned else q, k, v, state, mask, **tokens.parameters, **gates
        )
        return state, y

    over_time = (None if learned else tokens.q, tokens.k, tokens.v, tokens.gates, mask, starts)
    over_time = jax.tree.map(lambda a: jnp.moveaxis(a, 1, 0), over_time)
    state, y = jax.lax.scan(body, state, over_time)
    return jnp.moveaxis(y, 0, 1), state


# -- the cases -----------------------------------------------------------------------------


def _forms(mechanism: ops.Mechanism) -> list[str]:
    """Forms that differ: no second name of one that traces to the same program."""
    tokens = make_tokens(mechanism, CHUNK_SIZE + 1, np.float32, batch=1)
    is_causal = mechanism.capabilities.causal

    def program(form: str) -> str:
        run = functools.partial(attend, mechanism, is_causal=is_causal, form=form)
        return str(jax.make_jaxpr(run)(tokens))

    forms = {program(form): form for form in reversed(mechanism.capabilities.forms)}
    return [form for form in mechanism.capabilities.forms if form in forms.values()]


def spec_of(mechanism: ops.Mechanism) -> str:
    """The name of a mechanism, with its hyperparameters where it is one of ``VARIANTS``."""
    return next((spec for spec in VARIANTS if MADE[spec] == mechanism), mechanism.name)


def _param(mechanism: ops.Mechanism, *rest: Any) -> Any:
    words = [{True: "causal", False: "noncausal"}.get(r, r) for r in rest]
    return pytest.param(mechanism, *rest, id="-".join([spec_of(mechanism), *words]))


VARIANTS = ("taylorshift:order=4", "softmax:window=3", "softmax:window=3,sinks=2,soft_cap=1.5")
"""Mechanisms whose hyperparameters bring arithmetic of their own."""

MADE = {spec: _make(spec) for spec in (*ops.list_mechanisms(), *VARIANTS)}
ALL = list(MADE.values())
FORMS_OF = {m: _forms(m) for m in ALL}

MECHANISMS = [_param(m) for m in ALL]
DIRECTIONS = [_param(m, c) for m in ALL for c in _directions(m)]
FORMS = [_param(m, f) for m in ALL for f in FORMS_OF[m]]
DIRECTIONS_FORMS = [_param(m, c, f) for m in ALL for c in _directions(m) for f in FORMS_OF[m]]


def offering(condition: Callable[[ops.Capabilities], bool], cases: list[Any] = MECHANISMS) -> Any:
    """The cases whose mechanism has these capabilities."""
    return [case for case in cases if condition(case.values[0].capabilities)]


def central_form(mechanism: ops.Mechanism) -> str:
    """The form that every fast test runs."""
    forms = FORMS_OF[mechanism]
    return "chunked" if "chunked" in forms else forms[0]


def central(mechanism: ops.Mechanism, *rest: Any) -> bool:
    """Whether these are the one direction and form of a mechanism that every fast test runs."""
    return all(r in (mechanism.capabilities.causal, central_form(mechanism)) for r in rest)


def representative(mechanism: ops.Mechanism, *rest: Any) -> bool:
    """Whether a mechanism stands for a part of the engine; ``rest``: direction and form."""
    return spec_of(mechanism) in ENGINE and central(mechanism, *rest)


def main(mechanism: ops.Mechanism, *rest: Any) -> bool:
    """Whether a mechanism stands for its family; ``rest``: direction and form."""
    return spec_of(mechanism) in MAIN and central(mechanism, *rest)


def of_each_family(mechanism: ops.Mechanism, is_causal: bool) -> bool:
    """One of each family, and what mixes whole sequences."""
    stateless = representative(mechanism) and not mechanism.capabilities.recurrent
    return stateless or main(mechanism, is_causal)


def slow_unless(fast: Callable[..., bool], cases: list[Any]) -> Any:
    """The same cases, all but the fast ones marked as slow.

    Nearly all time goes into compiling, so the fast set runs each kind of check about once for
    each part of the engine; the slow one runs all mechanisms in all directions and forms.
    """
    return [
        case
        if fast(*case.values)
        else pytest.param(*case.values, id=case.id, marks=[*case.marks, pytest.mark.slow])
        for case in cases
    ]


def dtype_name(dtype: Any) -> str:
    return np.dtype(dtype).name
