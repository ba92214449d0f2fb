"""What the documentation says of a mechanism, as Markdown: read from the registry, or measured."""

import dataclasses
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from flax_linattn import ops
from flax_linattn.ops import Capabilities, Mechanism, TokenArgument

HEADS, DIM = 8, 64
LENGTHS = (1_000, 16_000)


def capability_cells(name: str, columns: Sequence[str]) -> list[str]:
    """A mark for each of these capabilities of a mechanism."""
    capabilities = ops.get_mechanism(name).capabilities
    return ["✓" if getattr(capabilities, column) else "-" for column in columns]


def facts(name: str) -> dict[str, str]:
    """The rows of a mechanism's table of facts: heading -> Markdown."""
    mechanism = ops.get_mechanism(name)
    can = mechanism.capabilities
    calls = "`attend`, `step`" if can.recurrent else "`attend`"
    rows = {
        "class": f"{{class}}`flax_linattn.ops.{type(mechanism).__name__}`",
        "offers": ", ".join(_offers(can)),
        "does not offer": ", ".join(_lacks(can)),
        "forms": ", ".join(f"`{form}`" for form in can.forms),
        "hyperparameters": ", ".join(
            f"`{field.name}={field.default!r}`" for field in dataclasses.fields(mechanism)
        ),
        f"own arguments of {calls}": ", ".join(f"`{each}`" for each in mechanism.parameters),
        "arguments of a token": ", ".join(map(_token_argument, mechanism.token_arguments)),
        "learned by a layer": ", ".join(_learned(name)),
        "state": _state(name),
    }
    return {heading: text for heading, text in rows.items() if text}


def state_bytes(name: str, tokens: int) -> int | None:
    """Bytes of the state of one layer after ``tokens`` tokens; None where there is no state.

    One sequence, float32, H = 8 and K = V = 64. Nothing is computed: the shapes are what
    ``attend`` returns where nothing is merged, as in a layer.
    """
    mechanism = _of_a_layer(name)
    if not mechanism.capabilities.recurrent:
        return None
    keys = jax.ShapeDtypeStruct((1, tokens, HEADS, DIM), jnp.float32)
    query = jax.ShapeDtypeStruct((HEADS, DIM), jnp.float32)
    parameters = {
        key: jax.ShapeDtypeStruct(array.shape, jnp.float32)
        for key, array in mechanism.learned_parameters(HEADS, DIM).items()
    }
    parameters |= {
        each.name: jax.ShapeDtypeStruct((1, tokens, *each.shape(HEADS, DIM, DIM)), jnp.float32)
        for each in mechanism.token_arguments
    }

    def state(q, k, v, parameters):
        parameters |= {"is_causal": True, "return_state": True}
        if mechanism.merge_field is not None:
            parameters["initial_state"] = mechanism.init_state(1, HEADS, DIM, DIM, mergeable=False)
        return mechanism.attend(q, k, v, **parameters)[1]

    shapes = jax.eval_shape(
        state, query if mechanism.capabilities.learned_query else keys, keys, keys, parameters
    )
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))


def state_cells(name: str) -> list[str]:
    """The bytes after each of ``LENGTHS``, as text."""
    sizes = [state_bytes(name, tokens) for tokens in LENGTHS]
    return ["no state" if size is None else f"{size:,}" for size in sizes]


def _of_a_layer(name: str) -> Mechanism:
    """The mechanism with its defaults, and with a length where its layer has to know one."""
    fields = {field.name for field in dataclasses.fields(ops.get_mechanism(name))}
    return ops.get_mechanism(name, **{key: max(LENGTHS) for key in fields & {"max_length"}})


def _learned(name: str) -> list[str]:
    mechanism = _of_a_layer(name)
    learned = mechanism.learned_parameters(HEADS, DIM)
    shapes = {key: f"[{', '.join(map(str, array.shape))}]" for key, array in learned.items()}
    if mechanism.capabilities.learned_query:
        shapes = {"q": f"[{HEADS}, {DIM}]", **shapes}
    return [f"`{key}` {shape}" for key, shape in shapes.items()]


def _token_argument(argument: TokenArgument) -> str:
    """Its name, axes and range."""
    limits = {"at least": argument.low, "at most": argument.high}
    finite = [f"{word} {limit:g}" for word, limit in limits.items() if math.isfinite(limit)]
    shape = f"`{argument.name}` {argument.layout(time=True)}"
    return f"{shape} {' and '.join(finite)}" if finite else shape


def _offers(can: Capabilities) -> list[str]:
    offers = {
        "causal": can.causal,
        "non-causal": can.noncausal,
        "cross-attention": can.cross,
        "packed sequences": can.packed,
        "recurrent in constant memory": can.recurrent and can.constant_memory,
        "recurrent with a cache": can.recurrent and not can.constant_memory,
        "mergeable states": can.mergeable,
        "one learned query instead of one a token": can.learned_query,
        "grouped-query attention": can.grouped_queries,
        "latents, each of which attends to all tokens": can.latents,
        "weights of every channel by itself (V = K)": can.channelwise,
        "made for queries and keys of length 1, as layers give it": can.unit_vectors,
        "one vector a token for query and key": can.shared_query_key,
        "masks of pairs (`pair_mask`)": can.pair_mask,
        "biases of scores (`bias`)": can.bias,
        "dropout of weights": can.weight_dropout,
    }
    return [what for what, offered in offers.items() if offered]


def _lacks(can: Capabilities) -> list[str]:
    lacks = {
        "causal": not can.causal,
        "non-causal": not can.noncausal,
        "cross-attention": not can.cross,
        "packed sequences": not can.packed,
        "recurrent": not can.recurrent,
    }
    return [what for what, lacking in lacks.items() if lacking]


def _state(name: str) -> str:
    sizes = [state_bytes(name, tokens) for tokens in LENGTHS]
    if None in sizes:
        return "none"
    if len(set(sizes)) == 1:
        return f"{sizes[0]:,} bytes, at any length"
    return ", ".join(
        f"{size:,} bytes after {tokens:,} tokens"
        for size, tokens in zip(sizes, LENGTHS, strict=True)
    )
