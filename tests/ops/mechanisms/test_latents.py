"""Latents: external queries instead of the learned one, each of which attends to all tokens."""

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec

from flax_linattn import ops
from tests.meshes import make_mesh

B, T, L, H, K, V = 2, 12, 3, 2, 4, 5
AAREN, FORGETTING = (ops.get_mechanism(n, chunk_size=4) for n in ("aaren", "forgetting_aaren"))
EVERY = pytest.mark.parametrize("mechanism", [AAREN, FORGETTING], ids=lambda m: m.name)
AAREN_AND_SLOW = pytest.mark.parametrize(
    "mechanism", [AAREN, pytest.param(FORGETTING, marks=pytest.mark.slow)], ids=lambda m: m.name
)
SLOW_FORMS = [pytest.param(name, marks=pytest.mark.slow) for name in ("parallel", "recurrent")]
DIRECTION = pytest.mark.parametrize("is_causal", [True, False], ids=["causal", "whole"])


def make_inputs(mechanism: ops.Mechanism, seed: int = 0) -> dict[str, Any]:
    """Normal numbers, float64; queries of each row."""
    rng = np.random.default_rng(seed)
    gates = {each.name: -rng.random((B, T, H)) for each in mechanism.token_arguments}
    return {
        "latents": rng.normal(size=(B, L, H, K)),
        "k": rng.normal(size=(B, T, H, K)),
        "v": rng.normal(size=(B, T, H, V)),
        **gates,
    }


def make_mask() -> Any:
    """Padding at the front, in the middle, and none."""
    mask = np.ones((B, T), bool)
    mask[0, [0, 5, 6]] = False
    return mask


def exact(function: Any, *arguments: Any, **keywords: Any) -> Any:
    """In float64."""
    with jax.enable_x64(True):
        return jax.tree.map(np.asarray, function(*arguments, **keywords))


@cache
def attend(mechanism: ops.Mechanism, **how: Any) -> Any:
    return jax.jit(partial(mechanism.attend, None, return_state=True, **how))


@cache
def stepped(mechanism: ops.Mechanism) -> Any:
    """(latents, tokens [B, T, ...], mask, state) -> outputs [B, T, L, H, V], the last state."""

    def run(latents: Any, tokens: Any, mask: Any, state: Any) -> Any:
        def one(state: Any, now: Any) -> Any:
            token, mask = now
            y, state = mechanism.step(None, state=state, mask=mask, latents=latents, **token)
            return state, y

        over_time = jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), (tokens, mask))
        state, y = jax.lax.scan(one, state, over_time)
        return jnp.moveaxis(y, 0, 1), state

    return jax.jit(run)


def steps(mechanism: ops.Mechanism, latents: Any, tokens: Any, mask: Any = None) -> Any:
    length = tokens["k"].shape[1]
    mask = np.ones((B, length), bool) if mask is None else mask

    def run() -> Any:
        state = mechanism.init_state(B, H, K, V, dtype=jnp.float64, num_latents=L)
        return stepped(mechanism)(latents, tokens, mask, state)

    return exact(run)


def assert_close(got: Any, want: Any, tolerance: float = 1e-12) -> None:
    jax.tree.map(partial(np.testing.assert_allclose, rtol=tolerance, atol=tolerance), got, want)


@AAREN_AND_SLOW
@DIRECTION
@pytest.mark.parametrize("form", ["auto", "chunked", *SLOW_FORMS])
def test_forms_are_the_reference_and_the_loop_of_steps(
    mechanism: ops.Mechanism, is_causal: bool, form: str
) -> None:
    inputs, mask = make_inputs(mechanism), make_mask()
    y, state = exact(attend(mechanism, is_causal=is_causal, form=form), **inputs, mask=mask)
    want = exact(mechanism.reference, None, **inputs, is_causal=is_causal, mask=mask)
    assert y.shape == ((B, T, L, H, V) if is_causal else (B, L, H, V))
    assert_close(y, want)
    latents = inputs.pop("latents")
    each, last = steps(mechanism, latents, inputs, mask)
    assert_close(state, last)
    assert_close(y, np.where(mask[..., None, None, None], each, 0) if is_causal else each[:, -1])


@EVERY
@DIRECTION
def test_each_is_what_the_learned_one_would_be(mechanism: ops.Mechanism, is_causal: bool) -> None:
    """Of one row and one query, the call that has always been; shared queries are of all rows."""
    inputs = make_inputs(mechanism)
    latents = inputs.pop("latents")
    run = attend(mechanism, is_causal=is_causal)
    y, state = exact(run, **inputs, latents=latents[0])
    assert_close((y, state), exact(run, **inputs, latents=np.stack([latents[0]] * B)))
    learned = jax.jit(partial(mechanism.attend, is_causal=is_causal, return_state=True))
    for each in range(L):
        alone, alone_state = exact(learned, latents[0, each], **inputs)
        assert_close(
            y[:, :, each] if is_causal else y[:, each], alone if is_causal else alone[:, 0]
        )
        assert_close(jax.tree.map(lambda x, n=each: x[:, n], state), alone_state)


@EVERY
@DIRECTION
def test_shared_queries_some_of_which_are_wanted(mechanism: ops.Mechanism, is_causal: bool) -> None:
    """Without a mask of tokens; the weights of each query, too."""
    inputs = make_inputs(mechanism)
    v = inputs["v"]
    shared = {**inputs, "latents": inputs["latents"][0]}
    wanted = make_mask() if is_causal else np.array([[True, False, True], [True, True, False]])
    how = {"is_causal": is_causal, "query_mask": wanted}
    y, _ = exact(attend(mechanism, is_causal=is_causal), **shared, query_mask=wanted)
    assert_close(y, exact(jax.jit(partial(mechanism.reference, None, **how)), **shared))
    assert np.all((y == 0).all(axis=tuple(range(2, y.ndim))) == ~wanted)
    del shared["v"]
    w = exact(jax.jit(partial(ops.weights, mechanism, None, **how)), **shared)
    assert w.shape == ((B, H, T, L, T) if is_causal else (B, H, L, T))
    assert_close(np.einsum("bh...s,bshv->b...hv", w, v), y)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_values_and_gradients_are_those_of_softmax_cross_attention(dtype: str) -> None:
    inputs, mask = make_inputs(AAREN), make_mask()
    softmax = ops.get_mechanism("softmax")

    def outputs_and_gradients(attend: Any) -> Any:
        with jax.enable_x64(True):
            own = {name: jnp.asarray(x, dtype) for name, x in inputs.items()}
            y, pull = jax.vjp(lambda own: attend(**own, mask=mask), own)
            found = y, *pull(jnp.cos(jnp.arange(y.size)).reshape(y.shape).astype(dtype))
            return jax.tree.map(lambda x: np.asarray(x, np.float64), found)

    tolerance = {"float64": 1e-13, "float32": 3e-6, "bfloat16": 0.02}[dtype]

    def cross(latents: Any, **tokens: Any) -> Any:
        return softmax.attend(latents, **tokens)

    attends = partial(AAREN.attend, None), cross
    assert_close(*map(outputs_and_gradients, attends), tolerance)


@AAREN_AND_SLOW
@DIRECTION
@pytest.mark.parametrize("form", ["auto", pytest.param("chunked", marks=pytest.mark.slow)])
def test_gradients_are_those_of_the_reference(
    mechanism: ops.Mechanism, is_causal: bool, form: str
) -> None:
    """Into queries, tokens and the state before them, through outputs and the state after them."""
    inputs, mask, cut = make_inputs(mechanism), make_mask(), 5

    def whole(inputs: Any) -> Any:
        return jnp.sum(jnp.sin(mechanism.reference(None, **inputs, is_causal=is_causal, mask=mask)))

    def parts(inputs: Any) -> Any:
        latents = inputs["latents"]
        first, second = (
            {name: x[:, part] for name, x in inputs.items() if name != "latents"}
            | {"mask": mask[:, part]}
            for part in (slice(cut), slice(cut, None))
        )
        how = {"latents": latents, "is_causal": is_causal, "form": form, "return_state": True}
        before, state = mechanism.attend(None, **first, **how)
        y, _ = mechanism.attend(None, **second, initial_state=state, **how)
        y = jnp.concatenate([before, y], axis=1) if is_causal else y
        return jnp.sum(jnp.sin(y))

    assert_close(exact(jax.jit(jax.grad(parts)), inputs), exact(jax.grad(whole), inputs))


@EVERY
@settings(max_examples=10, deadline=None)
@given(cut=st.integers(0, T), seed=st.integers(0, 99))
def test_split_anywhere_and_merge(mechanism: ops.Mechanism, cut: int, seed: int) -> None:
    inputs = make_inputs(mechanism, seed)
    run = partial(attend(mechanism), latents=inputs.pop("latents"))
    y, state = exact(run, **inputs)
    first, second = (
        {n: x[:, part] for n, x in inputs.items()} for part in (slice(cut), slice(cut, T))
    )
    _, before = exact(run, **first)
    rest, after = exact(run, **second, initial_state=before)
    assert_close((rest, after), (y, state))
    alone = exact(run, **second)[1]
    assert_close(exact(mechanism.merge, before, alone), state)


@EVERY
def test_packed_prefixes_are_those_of_separate_sequences(mechanism: ops.Mechanism) -> None:
    inputs, cut = make_inputs(mechanism), 7
    ids = np.where(np.arange(T) < cut, 4, 9) * np.ones((B, 1), int)
    run = attend(mechanism, is_causal=True)
    y, state = exact(run, **inputs, segment_ids=ids)
    latents = inputs.pop("latents")
    for part in (slice(cut), slice(cut, T)):
        tokens = {name: x[:, part] for name, x in inputs.items()}
        want, last = exact(run, **tokens, latents=latents)
        assert_close(y[:, part], want)
    assert_close(state.state, last)


@EVERY
@DIRECTION
def test_padding_is_harmless(mechanism: ops.Mechanism, is_causal: bool) -> None:
    """NaN at padding, and in a query that no output is wanted of."""
    inputs, mask = make_inputs(mechanism), make_mask()
    wanted = None if is_causal else np.array([[True, True, False]] * B)

    def run(inputs: Any) -> Any:
        y = mechanism.attend(None, **inputs, is_causal=is_causal, mask=mask, query_mask=wanted)
        return jnp.sum(jnp.sin(y)), y

    poisoned = {
        name: x
        if name == "latents"
        else np.where(mask.reshape(B, T, *(1,) * (x.ndim - 2)), x, np.nan)
        for name, x in inputs.items()
    }
    if wanted is not None:
        poisoned["latents"] = np.where(wanted[..., None, None], inputs["latents"], np.nan)
    found = jax.jit(jax.value_and_grad(run, has_aux=True))
    (_, y), gradients = exact(found, poisoned)
    (_, want), want_gradients = exact(found, inputs)
    assert_close((y, gradients), (want, want_gradients))
    none = ~mask if is_causal else ~wanted
    assert np.all(y[none] == 0)


@EVERY
def test_the_past_does_not_know_the_future(mechanism: ops.Mechanism) -> None:
    inputs, cut = make_inputs(mechanism), 6
    other = {
        n: x if n == "latents" else np.concatenate([x[:, :cut], -(x[:, cut:] ** 2)], 1)
        for n, x in inputs.items()
    }
    y, changed = (exact(attend(mechanism, is_causal=True), **each)[0] for each in (inputs, other))
    assert np.array_equal(y[:, :cut], changed[:, :cut])
    assert not np.allclose(y[:, cut:], changed[:, cut:])


@AAREN_AND_SLOW
@DIRECTION
def test_sequences_split_over_devices(mechanism: ops.Mechanism, is_causal: bool) -> None:
    mesh = make_mesh(seq=3)
    split = ops.sequence_parallel(mechanism, mesh, "seq")
    inputs, mask = make_inputs(mechanism), make_mask()

    def run(mechanism: ops.Mechanism, inputs: Any) -> Any:
        y, state = mechanism.attend(
            None, **inputs, is_causal=is_causal, mask=mask, return_state=True
        )
        return jnp.sum(jnp.sin(y)) + jnp.sum(jnp.cos(state.w)), (y, state)

    def found(mechanism: ops.Mechanism) -> Any:
        return exact(jax.jit(jax.value_and_grad(partial(run, mechanism), has_aux=True)), inputs)

    assert_close(found(split), found(mechanism))


def test_how_results_are_split_on_a_mesh_of_explicit_axes() -> None:
    mesh = jax.make_mesh((2, 2), ("data", "model"))
    inputs = make_inputs(AAREN)
    latents, k, v = (
        jax.device_put(
            jnp.asarray(inputs[name], jnp.float32),
            NamedSharding(mesh, PartitionSpec("data", None, "model")),
        )
        for name in ("latents", "k", "v")
    )
    with jax.set_mesh(mesh):
        y, state = AAREN.attend(None, k, v, latents=latents, return_state=True)
        each = AAREN.attend(None, k, v, latents=latents, is_causal=True)
        y_step, after = AAREN.step(None, k[:, 0], v[:, 0], state, latents=latents)
    specs = [tuple(jax.typeof(x).sharding.spec) for x in (y, each, y_step, after.w)]
    rows = ("data", None, "model", None)
    assert specs == [rows, ("data", None, None, "model", None), rows, rows]


def test_latents_read_a_long_stream_in_constant_memory() -> None:
    """16 latents after 100,000 tokens: as many bytes as before, and softmax's numbers."""
    tokens, number, heads, size = 100_000, 16, 1, 4
    latents, k, v = (
        jax.random.normal(key, shape)
        for key, shape in zip(
            jax.random.split(jax.random.key(0), 3),
            [(number, heads, size), (1, tokens, heads, size), (1, tokens, heads, size)],
            strict=True,
        )
    )
    empty = AAREN.init_state(1, heads, size, size, num_latents=number)
    y, state = AAREN.attend(None, k, v, latents=latents, initial_state=empty, return_state=True)
    assert [x.shape for x in jax.tree.leaves(state)] == [x.shape for x in jax.tree.leaves(empty)]
    assert sum(x.nbytes for x in jax.tree.leaves(state)) == 4 * number * heads * (2 + size)
    want = ops.get_mechanism("softmax").attend(latents[None], k, v)
    np.testing.assert_allclose(y, want, atol=1e-6)


REFUSED: list[tuple[Any, str]] = [
    (lambda z, k, v: AAREN.attend(None, k, v, latents=z[:, :0]), "at least one latent"),
    (
        lambda z, k, v: AAREN.attend(None, k, v, latents=z[:1]),
        "the same batch size, got 1 and 2; latents .L, H, K. serve every row",
    ),
    (lambda z, k, v: AAREN.attend(None, k, v, latents=z[0, 0]), r"expected latents as \[L, H, K\]"),
    (lambda z, k, v: AAREN.attend(z, k, v), "one learned query for all tokens.*as latents"),
    (lambda z, k, v: AAREN.attend(z[0, 0], k, v, latents=z), "expected q=None with latents"),
    (
        lambda z, k, v: AAREN.step(k[:, 0], k[:, 0], v[:, 0], AAREN.init_state(B, H, K, V)),
        "one learned query for all tokens, got shape",
    ),
    (
        lambda z, k, v: ops.get_mechanism("softmax").attend(None, k, v, latents=z),
        "'softmax' does not support latents; pass queries as q",
    ),
    (
        lambda z, k, v: AAREN.attend(None, k, v, latents=z[..., :2]),
        "agree in heads and key dimension",
    ),
    (
        lambda z, k, v: AAREN.attend(None, k, v, latents=z, segment_ids=jnp.zeros((B, T), int)),
        "packed segments would be mixed; put each sequence into its own row",
    ),
    (
        lambda z, k, v: AAREN.attend(None, k, v, latents=z, query_mask=jnp.ones((B, T), bool)),
        r"query_mask must have shape \(2, 3\)",
    ),
    (
        lambda z, k, v: AAREN.step(None, k[:, 0], v[:, 0], AAREN.init_state(B, H, K, V), latents=z),
        r".m of the state must have shape \(2, 3, 2\)",
    ),
    (
        lambda z, k, v: AAREN.attend(
            None, k, v, latents=z, initial_state=AAREN.init_state(B, H, K, V, num_latents=4)
        ),
        r".m of the state must have shape \(2, 3, 2\)",
    ),
    (lambda z, k, v: AAREN.init_state(B, H, K, V, num_latents=0), "num_latents must be at least 1"),
    (
        lambda z, k, v: ops.get_mechanism("linear").init_state(B, H, K, V, num_latents=3),
        "omit num_latents",
    ),
    (
        lambda z, k, v: ops.get_mechanism("bidirectional_aaren").attend(z, k, v),
        r"expects q as \[H, K\]",
    ),
]


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_refused(call: Any, message: str) -> None:
    inputs = make_inputs(AAREN)
    arrays = [jnp.asarray(inputs[name], jnp.float32) for name in ("latents", "k", "v")]
    with pytest.raises(ValueError, match=message):
        call(*arrays)
