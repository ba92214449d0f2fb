"""Bad arguments: what was expected, what came, what to do."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_linattn import ops

B, T, H, K, V = 2, 4, 3, 5, 6
SOFTMAX, AAREN = ops.get_mechanism("softmax"), ops.get_mechanism("aaren")
Q, KEYS, VALUES = jnp.ones((B, T, H, K)), jnp.ones((B, T, H, K)), jnp.ones((B, T, H, V))
IDS = jnp.zeros((B, T), jnp.int32)

ATTEND: list[Any] = [
    ({"q": [1.0]}, TypeError, "q must be an array [B, T, H, K], got list."),
    (
        {"k": KEYS.astype(jnp.int32)},
        TypeError,
        "k must have a floating dtype, got int32; cast it, for example k.astype(jnp.float32).",
    ),
    ({"v": VALUES[0]}, ValueError, "expects v as [B, S, H, V], got shape (4, 3, 6)."),
    ({"q": Q[:, :, 0, 0]}, ValueError, "expects q as [B, T, H, K], got shape (2, 4)."),
    (
        {"v": VALUES.astype(jnp.bfloat16)},
        TypeError,
        "must have the same dtype, got float32, float32 and bfloat16; cast them.",
    ),
    (
        {"v": VALUES[:, :3]},
        ValueError,
        "must agree in all but the last axis, got (2, 4, 3, 5) and (2, 3, 3, 6).",
    ),
    (
        {"q": Q[..., :2]},
        ValueError,
        "must agree in heads and key dimension, got (2, 4, 3, 2) and (2, 4, 3, 5).",
    ),
    (
        {"q": Q[:, :, [0, 1, 2, 0]]},
        ValueError,
        "must agree in heads and key dimension, got (2, 4, 4, 5) and (2, 4, 3, 5); the heads of q "
        "must be a multiple of the heads of k, because they share them.",
    ),
    ({"q": Q[:1]}, ValueError, "q and k must have the same batch size, got 1 and 2."),
    (
        {"form": "fast"},
        ValueError,
        "no form 'fast'; its forms are: auto, parallel, chunked, recurrent.",
    ),
    (
        {"q": Q[:, :2], "is_causal": True},
        ValueError,
        "is_causal=True needs queries and keys of the same sequence (T = S), got T=2, S=4; "
        "for earlier tokens pass initial_state.",
    ),
    (
        {"q": Q[:, :2], "segment_ids": IDS},
        ValueError,
        "segment_ids needs queries and keys of the same",
    ),
    (
        {"mask": jnp.ones((B, T), jnp.int32)},
        TypeError,
        "mask must be Boolean, with True for valid tokens, got int32; use mask.astype(bool)",
    ),
    ({"mask": jnp.ones((B, 3), bool)}, ValueError, "mask must have shape (2, 4), got (2, 3)."),
    ({"query_mask": jnp.ones((B, 3), bool)}, ValueError, "query_mask must have shape (2, 4)"),
    ({"segment_ids": jnp.zeros((B, T))}, TypeError, "must have an integer dtype, got float32."),
    ({"segment_ids": IDS[:, :2]}, ValueError, "segment_ids must have shape (2, 4), got (2, 2)."),
    (
        {"temperature": 1.0},
        TypeError,
        "'softmax' got the unknown argument 'temperature'; its own arguments are: scale.",
    ),
    (
        {"initial_state": AAREN.init_state(B, H, K, V)},
        ValueError,
        "the state does not belong to 'softmax': expected KVCache, got ExponentialState; make one "
        "with init_state(...) or attend(..., return_state=True) of 'softmax'.",
    ),
    (
        {"initial_state": SOFTMAX.init_state(B, H, K, 7, 8)},
        ValueError,
        ".value of the state must have shape (2, 3, 8, 6) for these inputs, got (2, 3, 8, 7)",
    ),
]


@pytest.mark.parametrize(("change", "error", "message"), ATTEND)
def test_attend(change: dict[str, Any], error: type[Exception], message: str) -> None:
    arguments = {"q": Q, "k": KEYS, "v": VALUES} | change
    with pytest.raises(error, match=re.escape(message)):
        SOFTMAX.attend(**arguments)


REFERENCE = [case for case in ATTEND if not {"form", "initial_state"} & set(case[0])]


@pytest.mark.parametrize(("change", "error", "message"), REFERENCE)
def test_reference(change: dict[str, Any], error: type[Exception], message: str) -> None:
    arguments = {"q": Q, "k": KEYS, "v": VALUES} | change
    with pytest.raises(error, match=re.escape(message)):
        SOFTMAX.reference(**arguments)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"q": Q}, ValueError, "expects q as [B, H, K], got shape (2, 4, 3, 5)."),
        ({"k": KEYS[:1, 0]}, ValueError, "must agree in all but the last axis"),
        ({"mask": jnp.ones((B, 1), bool)}, ValueError, "mask must have shape (2,), got (2, 1)."),
        (
            {"mask": np.ones(B)},
            TypeError,
            "mask must be Boolean, with True for valid tokens, got float",
        ),
        ({"state": None}, ValueError, "expected KVCache, got NoneType"),
        (
            {"state": AAREN.init_state(B, H, K, V)},
            ValueError,
            "expected KVCache, got ExponentialState",
        ),
        (
            {"state": SOFTMAX.init_state(3, H, K, V, 8)},
            ValueError,
            ".key of the state must have shape (2, 3, 8, 5) for these inputs, got (3, 3, 8, 5)",
        ),
        ({"tau": 1.0}, TypeError, "'softmax' got the unknown argument 'tau'"),
    ],
)
def test_step(change: dict[str, Any], error: type[Exception], message: str) -> None:
    state = SOFTMAX.init_state(B, H, K, V, 8)
    arguments = {"q": Q[:, 0], "k": KEYS[:, 0], "v": VALUES[:, 0], "state": state} | change
    with pytest.raises(error, match=re.escape(message)):
        SOFTMAX.step(**arguments)


def test_aaren_has_one_learned_query() -> None:
    message = (
        "'aaren' expects q as [H, K], one learned query for all tokens, got shape (2, 4, 3, 5)"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        AAREN.attend(Q, KEYS, VALUES)
    with pytest.raises(ValueError, match=r"pass external queries .* as latents, or choose"):
        AAREN.attend(Q[0], KEYS, VALUES)
    message = r"agree in heads and key dimension, .* heads cannot share k and v, but latents of one"
    for heads in (slice(2), [0, 0, 1, 1, 2, 2]):
        with pytest.raises(ValueError, match=message):
            AAREN.attend(Q[0, 0, heads], KEYS, VALUES)
    reformer = ops.get_mechanism("reformer")
    with pytest.raises(ValueError, match="k is also the query, so heads cannot share it"):
        reformer.attend(Q, KEYS[:, :, :1], VALUES[:, :, :1])
    with pytest.raises(ValueError, match="pass query"):
        AAREN.lift(KEYS, VALUES)


def test_aaren_state_of_other_heads() -> None:
    state = AAREN.init_state(B, H + 1, K, V)
    with pytest.raises(ValueError, match=re.escape(".m of the state must have shape (2, 3)")):
        AAREN.step(Q[0, 0], KEYS[:, 0], VALUES[:, 0], state)


@pytest.mark.parametrize("name", ["aaren", "softmax"])
def test_scale_is_one_number(name: str) -> None:
    mechanism = ops.get_mechanism(name)
    k = jnp.ones((1, 3, 4, 4))
    q = jnp.ones((4, 4)) if mechanism.capabilities.learned_query else k
    with pytest.raises(
        ValueError, match=r"scale must be one number for all heads, got shape \(4,\)"
    ):
        mechanism.attend(q, k, k, scale=jnp.ones(4))


def test_softmax_does_not_merge() -> None:
    softmax = ops.get_mechanism("softmax")
    state = softmax.init_state(1, 2, 4, 4)
    with pytest.raises(ValueError, match="cannot merge states; pass the state of the first chunk"):
        softmax.merge(state, state)


def test_merge() -> None:
    state = AAREN.init_state(B, H, K, V)
    with pytest.raises(ValueError, match="PackedState belongs to the last segment"):
        AAREN.merge(state, ops.PackedState(state, jnp.zeros(B, jnp.int32)))
    with pytest.raises(
        ValueError, match=r"\.m of the state must have shape \(2, 3\) .* got \(4, 3\)"
    ):
        AAREN.merge(state, AAREN.init_state(4, H, K, V))
    linear = ops.get_mechanism("linear").init_state(B, H, K, V)
    for first in (state, linear):
        with pytest.raises(ValueError, match="the state does not belong to 'aaren'"):
            AAREN.merge(first, linear)


def test_a_state_of_another_dtype() -> None:
    with jax.enable_x64(True):
        state = AAREN.init_state(B, H, K, V)
        q, k, v = (x.astype(jnp.float64) for x in (Q[0, 0], KEYS, VALUES))
        with pytest.raises(
            TypeError,
            match=r"\.m of the state must have dtype float64 .* got float32; create it with",
        ):
            AAREN.attend(q, k, v, initial_state=state)


def test_cache_dtype() -> None:
    with pytest.raises(ValueError, match=r"cache_dtype must be None or one of bfloat16, .* 'int8'"):
        ops.get_mechanism("softmax", cache_dtype="int8")


STATES = {
    "of lists": lambda leaf: np.asarray(leaf).tolist(),
    "of nothing": lambda leaf: None,
    "of numbers": lambda leaf: 0.125,
    "of other shapes": lambda leaf: jnp.full((7, 7), 0.125, leaf.dtype),
}


@pytest.mark.parametrize("kind", STATES)
@pytest.mark.parametrize("mechanism", [AAREN, SOFTMAX], ids=["aaren", "softmax"])
def test_states_are_named_by_shapes_and_never_printed(mechanism: Any, kind: str) -> None:
    leaves, structure = jax.tree.flatten(mechanism.init_state(B, H, K, V, 8))
    state = jax.tree.unflatten(structure, [STATES[kind](leaf) for leaf in leaves])
    name, first = ("KVCache", ".key") if mechanism is SOFTMAX else ("ExponentialState", ".m")
    q = Q[0, 0] if mechanism is AAREN else Q
    with pytest.raises((ValueError, TypeError)) as caught:
        mechanism.attend(q, KEYS, VALUES, is_causal=True, initial_state=state)
    message = str(caught.value)
    expected = {
        "of lists": f"expected {name} of {first} float32[",
        "of nothing": f"got {name} of {first} NoneType, ",
        "of numbers": f"{first} of the state must be an array float32[",
        "of other shapes": f"{first} of the state must have shape (2, ",
    }
    assert expected[kind] in message and "init_state" in message
    assert len(message) < 400 and "0.125" not in message


def test_the_segments_of_a_packed_state() -> None:
    state = AAREN.init_state(B, H, K, V)
    for ids, error, message in (
        (jnp.zeros(5, jnp.int32), ValueError, "must have shape (2,) for these inputs, got (5,)"),
        (jnp.zeros(B), TypeError, "must be an integer array [B], got float32[2]"),
        ([0, 0], TypeError, "must be an integer array [B], got list"),
    ):
        packed = ops.PackedState(state, ids)  # type: ignore[arg-type]
        with pytest.raises(error, match=re.escape(message)):
            AAREN.attend(Q[0, 0], KEYS, VALUES, segment_ids=IDS, initial_state=packed)
        with pytest.raises(error, match=re.escape(message)):
            AAREN.step(Q[0, 0], KEYS[:, 0], VALUES[:, 0], packed)
