"""A training step of whole forecasters: this library, plain PyTorch and plain Flax.

    python -m experiments.efficiency.whole_forecasters

The encoder of Time-Series-Library's published forecaster, two post-norm layers of 512 features and
8 heads, and a linear layer from its last position to the horizon; Adam, dropout. Ours is that of
``flax-linattn train forecast`` without normalization. Its loss also covers one position of each
window only. See ``trials``.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from experiments.efficiency.training_steps import measure, table
from experiments.efficiency.trials import LearningTask, Size
from experiments.measured import Measured
from flax_linattn import data
from flax_linattn.tasks.forecast import ForecastSpec

CHANNELS, HORIZON = 7, 96


def make_batch(length: int, batch_size: int) -> dict[str, np.ndarray]:
    """A batch of windows, each with the rows that follow it."""
    values = np.random.default_rng(0).normal(size=(batch_size, length + HORIZON, CHANNELS))
    return {"values": values.astype(np.float32), "weight": np.ones(batch_size, np.float32)}


def make_data_spec(length: int) -> ForecastSpec:
    """The data spec of a series without times."""
    return ForecastSpec(
        dataset="random",
        channels=tuple(map(str, range(CHANNELS))),
        targets=tuple(range(CHANNELS)),
        freq=None,
        time_features=(),
        standardizer=data.Standardizer.fit([np.eye(CHANNELS)]),
        split=((0, length + HORIZON),),
        checksum="",
    )


def task_options(length: int) -> dict[str, Any]:
    """Options of the published script, plus what makes ours the plain encoder."""
    published = {"context_length": length, "horizon": HORIZON, "learning_rate": 1e-4}
    return published | {"schedule": "constant", "normalize": False, "positions": 1}


FORECASTER = LearningTask(
    task="forecast",
    options=task_options,
    data_spec=make_data_spec,
    batch=make_batch,
    head="Forecaster",
    outputs=HORIZON,
    num_channels=CHANNELS,
    num_logits=HORIZON * CHANNELS,
    read=lambda h: h[:, -1],
    torch_optimizer="Adam",
)

EXPERIMENT = Measured(
    module="experiments.efficiency.whole_forecasters",
    extras="plots,peers",
    about="not a table of any of the papers",
    sizes={"cpu": Size(lengths=((96, 32),), features=512, hidden=2048, num_layers=2)},
    measure=partial(measure, FORECASTER),
    table=table,
    left_out={
        "cpu": "the published model's decoder, which attends to the encoder, and its calendar "
        "features; torch.compile; PyTorch's memory, which it does not report on a CPU; dropout "
        "on attention's weights, which a fused attention does not form; validation"
    },
)

if __name__ == "__main__":
    EXPERIMENT.main()
