"""The attention layer of every mechanism, by two programs each: what varies is data.

As in parallel and by steps, across splits, with padding anywhere, packed, without a leak from the
future (``checks.py``), and with gradients for all that a mechanism learns.
"""

import jax
import numpy as np
import pytest

from flax_linattn import ops
from tests.contract.tolerances import assert_close
from tests.nn import checks
from tests.nn.cases import ALL_FAST, LAYOUTS, WIDTH, at_real, attention, normal, padded, pulled


def test_every_mechanism_is_here():
    assert [case.id for case in ALL_FAST] == list(ops.list_mechanisms())
    assert not any(case.marks for case in ALL_FAST)


@pytest.mark.parametrize("mechanism", ALL_FAST)
def test_layer(mechanism):
    layer = attention(mechanism)
    if layer.mechanism.capabilities.recurrent:
        whole, with_padding = checks.streams_and_packs(layer)
    else:
        x = normal(2, checks.ROWS, checks.LENGTH, WIDTH)
        whole = pulled(layer, x, checks.WEIGHTS, mask=checks.EVERYWHERE)
        with_padding = padding_changes_nothing(layer)
        assert all(gradient.any() for gradient in jax.tree.leaves(whole.params))
    bias = np.asarray(layer.out_projection.bias[...])
    np.testing.assert_array_equal(with_padding.y[~LAYOUTS], np.tile(bias, (8, 1)))
    gradients_reach_what_is_learned(layer, whole.params)


def padding_changes_nothing(layer):
    """Of what does not stream: as a second program, of four tokens, has it."""
    real, weights = normal(3, 4, 4, WIDTH), normal(4, 4, 4, WIDTH)
    got = pulled(layer, padded(real), padded(weights, 0.0), mask=LAYOUTS)
    want = pulled(layer, real, weights)
    assert_close(at_real(got.y), want.y, "float32")
    assert_close(at_real(got.x), want.x, "float32")
    assert_close(got.params, want.params, "float32")
    assert not got.x[~LAYOUTS].any()
    return got


def gradients_reach_what_is_learned(layer, gradients):
    """A softmax that every key shares does not see their bias; all else has gradients."""
    for path, gradient in jax.tree.leaves_with_path(gradients):
        name = jax.tree_util.keystr(path)
        if not ("key_projection" in name and "bias" in name):
            assert np.abs(gradient).max() > 1e-6, name
    learned = layer.mechanism.learned_parameters(layer.num_heads, layer.head_dim)
    assert set(layer.mechanism_parameters) == set(learned)
    for name in learned:
        assert gradients["mechanism_parameters"][name][...].any()
