"""Flax NNX modules around the mechanisms: attention, block, embedding, position."""

from flax_linattn.nn.attention import Attention, resolve_mechanism
from flax_linattn.nn.block import FeedForward, TransformerBlock
from flax_linattn.nn.cell import AttentionCell
from flax_linattn.nn.decoder import DecoderBlock
from flax_linattn.nn.embedding import ValueEmbedding
from flax_linattn.nn.linear import UniformFanIn, linear
from flax_linattn.nn.position import (
    LearnedPosition,
    SinusoidalPosition,
    sinusoid,
    token_positions,
)

__all__ = [
    "Attention",
    "AttentionCell",
    "DecoderBlock",
    "FeedForward",
    "LearnedPosition",
    "SinusoidalPosition",
    "TransformerBlock",
    "UniformFanIn",
    "ValueEmbedding",
    "linear",
    "resolve_mechanism",
    "sinusoid",
    "token_positions",
]
