"""What calibration sets in a model after training."""

from __future__ import annotations

from typing import Any

from flax import nnx


class Correction(nnx.Variable[Any]):
    """What calibration on held-out rows sets; training leaves it as it is."""
