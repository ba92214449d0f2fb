"""Interpolation, standardizing and padding."""

import numpy as np
import pytest

from flax_linattn.data import Standardizer, interpolate_missing, japanese_vowels, pad

nan = np.nan


def test_interpolation_fills_gaps_and_edges_channel_by_channel():
    gaps = np.array([[nan, 5.0], [1.0, nan], [nan, nan], [nan, 8.0], [4.0, nan]])
    whole = np.ones((2, 2))
    filled, same = interpolate_missing([gaps, whole])
    np.testing.assert_allclose(filled, [[1, 5], [1, 6], [2, 7], [3, 8], [4, 8]], rtol=1e-15)
    assert same is whole
    assert np.isnan(gaps).sum() == 6  # the input is left alone


def test_interpolation_refuses_an_empty_channel():
    with pytest.raises(ValueError, match="none in channel 1 of example 2; drop the example"):
        interpolate_missing([np.ones((2, 2))] * 2 + [np.array([[nan, nan], [1.0, nan]])])


def test_standardizer_uses_all_time_steps_and_the_sample_deviation():
    series = [np.array([[1.0, 0.1], [2.0, 0.1]]), np.array([[6.0, 0.1]])]
    standardizer = Standardizer.fit(series)
    np.testing.assert_allclose(standardizer.mean, [3, 0.1], rtol=1e-15)
    # Channel 0: variance (4 + 1 + 9) / 2. Channel 1 is constant, so its deviation is 1.
    np.testing.assert_allclose(standardizer.std, [np.sqrt(7), 1], rtol=1e-15)
    one, two = standardizer.apply(series)
    np.testing.assert_allclose(one[:, 0], np.array([-2, -1]) / np.sqrt(7), rtol=1e-15)
    np.testing.assert_allclose(two, [[3 / np.sqrt(7), 0]], atol=1e-15)


def test_the_deviation_of_the_population():
    standardizer = Standardizer.fit([np.array([[1.0], [2.0], [6.0]])], ddof=0)
    np.testing.assert_allclose(standardizer.std, [np.sqrt(14 / 3)], rtol=1e-15)
    assert Standardizer.fit([np.ones((1, 1))], ddof=0).std.tolist() == [1]


def test_a_constant_channel_becomes_zero_for_any_constant_and_length():
    for length in (1, 3, 1000):
        (values,) = Standardizer.fit([np.full((length, 1), 0.1)]).apply([np.full((2, 1), 0.1)])
        assert np.abs(values).max() < 1e-12


def test_standardized_training_set_has_zero_mean_and_unit_deviation():
    train, _ = japanese_vowels()
    steps = np.concatenate(Standardizer.fit(train.series).apply(train.series))
    np.testing.assert_allclose(steps.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(steps.std(axis=0, ddof=1), 1, rtol=1e-12)


def test_standardizer_refusals():
    with pytest.raises(ValueError, match="at least one series to fit on"):
        Standardizer.fit([])
    with pytest.raises(ValueError, match="call interpolate_missing first"):
        Standardizer.fit([np.array([[1.0], [nan]])])
    with pytest.raises(ValueError, match=r"mean \[C\] and std \[C\], got \[2\] and \[1\]"):
        Standardizer(np.zeros(2), np.ones(1))
    with pytest.raises(ValueError, match=r"finite positive stds.*use 1 for a constant"):
        Standardizer(np.zeros(1), np.zeros(1))
    with pytest.raises(ValueError, match=r"series \[length, 2\], got \[3, 1\] for series 0"):
        Standardizer(np.zeros(2), np.ones(2)).apply([np.zeros((3, 1))])


def test_pad_puts_zeros_and_a_mask_after_the_end():
    series = [np.full((2, 2), 7.0), np.full((1, 2), 8.0)]
    values, mask = pad(series, max_length=3)
    assert (values.dtype, mask.dtype) == (np.float32, np.bool_)
    assert values[..., 0].tolist() == values[..., 1].tolist() == [[7, 7, 0], [8, 0, 0]]
    assert mask.tolist() == [[True, True, False], [True, False, False]]
    assert pad(series)[0].shape == (2, 2, 2)


@pytest.mark.parametrize(
    ("series", "max_length", "message"),
    [
        ([], None, "at least one series to pad"),
        ([np.ones((1, 1)), np.ones((4, 1))], 3, r"the longest series, 4 \(series 1\), got 3"),
        ([np.ones((1, 1)), np.ones((1, 2))], None, r"\[length, 1\].*\[1, 2\] for series 1"),
        ([np.full((1, 1), nan)], None, "in series 0; call interpolate_missing"),
        ([np.full((1, 1), 1e39)], None, "finite in float32.*standardize large ones"),
    ],
)
def test_pad_refusals(series, max_length, message):
    with pytest.raises(ValueError, match=message):
        pad(series, max_length)
