"""Recurrent inference with trained models."""

from flax_linattn.inference.prefill import prefill
from flax_linattn.inference.rollout import Rollout, rollout, unroll
from flax_linattn.inference.state import gather_rows, reset_rows, state_bytes
from flax_linattn.inference.stream import Stream

__all__ = [
    "Rollout",
    "Stream",
    "gather_rows",
    "prefill",
    "reset_rows",
    "rollout",
    "state_bytes",
    "unroll",
]
