"""Pathfinder: does a dashed curve join the two dots?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flax_linattn.checks import OptionError, check_integers

Points = NDArray[np.float64]
"""Points float64 [..., 2] in pixels from the upper left corner: x to the right, y down."""

# The unit of length is a dash, 2 pixels of 32, as in Long Range Arena's smallest images.
_SIDE = 16.0  # of a picture
_GAP = 0.75  # between two dashes of a curve
_APART = 1.25  # of curves from one another and from themselves, about
_HALF_WIDTH = 0.25  # of a dash
_DOT = 0.75  # radius
_DOTS_APART = 3.0  # middles of the dots, at least
_WALL = 1.0  # curves to the border, at least, so that dots are whole
_GRAY = 0.75  # of curves; dots are white

_AHEAD = 2.0  # of its next dash that a curve looks, before it tries another turn
_TURNS = 16  # that a curve tries for its next dash
_PLACES = 16  # that are tried for the beginning of a curve
_SECONDS = 4  # second curves that are tried for a first one
_SHORT_DASHES = 20  # of all short curves, at most
_ROUNDS = 200  # of sampling pictures again where a long curve has no room
_AT_ONCE = 512  # pictures

_CELLS = 4  # a length, of the map of what is taken
_MARGIN = 6  # cells around the map, so that marks need no look at its border


@dataclass(frozen=True)
class Pathfinder:
    """Gray images of two long dashed curves, short distractors and two dots at curve ends.

    The label is 1 if the dots are at both ends of one curve, and 0 if they are on different curves.
    Curves wind at random, and neither cross nor touch each other. The label is sampled after the
    curves: one dot is at one end of the first curve, A; the other dot is at A's other end, or at an
    end of the second curve, B. B begins at the mirror image of A's other end, reflected in the line
    through the first dot and the center of the image. So neither the distance between the dots nor
    their distances from the center reveal the label.

    Source: D. Linsley et al., "Learning long-range spatial dependencies with horizontal gated
    recurrent units" (2018); Y. Tay et al., "Long Range Arena" (2021), whose Pathfinder has 6, 9
    and 14 dashes (easy, intermediate, hard) and sides of 32, 64, 128 and 256 pixels. Departures: at
    every size, lengths, turns of curves and the number of distractors are close to the values of
    32-pixel images; gaps between dashes are slightly shorter; the second curve of the original
    begins near the start of the first one, at a fixed distance.

    Attributes:
        size: Height and width of an image in pixels.
        contour_length: Number of dashes of each of the two long curves. A distractor has a third,
            and all distractors have up to 20 dashes, fewer if there is no room.

    Raises:
        OptionError: If a number is out of range.

    Example:
        >>> batch = Pathfinder(size=32).sample(np.random.default_rng(0), 4)
        >>> batch["tokens"].shape, int(batch["tokens"].max()), batch["mask"].all()
        ((4, 1024), 255, np.True_)
        >>> sorted(batch["labels"].tolist())
        [0, 0, 1, 1]
    """

    size: int = 32
    contour_length: int = 14

    def __post_init__(self) -> None:
        check_integers(32, 1024, size=self.size)
        check_integers(3, 16, contour_length=self.contour_length)

    num_tokens = 256
    """Number of different tokens: gray values."""

    def sample(self, rng: np.random.Generator, rows: int) -> dict[str, NDArray]:
        """Generates images with balanced labels, up to one image.

        Returns:
            "tokens", int32 ``[rows, size * size]``, gray values from 0, the background, to 255, row
            by row; "mask", bool ``[rows, size * size]``, all True; "labels", int32 ``[rows]``.
        """
        dashes, firsts, others = self._curves(rng, rows)
        labels = rng.permutation((np.arange(rows) + rng.integers(2)) % 2)
        seconds = others[np.arange(rows), 1 - labels]
        dots = np.stack([firsts, seconds], axis=1)
        pictures = self._painted(dashes, dots)
        return {
            "tokens": pictures.reshape(rows, -1).astype(np.int32),
            "mask": np.ones((rows, self.size**2), bool),
            "labels": labels.astype(np.int32),
        }

    def _curves(self, rng: np.random.Generator, rows: int) -> tuple[Points, Points, Points]:
        """Dashes [rows, N, 2, 2], padded by NaN; A's first end [rows, 2]; the other ends.

        The other ends [rows, 2, 2] are A's second end and the end of B at the same distance from
        A's first end.
        """
        done: list[tuple[Points, Points, Points]] = []
        missing = rows
        for _ in range(_ROUNDS):
            if missing <= 0:
                break
            done.append(self._attempt(rng, min(2 * missing + 8, _AT_ONCE)))
            missing -= len(done[-1][0])
        else:
            raise OptionError(
                f"two curves of {self.contour_length} dashes do not fit into the image; "
                "lower contour_length.",
                "contour_length",
            )
        dashes, firsts, others = (np.concatenate(part)[:rows] for part in zip(*done, strict=True))
        return dashes, firsts, others

    def _attempt(self, rng: np.random.Generator, rows: int) -> tuple[Points, Points, Points]:
        """Returns ``_curves`` of the sampled images that have room for both long curves."""
        sheet = _Sheet(rng, rows)
        first = rng.uniform(_WALL, _SIDE - _WALL, size=(rows, 2))
        a, is_whole = sheet.grow(first, self.contour_length)
        third = _mirrored(a[:, -1, 1], first)
        is_whole &= np.linalg.norm(a[:, -1, 1] - first, axis=1) >= _DOTS_APART
        is_whole &= sheet.are_free(third[:, None, None])[:, 0]
        # Several second curves are tried for each first one, of which one that is whole stays.
        chosen = np.repeat(np.flatnonzero(is_whole), _SECONDS)
        sheet.keep(chosen)
        first, third, a = first[chosen], third[chosen], a[chosen]
        b, is_whole = sheet.grow(third, self.contour_length)
        tried = is_whole.reshape(-1, _SECONDS)
        groups = np.flatnonzero(tried.any(1))
        chosen = groups * _SECONDS + tried[groups].argmax(1)
        sheet.keep(chosen)
        first, third, a, b = first[chosen], third[chosen], a[chosen], b[chosen]
        curves = [a, b]
        short = self.contour_length // 3
        for _ in range(_SHORT_DASHES // short):
            places = rng.uniform(_WALL, _SIDE - _WALL, size=(len(first), _PLACES, 2))
            place, is_free = sheet.first_free(places)
            curve, is_whole = sheet.grow(place, short)
            curves.append(np.where((is_free & is_whole)[:, None, None, None], curve, np.nan))
        return np.concatenate(curves, axis=1), first, np.stack([a[:, -1, 1], third], axis=1)

    def _painted(self, dashes: Points, dots: Points) -> NDArray[np.uint8]:
        """Renders images uint8 [rows, S, S] of dashes [rows, N, 2, 2] and dots [rows, 2, 2]."""
        scale = self.size / _SIDE
        picture = np.zeros((len(dashes), self.size, self.size), np.float32)
        row, number = np.nonzero(np.isfinite(dashes[:, :, 0, 0]))
        lines = (dashes[row, number] * scale).astype(np.float32)
        _paint(picture, row, lines, _HALF_WIDTH * scale, 255 * _GRAY)
        row = np.repeat(np.arange(len(dots)), 2)
        points = (dots.reshape(-1, 1, 2) * scale).astype(np.float32)
        _paint(picture, row, np.repeat(points, 2, axis=1), _DOT * scale, 255.0)
        return np.rint(picture).astype(np.uint8)


class _Sheet:
    """Occupancy maps of many images at once, on which curves grow."""

    def __init__(self, rng: np.random.Generator, rows: int) -> None:
        self._rng = rng
        cells = int(_SIDE * _CELLS) + 2 * _MARGIN
        self._taken = np.zeros((rows, cells, cells), bool)
        reach = np.arange(-_MARGIN, _MARGIN + 1)
        across, down = np.meshgrid(reach, reach)
        near = np.hypot(across, down) <= _APART * _CELLS
        self._disc = down[near] * cells + across[near]

    def keep(self, chosen: NDArray[np.int64]) -> None:
        """Selects images by index; an image may be selected several times."""
        self._taken = self._taken[chosen]

    def first_free(self, points: Points) -> tuple[Points, NDArray[np.bool_]]:
        """Returns the first free point [rows, 2] of [rows, tries, 2], and whether there is one."""
        free = self.are_free(points[:, :, None])
        is_any = np.asarray(free.any(1))
        return points[np.arange(len(points)), free.argmax(1)], is_any

    def grow(self, begin: Points, count: int) -> tuple[Points, NDArray[np.bool_]]:
        """Grows curves of dashes [rows, count, 2, 2] from starts [rows, 2], and checks for room.

        The turning angle has the density cos(angle)**2 from -90 to 90 degrees; several angles are
        sampled, and the first free one is taken.
        """
        every = np.arange(len(begin))
        heading = self._rng.uniform(-np.pi, np.pi, size=len(begin))
        dashes = np.zeros((len(begin), count, 2, 2))
        is_whole = np.ones(len(begin), bool)
        for number in range(count):
            tries = len(begin), _TURNS
            if number == 0:
                ways = self._rng.uniform(-np.pi, np.pi, size=tries)
                starts = np.broadcast_to(begin[:, None], (*tries, 2))
            else:
                ways = heading[:, None] + np.interp(self._rng.random(tries), _SHARES, _ANGLES)
                old, new = _direction(heading)[:, None], _direction(ways)
                starts = dashes[:, number - 1, 1][:, None] + _GAP / 2 * (old + new)
            ends = starts + _direction(ways)
            free = self.are_free(np.stack([starts, (starts + ends) / 2, ends], axis=2))
            ahead = ends + _AHEAD * _direction(ways)
            leads_on = free & self.are_free(ahead[:, :, None])
            way = (free.astype(int) + leads_on).argmax(1)
            is_whole &= free.any(1)
            heading = ways[every, way]
            dashes[:, number] = np.stack([starts[every, way], ends[every, way]], axis=1)
            if number:  # the newest dash is nearer to the one before it than curves may be
                self._take(dashes[:, number - 1])
        self._take(dashes[:, -1])
        return dashes, is_whole

    def are_free(self, points: Points) -> NDArray[np.bool_]:
        """Whether all points of each try are free: [rows, tries, points, 2] -> [rows, tries]."""
        inside = np.all((points >= _WALL) & (points <= _SIDE - _WALL), axis=(2, 3))
        return inside & ~np.any(self._taken.reshape(-1)[self._cells(points)], axis=2)

    def _take(self, dashes: Points) -> None:
        """Marks the surroundings of dashes [rows, 2, 2] as occupied."""
        points = np.stack([dashes[:, 0], dashes.mean(1), dashes[:, 1]], axis=1)
        self._taken.reshape(-1)[self._cells(points)[..., None] + self._disc] = True

    def _cells(self, points: Points) -> NDArray[np.int64]:
        """Flat indices of points [rows, ..., 2] in the concatenated maps."""
        rows, side = self._taken.shape[:2]
        cells = (np.clip(points, 0, _SIDE - 1e-9) * _CELLS).astype(np.int64) + _MARGIN
        row = np.arange(rows).reshape(-1, *(1,) * (points.ndim - 2))
        return (row * side + cells[..., 1]) * side + cells[..., 0]


_ANGLES = np.linspace(-np.pi / 2, np.pi / 2, 181)
_SHARES = 0.5 + _ANGLES / np.pi + np.sin(2 * _ANGLES) / (2 * np.pi)
"""Cumulative distribution of the density cos(angle)**2."""


def _direction(angle: NDArray[np.float64]) -> Points:
    return np.stack([np.cos(angle), np.sin(angle)], axis=-1)


def _mirrored(points: Points, others: Points) -> Points:
    """Reflects points [rows, 2] in the line through the center and the other point."""
    middle = _SIDE / 2
    axis = others - middle
    axis /= np.linalg.norm(axis, axis=1, keepdims=True)
    off = points - middle
    return middle + 2 * np.sum(off * axis, axis=1, keepdims=True) * axis - off


def _paint(
    picture: NDArray[np.float32],
    row: NDArray[np.int64],
    lines: NDArray[np.float32],
    half_width: float,
    gray: float,
) -> None:
    """Paints lines [N, 2, 2], in pixels, into images [rows, S, S]; the brighter value wins."""
    size = picture.shape[1]
    begin, along = lines[:, 0], lines[:, 1] - lines[:, 0]
    corner = np.floor(lines.min(1) - half_width - 1).astype(np.int64)
    reach = int((np.ceil(lines.max(1) + half_width + 1) - corner).max())
    steps = np.arange(reach)
    x, y = corner[:, 0, None] + steps, corner[:, 1, None] + steps
    dx, dy = (
        (middle + 0.5 - start).astype(np.float32)
        for middle, start in ((x, begin[:, 0, None]), (y, begin[:, 1, None]))
    )
    length = np.maximum(np.sum(along**2, axis=1), 1e-12)
    fraction = (dx * along[:, 0, None])[:, None] + (dy * along[:, 1, None])[:, :, None]
    fraction = np.clip(fraction / length[:, None, None], 0, 1)
    distance = np.hypot(
        dx[:, None] - fraction * along[:, 0, None, None],
        dy[:, :, None] - fraction * along[:, 1, None, None],
    )
    value = gray * np.clip(half_width + 0.5 - distance, 0, 1)
    inside = ((y >= 0) & (y < size))[:, :, None] & ((x >= 0) & (x < size))[:, None]
    place = (row[:, None, None] * size + y[:, :, None]) * size + x[:, None]
    chosen = inside & (value > 0)
    np.maximum.at(picture.reshape(-1), place[chosen], value[chosen].astype(np.float32))
