"""What is compared with what, at which lengths: one sequence in float32, 8 heads."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from flax_linattn import ops
from flax_linattn.bench import peers
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
        name: what is compared.
        lengths: T, those of the ratios.
        ours: a function of q, k, v [1, T, H, K], or of scores [1, T, H] and v.
        peers: functions of the same arguments, by name.
        dim: K.
        scores: whether the first argument is scores instead of q and k.
        passes: keys of ``PASSES``.
        compiled: T at which ours is only compiled, for its memory and compile time.
        curve: whether it is drawn over many lengths.
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

    def arguments(self, length: int) -> list[Array]:
        """The arrays for a length."""
        tokens = (1, length, HEADS, self.dim)
        return normal(tokens[:3], tokens) if self.scores else normal(tokens, tokens, tokens)

    def prepare(self, length: int, which: str, memory_limit: float | None = None) -> Prepared:
        """Compiles ours and the peers for a length.

        Args:
            length: T.
            which: a key of ``PASSES``.
            memory_limit: see ``bench.prepare``.
        """
        return self._compile({OURS: self.ours, **self.peers}, length, which, memory_limit)

    def prepare_ours(self, length: int, which: str) -> Prepared:
        """Compiles ours alone."""
        return self._compile({OURS: self.ours}, length, which, None)

    def _compile(
        self, programs: dict[str, Any], length: int, which: str, memory_limit: float | None
    ) -> Prepared:
        wrapped = {name: PASSES[which](program) for name, program in programs.items()}
        return prepare(wrapped, self.arguments(length), memory_limit)

    def measure(
        self, prepared: Prepared, length: int, rounds: int, seconds: float | None = None
    ) -> dict[str, Any]:
        """Times what ``prepare`` returned.

        Args:
            prepared: compiled for the length.
            length: T.
            rounds: see ``compare``.
            seconds: see ``compare``.

        Returns:
            ``{"results": what compare returns}``.
        """
        arguments = self.arguments(length)
        return {"results": compare(prepared, arguments, rounds, seconds=seconds, tokens=length)}


def comparisons(platform: str | None = None) -> tuple[Comparison, ...]:
    """All comparisons of the suite.

    Args:
        platform: "cpu", "gpu" or "tpu", default jax's; cuDNN's attention is a peer on a GPU.

    Example:
        >>> [comparison.name for comparison in comparisons("cpu")][:2]
        ['aaren', 'elementwise_series, order 6, causal']
    """
    platform = jax.default_backend() if platform is None else platform

    def softmax(is_causal: bool) -> dict[str, Callable[..., Array]]:
        found: dict[str, Callable[..., Array]] = {
            "softmax attention (XLA)": partial(peers.softmax_xla, is_causal=is_causal)
        }
        if platform == "gpu":
            cudnn = partial(peers.softmax_cudnn, is_causal=is_causal)
            found["softmax attention (cuDNN, bfloat16)"] = cudnn
        return found

    def of_values(attention: Callable[..., Array]) -> Callable[..., Array]:
        return lambda score, v: attention(v, v, v)

    series = "elementwise_series:order=6"
    return (
        Comparison(
            "aaren",
            (16384,),
            _aaren,
            {
                "associative_scan": peers.aaren_scan,
                "our engine": _aaren_engine,
                **{f"{k} of v": of_values(f) for k, f in softmax(True).items()},
            },
            scores=True,
            compiled=(16384,),
        ),
        Comparison(
            "elementwise_series, order 6, causal",
            (4096,),
            mechanism(series, is_causal=True),
            {
                "the paper's cumulative sums": peers.elementwise_series_cumsum,
                "the same, powers by products": partial(
                    peers.elementwise_series_cumsum, products=True
                ),
                "our engine": peers.engine(series),
                **softmax(True),
            },
            compiled=(16384,),
        ),
        Comparison(
            "taylorshift",
            (8192,),
            mechanism("taylorshift"),
            {
                "algorithm 1 as printed": peers.taylorshift_algorithm_1,
                "our direct form": mechanism("taylorshift", form="direct"),
                **softmax(False),
            },
            compiled=(16384,),
        ),
        Comparison(
            "expressive, causal",
            (4096,),
            mechanism("expressive", is_causal=True),
            {"its T x T weights": peers.expressive_dense, **softmax(True)},
            compiled=(16384,),
        ),
        *(taylorshift_forms(dim) for dim in (16, 32, 64)),
    )


def taylorshift_forms(dim: int, *, is_causal: bool = False) -> Comparison:
    """TaylorShift's ``auto`` against both of its forms, from 128 to 16,384 tokens.

    Args:
        dim: d, channels a head.
        is_causal: see ``ops.Mechanism.attend``.
    """
    attend = partial(mechanism, "taylorshift", is_causal=is_causal)
    return Comparison(
        f"taylorshift, auto, d = {dim}" + (", causal" if is_causal else ""),
        tuple(2**n for n in range(7, 15)),
        attend(),
        {"direct": attend(form="direct"), "efficient": attend(form="efficient")},
        dim=dim,
        passes=(FORWARD,),
        curve=False,
    )


def mechanism(spec: str, **options: Any) -> Callable[..., Array]:
    """A mechanism's ``attend`` as a function of q, k and v.

    Args:
        spec: its name, with hyperparameters.
        **options: further arguments of ``attend``.
    """
    found = ops.get_mechanism(spec)
    return lambda q, k, v: found.attend(q, k, v, **options)


def _one_channel(score: Array) -> tuple[Array, Array]:
    """A query and keys with these scores: Aaren's peers get scores, not queries and keys."""
    return jnp.ones((score.shape[-1], 1), score.dtype), score[..., None]


def _aaren(score: Array, v: Array) -> Array:
    found = ops.get_mechanism("aaren", scale=1.0)
    return found.attend(*_one_channel(score), v, is_causal=True)


def _aaren_engine(score: Array, v: Array) -> Array:
    return peers.engine("aaren:scale=1.0")(*_one_channel(score), v)
