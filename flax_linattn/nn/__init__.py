"""Flax NNX modules around the mechanisms: attention, blocks, embeddings, positions and norms."""

from flax_linattn.nn.attention import Attention, Context
from flax_linattn.nn.block import TransformerBlock
from flax_linattn.nn.call import Call
from flax_linattn.nn.cell import AttentionCell
from flax_linattn.nn.conv_embedding import ConvEmbedding
from flax_linattn.nn.decoder import DecoderBlock, DecoderState
from flax_linattn.nn.drop_path import apply_drop_path
from flax_linattn.nn.embedding import ValueEmbedding
from flax_linattn.nn.feed_forward import FeedForward
from flax_linattn.nn.flax_attention import (
    AttentionFunction,
    attention_from_flax,
    attention_function,
    attention_to_flax,
)
from flax_linattn.nn.latent_attention import LatentAttention
from flax_linattn.nn.layer_scale import LayerScale
from flax_linattn.nn.linear import ParameterOptions, PositionLinear, UniformFanIn, linear
from flax_linattn.nn.norm import LayerNorm, RMSNorm, make_norm
from flax_linattn.nn.patches import PatchEmbedding
from flax_linattn.nn.position import (
    LearnedPosition,
    QueryKeyPosition,
    RotaryPosition,
    RotaryScaling,
    SinusoidalPosition,
    sinusoid,
    token_positions,
)
from flax_linattn.nn.position_bias import AlibiBias, PositionBias, RelativeBias
from flax_linattn.nn.projected import ProjectedAttention, resolve_mechanism
from flax_linattn.nn.sequence_norm import SequenceNorm
from flax_linattn.nn.short_convolution import ShortConvState

__all__ = [
    "AlibiBias",
    "Attention",
    "AttentionCell",
    "AttentionFunction",
    "Call",
    "Context",
    "ConvEmbedding",
    "DecoderBlock",
    "DecoderState",
    "FeedForward",
    "LatentAttention",
    "LayerNorm",
    "LayerScale",
    "LearnedPosition",
    "ParameterOptions",
    "PatchEmbedding",
    "PositionBias",
    "PositionLinear",
    "ProjectedAttention",
    "QueryKeyPosition",
    "RMSNorm",
    "RelativeBias",
    "RotaryPosition",
    "RotaryScaling",
    "SequenceNorm",
    "ShortConvState",
    "SinusoidalPosition",
    "TransformerBlock",
    "UniformFanIn",
    "ValueEmbedding",
    "apply_drop_path",
    "attention_from_flax",
    "attention_function",
    "attention_to_flax",
    "linear",
    "make_norm",
    "resolve_mechanism",
    "sinusoid",
    "token_positions",
]
