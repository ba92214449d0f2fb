"""Language model: token embedding, causal backbone, and logits of the next token."""

from __future__ import annotations

from typing import Any, cast

from flax import nnx

from flax_linattn.models.backbone import Backbone
from flax_linattn.models.embedding import PositionName, TokenEmbedding
from flax_linattn.models.head import Head, resolve_backbone
from flax_linattn.models.layers import Layers
from flax_linattn.nn.linear import linear
from flax_linattn.ops.contract.numerics import accumulation_dtype
from flax_linattn.typing import Array

LANGUAGE_LAYERS = Layers(norm="pre")
"""Default layers of a language model: pre-norm, as in GPT-2 and later models."""


class LanguageModel(Head):
    """Computes logits of the next token after each token of a sequence.

    Args:
        backbone: A :class:`Backbone` on a :class:`TokenEmbedding`; or a vocabulary size, to build
            one.
        tied: Whether the head is the embedding's table (Press and Wolf, 2017) instead of its own
            linear layer.
        position: Position embedding of a new backbone: "sinusoidal", "learned" or "none".
        layers: Options of the layers of a new backbone.
        rngs: Random number generators; "params" initializes the parameters, and "dropout", if
            present, gives dropout keys after ``model.train()``.
        **options: Further arguments of a new :class:`Backbone` (num_layers, mechanism, max_length,
            ...).

    Raises:
        ValueError: If an option is out of range, or the backbone is not causal or not on a
            ``TokenEmbedding``.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from flax import nnx
        >>> from flax_linattn import inference, models
        >>> model = models.LanguageModel(11, features=16, num_layers=1, num_heads=2,
        ...                              rngs=nnx.Rngs(0))
        >>> prompt = jnp.array([[1, 2, 3, 4]])
        >>> model(prompt).shape
        (1, 4, 11)
        >>> inference.generate(model, prompt, 6).tokens.shape
        (1, 6)
    """

    option_names = ("backbone", "tied")

    def __init__(
        self,
        backbone: Backbone | int,
        *,
        tied: bool = True,
        position: PositionName | None = None,
        layers: Layers | None = None,
        rngs: nnx.Rngs,
        **options: Any,
    ) -> None:
        self.backbone, head_parameters = resolve_backbone(
            backbone,
            layers,
            LANGUAGE_LAYERS,
            embedding=TokenEmbedding,
            embedding_options={"position": position},
            rngs=rngs,
            **options,
        )
        embedding = self.backbone.input_embedding
        if not self.backbone.is_causal or not isinstance(embedding, TokenEmbedding):
            raise ValueError(
                "expected a causal backbone on tokens, since a language model predicts the next "
                "token; make the backbone with is_causal=True and a TokenEmbedding."
            )
        self.num_tokens = embedding.num_tokens
        self.tied = bool(tied)
        self.head = (
            None
            if tied
            else linear(
                self.layers.features, self.num_tokens, use_bias=False, rngs=rngs, **head_parameters
            )
        )

    def read(self, h: Array) -> Array:
        """Computes logits [..., tokens] of the next token from features h [..., C].

        They are float32, or float64 if the features or parameters are.
        """
        embedding = cast(TokenEmbedding, self.backbone.input_embedding)
        logits: Array = embedding.attend(h) if self.head is None else self.head(h)
        return logits.astype(accumulation_dtype(logits.dtype))
