"""Sizes at which each experiment runs all of its programs on a CPU in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SMALL_SIZES: Mapping[str, Mapping[str, Any]] = {
    "checks": {"mechanisms": ("aaren",), "forms": ("chunked",), "dtypes": ("float32",)},
    "floor": {"copy_bytes": 1 << 16, "matrix": 32, "rounds": 3},
    "attention": {
        "mechanisms": ("aaren",),
        "lengths": (16,),
        "rounds": 1,
        "floor": {"copy_bytes": 1 << 16, "matrix": 32, "rounds": 1},
    },
    "streams": {
        "mechanisms": ("aaren", "softmax"),
        "rows": (1, 2),
        "num_layers": 1,
        "features": 16,
        "tokens": 4,
        "rounds": 1,
    },
    "errors": {"lengths": (16,), "heads": 1, "dim": 4, "mechanisms": ("aaren",)},
    "aaren_stream": {"num_layers": 1, "features": 16, "tokens": 128},
    "bert_training": {
        "num_layers": 1,
        "features": 16,
        "num_heads": 2,
        "lengths": (8,),
        "tokens": 16,
        "rounds": 1,
    },
    "elementwise_inference": {"num_layers": 1, "features": 16, "tokens": 96, "batches": (2,)},
    "elementwise_training": {
        "num_layers": 1,
        "features": 16,
        "lengths": (8,),
        "budget_gb": 1e-4,
        "timed_tokens": 16,
        "rounds": 1,
    },
    "flash_linear_attention": {"lengths": (16,), "rounds": 1, "repeats": 1},
    "gated": {
        "mechanisms": ("gated_delta",),
        "shapes": ((1, 8),),
        "num_heads": 2,
        "dim": 4,
        "rounds": 1,
        "steps": 3,
    },
    "long_sequence": {"num_layers": 1, "features": 16, "tokens": (64,), "devices": (1, 2)},
    "pytorch": {"lengths": (16,), "rounds": 1, "repeats": 1},
    "taylorshift_crossover": {"dims": (4,), "lengths": (8, 16), "rounds": 1},
    "taylorshift_heads": {"heads": (64,), "length": 8, "images": 1, "rounds": 1},
    "taylorshift_lengths": {"dims": (4,), "lengths": (8, 16), "rounds": 1},
    "taylorshift_sizes": {"dims": (4,), "lengths": (8, 16), "samples": 1},
    "taylorshift_training": {"model": "taylorshift-pixel", "length": 64, "rounds": 1},
    "taylorshift_transformer": {"model": "taylorshift-pixel", "lengths": (64,), "rounds": 1},
}
