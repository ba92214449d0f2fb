"""Patch embedding: images to sequences of patches, as in vision transformers."""

from __future__ import annotations

import itertools
from typing import Any, Literal

import jax.numpy as jnp
from einops import rearrange
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Float

from flax_linattn.checks import OptionError, check_choice, check_integers
from flax_linattn.nn.feed_forward import ACTIVATIONS
from flax_linattn.nn.linear import UniformFanIn, linear
from flax_linattn.nn.meshes import automatic
from flax_linattn.nn.sequence_norm import SequenceNorm
from flax_linattn.typing import Array, Features

PATCH_EMBEDDINGS = ("linear", "conv")


class PatchEmbedding(nnx.Module):
    """Cuts images into patches and embeds each: [B, H, W, channels] -> [B, T, C], row by row.

    "linear" is one linear layer on the pixels of a patch, a convolution with kernel and stride
    equal to the patch size (Dosovitskiy et al., 2021). "conv" is log2(patch_size) convolutions of 3
    x 3 with stride 2, each twice as wide as the previous one, with a norm after each and GELU in
    between (XCiT's ``ConvPatchEmbed``: for patches of 16, four of width C/8, C/4, C/2 and C). The
    norm is group norm with one group, as in TaylorShift's code; XCiT uses batch norm.

    Args:
        image_size: Height and width of every image.
        patch_size: Edge length of a patch in pixels; for "conv" a power of two, at least 2.
        in_channels: Number of channels of the images.
        features: Number of features C.
        kind: Kind of the embedding, "linear" or "conv".
        dtype: Dtype of the computation; inferred from inputs and parameters if None.
        param_dtype: Dtype of the parameters.
        rngs: Random number generators; "params" initializes the parameters.

    Raises:
        OptionError: If patches do not divide the image, or an option is out of range.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> from flax_linattn import nn
        >>> embed = nn.PatchEmbedding((8, 12), 4, 3, 16, rngs=nnx.Rngs(0))
        >>> embed.num_patches, embed(jnp.ones((2, 8, 12, 3))).shape
        (6, (2, 6, 16))
    """

    def __init__(
        self,
        image_size: tuple[int, int],
        patch_size: int,
        in_channels: int,
        features: int,
        *,
        kind: Literal["linear", "conv"] = "linear",
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        check_choice(PATCH_EMBEDDINGS, kind=kind)
        height, width = _edges(image_size)
        check_integers(1, patch_size=patch_size, in_channels=in_channels, features=features)
        if height % patch_size or width % patch_size:
            raise OptionError(
                f"patches of {patch_size} x {patch_size} pixels do not divide an image of "
                f"{height} x {width}; choose a patch_size that divides both, or resize the "
                "images.",
                "image_size",
                "patch_size",
            )
        self.image_size = height, width
        self.patch_size = int(patch_size)
        self.in_channels = int(in_channels)
        self.features = int(features)
        self.kind = kind
        if kind == "linear":
            pixels = self.patch_size**2 * self.in_channels
            self.projection = linear(
                pixels, self.features, dtype=dtype, param_dtype=param_dtype, rngs=rngs
            )
            return
        widths = _widths(self.patch_size, self.features)
        self.convolutions = nnx.List(
            nnx.Conv(
                before,
                after,
                (3, 3),
                strides=2,
                padding=1,
                use_bias=False,
                dtype=dtype,
                param_dtype=param_dtype,
                kernel_init=UniformFanIn(9 * before),
                rngs=rngs,
            )
            for before, after in itertools.pairwise((self.in_channels, *widths))
        )
        self.norms = nnx.List(SequenceNorm(width, param_dtype=param_dtype) for width in widths)

    @property
    def num_patches(self) -> int:
        """Number of patches T of every image."""
        height, width = self.image_size
        return (height // self.patch_size) * (width // self.patch_size)

    @automatic(1)
    def __call__(self, x: Float[Array, "B height width channels"]) -> Features:
        """Embeds images [B, H, W, channels] of a floating dtype -> [B, T, C].

        Raises:
            ValueError: If images have another size.
            TypeError: If images have an integer dtype.
        """
        expected = (*self.image_size, self.in_channels)
        if x.ndim != 4 or x.shape[1:] != expected:
            shape = ", ".join(map(str, ("B", *expected)))
            raise ValueError(f"expected images [{shape}], got {x.shape}.")
        if not jnp.issubdtype(x.dtype, jnp.floating):
            raise TypeError(
                f"images must have a floating dtype, got {x.dtype}; scale them, for example "
                "x.astype(jnp.float32) / 255."
            )
        if self.kind == "linear":
            size = self.patch_size
            patches = rearrange(x, "b (h p) (w q) c -> b (h w) (p q c)", p=size, q=size)
            return self.projection(patches)
        for i, (convolution, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            x = norm(convolution(x if i == 0 else ACTIVATIONS["gelu"](x)))
        return rearrange(x, "b h w c -> b (h w) c")


def _edges(image_size: Any) -> tuple[int, int]:
    if not isinstance(image_size, (tuple, list)) or len(image_size) != 2:
        raise OptionError(
            f"image_size must be a height and a width, such as (224, 224), got {image_size!r}.",
            "image_size",
        )
    height, width = image_size
    check_integers(1, image_height=height, image_width=width)
    return int(height), int(width)


def _widths(patch_size: int, features: int) -> list[int]:
    """Widths of the convolutions; the last one is ``features``."""
    count = patch_size.bit_length() - 1
    if patch_size < 2 or patch_size != 2**count:
        raise OptionError(
            "patch_size must be a power of two, at least 2, because each convolution "
            f"halves the image; got {patch_size}; choose another patch_size, or the "
            'embedding "linear".',
            "patch_size",
        )
    if features % 2 ** (count - 1):
        raise OptionError(
            f"features must be a multiple of {2 ** (count - 1)}, because each of the "
            f"{count} convolutions doubles its features; got {features}.",
            "features",
            "patch_size",
        )
    return [features // 2 ** (count - 1 - i) for i in range(count)]
