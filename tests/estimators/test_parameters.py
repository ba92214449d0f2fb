"""What estimators are before they are fitted: parameters, and the checks of what goes in."""

import numpy as np
import pandas as pd
import pytest

from flax_linattn.estimators import Classifier, Forecaster, NotFittedError
from flax_linattn.estimators.base import make_seed
from flax_linattn.estimators.sequences import read_labels, read_sequences

BOTH = pytest.mark.parametrize("estimator", [Classifier, Forecaster])


@BOTH
def test_parameters_are_stored_as_they_came(estimator):
    """Nothing is checked or changed before ``fit``."""
    options = {"features": 8}
    one = estimator(epochs=-3, options=options)
    assert one.options is options and one.get_params()["epochs"] == -3
    assert vars(one).keys() == one.get_params().keys()
    two = estimator(**one.get_params())
    assert two.get_params() == one.get_params()
    assert one.set_params(epochs=4) is one and one.epochs == 4
    assert repr(one) == f"{estimator.__name__}(epochs=4, options={{'features': 8}})"
    with pytest.raises(ValueError, match="has no parameter 'epoch'; did you mean 'epochs'"):
        one.set_params(epoch=3, mechanism="softmax")
    assert one.mechanism == "aaren"


def test_an_estimator_that_is_not_fitted():
    for ask in (lambda: Classifier().predict(np.zeros((2, 3))), Forecaster().predict):
        with pytest.raises(NotFittedError, match="not fitted yet; call fit first"):
            ask()
    with pytest.raises(NotFittedError):
        Forecaster().stream()


def test_seeds():
    """As scikit-learn has them: a number, a state of NumPy's, or None for the global one."""
    assert make_seed(np.int64(7)) == 7
    state = np.random.RandomState(0)
    assert make_seed(np.random.RandomState(0)) == make_seed(state) != make_seed(state)
    assert 0 <= make_seed(np.random.default_rng(0)) < 2**31
    for bad, error in ((-1, ValueError), ("0", TypeError), (0.5, TypeError)):
        with pytest.raises(error, match="random_state"):
            make_seed(bad)


@pytest.mark.parametrize("estimator, name", [(Forecaster, "csv"), (Classifier, "train_file")])
def test_options_that_name_files_are_refused(estimator, name):
    with pytest.raises(ValueError, match=f"no files in options, .* got '{name}'; remove it"):
        estimator(options={name: "x"}).fit(np.ones((8, 5, 1)), [0, 1] * 4)


def test_unknown_parameters_and_options_are_named_with_the_nearest_one():
    with pytest.raises(TypeError, match="has no parameter 'horizont'; did you mean 'horizon'"):
        Forecaster(horizont=24)
    with pytest.raises(TypeError, match="has no parameter 'model_optons'; did you mean 'options'"):
        Classifier(model_optons={})
    with pytest.raises(TypeError, match=r"no parameter 'model'.* pass it as options={'model'"):
        Classifier(model="closed-form")
    with pytest.raises(ValueError, match=r"no parameter 'model'.* pass it as options={'model'"):
        Classifier().set_params(model="closed-form")
    with pytest.raises(ValueError, match="has no option 'feature'; did you mean 'feat"):
        Forecaster(options={"feature": 8}).fit(np.zeros(200))
    with pytest.raises(ValueError, match="no option 'num_layer'; did you mean 'num_layers'"):
        Classifier(options={"num_layer": 8}).fit(np.zeros((4, 6)), [0, 1] * 2)
    with pytest.raises(ValueError, match="'random_state' as a parameter of Forecaster, got it in"):
        Forecaster(options={"random_state": 8}).fit(np.zeros(200))
    with pytest.raises(TypeError, match=r"expected options as a dict such as .*, got \['a'\]"):
        Forecaster(options=["a"]).fit(np.zeros(200))


def test_an_option_twice():
    with pytest.raises(
        ValueError, match="'epochs' as a parameter only, got it in options, too; remove"
    ):
        Forecaster(epochs=4, options={"epochs": 3}).fit(np.zeros(200))


def test_sequences_in_all_forms():
    rng = np.random.default_rng(0)
    cube = rng.normal(size=(3, 5, 2))
    for X in (cube, list(cube), cube.tolist(), [own.tolist() for own in cube]):
        given = read_sequences(X)
        assert given.features == 2 and not given.is_table
        assert all(np.array_equal(own, x) for own, x in zip(given.series, cube, strict=True))
    ragged = read_sequences([cube[0], cube[1, :2]])
    assert [own.shape for own in ragged.series] == [(5, 2), (2, 2)]
    assert [own.shape for own in read_sequences([[1, 2], [3]]).series] == [(2, 1), (1, 1)]
    flat = read_sequences(cube[..., 0].tolist())
    assert flat.features == 5 and flat.is_table and flat.series[0].shape == (5, 1)


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (np.zeros(3), "Reshape your data"),
        (np.zeros((0, 3)), "0 sample"),
        (np.zeros((2, 0)), "0 feature"),
        (np.zeros((2, 3, 4, 5)), "dim 4"),
        (np.array([[1.0, np.inf]]), "infinity"),
        (np.array([[1e39, 0.0]]), "too large for float32"),
        (np.array([[1j, 0]]), "Complex data not supported"),
        ([["a", "b"]], "expected X as numbers"),
        ([np.zeros((2, 3)), np.zeros((2, 4))], "same number of channels"),
        ([np.zeros((2, 3)), np.zeros((0, 3))], "same number of channels"),
    ],
)
def test_what_are_no_sequences(X, message):
    with pytest.raises(ValueError, match=message):
        read_sequences(X)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (None, "requires y to be passed"),
        ([0, 1], "inconsistent numbers of samples"),
        ([[0, 1], [1, 0], [0, 1]], "1d array"),
        ([0.5, 1.5, 0.5], "Unknown label type"),
        ([0.0, np.nan, 1.0], "contains NaN"),
        (np.array(["a", None, "b"], object), "contains None, first in row 1"),
        (
            pd.Series(["a", "b", pd.NA], dtype="string"),
            r"contains <NA>, first in row 2 \(counting from 0\); rem",
        ),
        (pd.Series([True, pd.NA, False], dtype="boolean"), "contains <NA>, first in row 1"),
        (pd.Categorical(["a", None, "b"]), "contains NaN, first in row 1"),
        (
            ["a", 1, "b"],
            r"of one kind in y, got 'b' \(str\) and 1 \(int\); convert all",
        ),
        (
            np.array([True, 2, 3], object),
            r"got True \(bool\) and 3 \(int\); convert all",
        ),
        (["a", "a", "a"], "1 class"),
    ],
)
def test_what_are_no_classes(y, message):
    with pytest.raises(ValueError, match=message):
        Classifier().fit(np.zeros((3, 4)), y)


@pytest.mark.parametrize(
    ("y", "kind", "classes"),
    [
        (pd.Categorical(["b", "a", "b"], categories=["z", "b", "a"]), "O", ["a", "b"]),
        (pd.Series(["b", "a", "b"], dtype="string"), "O", ["a", "b"]),
        (pd.Series([True, False, True], dtype="boolean"), "b", [False, True]),
        (np.array([True, False, True]), "b", [False, True]),
        (pd.Series([10, 2, 10], dtype="Int64"), "i", [2, 10]),
        (np.array([10, 2, 10], object), "i", [2, 10]),
        (pd.Series([10, 2, 10], dtype="Float64"), "f", [2.0, 10.0]),
        (["b", "a", "b"], "U", ["a", "b"]),
        ([10, 2, 10], "i", [2, 10]),
    ],
)
def test_classes_of_all_kinds(y, kind, classes):
    labels = read_labels(y, 3)
    assert labels.dtype.kind == kind
    assert np.unique(labels).tolist() == classes


def test_sequences_of_objects_nullable_columns_and_panels():
    """An array of arrays is read as their list, NA is missing, and a MultiIndex names sequences."""
    ragged = np.empty(3, object)
    ragged[:] = [np.arange(length, dtype=float) for length in (5, 6, 7)]
    for X in (ragged, list(ragged), pd.Series(list(ragged))):
        given = read_sequences(X)
        assert [own.shape for own in given.series] == [(5, 1), (6, 1), (7, 1)]
    frame = pd.DataFrame({"a": pd.Series([1, None], dtype="Int64"), "b": [True, False]})
    np.testing.assert_array_equal(
        np.squeeze(read_sequences(frame).series, -1), [[1.0, 1.0], [np.nan, 0.0]]
    )
    index = pd.MultiIndex.from_tuples([("y", 0), ("y", 1), ("x", 0)])
    panel = read_sequences(pd.DataFrame({"a": [1.0, 2, 3], "b": [4.0, 5, 6]}, index))
    assert [own.tolist() for own in panel.series] == [[[1, 4], [2, 5]], [[3, 6]]]
    assert panel.features == 2 and panel.names.tolist() == ["a", "b"] and not panel.is_table
