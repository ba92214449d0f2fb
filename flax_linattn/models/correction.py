"""Variable that calibration on held-out data sets after training."""

from __future__ import annotations

from typing import Any

from flax import nnx


class Correction(nnx.Variable[Any]):
    """Variable that calibration on held-out rows sets; training leaves it unchanged."""
