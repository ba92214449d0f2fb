"""Recurrent inference with trained models."""

from flax_linattn.inference.bundle import export
from flax_linattn.inference.c_step import export_c
from flax_linattn.inference.capacity import has_overflowed
from flax_linattn.inference.events import EventModel, SampledEvents, sample_events
from flax_linattn.inference.generate import GenerateOutput, generate
from flax_linattn.inference.model import StreamingModel
from flax_linattn.inference.onnx_step import export_onnx
from flax_linattn.inference.prefill import prefill
from flax_linattn.inference.rollout import Rollout, rollout, unroll
from flax_linattn.inference.saved import StateFile, describe_state, load_state, save_state
from flax_linattn.inference.speculate import SpeculateOutput, speculate
from flax_linattn.inference.state import gather_rows, reset_rows, state_bytes
from flax_linattn.inference.stream import Stream
from flax_linattn.inference.summary import Summary, summarize
from flax_linattn.inference.token_stream import TokenStream, generate_tokens

__all__ = [
    "EventModel",
    "GenerateOutput",
    "Rollout",
    "SampledEvents",
    "SpeculateOutput",
    "StateFile",
    "Stream",
    "StreamingModel",
    "Summary",
    "TokenStream",
    "describe_state",
    "export",
    "export_c",
    "export_onnx",
    "gather_rows",
    "generate",
    "generate_tokens",
    "has_overflowed",
    "load_state",
    "prefill",
    "reset_rows",
    "rollout",
    "sample_events",
    "save_state",
    "speculate",
    "state_bytes",
    "summarize",
    "unroll",
]
