"""A training step of whole classifiers: this library, plain PyTorch and plain Flax.

    python -m experiments.efficiency.whole_models

The model is Time-Series-Library's published classifier: three post-norm layers of 128 features and
8 heads, RAdam on clipped gradients, dropout. Ours is that of ``flax-linattn train classify --preset
tslib``. See ``trials``.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from experiments.efficiency.training_steps import measure, table
from experiments.efficiency.trials import LearningTask, Size
from experiments.measured import Measured
from flax_linattn import data
from flax_linattn.tasks.classify import ClassifySpec

CHANNELS, CLASSES = 3, 10


def make_batch(length: int, batch_size: int) -> dict[str, np.ndarray]:
    """A batch of a data set of equal lengths."""
    rng = np.random.default_rng(0)
    return {
        "values": rng.normal(size=(batch_size, length, CHANNELS)).astype(np.float32),
        "mask": np.ones((batch_size, length), bool),
        "labels": rng.integers(0, CLASSES, batch_size).astype(np.int32),
    }


def make_data_spec(length: int) -> ClassifySpec:
    """The data spec of a data set of equal lengths."""
    channels, classes = (tuple(map(str, range(n))) for n in (CHANNELS, CLASSES))
    standardizer = data.Standardizer.fit([np.eye(CHANNELS)])
    return ClassifySpec("random", channels, classes, (length,), standardizer, {})


CLASSIFIER = LearningTask(
    task="classify",
    options=lambda length: {"preset": "tslib", "schedule": "constant"},
    data_spec=make_data_spec,
    batch=make_batch,
    head="Classifier",
    outputs=CLASSES,
    num_channels=CHANNELS,
    num_logits=CLASSES,
    read=lambda h: h.reshape(len(h), -1),
    torch_optimizer="RAdam",
)

EXPERIMENT = Measured(
    module="experiments.efficiency.whole_models",
    extras="plots,peers",
    about="not a table of any of the papers",
    sizes={
        "cpu": Size(
            lengths=((152, 16), (1000, 16), (4000, 4), (16_000, 1)),
            features=128,
            hidden=256,
            num_layers=3,
        )
    },
    measure=partial(measure, CLASSIFIER),
    table=table,
    left_out={
        "cpu": "torch.compile; PyTorch's memory, which it does not report on a CPU; dropout on "
        "attention's weights, which a fused attention does not form; validation"
    },
)

if __name__ == "__main__":
    EXPERIMENT.main()
