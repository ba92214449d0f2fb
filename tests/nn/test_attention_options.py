"""Options of the attention layer: their equations, in parallel, by steps, padded and packed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_linattn import nn
from flax_linattn.checks import OptionError
from tests.contract.tolerances import assert_close
from tests.nn import checks
from tests.nn.cases import WIDTH, call, make_attention, normal, run_steps
from tests.nn.equations import attended

SCALED = nn.RotaryPosition(
    fraction=0.7, scaling=nn.RotaryScaling("yarn", 4.0, original_max_position_embeddings=16)
)
"""Of the three channels of a head, it rotates two."""

OPTIONS = {"rotary": {"position": SCALED}}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_the_layer_is_its_equations(options):
    layer, x = make_attention("softmax", **options), normal(1, 2, 5, WIDTH)
    want = attended(layer, x, causal=True)
    assert_close(call(layer, x, is_causal=True), want, "float32")
    assert np.abs(want - attended(make_attention("softmax"), x, causal=True)).max() > 1e-3
    half = make_attention("softmax", dtype=jnp.bfloat16, **options)
    y = call(half, x, is_causal=True)
    assert y.dtype == jnp.bfloat16
    assert_close(y, want, "bfloat16")
    start = half.init_state(2, 5)
    steps, state = run_steps(half, x, start)
    assert_close(steps, y, "bfloat16")
    assert jax.tree.map(lambda a: a.dtype, state) == jax.tree.map(lambda a: a.dtype, start)


@pytest.mark.parametrize("mechanism", ["softmax", "gated_delta"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_layers_with_options_stream_and_pack(mechanism, options):
    checks.streams_and_packs(make_attention(mechanism, **options))


# -- rotary positions ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "options"),
    [
        ("rope_type must be one of linear, ntk", {"rope_type": "dynamic"}),
        ("factor must be at least 1", {"factor": 0.5}),
        ("has no beta_fast; remove it", {"beta_fast": 32.0}),
        ("needs original_max_position_embeddings", {"rope_type": "yarn"}),
        ("low_freq_factor must be positive", {"low_freq_factor": -1.0, "rope_type": "llama3"}),
        ("the slower of which must be fewer", {"rope_type": "yarn", "beta_slow": 40.0}),
    ],
)
def test_what_scaling_refuses(message, options):
    if "beta_slow" in options or "low_freq_factor" in options:
        options = options | {"original_max_position_embeddings": 8}
    with pytest.raises(OptionError, match=message):
        nn.RotaryScaling(**{"rope_type": "linear", "factor": 2.0, **options})


def test_what_rotary_positions_refuse():
    for options in ({"base": 1.0}, {"fraction": 0.0}, {"fraction": 1.1}):
        with pytest.raises(OptionError, match=f"{next(iter(options))} must be"):
            nn.RotaryPosition(**options)
    x, at = jnp.ones((1, 1, 4)), jnp.zeros(1, jnp.int32)
    with pytest.raises(ValueError, match=r"got 0 of 4 \(fraction=0.2\)"):
        nn.RotaryPosition(fraction=0.2)(x, at)
