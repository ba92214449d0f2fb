"""What may stand for a missing value, and what lies far; and what is left unsaid."""

import numpy as np
import pytest

from flax_linattn import data
from flax_linattn.data.series.outliers import find_codes, find_far

DRAW = np.random.default_rng(0)


def with_code(column, code, share=0.09):
    rows = np.sort(DRAW.choice(len(column), int(share * len(column)), replace=False))
    column = np.array(column, np.float64)
    column[rows] = code
    return column, rows


LOAD = 50 + 20 * np.sin(np.arange(1200.0) / 7) + DRAW.normal(size=1200)


@pytest.mark.parametrize(
    ("column", "code"),
    [
        (LOAD, -9999.0),
        (LOAD, 999.0),
        (LOAD + 300, 0.0),
        (LOAD, -1.0),
        (DRAW.poisson(40, 1200), -1.0),
        (DRAW.poisson(40, 1200), -99.0),
    ],
)
def test_codes_of_missing_values_are_found(column, code):
    column, rows = with_code(column, code)
    values = np.stack([LOAD, column], axis=1)
    values[5, 0] = np.nan
    (found,) = find_codes(values)
    assert (found.channel, found.value) == (1, code)
    np.testing.assert_array_equal(found.rows, rows)


@pytest.mark.parametrize(
    "column",
    [
        LOAD,
        np.clip(LOAD, 35, 65),
        np.where(DRAW.random(1200) < 0.8, 0, DRAW.lognormal(0, 2, 1200)),
        DRAW.poisson(3, 1200),
        DRAW.integers(-1, 20, 1200),
        np.where(np.arange(1200) % 24 < 8, 0, 30 + DRAW.normal(size=1200) * 10).clip(0),
        DRAW.choice([-1.0, 0.0, 1.0], 1200),
        np.ones(1200),
        np.full(1200, np.nan),
    ],
    ids=["load", "clipped", "rain", "counts", "integers", "sun", "states", "still", "empty"],
)
def test_values_that_belong_to_their_channel_are_no_codes(column):
    assert find_codes(np.asarray(column, np.float64)[:, None]) == []


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("number", [1, 3, 12])
def test_values_of_fifty_deviations_are_found(sign, number):
    values = DRAW.normal(size=(1200, 2))
    rows = np.sort(DRAW.choice(1200, number, replace=False))
    values[rows, 1] = sign * 50
    values[3, 0] = np.nan
    assert find_far(values).tolist() == [[row, 1] for row in rows.tolist()]


@pytest.mark.parametrize(
    "column",
    [
        DRAW.normal(size=1200),
        DRAW.lognormal(0, 2, 1200),
        DRAW.standard_t(3, 1200),
        np.where(DRAW.random(1200) < 0.95, 0, DRAW.lognormal(0, 2, 1200)),
        np.cumsum(DRAW.normal(size=1200)),
        np.ones(1200),
        np.full(1200, np.nan),
    ],
    ids=["normal", "lognormal", "t", "rain", "walk", "still", "empty"],
)
def test_heavy_tails_and_rain_are_not_far(column):
    assert find_far(column[:, None]).tolist() == []


def test_nothing_is_said_of_the_embedded_series():
    values = data.etth1().values
    assert find_codes(values) == [] and not len(find_far(values))
