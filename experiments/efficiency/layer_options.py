"""Cost of the options of the attention layer, compared with Flax's own layer.

    python -m experiments.efficiency.layer_options

Each row compares one option of a causal ``nn.Attention`` with the same layer without the option,
for softmax attention and the gated delta rule, and with ``nnx.MultiHeadAttention`` if it has the
option. All layers of a row run in turns in one process, and times are CPU times of the process. The
first row runs the plain layers twice, which shows the noise.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from experiments.efficiency.programs import forward, in_turns, observations, training_step
from experiments.measured import Measured, Rows
from flax_linattn import nn
from flax_linattn.bench import Journal, compile_program, spread
from flax_linattn.bench.comparison import FORWARD, TRAINING
from flax_linattn.bench.report import markdown, number

OURS = ("softmax", "gated_delta")
FLAX = "flax"
PLAIN = "plain"
PASSES = {FORWARD: forward, TRAINING: training_step}


@dataclasses.dataclass(frozen=True)
class Option:
    """One option of the layer.

    Attributes:
        layer: arguments of ``nn.Attention``; of a mechanism's own options, its specification.
        call: arguments of each call.
        flax: arguments of ``nnx.MultiHeadAttention``, or None if it has no such option.
        mechanisms: names of mechanisms that have it.
    """

    layer: Callable[[int], dict[str, Any]] = lambda num_heads: {}
    call: Callable[[int], dict[str, Any]] = lambda length: {}
    flax: dict[str, Any] | None = None
    mechanisms: tuple[str, ...] = OURS


def _mask(length: int) -> jax.Array:
    return jnp.asarray(observations(1, 1, length, length) > -1) | jnp.eye(length, dtype=bool)


SOFTMAX = ("softmax",)
OPTIONS = {
    PLAIN: Option(flax={}),
    "num_kv_heads=2": Option(lambda _: {"num_kv_heads": 2}, flax={"num_kv_heads": 2}),
    "normalize_qk": Option(lambda _: {"normalize_qk": "rms"}, flax={"normalize_qk": True}),
    "rotary position": Option(lambda _: {"position": nn.RotaryPosition()}),
    "output_norm, output_gate": Option(lambda _: {"output_norm": "rms", "output_gate": "silu"}),
    "short_conv=4": Option(lambda _: {"short_conv": 4}),
    "pair_mask": Option(
        call=lambda length: {"pair_mask": _mask(length)}, flax={}, mechanisms=SOFTMAX
    ),
    "AlibiBias": Option(lambda heads: {"position_bias": nn.AlibiBias(heads)}, mechanisms=SOFTMAX),
    "window=64": Option(lambda _: {"mechanism": "softmax:window=64"}, mechanisms=SOFTMAX),
    "window=64, sinks=4": Option(
        lambda _: {"mechanism": "softmax:window=64,sinks=4"}, mechanisms=SOFTMAX
    ),
    "soft_cap=30": Option(lambda _: {"mechanism": "softmax:soft_cap=30"}, mechanisms=SOFTMAX),
    "weight_dropout_rate=0.1": Option(
        lambda _: {"weight_dropout_rate": 0.1}, flax={"dropout_rate": 0.1}, mechanisms=SOFTMAX
    ),
}


@dataclasses.dataclass(frozen=True)
class Size:
    """Settings of the measurement at one scale.

    Attributes:
        options: their names in ``OPTIONS``.
        shape: B and T.
        rounds: how often each program is timed.
        seconds: no further round of a row begins after so long, once there are three.
    """

    options: tuple[str, ...] = tuple(OPTIONS)
    shape: tuple[int, int] = (4, 512)
    features: int = 256
    num_heads: int = 8
    rounds: int = 31
    seconds: float = 12.0


def measure(size: Size, journal: Journal) -> None:
    for name in size.options:
        for which in PASSES:
            key = {"option": name, "pass": which}
            journal.row(key, partial(costs, size, OPTIONS[name], which))


def costs(size: Size, option: Option, which: str) -> dict[str, Any]:
    """Times and memory of the layers with the option, and ratios to the layers without it."""
    batch_size, length = size.shape
    x = observations(batch_size, length, size.features)
    layers: dict[str, nnx.Module] = {}
    for mechanism in option.mechanisms:
        layers[f"{mechanism} {PLAIN}"] = ours(size, Option(), mechanism)
        layers[mechanism] = ours(size, option, mechanism)
    layers[f"{FLAX} {PLAIN}"] = FlaxLayer(size, Option(flax={}))
    if option.flax is not None:
        layers[FLAX] = FlaxLayer(size, option)
    calls, megabytes = {}, {}
    for name, layer in layers.items():
        if which == TRAINING:
            layer.train()
        program, params = PASSES[which](layer)
        compiled, facts = compile_program(program, (params, x))
        calls[name] = partial(compiled, params, x)
        megabytes[name] = facts["temporary_bytes"] / 1e6
    times = in_turns(calls, size.rounds, size.seconds)
    ratios = {
        name: [a / b for a, b in zip(times[name], times[f"{name} {PLAIN}"], strict=True)]
        for name in times
        if f"{name} {PLAIN}" in times
    }
    return {
        "milliseconds": {name: spread(each) for name, each in times.items()},
        "megabytes": megabytes,
        "quartiles": {name: statistics.quantiles(each, n=4) for name, each in ratios.items()},
    }


class OurLayer(nnx.Module):
    """``nn.Attention`` with the arguments of an option's call."""

    def __init__(self, attention: nn.Attention, call: dict[str, Any]) -> None:
        self.attention = attention
        self.call = nnx.data({name: nnx.Variable(x) for name, x in call.items()})

    def __call__(self, x: jax.Array, form: str = "auto") -> jax.Array:
        call = {name: variable[...] for name, variable in self.call.items()}
        return self.attention(x, form=form, **call)


def ours(size: Size, option: Option, mechanism: str) -> OurLayer:
    arguments = {"mechanism": mechanism} | option.layer(size.num_heads)
    rngs = nnx.Rngs(0, dropout=1)
    layer = nn.Attention(size.features, size.num_heads, is_causal=True, rngs=rngs, **arguments)
    layer.eval()
    return OurLayer(layer, option.call(size.shape[1]))


class FlaxLayer(nnx.Module):
    """``nnx.MultiHeadAttention`` under a causal mask, which stands for an option's mask, too."""

    def __init__(self, size: Size, option: Option) -> None:
        self.attention = nnx.MultiHeadAttention(
            num_heads=size.num_heads,
            in_features=size.features,
            decode=False,
            deterministic=True,
            rngs=nnx.Rngs(0, dropout=1),
            **(option.flax or {}),
        )
        causal = jnp.tri(size.shape[1], dtype=bool)[None, None]
        call = option.call(size.shape[1])
        self.mask = nnx.Variable(causal & call["pair_mask"] if call else causal)

    def __call__(self, x: jax.Array, form: str = "auto") -> jax.Array:
        return self.attention(x, mask=self.mask[...])


def table(rows: Rows, size: Size) -> str:
    names = [*OURS, FLAX]
    by_key = {(row["option"], row["pass"]): row for row in rows}
    heads = ["option", *(f"{name}, {which}" for which in PASSES for name in names)]
    lines = [
        [option, *(_cell(by_key[option, which], name) for which in PASSES for name in names)]
        for option in size.options
    ]
    return markdown(heads, lines)


def _cell(row: dict[str, Any], name: str) -> str:
    """Milliseconds, and the ratio to the plain layer with its quartiles over the rounds."""
    if name not in row["milliseconds"]:
        return "-"
    median = number(row["milliseconds"][name]["median"])
    low, middle, high = (f"{ratio:.2f}" for ratio in row["quartiles"][name])
    return f"{median} ms: {middle} ({low} to {high})"


EXPERIMENT = Measured(
    module="experiments.efficiency.layer_options",
    about="not measured in any of the papers",
    sizes={"cpu": Size()},
    measure=measure,
    table=table,
    left_out={"cpu": "an accelerator, and options that change no program: scales, biases, inits"},
)

if __name__ == "__main__":
    EXPERIMENT.main()
