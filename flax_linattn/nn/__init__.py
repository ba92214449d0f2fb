"""Flax NNX modules around the mechanisms: attention, block, embedding, position."""

from flax_linattn.nn.attention import Attention, Context, resolve_mechanism
from flax_linattn.nn.block import TransformerBlock
from flax_linattn.nn.cell import AttentionCell
from flax_linattn.nn.decoder import DecoderBlock, DecoderState
from flax_linattn.nn.embedding import ValueEmbedding
from flax_linattn.nn.feed_forward import FeedForward
from flax_linattn.nn.linear import ParameterOptions, PositionLinear, UniformFanIn, linear
from flax_linattn.nn.norm import LayerNorm
from flax_linattn.nn.position import (
    LearnedPosition,
    QueryKeyPosition,
    RotaryPosition,
    SinusoidalPosition,
    sinusoid,
    token_positions,
)

__all__ = [
    "Attention",
    "AttentionCell",
    "Context",
    "DecoderBlock",
    "DecoderState",
    "FeedForward",
    "LayerNorm",
    "LearnedPosition",
    "ParameterOptions",
    "PositionLinear",
    "QueryKeyPosition",
    "RotaryPosition",
    "SinusoidalPosition",
    "TransformerBlock",
    "UniformFanIn",
    "ValueEmbedding",
    "linear",
    "resolve_mechanism",
    "sinusoid",
    "token_positions",
]
