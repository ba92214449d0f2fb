"""Image classifier: a vision transformer with any mechanism."""

from __future__ import annotations

from typing import Any, Literal

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Float

from flax_linattn import nn
from flax_linattn.checks import check_choice
from flax_linattn.models.backbone import Backbone
from flax_linattn.models.classifier import SequenceClassifier
from flax_linattn.models.embedding import (
    FeatureEmbedding,
    PositionName,
    add_positions,
    make_position,
)
from flax_linattn.models.layers import Layers
from flax_linattn.nn.dropout import make_dropout, resolve_dropout_key
from flax_linattn.nn.meshes import automatic
from flax_linattn.typing import Array

VIT_SIZES = {"ti": (192, 3), "s": (384, 6)}
"""Width and number of heads of vision transformers, by size."""

IMAGE_POOLINGS = ("class", "mean")


def vit_layers(size: Literal["ti", "s"] = "ti", **others: Any) -> Layers:
    """Returns the layers of a vision transformer, as TaylorShift's code trains it on ImageNet.

    12 pre-norm blocks of 192 features and 3 heads ("ti") or 384 and 6 ("s"), GELU, a feed-forward
    width of 4 C, no dropout, drop path that grows to 0.05, LayerScale from 1e-4. (The paper's table
    prints 348 features for S, its code has 384.) Departures: layer norms have PyTorch's epsilon of
    1e-5, and linear layers its initialization, as everywhere in this library; timm's vision
    transformers have an epsilon of 1e-6, truncated normal kernels of std 0.02 and biases of 0.

    Args:
        size: Size of the model, "ti" or "s".
        **others: Options of :class:`Layers` that replace these defaults.

    Raises:
        ValueError: If the size is unknown, or an option is out of range.

    Example:
        >>> layers = vit_layers("s", mechanism="softmax")
        >>> layers.num_layers, layers.features, layers.num_heads, layers.norm
        (12, 384, 6, 'pre')
    """
    check_choice(VIT_SIZES, size=size)
    features, num_heads = VIT_SIZES[size]
    options: dict[str, Any] = {
        "features": features,
        "num_layers": 12,
        "num_heads": num_heads,
        "mechanism": "taylorshift",
        "norm": "pre",
        "dropout_rate": 0.0,
        "drop_path_rate": 0.05,
        "layer_scale": 1e-4,
    }
    return Layers(**options | others)


class ImageClassifier(nnx.Module):
    """Classifies images with a vision transformer on any mechanism.

    A vision transformer (Dosovitskiy et al., 2021): patches, positions, a backbone, and a linear
    head. Positions are added to the patches only; a class token has none, as in TaylorShift's code.
    With ``vit_layers`` it is TaylorShift's model for ImageNet.

    Args:
        image_size: Height H and width W of the images in pixels.
        patch_size: Edge length of a patch in pixels.
        num_classes: Number of classes.
        in_channels: Number of channels of the images.
        embedding: Embedding of the patches, "linear" or "conv"; see ``nn.PatchEmbedding``.
        position: "learned", "sinusoidal", or "none".
        pooling: Features to classify: "class" (of a class token), or "mean" (over the patches).
        is_causal: Whether patches attend only to earlier patches; requires "mean" pooling.
        layers: Options of the blocks; default ``vit_layers("ti")``.
        param_dtype: Dtype of the parameters.
        rngs: Random number generators; "params" initializes the parameters, and "dropout", if
            present, gives dropout keys after ``model.train()``.
        **options: Options of ``layers`` by name.

    Raises:
        ValueError: If an option is unknown or out of range.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> from flax_linattn import models
        >>> layers = models.vit_layers("ti", features=16, num_layers=2, num_heads=2)
        >>> model = models.ImageClassifier((32, 32), 16, 10, layers=layers, rngs=nnx.Rngs(0))
        >>> model(jnp.ones((2, 32, 32, 3))).shape
        (2, 10)
    """

    def __init__(
        self,
        image_size: tuple[int, int],
        patch_size: int,
        num_classes: int,
        *,
        in_channels: int = 3,
        embedding: Literal["linear", "conv"] = "linear",
        position: PositionName = "learned",
        pooling: Literal["class", "mean"] = "class",
        is_causal: bool = False,
        layers: Layers | None = None,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
        **options: Any,
    ) -> None:
        check_choice(IMAGE_POOLINGS, pooling=pooling)
        check_choice(nn.patches.PATCH_EMBEDDINGS, embedding=embedding)
        for name in options:
            check_choice(Layers.__annotations__, option=name)
        layers, _ = (layers or vit_layers()).take(options)
        self.patches = nn.PatchEmbedding(
            image_size,
            patch_size,
            in_channels,
            layers.features,
            kind=embedding,
            dtype=layers.compute_dtype,
            param_dtype=param_dtype,
            rngs=rngs,
        )
        num_patches = self.patches.num_patches
        self.position: PositionName = position
        self.positions = make_position(position, layers.features, num_patches, rngs)
        backbone = Backbone(
            FeatureEmbedding(layers.features),
            layers,
            is_causal=is_causal,
            max_length=num_patches,
            class_token=pooling == "class",
            param_dtype=param_dtype,
            rngs=rngs,
        )
        self.classifier = SequenceClassifier(
            backbone,
            num_classes,
            pooling=pooling,
            head_activation="none",
            param_dtype=param_dtype,
            rngs=rngs,
        )
        self.dropout = make_dropout(layers.dropout_rate, rngs)

    @property
    def options(self) -> dict[str, Any]:
        """Constructor arguments of an equal model, as ``save_model`` stores them."""
        backbone = self.classifier.backbone
        return {
            "image_size": self.patches.image_size,
            "patch_size": self.patches.patch_size,
            "num_classes": self.classifier.num_classes,
            "in_channels": self.patches.in_channels,
            "embedding": self.patches.kind,
            "position": self.position,
            "pooling": self.classifier.pooling_name,
            "is_causal": backbone.is_causal,
            "layers": backbone.layers,
            "param_dtype": backbone.param_dtype,
        }

    @property
    def streams(self) -> bool:
        """False: an image is processed as a whole."""
        return False

    @automatic(1)
    def __call__(
        self,
        x: Float[Array, "B height width channels"],
        *,
        dropout_key: Array | None = None,
        form: str = "auto",
    ) -> Float[Array, "B classes"]:
        """Computes class logits of a batch of images.

        Args:
            x: Images of shape [B, H, W, channels] and a floating dtype, scaled as in training.
            dropout_key: Random key that enables dropout and drop path; None disables them.
            form: Form of the computation; see ``ops.Mechanism.attend``.

        Returns:
            Logits float32 [B, classes].

        Raises:
            ValueError: If the images have another size.
            TypeError: If the images have an integer dtype.
        """
        rates = self.classifier.backbone.layers.other_dropout_rates
        key = resolve_dropout_key(self.dropout, dropout_key, *rates)
        h = self.patches(x)
        h = add_positions(h, self.positions, jnp.arange(h.shape[1], dtype=jnp.int32))
        logits: Array = self.classifier(h, dropout_key=key, form=form)
        return logits
