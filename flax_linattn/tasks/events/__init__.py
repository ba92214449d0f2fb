"""Events at irregular times: forecasts of the time and type of the next event."""

from flax_linattn.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__)
