"""Recurrent inference with trained models."""

from flax_linattn.inference.stream import Stream, state_bytes, unroll

__all__ = ["Stream", "state_bytes", "unroll"]
