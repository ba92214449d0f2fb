"""Training of every mechanism lowers for accelerators on a machine that has none."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_linattn import ops
from tests.contract.representatives import MAIN

LENGTH, HEADS, DIM = 2048, 2, 16


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in MAIN else [pytest.mark.slow])
        for name in ops.list_mechanisms()
    ],
)
def test_training_lowers_for_accelerators(name: str) -> None:
    """Without a loop over tokens, and without cumulative sums of numbers by windows."""
    text = lowered(name, "auto")
    assert not loops_over_tokens(text)
    sums = re.findall(r'reduce_window".*?\}\) : \((tensor<\S+>)', text, flags=re.DOTALL)
    assert all(summed.endswith("i32>") for summed in sums), sums  # counts of tokens


@pytest.mark.parametrize("name", ["aaren", "elementwise_series"])
def test_a_loop_over_tokens_shows(name: str) -> None:
    assert loops_over_tokens(lowered(name, "recurrent"))


def loops_over_tokens(text: str) -> bool:
    return re.search(rf"cond {{\s*%\w+ = stablehlo.constant dense<{LENGTH}>", text) is not None


def lowered(name: str, form: str) -> str:
    """The program of a training step, with what each accelerator runs."""
    options = {"max_length": LENGTH} if name == "linformer" else {}
    mechanism = ops.get_mechanism(name, **options)
    can = mechanism.capabilities
    tokens = jax.ShapeDtypeStruct((1, LENGTH, HEADS, DIM), jnp.float32)
    q = jax.ShapeDtypeStruct((HEADS, DIM), jnp.float32) if can.learned_query else tokens
    mask = jax.ShapeDtypeStruct((1, LENGTH), np.bool_)

    gates = {
        each.name: jax.ShapeDtypeStruct((1, LENGTH, *each.shape(HEADS, DIM, DIM)), jnp.float32)
        for each in mechanism.token_arguments
    }

    def train(q: Any, k: Any, v: Any, gates: Any, mask: Any) -> Any:
        def attend(q: Any, k: Any, v: Any, gates: Any) -> Any:
            return mechanism.attend(q, k, v, is_causal=can.causal, mask=mask, form=form, **gates)

        y, pull = jax.vjp(attend, q, k, v, gates)
        return y, pull(y)

    traced = jax.jit(train).trace(q, tokens, tokens, gates, mask)
    return traced.lower(lowering_platforms=("cuda", "tpu")).as_text()
