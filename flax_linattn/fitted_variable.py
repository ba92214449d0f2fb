"""Variable that is fitted directly after training, in closed form or on held-out data."""

from __future__ import annotations

from typing import Any

from flax import nnx


class FittedVariable(nnx.Variable[Any]):
    """Variable that is fitted directly after training; gradients leave it unchanged.

    Examples are linear maps by ridge regression, and weights, temperatures and corrections of
    quantiles that are chosen on held-out data. Runs save them apart from their checkpoints, and a
    run that continues another one fits them to its own data.
    """
