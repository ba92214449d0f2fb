"""Patches of images against explicit loops in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_linattn import nn
from tests.contract.tolerances import assert_close, assert_same_bits
from tests.nn.cases import call, moved, normal
from tests.nn.equations import ACTIVATIONS, array

SIZE, CHANNELS, FEATURES = (8, 12), 3, 8


@functools.cache
def make(kind="linear", patch_size=4, **options):
    embed = nn.PatchEmbedding(
        SIZE, patch_size, CHANNELS, FEATURES, kind=kind, rngs=nnx.Rngs(0), **options
    )
    return moved(embed)


def plain_linear(embed, image):
    size, rows = embed.patch_size, []
    for top in range(0, SIZE[0], size):
        for left in range(0, SIZE[1], size):
            pixels = [image[top + i, left + j] for i in range(size) for j in range(size)]
            rows.append(np.concatenate(pixels) @ array(embed.projection.kernel))
    return np.stack(rows) + array(embed.projection.bias)


def plain_convolutions(embed, image):
    """3 x 3, stride 2, one zero around; norm over the whole image; GELU between."""
    x = image
    for i, (convolution, norm) in enumerate(zip(embed.convolutions, embed.norms, strict=True)):
        if i:
            x = ACTIVATIONS["gelu"](x)
        kernel, around = array(convolution.kernel), np.pad(x, ((1, 1), (1, 1), (0, 0)))
        height, width = x.shape[0] // 2, x.shape[1] // 2
        y = np.zeros((height, width, kernel.shape[-1]))
        for row in range(height):
            for column in range(width):
                seen = around[2 * row : 2 * row + 3, 2 * column : 2 * column + 3]
                y[row, column] = np.einsum("ijc,ijcn->n", seen, kernel)
        x = (y - y.mean()) / np.sqrt(y.var() + 1e-5) * array(norm.scale) + array(norm.bias)
    return x.reshape(-1, x.shape[-1])


@pytest.mark.parametrize(
    ("kind", "patch_size"), [("linear", 4), ("linear", 1), ("conv", 4), ("conv", 2)]
)
def test_patches_are_their_equations(kind, patch_size):
    embed = make(kind, patch_size)
    x = normal(1, 2, *SIZE, CHANNELS)
    plain = plain_linear if kind == "linear" else plain_convolutions
    want = np.stack([plain(embed, image) for image in np.asarray(x, np.float64)])
    assert want.shape == (2, embed.num_patches, FEATURES)
    assert_close(call(embed, x), want, "float32")


def test_a_linear_layer_is_a_convolution_as_large_and_as_far_apart():
    embed = make()
    x = normal(2, 2, *SIZE, CHANNELS)
    kernel = embed.projection.kernel[...].reshape(4, 4, CHANNELS, FEATURES)
    dimensions = ("NHWC", "HWIO", "NHWC")
    y = jax.lax.conv_general_dilated(x, kernel, (4, 4), "VALID", dimension_numbers=dimensions)
    want = y.reshape(2, -1, FEATURES) + embed.projection.bias[...]
    assert_close(call(embed, x), want, "float32")


def test_widths_are_those_of_xcit():
    embed = nnx.eval_shape(
        lambda: nn.PatchEmbedding((224, 224), 16, 3, 192, kind="conv", rngs=nnx.Rngs(0))
    )
    shapes = [convolution.kernel.shape for convolution in embed.convolutions]
    assert shapes == [(3, 3, 3, 24), (3, 3, 24, 48), (3, 3, 48, 96), (3, 3, 96, 192)]
    assert embed.num_patches == 14**2


@pytest.mark.parametrize("kind", ["linear", "conv"])
def test_half_precision(kind):
    half = make(kind, dtype=jnp.bfloat16)
    x = normal(3, 2, *SIZE, CHANNELS)
    want = call(make(kind), x)
    for dtype in (jnp.float32, jnp.bfloat16):
        y = call(half, x.astype(dtype))
        assert y.dtype == jnp.bfloat16
        assert_close(y, want, "bfloat16")


def test_images_do_not_depend_on_each_other():
    embed = make("conv")
    x = normal(4, 2, *SIZE, CHANNELS)
    assert_same_bits(call(embed, x.at[1].set(jnp.nan))[0], call(embed, x)[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"patch_size": 5}, "patches of 5 x 5 pixels do not divide an image of 8 x 12"),
        ({"patch_size": 0}, "patch_size must be at least 1, got 0"),
        ({"kind": "convo"}, "kind must be one of linear, conv, got 'convo'; did you mean 'conv'"),
        ({"patch_size": 1, "kind": "conv"}, "power of two, at least 2, .* got 1"),
        ({"image_size": (9, 9), "patch_size": 3, "kind": "conv"}, "at least 2, .* got 3"),
        ({"features": 9, "kind": "conv"}, "features must be a multiple of 2, because .* got 9"),
        ({"image_size": 8}, r"a height and a width, such as \(224, 224\), got 8"),
        ({"image_size": (0, 8)}, "image_height must be at least 1, got 0"),
        ({"in_channels": 0}, "in_channels must be at least 1, got 0"),
    ],
)
def test_wrong_options(options, message):
    options = {"image_size": SIZE, "patch_size": 4, "in_channels": 3, "features": 8} | options
    with pytest.raises(ValueError, match=message):
        nn.PatchEmbedding(**options, rngs=nnx.Rngs(0))


def test_wrong_images():
    embed = make()
    for shape in ((2, 8, 12, 1), (8, 12, 3), (2, 12, 8, 3)):
        with pytest.raises(ValueError, match=r"expected images \[B, 8, 12, 3\], got"):
            embed(jnp.ones(shape))
    with pytest.raises(TypeError, match=r"floating dtype, got uint8; scale them"):
        embed(jnp.ones((2, *SIZE, CHANNELS), jnp.uint8))
