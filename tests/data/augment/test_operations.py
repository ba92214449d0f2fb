"""RandAugment's operations against NumPy, and how they are drawn."""

import numpy as np
import pytest
from scipy import ndimage, stats

from flax_linattn.data.augment import operations
from flax_linattn.data.augment.pillow import to_pillow, to_pixels

pytest.importorskip("PIL")

FILL = 128


def picture(channels=3, seed=0):
    return np.random.default_rng(seed).integers(20, 220, (12, 16, channels), dtype=np.uint8)


def smooth(height=32, width=40):
    """Waves that any interpolation follows."""
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(x / 7 + y / 11), np.cos(y / 9), np.sin(x / 8 - y / 13)]
    return np.rint(128 + 90 * np.stack(waves, -1)).astype(np.uint8)


def done(name, pixels, magnitude, sign=1):
    return to_pixels(operations.OPERATIONS[name](to_pillow(pixels), magnitude, sign, FILL))


def grey(x):
    """ITU-R 601-2 luma, as Pillow rounds it."""
    return x[..., 0] if x.shape[-1] == 1 else np.floor(x @ [0.299, 0.587, 0.114] + 0.5)


def smoothed(x):
    """The mean of 3 x 3 pixels in which the middle one counts five times; borders stay."""
    kernel = np.ones((3, 3, 1))
    kernel[1, 1] = 5
    result = x.copy()
    result[1:-1, 1:-1] = ndimage.convolve(x, kernel / 13)[1:-1, 1:-1]
    return result


def blended(degenerate, x, magnitude, sign):
    factor = max(0.1, 1 + sign * 0.09 * magnitude)
    return np.clip(degenerate + factor * (x - degenerate), 0, 255)


EXPECTED = {
    "invert": lambda x, m, s: 255 - x,
    "posterize": lambda x, m, s: x - x % 2 ** (8 - max(4 - int(0.4 * m), 1)),
    "solarize": lambda x, m, s: np.where(x < 256 - int(25.6 * m), x, 255 - x),
    "solarize_add": lambda x, m, s: np.where(x < 128, np.minimum(x + int(11 * m), 255), x),
    "brightness": lambda x, m, s: blended(np.zeros_like(x), x, m, s),
    "contrast": lambda x, m, s: blended(np.floor(grey(x).mean() + 0.5) * np.ones_like(x), x, m, s),
    "color": lambda x, m, s: blended(grey(x)[..., None] * np.ones_like(x), x, m, s),
    "sharpness": lambda x, m, s: blended(smoothed(x), x, m, s),
    "autocontrast": lambda x, m, s: 255 * (x - x.min((0, 1))) / np.ptp(x, axis=(0, 1)),
}


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", EXPECTED)
def test_colours(name, channels):
    pixels = picture(channels)
    for magnitude in (0.0, 3.7, 8.8, 10.0):
        for sign in (-1, 1):
            told = done(name, pixels, magnitude, sign)
            expected = EXPECTED[name](pixels.astype(np.float64), magnitude, sign)
            assert told.dtype == np.uint8
            # Pillow rounds, or cuts off, once or twice.
            limit = 0 if name in ("invert", "posterize", "solarize", "solarize_add") else 2
            assert np.max(np.abs(told - expected)) <= limit


def test_equalize_makes_values_equally_many():
    """And keeps their order: the values of a ramp become those of their ranks."""
    ramp = np.repeat(np.arange(64, dtype=np.uint8), 85).reshape(64, 85, 1)
    told = done("equalize", ramp, 9.0)
    assert np.max(np.abs(told - 255 / 63 * ramp)) <= 1


INVERSES = {
    "shear_x": lambda m: np.array([[1, 0, 0], [0.03 * m, 1, 0]]),
    "shear_y": lambda m: np.array([[1, 0.03 * m, 0], [0, 1, 0]]),
    "translate_x": lambda m: np.array([[1, 0, 0], [0, 1, 0.045 * m * 40]]),
    "translate_y": lambda m: np.array([[1, 0, 0.045 * m * 32], [0, 1, 0]]),
}
"""Place (row, column, 1) of the result -> place in the picture, pixels by their corners."""


def turned(m):
    """About the middle, against the clock for a positive angle."""
    angle = np.deg2rad(3 * m)
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    middle = np.array([16.0, 20.0])
    return np.column_stack([turn, middle - turn @ middle])


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("name", [*INVERSES, "rotate"])
def test_places(name, sign):
    """Against SciPy's cubic splines, where both look inside of the picture."""
    pixels = smooth()
    told = done(name, pixels, 4.0, sign)
    matrix = INVERSES.get(name, turned)(4.0 * sign)
    turn, shift = matrix[:, :2], matrix[:, 2]
    offset = turn @ [0.5, 0.5] + shift - 0.5  # from corners to middles
    rows, columns = np.mgrid[:32, :40]
    y, x = np.tensordot(turn, [rows, columns], 1) + offset[:, None, None]
    inside = (y > 1) & (y < 30) & (x > 1) & (x < 38)
    for channel in range(3):
        expected = ndimage.affine_transform(
            pixels[..., channel].astype(np.float64), turn, offset, order=3
        )
        assert np.max(np.abs(told[..., channel] - expected)[inside]) < 3
    outside = (y < -1) | (y > 32) | (x < -1) | (x > 40)
    assert outside.any()
    assert np.all(told[outside] == FILL)


def test_a_magnitude_of_0_changes_no_place():
    pixels = picture()
    for name in ("rotate", *INVERSES):
        np.testing.assert_array_equal(done(name, pixels, 0.0), pixels)


def test_how_operations_are_drawn(monkeypatch):
    """Each as often, half of them carried out, either sign as often, magnitudes as timm's."""
    seen = []

    def recording(name):
        return lambda picture, magnitude, sign, fill: seen.append((name, magnitude, sign))

    for name in operations.NAMES:
        monkeypatch.setitem(operations.OPERATIONS, name, recording(name))
    assert len(operations.NAMES) == 15
    operations.rand_augment(
        None,
        np.random.default_rng(0),
        operations=6000,
        magnitude=9.0,
        deviation=0.5,
        fill=FILL,
    )
    assert stats.binomtest(len(seen), 6000).pvalue > 0.01
    names, magnitudes, signs = zip(*seen, strict=True)
    counts = [names.count(name) for name in operations.NAMES]
    assert stats.chisquare(counts).pvalue > 0.01
    assert stats.binomtest(signs.count(1), len(signs)).pvalue > 0.01
    below = [magnitude for magnitude in magnitudes if magnitude < 10]
    assert max(magnitudes) == 10
    clipped = stats.truncnorm(-18, 2, loc=9, scale=0.5)
    assert stats.kstest(below, clipped.cdf).pvalue > 0.01
    assert stats.binomtest(len(seen) - len(below), len(seen), stats.norm.sf(2)).pvalue > 0.01
