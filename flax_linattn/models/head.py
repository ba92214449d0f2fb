"""Base class of heads: a backbone, and outputs that are read from its features."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax.numpy as jnp
from jax.typing import DTypeLike

from flax_linattn import nn
from flax_linattn.checks import OptionError, check_choice
from flax_linattn.models.backbone import Backbone, BackboneState
from flax_linattn.models.embedding import Embedding
from flax_linattn.models.layers import Layers
from flax_linattn.models.sequence_model import SequenceModel
from flax_linattn.nn.call import Call
from flax_linattn.typing import Array, State

HEAD_OPTIONS = ("param_dtype", "kernel_init", "bias_init")
"""Options of ``ParameterOptions`` that a head with one linear layer accepts."""


class Head(SequenceModel):
    """Base class of models that read an output from a backbone's features at each observation.

    A subclass has a constructor, which sets ``backbone``, and ``read``. If outputs depend on
    several observations, or inputs are transformed before the backbone, it overrides ``_map`` and
    ``_map_step``.

    Attributes:
        backbone: Backbone that maps observations to features.
    """

    state_type: ClassVar[type] = BackboneState
    output_axes = 2
    backbone: Backbone

    @abc.abstractmethod
    def read(self, h: Array, *args: Any, **own: Any) -> Array:
        """Computes outputs [...] from features h [..., C]."""

    @property
    def layers(self) -> Layers:
        """Options of the layers of the backbone."""
        return self.backbone.layers

    @property
    def param_dtype(self) -> Any:
        """Dtype of the backbone's parameters."""
        return self.backbone.param_dtype

    @property
    def observation_shape(self) -> tuple[int, ...]:
        return self.backbone.observation_shape

    @property
    def streams(self) -> bool:
        return self.backbone.streams

    @property
    def num_positions(self) -> int | None:
        return self.backbone.num_positions

    def _map(self, x: Array, call: Call, *args: Any, **own: Any) -> tuple[Array, State | None]:
        """Reads outputs [B, T, ...] from the backbone's features."""
        h, state = self.backbone._map(x, call, *args, **own)
        return self.read(h), state

    def init_state(
        self, batch_size: int, max_length: int | None = None, *, dtype: DTypeLike = jnp.float32
    ) -> State:
        return self.backbone.init_state(batch_size, max_length, dtype=dtype)

    def _map_step(self, x: Array, state: Any, mask: Array | None) -> tuple[Array, State]:
        """Reads outputs [B, ...] from the backbone's features of one observation per row."""
        h, state = self.backbone._map_step(x, state, mask)
        return self.read(h), state

    def _check_packs(self) -> None:
        self.backbone._check_packs()

    def _check_streams(self) -> None:
        self.backbone._check_streams()


def head_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Selects the parameter options that a head's own linear layer takes."""
    return {name: options[name] for name in HEAD_OPTIONS if name in options}


def split_options(
    layers: Layers, options: Mapping[str, Any]
) -> tuple[Layers, dict[str, Any], dict[str, Any]]:
    """Splits keyword arguments into layers, parameter options, and options of the head's layer."""
    for name in options:
        check_choice((*Layers.__annotations__, *nn.ParameterOptions.__annotations__), option=name)
    layers, parameters = layers.take(options)
    return layers, parameters, head_options(parameters)


def resolve_backbone(
    backbone: Backbone | int,
    layers: Layers | None,
    default: Layers,
    *,
    embedding: Callable[..., Embedding] | None = None,
    embedding_options: Mapping[str, Any] | None = None,
    reads_class_token: bool = False,
    **options: Any,
) -> tuple[Backbone, dict[str, Any]]:
    """Returns the given backbone or a new one, and the parameter options of the head's layers.

    Args:
        backbone: Backbone of the head; or a number of channels, tokens or event types, to build
            one.
        layers: Options of the layers of a new backbone; default ``default``.
        default: Default layers of this kind of head.
        embedding: Class of a new backbone's embedding; default ``ObservationEmbedding``.
        embedding_options: Options of that class that the head received; None means not given.
        reads_class_token: Whether the head reads only the class token.
        **options: ``rngs``; options of a new backbone; and dtype and initializers of the parameters
            of both.
    """
    head_parameters = head_options(options)
    if isinstance(backbone, Backbone):
        given = {"layers": layers, **(embedding_options or {}), **options}
        own = ("rngs", *head_parameters)
        refused = [name for name, value in given.items() if value is not None and name not in own]
        if refused:
            raise OptionError(
                f"{', '.join(refused)}: options of the backbone, which was already made; pass them "
                "to the Backbone instead of the head.",
                *refused,
            )
    else:
        layers, options = (layers or default).take(options)
        if reads_class_token:
            options = {"class_token": True, **options}
        made: Embedding | int = backbone
        if embedding is not None:
            given = {
                name: value
                for name, value in (embedding_options or {}).items()
                if value is not None
            }
            made = embedding(
                backbone,
                layers.features,
                max_length=options.get("max_length"),
                dtype=layers.compute_dtype,
                param_dtype=options.get("param_dtype", jnp.float32),
                rngs=options["rngs"],
                **given,
            )
        backbone = Backbone(made, layers, **options)
    check_class_token(backbone, reads_class_token)
    return backbone, head_parameters


def check_class_token(backbone: Backbone, needed: bool) -> None:
    """Raises unless the backbone has a class token exactly if the head reads one."""
    if needed and backbone.class_token is None:
        raise OptionError(
            "the head reads a class token, but the backbone has none; make the backbone with "
            "class_token=True.",
            "class_token",
        )
    if not needed and backbone.class_token is not None:
        raise OptionError(
            "the backbone has a class token, which this head would read as an observation; make "
            'the backbone without one, or use a SequenceClassifier with pooling="class".',
            "class_token",
        )
