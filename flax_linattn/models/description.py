"""Descriptions of models as JSON values, from which equal models are built.

Each class of this package lists its constructor arguments in ``options``, including embedding and
backbone. All of them are written, also defaults, so that a later change of a default does not
change saved models. Initializers are not written, since the values of the parameters are saved.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from flax_linattn import nn, ops
from flax_linattn.models.backbone import Backbone
from flax_linattn.models.classifier import SequenceClassifier
from flax_linattn.models.decision_transformer import DecisionTransformer
from flax_linattn.models.embedding import (
    FeatureEmbedding,
    ObservationEmbedding,
    OneHotEmbedding,
    TokenEmbedding,
)
from flax_linattn.models.encoder_decoder import EncoderDecoder
from flax_linattn.models.event_embedding import EventEmbedding
from flax_linattn.models.event_forecaster import EventForecaster
from flax_linattn.models.forecaster import Forecaster
from flax_linattn.models.image_classifier import ImageClassifier
from flax_linattn.models.language import LanguageModel
from flax_linattn.models.layers import Layers
from flax_linattn.models.minirocket import MiniRocketFeatures
from flax_linattn.models.minirocket_classifier import MiniRocketClassifier
from flax_linattn.models.patch_forecaster import PatchForecaster
from flax_linattn.models.perceiver import PerceiverReader
from flax_linattn.models.token_embeddings import ConvTokenEmbedding, LinearTokenEmbedding
from flax_linattn.models.window import WindowModel

KINDS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        Backbone,
        ConvTokenEmbedding,
        DecisionTransformer,
        EncoderDecoder,
        EventEmbedding,
        EventForecaster,
        FeatureEmbedding,
        Forecaster,
        ImageClassifier,
        LanguageModel,
        LinearTokenEmbedding,
        MiniRocketClassifier,
        MiniRocketFeatures,
        ObservationEmbedding,
        OneHotEmbedding,
        PatchForecaster,
        PerceiverReader,
        SequenceClassifier,
        TokenEmbedding,
        WindowModel,
    )
}
"""Classes that can be described; each has ``options``."""

OPTION_KEYS = {"num_covariates": "num_marks", "num_event_types": "num_marks"}
"""Constructor arguments with another key in descriptions, whose format is stable."""


class NotDescribedError(ValueError):
    """A part of a model does not belong to this package, so JSON cannot describe it."""


def describe(model: Any) -> dict[str, Any]:
    """Describes a model as JSON values, from which ``make`` builds an equal one.

    Example:
        >>> from flax import nnx
        >>> describe(TokenEmbedding(11, 8, rngs=nnx.Rngs(0)))["TokenEmbedding"]["num_tokens"]
        11
    """
    kind = type(model).__name__
    if KINDS.get(kind) is not type(model):
        raise NotDescribedError(f"{kind} is not a class of flax_linattn.models")
    options = {
        OPTION_KEYS.get(name, name): _to_json(name, value) for name, value in model.options.items()
    }
    # The dropout of a head without its own is that of its backbone.
    dropout = getattr(getattr(model, "backbone", None), "dropout", None)
    dropout = getattr(model, "dropout", dropout)
    return {kind: options | {"has_dropout_keys": dropout is not None and dropout.rngs is not None}}


def make(description: Mapping[str, Any], rngs: Callable[..., nnx.Rngs] = nnx.Rngs) -> Any:
    """Builds a model from its description; ``rngs`` makes random keys from seeds by stream.

    Example:
        >>> from flax import nnx
        >>> embedding = TokenEmbedding(11, 8, rngs=nnx.Rngs(0))
        >>> make(describe(embedding)).table.shape
        (11, 8)
    """
    ((kind, options),) = description.items()
    if kind not in KINDS:
        raise ValueError(f"unknown model class {kind!r}")
    parameters = inspect.signature(KINDS[kind].__init__).parameters
    names = {key: name for name, key in OPTION_KEYS.items() if name in parameters}
    arguments = {names.get(key, key): _from_json(value, rngs) for key, value in options.items()}
    streams = {"params": 0, "dropout": 0} if arguments.pop("has_dropout_keys") else {"params": 0}
    return KINDS[kind](**arguments, rngs=rngs(**streams))


def build_abstract(description: Mapping[str, Any]) -> Any:
    """Builds a model with ``jax.ShapeDtypeStruct`` parameters, which need no memory.

    Example:
        >>> from flax import nnx
        >>> embedding = TokenEmbedding(11, 8, rngs=nnx.Rngs(0))
        >>> build_abstract(describe(embedding)).table.get_value()
        ShapeDtypeStruct(shape=(11, 8), dtype=float32)
    """
    return nnx.eval_shape(lambda: make(description, _constant_rngs))


class _ConstantStream(nnx.RngStream):
    """Random stream that returns the same key every time.

    Under tracing, each increment of a stream's count makes Flax search all earlier operations:
    minutes for a hundred layers.
    """

    def __call__(self) -> jax.Array:
        return self.key[...]

    def fork(self, **_: Any) -> nnx.RngStream:
        return nnx.RngStream(self(), tag=self.tag)


def _constant_rngs(**seeds: int) -> nnx.Rngs:
    rngs = nnx.Rngs(**seeds)
    for name, seed in seeds.items():
        setattr(rngs, name, _ConstantStream(seed, tag=name))
    return rngs


def _to_json(name: str, value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (list, tuple)):
        return [_to_json(name, v) for v in value]
    if isinstance(value, nnx.Module):
        return describe(value)
    if isinstance(value, ops.Mechanism):
        return {"mechanism": _mechanism_to_json(value)}
    if isinstance(value, Layers):
        return {"Layers": _layers_to_json(value)}
    try:
        return {"dtype": jnp.dtype(value).name}
    except TypeError:
        raise NotDescribedError(f"{name} is a {type(value).__name__}") from None


def _layers_to_json(layers: Layers) -> dict[str, Any]:
    options = {
        f.name: _to_json(f.name, getattr(layers, f.name)) for f in dataclasses.fields(layers)
    }
    given = layers.mechanism if isinstance(layers.mechanism, tuple) else (layers.mechanism,)
    # The hyperparameters of a name are written too, since their defaults may change.
    options["mechanism"] = [
        {
            "mechanism": _mechanism_to_json(nn.resolve_mechanism(m))
            | {"name": m if isinstance(m, str) else None}
        }
        for m in given
    ]
    return options


def _mechanism_to_json(mechanism: ops.Mechanism) -> dict[str, Any]:
    fields = {f.name: getattr(mechanism, f.name) for f in dataclasses.fields(mechanism)}
    try:
        again = ops.get_mechanism(mechanism.name, **fields)
    except (TypeError, ValueError):
        again = None
    if again != mechanism:
        raise NotDescribedError(f"the mechanism {mechanism.name!r} is not registered")
    options = {name: _to_json(name, value) for name, value in fields.items()}
    return {"kind": mechanism.name, "hyperparameters": options}


def _from_json(value: Any, rngs: Callable[..., nnx.Rngs]) -> Any:
    if isinstance(value, list):
        return tuple(_from_json(v, rngs) for v in value)
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "dtype":
        return getattr(jnp, jnp.dtype(content).name)
    if kind == "mechanism":
        return _mechanism_from_json(rngs, **content)
    if kind == "Layers":
        return Layers(**{name: _from_json(v, rngs) for name, v in content.items()})
    return make(value, rngs)


def _mechanism_from_json(
    rngs: Callable[..., nnx.Rngs],
    /,
    kind: str,
    hyperparameters: dict[str, Any],
    name: str | None = None,
) -> str | ops.Mechanism:
    """Returns the mechanism, or the name it was made from if that still gives the same one."""
    options = {field: _from_json(value, rngs) for field, value in hyperparameters.items()}
    mechanism = ops.get_mechanism(kind, **options)
    return name if name is not None and ops.get_mechanism(name) == mechanism else mechanism
