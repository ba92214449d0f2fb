"""Data sets of TaylorShift's table 3, at sizes that a CPU can train."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.options import task_config
from flax_linattn.tasks import Config

LISTOPS, IMDB, PIXELS, IMAGES = "ListOps", "IMDB bytes", "CIFAR-10 pixels", "Tiny-ImageNet"


@dataclasses.dataclass(frozen=True)
class DataSet:
    """A data set, its options and the paper's numbers.

    Attributes:
        task: what is trained on it.
        file: of the folder of real data; None for a synthetic set.
        options: of a run at the small size.
        paper: accuracy in percent by mechanism, of table 3.
        paper_conv: that of TaylorShift with three convolutions, of table 8, and with the linear
            layer there.
        sizes: the paper's and ours, as text.
    """

    task: str
    file: str | None
    options: Mapping[str, Any]
    paper: Mapping[str, float]
    paper_conv: tuple[float, float]
    sizes: str


RECIPE: dict[str, Any] = {
    # For all mechanisms: of LAMB with 5e-3, 1e-2, 2e-2 and AdamW with 1e-3, 3e-3 the one by which
    # TaylorShift learned most of ListOps and of pixels in so few steps; by LAMB it takes longer.
    "optimizer": "adamw",
    "learning_rate": 3e-3,
    "weight_decay": 1e-3,
    "label_smoothing": 0.0,
}
SMALL: dict[str, Any] = {
    "features": 64,
    "num_layers": 2,
    "num_heads": 4,
    "hidden_features": 128,
}

DATA_SETS: dict[str, DataSet] = {
    LISTOPS: DataSet(
        "sequence",
        None,
        {**SMALL, "min_length": 10, "max_length": 40, "batch_size": 32, "steps": 600,
         "epoch_size": 19_200, "validation_size": 1000, "test_size": 2500},
        {"performer": 35.4, "reformer": 47.6, "nystrom": 44.5, "eva": 45.3,
         "softmax": 46.0, "taylorshift": 46.1},
        (64.8, 45.6),
        "paper: 4 layers of 512, 500 to 2,000 tokens, 75,000 steps of 256; "
        "ours: 2 layers of 64, 10 to 40 tokens, 600 steps of 32",
    ),
    IMDB: DataSet(
        "sequence",
        "imdb/aclImdb_labeled.tar.xz",
        {**SMALL, "max_length": 128, "batch_size": 32, "steps": 600},
        {"linformer": 58.1, "rfa": 65.8, "performer": 65.6, "reformer": 63.9, "nystrom": 65.6,
         "eva": 64.0, "softmax": 65.8, "taylorshift": 66.2},
        (86.3, 66.0),
        "paper: 4 layers of 256, 4,000 bytes, 156,000 steps of 32; "
        "ours: 2 layers of 64, 128 bytes, 600 steps of 32",
    ),
    PIXELS: DataSet(
        "sequence",
        "cifar10/cifar10_jpeg.tar.xz",
        {**SMALL, "num_layers": 1, "image_size": 12, "batch_size": 32, "steps": 800},
        {"linformer": 29.2, "rfa": 44.9, "performer": 34.2, "reformer": 44.8, "nystrom": 49.4,
         "eva": 46.1, "softmax": 44.7, "taylorshift": 47.6},
        (51.1, 47.1),
        "paper: 1 layer of 256, 1,024 pixels, 39,000 steps of 256; ours: 1 layer of 64, 144 "
        "pixels of lossy images, 800 steps of 32",
    ),
    IMAGES: DataSet(
        "image",
        "tiny_imagenet_subset/tiny_imagenet_25classes.tar.xz",
        {**SMALL, "image_size": 32, "patch_size": 4, "batch_size": 32, "steps": 500,
         "augmentation": "light"},
        {"linformer": 64.3, "performer": 62.0, "reformer": 73.6, "nystrom": 75.0, "eva": 73.4,
         "softmax": 75.6, "taylorshift": 75.0},
        (77.1, 75.0),
        "paper: ImageNet-1k, 12 layers of 192, 224 x 224 in patches of 16, 188,000 steps of 2,048; "
        "ours: 25 classes, 2 layers of 64, 32 x 32 in patches of 4, 500 steps of 32",
    ),
}  # fmt: skip
"""By name."""


def make_config(name: str, folder: Path | None, **options: Any) -> Config | None:
    """The options of runs on a data set; None where its files are not available."""
    data_set = DATA_SETS[name]
    of_data: dict[str, Any] = {}
    if data_set.file is not None:
        if folder is None or not (folder / data_set.file).is_file():
            return None
        path = folder / data_set.file
        of_data = {"folder": path} if data_set.task == "image" else {"data": str(path)}
        of_data["validation_fraction"] = 0.02
    chosen = RECIPE | dict(data_set.options) | of_data | options
    steps = chosen["steps"]
    chosen = {"validate_every": steps // 2, "warmup": 0.1} | chosen
    return task_config(data_set.task, **chosen)
