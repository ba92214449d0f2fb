"""A language model: token embedding, causal backbone, logits of the next token."""

from __future__ import annotations

from typing import Any, Literal, Unpack, overload

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Float, Int

from flax_linattn.checks import at_least
from flax_linattn.models.backbone import (
    HEAD_OPTIONS,
    Backbone,
    BackboneOptions,
    BackboneState,
    as_backbone,
)
from flax_linattn.models.embedding import PositionName, TokenEmbedding
from flax_linattn.models.layers import Layers
from flax_linattn.nn.linear import linear
from flax_linattn.nn.meshes import automatic
from flax_linattn.typing import Array, Mask, SegmentIds

LANGUAGE_LAYERS = Layers(norm="pre")
"""The layers of a language model unless others are given: pre-norm, as GPT-2 and later ones."""


class LanguageModel(nnx.Module):
    """Logits of the next token, after each token of a sequence.

    Args:
        backbone: a :class:`Backbone` on a :class:`TokenEmbedding`; or a number of tokens, for one
            of these.
        tied: whether the head is the embedding's table (Press and Wolf, 2017) instead of a linear
            layer of its own.
        position: of the embedding for so many tokens: "sinusoidal", "learned" or "none".
        layers: of the backbone for so many tokens.
        rngs: holds the stream "params", and perhaps "dropout".
        **options: further arguments of that :class:`Backbone` (num_layers, mechanism, max_length,
            ...).

    Raises:
        ValueError: an option out of range, or a backbone that looks at the future or at something
            else than tokens.

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
        if not isinstance(backbone, Backbone):
            at_least(1, num_tokens=backbone)
            layers, options = (layers or LANGUAGE_LAYERS).take(options)
            tokens = TokenEmbedding(
                int(backbone),
                layers.features,
                position="sinusoidal" if position is None else position,
                max_length=options.get("max_length"),
                dtype=layers.compute_dtype,
                param_dtype=options.get("param_dtype", jnp.float32),
                rngs=rngs,
            )
            of_head = {name: options[name] for name in HEAD_OPTIONS if name in options}
            backbone = Backbone(tokens, layers, rngs=rngs, **options)
        else:
            backbone, of_head = as_backbone(
                backbone, layers, LANGUAGE_LAYERS, rngs=rngs, position=position, **options
            )
        embedding = backbone.input_embedding
        if not backbone.is_causal or not isinstance(embedding, TokenEmbedding):
            raise ValueError(
                "a language model gives each token's next one: it needs a backbone with "
                "is_causal=True and a TokenEmbedding."
            )
        self.num_tokens = embedding.num_tokens
        self.backbone = backbone
        features = backbone.layers.features
        self.head = (
            None
            if tied
            else linear(features, self.num_tokens, use_bias=False, rngs=rngs, **of_head)
        )

    @overload
    def __call__(
        self,
        x: Int[Array, "B T"],
        *,
        return_state: Literal[False] = False,
        **options: Unpack[BackboneOptions],
    ) -> Float[Array, "B T tokens"]: ...

    @overload
    def __call__(
        self,
        x: Int[Array, "B T"],
        *,
        return_state: Literal[True],
        **options: Unpack[BackboneOptions],
    ) -> tuple[Float[Array, "B T tokens"], BackboneState]: ...

    @overload
    def __call__(
        self,
        x: Int[Array, "B T"],
        *,
        return_state: bool,
        **options: Unpack[BackboneOptions],
    ) -> Float[Array, "B T tokens"] | tuple[Float[Array, "B T tokens"], BackboneState]: ...

    @automatic(2)
    def __call__(
        self,
        x: Int[Array, "B T"],
        *,
        mask: Mask | None = None,
        segment_ids: SegmentIds | None = None,
        state: BackboneState | None = None,
        return_state: bool = False,
        dropout_key: Array | None = None,
        form: str = "auto",
    ) -> Array | tuple[Array, BackboneState]:
        """Maps whole sequences; arguments as those of ``Backbone``.

        Returns:
            Logits float32 [B, T, tokens] of the token after each, and the state if asked for.
        """
        options: BackboneOptions = {
            "mask": mask,
            "segment_ids": segment_ids,
            "state": state,
            "dropout_key": dropout_key,
            "form": form,
        }
        if return_state:
            h, after = self.backbone(x, return_state=True, **options)
            return self._logits(h), after
        return self._logits(self.backbone(x, **options))

    @property
    def options(self) -> dict[str, Any]:
        """The arguments that make one like it, as ``save_model`` keeps them."""
        return {
            "backbone": self.backbone,
            "tied": self.head is None,
        }

    @property
    def streams(self) -> bool:
        """Whether ``init_state`` and ``step`` are offered."""
        return self.backbone.streams

    @property
    def num_positions(self) -> int | None:
        """Most observations of a sequence that have a position; None = any number."""
        return self.backbone.num_positions

    def init_state(
        self, batch_size: int, max_length: int | None = None, *, dtype: DTypeLike = jnp.float32
    ) -> BackboneState:
        """The state before the first token; see ``Backbone.init_state``."""
        return self.backbone.init_state(batch_size, max_length, dtype=dtype)

    @automatic(1)
    def step(
        self, x: Int[Array, "B"], state: BackboneState, *, mask: Array | None = None
    ) -> tuple[Float[Array, "B tokens"], BackboneState]:
        """Takes in one token a row: x int [B] -> logits [B, tokens] and the new state.

        ``mask`` bool [B]: where False the state stays as it is.
        """
        h, state = self.backbone.step(x, state, mask=mask)
        return self._logits(h), state

    def _logits(self, h: Array) -> Array:
        embedding = self.backbone.input_embedding
        if self.head is None and isinstance(embedding, TokenEmbedding):
            return embedding.attend(h).astype(jnp.float32)
        assert self.head is not None
        return self.head(h).astype(jnp.float32)
