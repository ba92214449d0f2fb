"""How a suite of comparisons is measured."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from flax_linattn.bench.ratios import check_factor
from flax_linattn.checks import OptionError, at_least


@dataclasses.dataclass(frozen=True)
class BenchOptions:
    """How a suite of comparisons is measured, and where its results go.

    Attributes:
        output: folder of ratios.json, ratios.md, time.png and memory.png.
        only: comparisons whose name contains this.
        rounds: how often each program is timed in a repeat.
        repeats: how often everything is timed.
        seconds: no further round of a comparison begins after so long, once there are three.
        lengths: tokens instead of those of each comparison.
        curves: also measure over many lengths, once, and draw the figures (needs matplotlib).
        curve_lengths: their lengths.
        against: an earlier ratios.json; the exit status is 1 if a ratio fell.
        factor: by how much a ratio may fall; 1.5 is the noise of a shared machine.
        progress: print a line for each comparison on standard error.

    Example:
        >>> BenchOptions(only="aaren", rounds=3).repeats
        3
    """

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
        """Refuses what cannot be measured.

        Raises:
            OptionError: a number is out of range, or ``against`` would be overwritten.
        """
        at_least(1, rounds=self.rounds, repeats=self.repeats)
        for name in ("lengths", "curve_lengths"):
            if min(getattr(self, name), default=1) < 1:
                raise OptionError(f"{name} must be at least 1, got {getattr(self, name)}.", name)
        check_factor(self.factor)
        if self.against is not None and self.against.resolve() == self.results.resolve():
            message = f"{self.against} would be overwritten; give another folder for the output."
            raise OptionError(message, "output")
