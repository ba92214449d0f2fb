"""The heads that the contract runs over, what they take, and the programs that its tests share.

A new head is one entry of ``HEADS``. A test varies what is data, such as masks and states, and
calls a head by ``run`` and ``run_steps``, so that each head is compiled twice for most of them.
"""

import functools
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
from flax import nnx

from flax_linattn import models
from tests.models.cases import choices, episodes, events, levels, symbols, values
from tests.nn.cases import CAUSAL, call, moved, normal

ROWS, LENGTH = 2, 8
EVERYWHERE = np.ones((ROWS, LENGTH), bool)
LAYERS = {"features": 8, "num_layers": 1, "num_heads": 2, "hidden_features": 12}
SMALL = LAYERS | {"max_length": LENGTH}
EVERY = {"every_step": True}
slow = pytest.mark.slow


def far(x: np.ndarray) -> np.ndarray:
    return (x + 1) % 7 if x.dtype.kind == "i" else x + 30


def other_steps(x: np.ndarray) -> np.ndarray:
    """Times that are in the table, and actions that are not known."""
    return np.concatenate([LENGTH - 1 - x[..., :1], 1 - x[..., 1:2], x[..., 2:] + 30], axis=-1)


def other_events(x: np.ndarray) -> np.ndarray:
    """Event types that there are."""
    return np.concatenate([x[..., :2] + 30, 3 - x[..., 2:3], x[..., 3:] + 30], axis=-1)


def these(*names: str, slowly: tuple[str, ...] = ()) -> list[Any]:
    """Mechanisms by name, of which the second ones are slow tests."""
    marks = dict.fromkeys(names, ()) | dict.fromkeys(slowly, slow)
    return [pytest.param(name, id=name.split(":")[0], marks=mark) for name, mark in marks.items()]


ALL = [
    pytest.param(*case.values, id=case.id, marks=() if case.id in ("aaren", "softmax") else slow)
    for case in CAUSAL
]
"""Of one head; layers run every mechanism in ``tests/nn``, and others one of each kind."""
KINDS = ("taylorshift", "elementwise", "gated_delta")
BOTH = these("aaren", "softmax", slowly=KINDS)
AAREN = these("aaren", slowly=("softmax", *KINDS))
# The sixth power of a key, in the state of the series by default, has six times its rounding.
FIXED = these("aaren", slowly=("taylorshift", "elementwise_series:order=2", "gated_delta"))
WHOLE = these("softmax", "taylorshift", "aaren")


class Case(NamedTuple):
    """A head.

    Attributes:
        make: the head, of a mechanism and ``rngs``, and of options of its layers by name.
        observations: (seed, rows, length) -> x, whole sequences.
        every: options of a call that give an output for each observation; None = there are none,
            and the output is that of the last.
        mechanisms: those of the contract's tests, as parameters of pytest.
        streams: whether it has steps.
        packs: whether rows may hold packed sequences.
        other: x -> observations that a model takes, and of which no number is that of x.
    """

    make: Callable[..., Any]
    observations: Callable[..., np.ndarray]
    every: Mapping[str, Any] | None = {}
    mechanisms: list[Any] = BOTH
    streams: bool = True
    packs: bool = True
    other: Callable[[np.ndarray], np.ndarray] = far


def classifier(pooling: str, **options: Any) -> Callable[..., Any]:
    return partial(models.SequenceClassifier, 3, 4, pooling=pooling, **SMALL | options)


def token_classifier(
    embedding: Callable[..., Any], mechanism: Any, rngs: nnx.Rngs, **options: Any
) -> Any:
    """A classifier of tokens that are embedded so."""
    tokens = embedding(7, 8, rngs=nnx.Rngs(1))
    backbone = models.Backbone(tokens, mechanism=mechanism, rngs=rngs, **LAYERS | options)
    return models.SequenceClassifier(backbone, 4, rngs=rngs)


def reader(mechanism: Any, **options: Any) -> Any:
    """Latents that read by the mechanism."""
    layers = LAYERS | {"mechanism": "softmax"}
    return models.PerceiverReader(3, 4, num_latents=3, reads_by=mechanism, **layers | options)


def minirocket(mechanism: Any, rngs: nnx.Rngs, **options: Any) -> Any:
    """Linear maps on MiniRocket features, and attention, with weights as after training."""
    attention = models.SequenceClassifier(3, 4, mechanism=mechanism, rngs=rngs, **SMALL | options)
    model = models.MiniRocketClassifier(
        3, 4, LENGTH, num_features=84, num_prefixes=3, attention=attention, rngs=rngs
    )
    model.kernel[...] = normal(6, *model.kernel.shape) / 3
    model.bias[...] = normal(7, *model.bias.shape)
    model.weights[...] = np.float32([[1, 2], [1.5, 0.5], [0.5, 1]])
    return model


HEADS: dict[str, Case] = {
    "backbone": Case(partial(models.Backbone, 3, **SMALL), values),
    "language": Case(partial(models.LanguageModel, 7, **SMALL), symbols),
    "language untied": Case(
        partial(models.LanguageModel, 7, tied=False, rotary=True, norm="post", **SMALL),
        symbols,
        mechanisms=these("linear"),
    ),
    "classifier": Case(classifier("mean"), values, EVERY, ALL),
    "classifier last": Case(
        classifier("last", norm="pre", position="learned", kernel_size=2), values, EVERY, AAREN
    ),
    "classifier flatten": Case(classifier("flatten"), values, EVERY, AAREN),
    "minirocket": Case(minirocket, values, EVERY, AAREN, packs=False),
    "forecaster": Case(
        partial(models.Forecaster, 2, 4, num_covariates=1, targets=(1, 0), memory=5.0, **SMALL),
        levels,
        EVERY,
        AAREN,
    ),
    "forecaster of quantiles": Case(
        partial(models.Forecaster, 3, 4, normalize=False, quantiles=(0.1, 0.5), **SMALL),
        levels,
        EVERY,
        these("aaren"),
    ),
    "patches": Case(
        partial(models.PatchForecaster, 2, 4, patch_length=3, context=5, num_covariates=1,
                targets=(1, 0), memory=5.0, **SMALL),
        levels,
        EVERY,
        FIXED,
        packs=False,
    ),
    "patches of mixed channels": Case(
        partial(models.PatchForecaster, 3, 4, patch_length=3, context=0,
                channel_mechanism="linear", quantiles=(0.1, 0.5), **SMALL),
        levels,
        EVERY,
        these("aaren"),
        packs=False,
    ),
    "events": Case(
        partial(models.EventForecaster, 3, periods=(24.0, 168.0), num_components=4, spread=1.5,
                **SMALL),
        events,
        mechanisms=AAREN,
        other=other_events,
    ),
    "decisions": Case(
        partial(models.DecisionTransformer, 3, 2, **SMALL), episodes, other=other_steps
    ),
    "discrete decisions": Case(
        partial(models.DecisionTransformer, 3, num_actions=4, **SMALL),
        choices,
        mechanisms=these("aaren"),
        other=lambda x: np.concatenate([other_steps(x[..., :-1]), 3 - x[..., -1:]], axis=-1),
    ),
    "latents": Case(reader, values, EVERY, these("aaren", slowly=("forgetting_aaren",))),
    "convolved tokens": Case(
        partial(token_classifier, partial(models.ConvTokenEmbedding, padding="causal")),
        symbols,
        EVERY,
        these("taylorshift"),
    ),
    "window": Case(partial(models.WindowModel, 7, 4), symbols, None, packs=False),
    "classifier of a class token": Case(
        classifier("class"), values, None, WHOLE, streams=False, packs=False
    ),
    "classifier that looks ahead": Case(
        classifier("flatten", is_causal=False), values, None, WHOLE, streams=False
    ),
    "class token of convolved tokens": Case(
        lambda **options: models.SequenceClassifier(
            models.Backbone(
                models.ConvTokenEmbedding(7, 8, rngs=nnx.Rngs(1)), is_causal=False,
                class_token=True, **LAYERS | options,
            ),
            4, pooling="class", rngs=nnx.Rngs(2),
        ),
        symbols,
        None,
        these("taylorshift"),
        streams=False,
        packs=False,
    ),
}  # fmt: skip
"""By name."""


VARIANTS = {
    "classifier last",
    "classifier flatten",
    "forecaster of quantiles",
    "patches of mixed channels",
    "discrete decisions",
}
"""Heads that differ from another head of the same class only in their options."""


def heads(
    condition: Callable[[Case], bool] = lambda case: True,
    *,
    fast: str = "",
    slow_variants: bool = False,
) -> Any:
    """Parametrizes a test over heads and their mechanisms.

    Args:
        condition: which heads.
        fast: the only mechanism that is no slow test; default as the table says.
        slow_variants: whether the heads in ``VARIANTS`` are slow, for tests that hardly depend on
            options.
    """

    def marks(name: str, mechanism: Any) -> Any:
        is_slow = (fast and mechanism.id != fast) or (slow_variants and name in VARIANTS)
        return slow if is_slow else mechanism.marks

    return pytest.mark.parametrize(
        ("name", "mechanism"),
        [
            pytest.param(
                name,
                *mechanism.values,
                id=f"{name}-{mechanism.id}",
                marks=marks(name, mechanism),
            )
            for name, case in HEADS.items()
            if condition(case)
            for mechanism in case.mechanisms
        ],
    )


STREAMING = heads(lambda case: case.streams)
FIRST = pytest.mark.parametrize(
    ("name", "mechanism"),
    [
        pytest.param(name, min(case.mechanisms, key=lambda m: m.id != "aaren").values[0], id=name)
        for name, case in HEADS.items()
    ],
)
"""Every head with one mechanism, Aaren where it has that."""


@functools.cache
def model_of(name: str, mechanism: Any, **options: Any) -> Any:
    """A head all of whose parameters are away from their initial values; not to be changed."""
    options = {"rngs": nnx.Rngs(0)} | options
    return moved(HEADS[name].make(mechanism=mechanism, **options))


def observations(name: str, seed: int = 0, rows: int = ROWS, length: int = LENGTH) -> np.ndarray:
    return HEADS[name].observations(seed, rows, length)


def fillers(x: np.ndarray) -> tuple[Any, Any]:
    """What no model takes for an observation, to stand at padding."""
    return (99, -1) if x.dtype.kind == "i" else (np.nan, 1e30)


def run(name: str, model: Any, x: Any, mask: Any = None, state: Any = None) -> tuple[Any, Any]:
    """Outputs [B, T, ...] and the state after, by one program, whatever is real and came before."""
    every = HEADS[name].every
    mask = np.ones(x.shape[:2], bool) if mask is None else mask
    state = model.init_state(len(x)) if state is None else state
    options = {"state": state, "return_state": True}
    if every is not None:
        return call(model, x, mask=mask, **options, **every)
    prefixes = [mask & (np.arange(x.shape[1]) <= t) for t in range(x.shape[1])]
    found = [call(model, x, mask=prefix, **options) for prefix in prefixes]
    return np.stack([y for y, _ in found], axis=1), found[-1][1]
