"""Bad arguments of tokens, of every mechanism that has them: what was expected, what came."""

import inspect
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_linattn import ops
from flax_linattn.ops.contract.token_arguments import (
    RESERVED_NAMES,
    TokenArgument,
    check_token_arguments,
    identity,
)
from tests.contract import cases

LENGTH = 6
GATED = [case for case in cases.MECHANISMS if case.values[0].token_arguments]
ARGUMENTS = [
    pytest.param(case.values[0], argument, id=f"{case.id}-{argument.name}")
    for case in GATED
    for argument in case.values[0].token_arguments
]
WAYS = ["attend", "reference", "step"]
ways = pytest.mark.parametrize("way", WAYS)


def test_the_mechanisms() -> None:
    names = {case.values[0].name for case in GATED}
    assert names >= {"forgetting_aaren", "forgetting", "gated_linear", "gated_delta"}


def make_tokens(mechanism: ops.Mechanism, way: str, dtype: Any = np.float32) -> cases.Tokens:
    tokens = cases.make_tokens(mechanism, LENGTH, dtype)
    return cases.take(mechanism, tokens, 0) if way == "step" else tokens


def run(mechanism: ops.Mechanism, way: str, tokens: cases.Tokens, **gates: Any) -> Any:
    """The outputs, with some gates of another kind."""
    q, k, v, _, own = tokens
    own = own | gates
    if way == "step":
        return mechanism.step(q, k, v, cases.make_state(mechanism, LENGTH, v.dtype), **own)[0]
    return getattr(mechanism, way)(q, k, v, is_causal=True, **own)


def layout(argument: TokenArgument, way: str) -> str:
    return re.escape(argument.layout(time=way != "step"))


@ways
@pytest.mark.parametrize(("mechanism", "argument"), ARGUMENTS)
def test_missing(mechanism: ops.Mechanism, argument: TokenArgument, way: str) -> None:
    """None, or left out."""
    tokens = make_tokens(mechanism, way)
    message = f"'{mechanism.name}' needs {argument.name} {layout(argument, way)}, with a value for"
    with pytest.raises(TypeError, match=message):
        run(mechanism, way, tokens, **{argument.name: None})
    left = {name: x for name, x in tokens.gates.items() if name != argument.name}
    with pytest.raises(TypeError, match=message):
        run(mechanism, way, tokens._replace(gates=left))


@ways
@pytest.mark.parametrize(("mechanism", "argument"), ARGUMENTS)
def test_of_another_shape(mechanism: ops.Mechanism, argument: TokenArgument, way: str) -> None:
    """No broadcasting: neither of a batch or a head nor of what lacks an axis."""
    tokens = make_tokens(mechanism, way)
    x = tokens.gates[argument.name]
    for wrong in (x[:1], x[..., :1], x[..., 0], x[:, None], jnp.zeros(())):
        message = (
            f"'{mechanism.name}' expects {argument.name} as {layout(argument, way)}, here "
            f"{re.escape(str(x.shape))}, got {re.escape(str(wrong.shape))}"
        )
        with pytest.raises(ValueError, match=message):
            run(mechanism, way, tokens, **{argument.name: wrong})


@ways
@pytest.mark.parametrize(("mechanism", "argument"), ARGUMENTS)
def test_of_another_type(mechanism: ops.Mechanism, argument: TokenArgument, way: str) -> None:
    tokens = make_tokens(mechanism, way)
    for wrong, message in (
        (-1.0, f"{argument.name} must be an array {layout(argument, way)}, got float."),
        ([[-1.0]], f"{argument.name} must be an array {layout(argument, way)}, got list."),
        (
            tokens.gates[argument.name].astype(np.int32),
            "must have the dtype float32 of k and v, got int32.",
        ),
        (tokens.gates[argument.name] < 0, "must have the dtype float32 of k and v, got bool."),
        (
            np.asarray(tokens.gates[argument.name], np.float64),
            "must have the dtype float32 of k and v, got",
        ),
    ):
        with jax.enable_x64(True), pytest.raises(TypeError, match=message):
            run(mechanism, way, tokens, **{argument.name: wrong})


@pytest.mark.parametrize("way", ["attend", "step"])
@pytest.mark.parametrize(("mechanism", "argument"), ARGUMENTS)
def test_gates_may_have_the_dtype_of_sums(
    mechanism: ops.Mechanism, argument: TokenArgument, way: str
) -> None:
    """Beside bfloat16: float32 is what layers make; another dtype is refused by both names."""
    wide = make_tokens(mechanism, way)
    tokens = jax.tree.map(lambda x: x.astype(jnp.bfloat16), wide)
    assert run(mechanism, way, tokens, **wide.gates).dtype == jnp.bfloat16
    narrow = tokens.gates[argument.name].astype(np.float16)
    with pytest.raises(
        TypeError, match="must have the dtype bfloat16 or float32 of k and v, got float16"
    ):
        run(mechanism, way, tokens, **{argument.name: narrow})


def outside(argument: TokenArgument) -> list[float]:
    """A little and much beyond each limit."""
    beyond = [argument.high + 1e-6, np.inf] if np.isfinite(argument.high) else []
    return beyond + ([argument.low - 1e-6, -np.inf] if np.isfinite(argument.low) else [])


@ways
@pytest.mark.parametrize(("mechanism", "argument"), ARGUMENTS)
def test_out_of_range(mechanism: ops.Mechanism, argument: TokenArgument, way: str) -> None:
    """The message says what is allowed, what came, where, and what to do."""
    tokens = make_tokens(mechanism, way)
    limits = {
        (-np.inf, 0.0): ("at most 0", "max=0"),
        (0.0, 1.0): ("at least 0 and at most 1", "min=0, max=1"),
    }
    limit, clip = limits[argument.low, argument.high]
    made = argument.activation.__name__
    for number in outside(argument):
        gate = tokens.gates[argument.name]
        where = [2, 1] if way == "step" else [2, 1, 1]
        where += [2] * (gate.ndim - len(where))
        wrong = gate.at[tuple(where)].set(number).at[-1].set(number)  # the first is told
        came = float(np.float32(number))
        message = (
            f"{argument.name} of '{mechanism.name}' must be {limit}, got {came} at {where} of "
            f"{argument.layout(time=way != 'step')}; a layer makes it by {made}, or clip it: "
            f"jnp.clip(x, {clip})."
        )
        with pytest.raises(ValueError, match=re.escape(message)):
            run(mechanism, way, tokens, **{argument.name: wrong})


WITHIN_A_BLOCK = ("forgetting", "gated_delta")
"""Weights of 0 meet what later tokens have: a NaN of one spoils its block, as one in v would."""


@pytest.mark.parametrize("mechanism", GATED)
def test_under_jit_what_it_reaches_is_nan(mechanism: ops.Mechanism) -> None:
    """From its token on in its row and head, and nothing else; in each of its arguments."""
    compiled = jax.jit(lambda tokens: run(mechanism, "attend", tokens))
    tokens = make_tokens(mechanism, "attend")
    want = np.asarray(compiled(tokens))
    first = 0 if mechanism.name in WITHIN_A_BLOCK else 3
    for argument in mechanism.token_arguments:
        x = tokens.gates[argument.name]
        gates = tokens.gates | {argument.name: x.at[1, 3, 1].set(argument.high + 0.5)}
        got = np.asarray(compiled(tokens._replace(gates=gates)))
        reached = np.zeros(want.shape, bool)
        reached[1, first:, 1] = True
        np.testing.assert_array_equal(got[~reached], want[~reached])
        assert np.isnan(got[1, 4:, 1]).all()


@pytest.mark.parametrize("mechanism", GATED)
def test_a_step_under_jit_spoils_its_row_and_head(mechanism: ops.Mechanism) -> None:
    compiled = jax.jit(lambda tokens: run(mechanism, "step", tokens))
    tokens = make_tokens(mechanism, "step")
    (first, *_) = mechanism.token_arguments
    x = tokens.gates[first.name]
    gates = tokens.gates | {first.name: x.at[1, 1].set(first.high + 0.5)}
    want, got = (np.asarray(compiled(each)) for each in (tokens, tokens._replace(gates=gates)))
    spoiled = np.isnan(got)
    assert spoiled[1, 1].all() and spoiled.sum() == spoiled[1, 1].sum()
    np.testing.assert_array_equal(got[~spoiled], want[~spoiled])


@pytest.mark.parametrize("mechanism", GATED)
def test_the_bounds_themselves_are_allowed(mechanism: ops.Mechanism) -> None:
    """No decay, all of it, beta of 0 and 1: finite outputs."""
    tokens = make_tokens(mechanism, "attend")
    for argument in mechanism.token_arguments:
        for limit in (argument.low, argument.high):
            gates = {argument.name: jnp.full_like(tokens.gates[argument.name], limit)}
            assert np.isfinite(run(mechanism, "attend", tokens, **gates)).all()


@ways
@pytest.mark.parametrize("mechanism", GATED)
def test_what_stands_at_padding_is_not_looked_at(mechanism: ops.Mechanism, way: str) -> None:
    """NaN, and numbers out of range, known or not."""
    tokens = make_tokens(mechanism, way)
    time = () if way == "step" else (LENGTH,)
    mask: Any = np.ones((cases.BATCH, *time), bool)
    mask[1::2] = False

    def masked(tokens: cases.Tokens) -> Any:
        q, k, v, _, gates = tokens
        if way == "step":
            state = cases.make_state(mechanism, LENGTH, v.dtype)
            return mechanism.step(q, k, v, state, mask, **gates)[0]
        return getattr(mechanism, way)(q, k, v, is_causal=True, mask=mask, **gates)

    want = masked(tokens)
    for filler in (np.nan, 1e30, np.inf):
        gates = jax.tree.map(lambda x, f=filler: x.at[1::2].set(f), tokens.gates)
        np.testing.assert_array_equal(masked(tokens._replace(gates=gates)), want)


@ways
@pytest.mark.parametrize("mechanism", GATED)
def test_unknown(mechanism: ops.Mechanism, way: str) -> None:
    """A slip of the keyboard names what there is."""
    tokens = make_tokens(mechanism, way)
    x = tokens.gates["log_decay"]
    with pytest.raises(TypeError, match=r"'decay_log'.*log_decay"):
        run(mechanism, way, tokens, decay_log=x)


def test_a_mechanism_without_decays_takes_none() -> None:
    for name in ("softmax", "retention", "rwkv"):
        mechanism = ops.get_mechanism(name)
        tokens = make_tokens(mechanism, "attend")
        with pytest.raises(TypeError, match="log_decay"):
            run(mechanism, "attend", tokens, log_decay=tokens.k[..., 0])


CAUSAL_ONLY = ["forgetting", "gated_linear", "retention", "gated_delta", "rwkv"]


@pytest.mark.parametrize("name", CAUSAL_ONLY)
def test_only_causal(name: str) -> None:
    mechanism = ops.get_mechanism(name)
    q, k, v, _, gates = make_tokens(mechanism, "attend")
    for method in (mechanism.attend, mechanism.reference):
        with pytest.raises(ValueError, match=f"'{name}'.*is_causal=True"):
            method(q, k, v, **gates)


@pytest.mark.parametrize("name", CAUSAL_ONLY)
def test_no_cross_attention(name: str) -> None:
    mechanism = ops.get_mechanism(name)
    q, k, v, _, gates = make_tokens(mechanism, "attend")
    with pytest.raises(ValueError, match=f"'{name}' needs as many queries as keys, got T=2, S=6."):
        mechanism.attend(q[:, :2], k, v, is_causal=True, **gates)


def test_a_declared_argument_without_limits_is_taken_as_it_is() -> None:
    free = TokenArgument("bonus", "HV")
    k, v = jnp.ones((2, 3, 4, 5)), jnp.ones((2, 3, 4, 6))
    x = jnp.full((2, 3, 4, 6), 1e30)
    assert free.shape(4, 5, 6) == (4, 6) and free.layout(time=False) == "[B, H, V]"
    checked = check_token_arguments("mine", [free], {"bonus": x}, k, v, None)
    np.testing.assert_array_equal(checked["bonus"], x)


FLAWED: dict[str, tuple[dict[str, Any], str]] = {
    "no identifier": ({"name": "log-decay"}, "must be a Python identifier, got 'log-decay'"),
    "no name": ({"name": ""}, "must be a Python identifier, got ''"),
    "a keyword": ({"name": "lambda"}, "must be a Python identifier, got 'lambda'"),
    "no text": ({"name": 3}, "must be a Python identifier, got 3"),
    "taken": ({"name": "mask"}, "cannot be named 'mask', because attend, step or lift has"),
    "no axes": (
        {"axes": ""},
        'some of H, K and V, each at most once, such as "H" or "HK", got \'\'',
    ),
    "an unknown axis": ({"axes": "HC"}, "some of H, K and V, each at most once"),
    "time": ({"axes": "TH"}, "the axes of 'gate' after batch and time must be some of"),
    "an axis twice": ({"axes": "HKK"}, 'each at most once, such as "H" or "HK", got \'HKK\''),
    "nothing between": ({"low": 1.0, "high": 0.0}, "must have low <= high, got 1 and 0"),
    "NaN": ({"high": np.nan}, "must have low <= high, got -inf and nan"),
    "no activation": ({"low": 0.0, "activation": identity}, "needs an activation within them"),
}


@pytest.mark.parametrize("flaw", FLAWED)
def test_a_flawed_declaration(flaw: str) -> None:
    options, message = FLAWED[flaw]
    whole: dict[str, Any] = {"name": "gate", "axes": "H", "activation": jax.nn.sigmoid}
    TokenArgument(**whole)
    with pytest.raises(ValueError, match=re.escape(message)):
        TokenArgument(**(whole | options))


def test_no_argument_of_the_contract_can_be_declared() -> None:
    methods = (ops.Mechanism.attend, ops.Mechanism.step, ops.Mechanism.reference)
    taken = {
        name
        for method in (*methods, ops.StreamingMechanism.lift)
        for name, parameter in inspect.signature(method).parameters.items()
        if parameter.kind is not parameter.VAR_KEYWORD
    }
    assert taken == set(RESERVED_NAMES)
