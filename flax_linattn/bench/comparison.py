"""Comparisons of mechanisms with peers, by length: one sequence in float32, 8 heads."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax.numpy as jnp

from flax_linattn import ops
from flax_linattn.bench import baselines
from flax_linattn.bench.timing import (
    Prepared,
    compare,
    forward_and_backward,
    normal,
    prepare,
)
from flax_linattn.typing import Array

FORWARD = "forward"
TRAINING = "forward and backward"
PASSES: dict[str, Callable[[Any], Any]] = {
    FORWARD: lambda function: function,
    TRAINING: forward_and_backward,
}
HEADS = 8
OURS = "ours"


@dataclasses.dataclass(frozen=True)
class Comparison:
    """``ours`` against named peers on the same arguments.

    Attributes:
        name: Name of the comparison.
        lengths: Sequence lengths T of the ratios.
        ours: Function of q, k, v [1, T, H, K] and gates, or of scores [1, T, H] and v.
        peers: Functions of the same arguments, by name.
        dim: Key dimension K.
        scores: Whether the first argument is scores instead of q and k.
        passes: Keys of ``PASSES``.
        compiled: Lengths at which ours is only compiled, for its memory and compile time.
        curve: Whether it is plotted over many lengths.
        spec: Mechanism whose ``inputs`` the arguments are; None for q, k and v alone.
    """

    name: str
    lengths: tuple[int, ...]
    ours: Callable[..., Array]
    peers: Mapping[str, Callable[..., Array]]
    dim: int = 64
    scores: bool = False
    passes: tuple[str, ...] = (FORWARD, TRAINING)
    compiled: tuple[int, ...] = ()
    curve: bool = True
    spec: str | None = None

    def arguments(self, length: int) -> list[Array]:
        """The arguments of ours and of the peers for a length T."""
        if self.spec is not None:
            mechanism = ops.get_mechanism(self.spec)
            return baselines.inputs(mechanism, length, num_heads=HEADS, dim=self.dim)
        tokens = (1, length, HEADS, self.dim)
        return normal(tokens[:3], tokens) if self.scores else normal(tokens, tokens, tokens)

    def prepare(self, length: int, which: str, memory_limit: float | None = None) -> Prepared:
        """Compiles ours and the peers for a length T and a pass; see ``bench.prepare``."""
        programs = {OURS: self.ours, **self.peers}
        wrapped = {name: PASSES[which](program) for name, program in programs.items()}
        return prepare(wrapped, self.arguments(length), memory_limit)

    def measure(
        self, prepared: Prepared, length: int, rounds: int, seconds: float | None = None
    ) -> dict[str, Any]:
        """Times what ``prepare`` returned for a length T; see ``bench.compare``."""
        arguments = self.arguments(length)
        return {"results": compare(prepared, arguments, rounds, seconds=seconds, tokens=length)}


def comparisons(platform: str | None = None) -> tuple[Comparison, ...]:
    """The suite of the package: the papers' mechanisms against baselines.

    Args:
        platform: "cpu", "gpu" or "tpu", default JAX's; cuDNN's attention is a peer on a GPU.

    Example:
        >>> [comparison.name for comparison in comparisons("cpu")][:2]
        ['aaren', 'elementwise_series, order 6, causal']
    """
    compiled = (16384,)
    return (
        Comparison(
            "aaren",
            (16384,),
            partial(_aaren, attend=mechanism("aaren:scale=1.0", is_causal=True)),
            {
                "our engine": partial(_aaren, attend=baselines.engine("aaren:scale=1.0")),
                **{
                    f"{name} of v": partial(_attend_values, attention)
                    for name, attention in baselines.softmax(platform=platform).items()
                },
            },
            scores=True,
            compiled=compiled,
        ),
        dataclasses.replace(
            against_baselines("elementwise_series:order=6", 4096, platform=platform),
            name="elementwise_series, order 6, causal",
            compiled=compiled,
        ),
        Comparison(
            "taylorshift",
            (8192,),
            mechanism("taylorshift"),
            {
                "our direct form": mechanism("taylorshift", form="direct"),
                **baselines.softmax(is_causal=False, platform=platform),
            },
            compiled=compiled,
        ),
        dataclasses.replace(
            against_baselines("expressive", 4096, platform=platform), compiled=compiled
        ),
    )


GATED = ("forgetting_aaren", "forgetting", "gated_linear", "retention", "gated_delta", "rwkv")
"""Mechanisms with a decay, by a gate of each token or at a fixed rate."""


def gated_comparisons(platform: str | None = None) -> tuple[Comparison, ...]:
    """Gated mechanisms against softmax attention, linear attention and a loop over tokens.

    Example:
        >>> [comparison.name for comparison in gated_comparisons("cpu")][-1]
        'rwkv, causal'
    """
    made = []
    for name in GATED:
        others = baselines.softmax(platform=platform) | baselines.linear()
        peers = baselines.adapt_peers(name, others)
        if ops.get_mechanism(name).capabilities.constant_memory:
            peers = {"a loop over tokens": baselines.loop(name), **peers}
        ours = mechanism(name, is_causal=True)
        made.append(Comparison(f"{name}, causal", (4096,), ours, peers, curve=False, spec=name))
    return tuple(made)


def against_baselines(
    spec: str,
    *lengths: int,
    is_causal: bool | None = None,
    dim: int = 64,
    platform: str | None = None,
) -> Comparison:
    """Any mechanism against softmax attention and, if it has a state, our engine alone.

    Args:
        spec: Name of the mechanism, with hyperparameters.
        *lengths: Sequence lengths T.
        is_causal: See ``ops.Mechanism.attend``; default True where the mechanism supports it.
        dim: Key dimension K.
        platform: See ``comparisons``.

    Example:
        >>> comparison = against_baselines("linear", 4096, platform="cpu")
        >>> comparison.name, list(comparison.peers)
        ('linear, causal', ['our engine', 'softmax attention (XLA)'])
    """
    if is_causal is None:
        is_causal = ops.get_mechanism(spec).capabilities.causal
    softmax = baselines.softmax(is_causal=is_causal, platform=platform)
    peers = baselines.adapt_peers(spec, softmax)
    if is_causal and baselines.has_engine(spec):
        peers = {"our engine": baselines.engine(spec), **peers}
    return Comparison(
        f"{spec}, causal" if is_causal else spec,
        lengths,
        mechanism(spec, is_causal=is_causal),
        peers,
        dim=dim,
        spec=spec,
    )


def mechanism(spec: str, **options: Any) -> Callable[..., Array]:
    """A mechanism's ``attend``, with further arguments, as a function of its ``inputs``."""
    return partial(_attend, ops.get_mechanism(spec), **options)


def _attend(mechanism: ops.Mechanism, *arrays: Array, **options: Any) -> Array:
    q, k, v, gates = baselines.by_name(mechanism, arrays)
    y: Array = mechanism.attend(q, k, v, **(gates | options))
    return y


def _attend_values(attention: Callable[..., Array], score: Array, v: Array) -> Array:
    return attention(v, v, v)


def _aaren(score: Array, v: Array, attend: Callable[..., Array]) -> Array:
    """Aaren on given scores, as keys of one channel and a query of one."""
    return attend(jnp.ones((score.shape[-1], 1), score.dtype), score[..., None], v)
