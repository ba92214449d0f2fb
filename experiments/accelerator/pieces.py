"""The experiments that run on an accelerator, in this order."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax

from experiments.accelerator import checks
from experiments.accelerator.small_sizes import SMALL_SIZES
from experiments.measured import Measured, Rows

PAPER, SMALL = "paper", "smallest"
OWN_MEMORY = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
"""Leaves PyTorch, in the same process, the memory that jax does not use."""


@dataclasses.dataclass(frozen=True)
class Piece:
    """An experiment to run on an accelerator.

    Attributes:
        module: that of its ``EXPERIMENT``.
        environment: variables of its process.
        failures: of its rows, a sentence for each; for pieces that check.
    """

    module: str
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    failures: Callable[[Rows], list[str]] = lambda rows: []

    @property
    def name(self) -> str:
        """The name of its result files."""
        return self.module.rpartition(".")[2]

    def stored(self, folder: Path, scale: str) -> Path:
        """The file of its results."""
        return folder / f"{self.name}-{scale}.json"

    def experiment(self, scale: str) -> Measured:
        """The experiment at one scale: the paper's, or the smallest."""
        made: Measured = importlib.import_module(self.module).EXPERIMENT
        usual = PAPER if PAPER in made.sizes else next(iter(made.sizes))
        size = made.sizes["cpu" if scale == SMALL and "cpu" in made.sizes else usual]
        left_out = made.left_out[usual]
        if scale == SMALL:
            size = dataclasses.replace(size, **SMALL_SIZES[self.name])
            left_out = "nearly all: it shows that all programs run"
        sizes = {scale: _limit_devices(size)}
        return dataclasses.replace(made, sizes=sizes, left_out={scale: left_out})


def _limit_devices(size: Any) -> Any:
    """Limits the numbers of devices to those available on the machine."""
    if not hasattr(size, "devices"):
        return size
    devices = tuple(n for n in size.devices if n <= jax.device_count())
    return dataclasses.replace(size, devices=devices)


PIECES = (
    Piece("experiments.accelerator.checks", failures=checks.failures),
    Piece("experiments.accuracy.errors"),
    Piece("experiments.accelerator.floor"),
    Piece("experiments.accelerator.attention"),
    Piece("experiments.efficiency.flash_linear_attention", OWN_MEMORY),
    Piece("experiments.efficiency.pytorch", OWN_MEMORY),
    Piece("experiments.efficiency.gated"),
    Piece("experiments.efficiency.bert_training"),
    Piece("experiments.efficiency.taylorshift_crossover"),
    Piece("experiments.efficiency.taylorshift_lengths"),
    Piece("experiments.efficiency.taylorshift_transformer"),
    Piece("experiments.efficiency.taylorshift_training"),
    Piece("experiments.efficiency.taylorshift_heads"),
    Piece("experiments.efficiency.taylorshift_sizes"),
    Piece("experiments.efficiency.elementwise_training"),
    Piece("experiments.efficiency.elementwise_inference"),
    Piece("experiments.efficiency.aaren_stream"),
    Piece("experiments.efficiency.long_sequence"),
    Piece("experiments.accelerator.streams"),
)


def piece(name: str) -> Piece:
    """The piece with this name.

    Raises:
        ValueError: there is none.
    """
    match = next((one for one in PIECES if one.name == name), None)
    if match is None:
        names = ", ".join(one.name for one in PIECES)
        raise ValueError(f"no piece is called {name!r}; they are: {names}.")
    return match
