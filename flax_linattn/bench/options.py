"""Options of benchmarks."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import ClassVar

from flax_linattn.checks import OptionError, check_integers


@dataclasses.dataclass(frozen=True)
class BenchOptions:
    """Options of a benchmark: comparisons, repeats and output.

    Attributes:
        output: Folder for ratios.json, ratios.md, time.png and memory.png.
        only: Measure only comparisons whose name contains this text.
        rounds: Number of times that each program runs in a repeat.
        repeats: Number of times that the whole suite is measured.
        seconds: Time limit of a comparison in seconds, after at least three rounds.
        lengths: Sequence lengths. Default: the lengths of each comparison.
        curves: Also measure over many lengths, and draw figures (needs matplotlib).
        curve_lengths: Sequence lengths of the figures.
        against: Earlier ratios.json to compare with; the exit status is 1 if a ratio fell.
        factor: Factor by which a ratio may fall below that of ``against``; 1.5 is the noise of a
            shared machine.
        progress: Print a line for each comparison on standard error.

    Example:
        >>> BenchOptions(only="aaren", rounds=3).repeats
        3
    """

    main_options: ClassVar[tuple[str, ...]] = ("output", "only", "repeats", "curves", "against")
    output: Path = Path("runs/bench")
    only: str = ""
    rounds: int = 7
    repeats: int = 3
    seconds: float = 5.0
    lengths: tuple[int, ...] = ()
    curves: bool = True
    curve_lengths: tuple[int, ...] = (256, 1024, 4096, 16384)
    against: Path | None = None
    factor: float = 1.5
    progress: bool = True

    @property
    def results(self) -> Path:
        """The file of the results."""
        return self.output / "ratios.json"

    def check(self) -> None:
        """Checks that numbers are in range, and that the output does not overwrite ``against``."""
        check_integers(1, rounds=self.rounds, repeats=self.repeats)
        for name in ("lengths", "curve_lengths"):
            if min(getattr(self, name), default=1) < 1:
                raise OptionError(f"{name} must be at least 1, got {getattr(self, name)}.", name)
        if self.factor <= 1:
            message = f"factor must be greater than 1, got {self.factor}."
            raise OptionError(message, "factor")
        if self.against is not None and self.against.resolve() == self.results.resolve():
            message = f"{self.against} would be overwritten; choose another output folder."
            raise OptionError(message, "output")
