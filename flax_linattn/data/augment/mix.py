"""Mixtures of two examples: mixup and CutMix."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import OptionError

Box = tuple[slice, slice]


@dataclass(frozen=True)
class Mix:
    """Mixes each picture of a batch with another one, in one of two ways for the whole batch.

    Mixup adds them, with shares drawn from a beta distribution; CutMix puts a rectangle of the
    other one into the picture, its area drawn likewise. A target has the shares of the two
    pictures: of CutMix those of the pixels, after the rectangle was cut off at the border.

    Source: H. Zhang et al., "mixup" (2018); S. Yun et al., "CutMix" (2019); the defaults are
    DeiT's, in timm's form.

    Attributes:
        mixup: alpha of mixup's beta distribution; 0 leaves mixup out.
        cutmix: alpha of CutMix's; 0 leaves it out.
        switch: Probability of CutMix, where there are both.
        probability: That a batch is mixed.

    Raises:
        OptionError: A value is out of range, or both are left out.

    Example:
        >>> share, box = Mix(mixup=0.0).draw(np.random.default_rng(0), 32, 32)
        >>> share, box
        (0.9658203125, (slice(0, 7, None), slice(0, 5, None)))
    """

    mixup: float = 0.8
    cutmix: float = 1.0
    switch: float = 0.5
    probability: float = 1.0

    def __post_init__(self) -> None:
        for name, alpha in (("mixup", self.mixup), ("cutmix", self.cutmix)):
            if not 0 <= alpha < math.inf:
                raise OptionError(f"{name} must be at least 0, got {alpha}.", name)
        for name, value in (("switch", self.switch), ("probability", self.probability)):
            if not 0 <= value <= 1:
                raise OptionError(f"{name} must be from 0 to 1, got {value}.", name)
        if not self.mixup and not self.cutmix:
            raise OptionError(
                "mixup and cutmix are both 0, which mixes nothing; give mix=None.",
                "mixup",
                "cutmix",
            )

    def draw(self, rng: np.random.Generator, height: int, width: int) -> tuple[float, Box | None]:
        """Draws how a batch is mixed.

        Args:
            rng: The source of chance.
            height: Of a picture, pixels.
            width: Likewise.

        Returns:
            The share that a picture keeps, and the rows and columns of the rectangle that it does
            not; no rectangle with mixup, and where nothing is mixed.
        """
        if rng.random() >= self.probability:
            return 1.0, None
        cuts = bool(self.cutmix) and (not self.mixup or rng.random() < self.switch)
        alpha = self.cutmix if cuts else self.mixup
        share = float(rng.beta(alpha, alpha))
        if not cuts:
            return share, None
        side = math.sqrt(1 - share)
        box = _span(rng, height, int(height * side)), _span(rng, width, int(width * side))
        lost = math.prod(part.stop - part.start for part in box)
        return 1 - lost / (height * width), box

    @staticmethod
    def pictures(
        images: NDArray[np.float32], others: NDArray[np.float32], share: float, box: Box | None
    ) -> NDArray[np.float32]:
        """Mixes pictures float32 [B, H, W, C] as ``draw`` says."""
        if box is None:
            return np.float32(share) * images + np.float32(1 - share) * others
        mixed = images.copy()
        mixed[:, box[0], box[1]] = others[:, box[0], box[1]]
        return mixed


def _span(rng: np.random.Generator, length: int, part: int) -> slice:
    """Around a point drawn at random, cut off at both ends."""
    middle = int(rng.integers(length))
    return slice(max(middle - part // 2, 0), min(middle + part // 2, length))
