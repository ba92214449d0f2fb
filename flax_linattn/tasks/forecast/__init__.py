"""Forecasting: the next values of a series, from a CSV of the user's own or the embedded ETTh1."""

from flax_linattn.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__)
