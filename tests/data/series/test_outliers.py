"""What is said of a few values that decide a channel, and what is left unsaid of rain."""

import numpy as np
import pytest

from flax_linattn.data.series.outliers import find_outliers, find_still


def rain(rows, wet, seed=0):
    """Dry but for so many rows, whose amounts spread over three orders of magnitude."""
    values = np.zeros(rows)
    where = np.random.default_rng(seed).choice(rows, wet, replace=False)
    values[where] = np.logspace(-1, 2, wet)
    return values[:, None]


@pytest.mark.parametrize("rows", [200, 5000])
@pytest.mark.parametrize("wet", [1, 3, 5, 10, 90])
def test_rain_and_events_are_no_outliers(rows, wet):
    values = rain(rows, wet)
    assert find_outliers(values).tolist() == []
    few = max(1, rows // 1000)
    assert [(found.channel, len(found.rows)) for found in find_still(values)] == [(0, wet)] * (
        wet <= few
    )


@pytest.mark.parametrize("far", [1e30, -1e30])
@pytest.mark.parametrize("wet", [3, 10, 90])
def test_what_no_rain_is_is_an_outlier_of_it(far, wet):
    values = rain(200, wet)
    row = int(np.flatnonzero(values == 0)[11])
    values[row] = far
    assert find_outliers(values).tolist() == [[row, 0]]


@pytest.mark.parametrize("far", [1e6, -1e6, 1e30])
def test_what_flattens_an_ordinary_channel_is_an_outlier(far):
    values = np.sin(np.arange(600.0))[:, None] + [0, 5]
    values[[30, 31], 1] = np.nan
    values[7, 1] = far
    assert find_outliers(values).tolist() == [[7, 1]]
    assert find_still(values) == []


def test_a_channel_of_one_value_has_no_scale():
    """Whatever else it holds, once: a note says that it has one value but for a row."""
    values = np.full((200, 3), 5.0)
    values[7, 1], values[8, 2] = 1e30, np.nan
    assert find_outliers(values).tolist() == []
    (found,) = find_still(values)
    assert (found.channel, found.value, found.rows.tolist()) == (1, 5.0, [7])
