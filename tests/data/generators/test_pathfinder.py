"""Pathfinder: its geometry, its pictures, and that only who follows a curve knows the label."""

import itertools

import numpy as np
import pytest
from scipy import ndimage, stats

from flax_linattn.checks import OptionError
from flax_linattn.data import Pathfinder
from flax_linattn.data.generators import pathfinder

LEVELS = (6, 9, 14)


def curves_of(task, rows, seed=0):
    """Dashes [rows, curves, dashes, 2, 2] of the long curves, the short ones', and the dots."""
    dashes, first, others = task._curves(np.random.default_rng(seed), rows)
    count, short = task.contour_length, task.contour_length // 3
    long = dashes[:, : 2 * count].reshape(rows, 2, count, 2, 2)
    return long, dashes[:, 2 * count :].reshape(rows, -1, short, 2, 2), first, others


def points_on(curve, per_part=8):
    """Points close together on all of a curve, its gaps among it; [dashes, 2, 2] -> [N, 2]."""
    corners = curve.reshape(-1, 2)
    shares = np.linspace(0, 1, per_part, endpoint=False)[:, None]
    parts = [a + shares * (b - a) for a, b in itertools.pairwise(corners)]
    return np.concatenate([*parts, corners[-1:]])


@pytest.mark.parametrize("count", LEVELS)
def test_curves(count):
    """Of dashes of one length, inside, with turns of at most 90 degrees, apart from each other."""
    task = Pathfinder(contour_length=count)
    long, short, first, others = curves_of(task, 12)
    whole = short[np.isfinite(short).all((2, 3, 4))]
    assert len(whole) > 12
    assert np.isfinite(short).all((2, 3, 4)).sum() * whole[0].size == np.isfinite(short).sum()
    for curve in (*long.reshape(-1, *long.shape[2:]), *whole):
        along = curve[:, 1] - curve[:, 0]
        np.testing.assert_allclose(np.linalg.norm(along, axis=1), 1)
        assert np.all(np.sum(along[1:] * along[:-1], axis=1) >= -1e-9)
        gaps = np.linalg.norm(curve[1:, 0] - curve[:-1, 1], axis=1)
        assert np.all(gaps <= 0.75 + 1e-9)
        assert np.all(gaps >= 0.75 / np.sqrt(2) - 1e-9)
        assert np.all((curve >= 1) & (curve <= 15))
    for row in range(12):
        present = [*long[row], *(curve for curve in short[row] if np.isfinite(curve).all())]
        for one, other in itertools.combinations(map(points_on, present), 2):
            assert np.linalg.norm(one[:, None] - other, axis=2).min() > 0.6
    np.testing.assert_array_equal(first, long[:, 0, 0, 0])
    np.testing.assert_array_equal(others[:, 0], long[:, 0, -1, 1])
    np.testing.assert_array_equal(others[:, 1], long[:, 1, 0, 0])


def test_both_places_of_the_second_dot_are_as_far():
    """From the first dot and from the middle, so that dots alone tell nothing."""
    _, _, first, others = curves_of(Pathfinder(contour_length=9), 200)
    for point in (first[:, None], np.full((1, 1, 2), 8.0)):
        far = np.linalg.norm(others - point, axis=2)
        np.testing.assert_allclose(far[:, 0], far[:, 1])
    assert np.linalg.norm(others - first[:, None], axis=2).min() >= 3


@pytest.mark.parametrize("size", [32, 64])
def test_labels_are_those_of_the_curves_that_dots_are_on(size):
    task = Pathfinder(size, 9)
    batch = task.sample(np.random.default_rng(5), 40)
    long, _, _, _ = curves_of(task, 40, seed=5)
    for row, label in enumerate(batch["labels"]):
        picture = batch["tokens"][row].reshape(size, size)
        marked, found = ndimage.label(picture > 0.85 * 255)
        assert found == 2  # nothing but dots is as bright
        middles = np.array(ndimage.center_of_mass(marked > 0, marked, [1, 2]))
        middles = (middles[:, ::-1] + 0.5) * 16 / size
        ends = long[row][:, [0, -1], [0, 1]]  # [curve, end, 2]
        distance = np.linalg.norm(middles[:, None, None] - ends, axis=3)
        assert np.all(distance.min((1, 2)) < 0.3)
        on = distance.min(2).argmin(1)
        assert (on[0] == on[1]) == bool(label)


def test_pictures_against_a_plain_loop():
    task = Pathfinder(32, 3)
    batch = task.sample(np.random.default_rng(1), 1)
    dashes, first, others = task._curves(np.random.default_rng(1), 1)
    second = others[0, 1 - batch["labels"][0]]
    lines = [(a, b, 0.25, 0.75 * 255) for a, b in dashes[0] if np.isfinite(a).all()]
    lines += [(dot, dot, 0.75, 255.0) for dot in (first[0], second)]
    expected = np.zeros((32, 32))
    for y, x in np.ndindex(32, 32):
        pixel = np.array([x + 0.5, y + 0.5])
        for a, b, half, gray in lines:
            begin, along = a * 2, (b - a) * 2
            share = np.clip((pixel - begin) @ along / max(along @ along, 1e-12), 0, 1)
            far = np.linalg.norm(pixel - begin - share * along)
            expected[y, x] = max(expected[y, x], gray * np.clip(half * 2 + 0.5 - far, 0, 1))
    told = batch["tokens"][0].reshape(32, 32)
    assert np.max(np.abs(told - expected)) <= 0.51


@pytest.mark.parametrize("rows", [1, 2, 7])
def test_arrays(rows):
    task = Pathfinder(32, 3)
    batch = task.sample(np.random.default_rng(rows), rows)
    assert {name: (array.dtype, array.shape) for name, array in batch.items()} == {
        "tokens": (np.int32, (rows, 1024)),
        "mask": (np.bool_, (rows, 1024)),
        "labels": (np.int32, (rows,)),
    }
    assert batch["mask"].all()
    assert batch["tokens"].min() == 0
    assert batch["tokens"].max() == 255 < task.num_tokens
    assert abs(2 * batch["labels"].sum() - rows) <= 1


def test_a_single_picture_has_either_label():
    labels = [Pathfinder(32, 3).sample(np.random.default_rng(i), 1)["labels"][0] for i in range(40)]
    assert stats.binomtest(int(sum(labels)), 40).pvalue > 0.01


def test_turns_are_cosines_squared():
    shares = np.random.default_rng(0).random(4000)
    turns = np.interp(shares, pathfinder._SHARES, pathfinder._ANGLES)
    inside = stats.kstest(turns, lambda x: 0.5 + x / np.pi + np.sin(2 * x) / (2 * np.pi))
    assert inside.pvalue > 0.01
    assert np.mean(np.cos(turns)) == pytest.approx(8 / (3 * np.pi), abs=0.01)


def features(batch, size=32):
    """What a picture says without a curve being followed, a table a baseline."""
    pictures = batch["tokens"].reshape(-1, size, size).astype(np.float64)
    dots = []
    for picture in pictures:
        marked, _ = ndimage.label(picture > 0.85 * 255)
        dots.append(ndimage.center_of_mass(marked > 0, marked, [1, 2]))
    dots = np.array(dots)
    distance = np.linalg.norm(dots[:, 0] - dots[:, 1], axis=1)
    radii = np.sort(np.linalg.norm(dots - (size - 1) / 2, axis=2), axis=1)
    around = ndimage.uniform_filter(pictures, (0, 9, 9), mode="constant")
    places = np.rint(dots).astype(int)
    rows = np.arange(len(dots))
    crowds = np.stack([around[rows, *places[:, i].T] for i in (0, 1)], axis=1)
    return {
        "distance": np.stack([distance, distance**2], axis=1),
        "sum": pictures.sum((1, 2))[:, None],
        "radii": np.column_stack([radii, radii**2, radii.prod(1)]),
        "crowds": np.sort(crowds, axis=1),
        "ridge": pictures[:, ::2, ::2].reshape(len(pictures), -1),
    }


def accuracy(x, labels, train):
    """Of a ridge regression on the rest."""
    x = (x - x[:train].mean(0)) / (x[:train].std(0) + 1e-6)
    x = np.column_stack([x, np.ones(len(x))])
    gram = x[:train].T @ x[:train] + 10 * np.eye(x.shape[1])
    weights = np.linalg.solve(gram, x[:train].T @ (2.0 * labels[:train] - 1))
    return np.mean((x[train:] @ weights > 0) == (labels[train:] == 1))


@pytest.mark.parametrize(
    ("count", "rows"), [(6, 2400), pytest.param(14, 6000, marks=pytest.mark.slow)]
)
def test_simple_baselines_stay_near_one_half(count, rows):
    batch = Pathfinder(32, count).sample(np.random.default_rng(2), rows)
    train = rows // 2
    limit = 4 * 0.5 / np.sqrt(rows - train)  # four standard deviations of chance
    for name, x in features(batch).items():
        assert accuracy(x, batch["labels"], train) == pytest.approx(0.5, abs=limit), name


def test_no_room_is_said(monkeypatch):
    monkeypatch.setattr(pathfinder, "_ROUNDS", 2)
    monkeypatch.setattr(pathfinder, "_APART", 1.5)
    with pytest.raises(OptionError, match="two curves of 16 dashes do not fit"):
        Pathfinder(32, 16).sample(np.random.default_rng(0), 50)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 31}, "size must be at least 32, got 31"),
        ({"size": 2000}, "size must be at most 1024"),
        ({"contour_length": 2}, "contour_length must be at least 3, got 2"),
        ({"contour_length": 30}, "contour_length must be at most 16"),
    ],
)
def test_refusals(options, message):
    with pytest.raises(OptionError, match=message):
        Pathfinder(**options)
