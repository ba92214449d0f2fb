"""Small models for the tests of this folder: of observations, and of tokens."""

import functools
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

from flax_linattn import models
from tests.nn.cases import CAUSAL

CHANNELS, TOKENS = 3, 11
STREAMING = [
    pytest.param(
        *case.values,
        id=case.id,
        marks=() if case.id in ("aaren", "softmax") else pytest.mark.slow,
    )
    for case in CAUSAL
]
"""Every mechanism that streams; quick are one with a constant state and one with a cache."""


def make_classifier(mechanism: str, **options: Any) -> Any:
    """A classifier of that mechanism; "minirocket" has linear maps, too."""
    if mechanism == "minirocket":
        return minirocket_classifier()
    return models.SequenceClassifier(
        CHANNELS,
        4,
        features=8,
        num_layers=1,
        num_heads=2,
        mechanism=mechanism,
        rngs=nnx.Rngs(0),
        **options,
    )


def minirocket_classifier() -> models.MiniRocketClassifier:
    """MiniRocket features and attention, fitted to the frequencies of waves."""
    model = models.MiniRocketClassifier(
        CHANNELS, 4, 40, num_features=84, num_prefixes=2, attention=make_classifier("aaren"),
        rngs=nnx.Rngs(0),
    )  # fmt: skip
    labels = np.arange(24) % 4
    x = np.random.default_rng(0).normal(size=(24, 40, CHANNELS)).cumsum(axis=1)
    model.fit(np.sin(x * (1 + labels[:, None, None])), labels)
    model.weights[...] = np.float32([[0.5, 1], [1, 0.5]])
    return model


classifier = functools.cache(make_classifier)
"""The same, one of a kind."""


@functools.cache
def backbone(mechanism: str = "aaren", **options: Any) -> models.Backbone:
    return models.Backbone(
        CHANNELS, 8, num_layers=1, num_heads=2, mechanism=mechanism, rngs=nnx.Rngs(0), **options
    )


class Language(nnx.Module):
    """The next token after every token: logits [B, T, TOKENS]."""

    def __init__(
        self, mechanism: str = "aaren", seed: int = 0, tokens: int = TOKENS, **options: Any
    ) -> None:
        rngs = nnx.Rngs(seed)
        self.embed = nnx.Embed(tokens, 8, rngs=rngs)
        self.backbone = models.Backbone(
            8, 8, num_layers=1, num_heads=2, mechanism=mechanism, rngs=rngs, **options
        )
        self.head = nnx.Linear(8, tokens, kernel_init=nnx.initializers.normal(2.0), rngs=rngs)

    def __call__(
        self, x: Any, *, mask: Any = None, state: Any = None, return_state: bool = False
    ) -> Any:
        h, state = self.backbone(self.embed(x), mask=mask, state=state, return_state=True)
        return (self.head(h), state) if return_state else self.head(h)

    def init_state(self, batch_size: int, max_length: int | None = None) -> Any:
        return self.backbone.init_state(batch_size, max_length)

    def step(self, x: Any, state: Any, *, mask: Any = None) -> tuple[Any, Any]:
        h, state = self.backbone.step(self.embed(x), state, mask=mask)
        return self.head(h), state


@functools.cache
def language(mechanism: str = "aaren") -> Language:
    """One of a kind, as the other models here."""
    return Language(mechanism)


def take(state: Any, rows: int | slice) -> Any:
    """Some rows of a state."""
    return jax.tree.map(lambda leaf: np.asarray(leaf)[rows], state)


def check_one_program(generate: Any, prompt: Any, graph_mode: bool) -> None:
    """Checks that new weights, keys, temperatures and stop tokens compile nothing new."""
    traces = []

    class Traced(Language):
        def step(self, x: Any, state: Any, *, mask: Any = None) -> tuple[Any, Any]:
            traces.append(1)
            return super().step(x, state, mask=mask)

    def run(seed: int) -> None:
        options = {"key": jax.random.key(seed), "temperature": seed, "stop": seed}
        generate(Traced(seed=seed), prompt, 4, **options)

    with nnx.set_graph_mode(graph_mode):
        run(0)
        once = len(traces)
        run(1), run(2)
    assert len(traces) == once > 0
