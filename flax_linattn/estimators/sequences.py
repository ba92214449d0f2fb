"""Reading and checking of sequences and class labels, with scikit-learn's messages."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from flax_linattn.checks import quote


class Sequences(NamedTuple):
    """Result of ``read_sequences``: N sequences of C channels.

    Attributes:
        series: Sequences, float64 [T_i, C] each; NaN is a missing value.
        features: Value of ``n_features_in_``: T where X is [N, T], else C.
        names: Names of the columns, where X is a data frame with string names.
        is_table: Whether X is [N, T].
    """

    series: tuple[NDArray[np.float64], ...]
    features: int
    names: NDArray | None
    is_table: bool


def read_sequences(X: Any) -> Sequences:
    """Reads X in any form that ``Classifier`` accepts; NaN, None and NA are missing values.

    Raises:
        ValueError: If X has the wrong shape, is empty, or holds values that are not finite numbers.
        TypeError: If X is sparse.

    Example:
        >>> read_sequences([[[1.0], [2.0]], [[3.0]]]).features
        1
        >>> read_sequences(np.zeros((4, 7))).features
        7
    """
    if hasattr(X, "toarray") and not hasattr(X, "__array__"):
        raise TypeError(
            "Sparse data was passed for X, but dense data is required; use X.toarray()."
        )
    names = None
    if hasattr(X, "columns"):
        names = np.array(list(X.columns), object)
        names = names if all(isinstance(name, str) for name in names) else None
    if isinstance(X, pd.DataFrame) and isinstance(X.index, pd.MultiIndex):
        levels = list(range(X.index.nlevels - 1))
        series = tuple(read_numbers(own) for _, own in X.groupby(level=levels, sort=False))
        return Sequences(series, X.shape[1], names, False)
    if not isinstance(X, Sequence):
        X = np.asarray(X)
        if X.dtype == object and X.ndim == 1 and len(X) and all(_sized(own) for own in X):
            X = list(X)
    if isinstance(X, Sequence) and not isinstance(X, str) and _is_ragged(X):
        series = tuple(read_numbers(own) for own in X)
        series = tuple(own[:, None] if own.ndim == 1 else own for own in series)
        for index, own in enumerate(series):
            if own.ndim != 2 or not own.size or own.shape[1] != series[0].shape[1]:
                raise ValueError(
                    "expected sequences [T, C] with the same number of channels, got sequence "
                    f"{index} as {list(own.shape)} and sequence 0 as {list(series[0].shape)}; pass "
                    "arrays whose first axis is time."
                )
        return Sequences(series, series[0].shape[1], None, False)
    values = read_numbers(X)
    if values.ndim == 0:
        raise ValueError(f"Expected 2D array, got scalar array instead: {quote(X)}; pass [N, T].")
    if values.ndim == 1:
        raise ValueError(
            "Expected 2D array, got 1D array instead: Reshape your data, X.reshape(1, -1) if it "
            "is one sequence."
        )
    if values.ndim > 3:
        raise ValueError(
            f"Found array with dim {values.ndim}, expected X as [N, T, C] or [N, T]; Reshape it."
        )
    check_not_empty(values.shape)
    if values.ndim == 2:
        return Sequences(tuple(values[..., None]), values.shape[1], names, True)
    return Sequences(tuple(values), values.shape[2], names, False)


def _is_ragged(X: Sequence[Any]) -> bool:
    """Whether a list holds sequences of different lengths, or arrays with channels."""
    shapes = {np.shape(own) if hasattr(own, "shape") else (len(own),) for own in X if _sized(own)}
    return len(shapes) > 1 or any(len(shape) == 2 for shape in shapes)


def _sized(own: Any) -> bool:
    return hasattr(own, "__len__") and not isinstance(own, str)


def check_not_empty(shape: Sequence[int]) -> None:
    """Refuses an array without rows or columns.

    Raises:
        ValueError: If an axis has length 0.
    """
    for size, what in zip(shape, ("sample", "feature", "feature"), strict=False):
        if not size:
            raise ValueError(
                f"Found array with 0 {what}(s) (shape={tuple(shape)}) while a minimum of 1 is "
                "required."
            )


def read_numbers(values: Any) -> NDArray[np.float64]:
    """Converts values to float64 and checks their range; NaN, None and NA are missing values.

    Raises:
        ValueError: If the values are not numbers, not finite, or beyond the range of float32.
        TypeError: If the values are objects that are not numbers.
    """
    array = np.asarray(values)
    if array.dtype.kind == "c":
        raise ValueError("Complex data not supported; pass real numbers.")
    if array.dtype == object:
        array = np.where(pd.isna(array), np.nan, array)
    try:
        numbers = array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise type(error)(f"expected X as numbers, got {quote(values)}: {error}") from None
    if (beyond := np.abs(numbers) > np.finfo(np.float32).max).any():
        place = np.argwhere(beyond)[0].tolist()
        if np.isinf(numbers[tuple(place)]):
            raise ValueError(
                f"Input X contains infinity at {place}; pass finite numbers, or NaN for missing "
                "values."
            )
        raise ValueError(
            f"Input X contains a value too large for float32 at {place}; rescale the data."
        )
    return numbers


def check_features(given: Sequences, fitted: Any) -> None:
    """Checks that X has the number and the names of the features of ``fit``.

    Raises:
        ValueError: If the number or the names of the features differ.
    """
    name = type(fitted).__name__
    names = getattr(fitted, "feature_names_in_", None)
    if given.is_table and (names is None) != (given.names is None):
        text = (
            f"X has feature names, but {name} was fitted without feature names"
            if names is None
            else f"X does not have valid feature names, but {name} was fitted with feature names"
        )
        warnings.warn(text, UserWarning, stacklevel=3)
    if given.is_table != fitted.is_table_ or given.features != fitted.n_features_in_:
        raise ValueError(
            f"X has {given.features} features, but {name} is expecting {fitted.n_features_in_} "
            "features as input."
            + (" It was fitted with [N, T]." if fitted.is_table_ and not given.is_table else "")
        )
    if names is not None and given.names is not None and list(names) != list(given.names):
        unseen = sorted(set(given.names) - set(names))
        gone = sorted(set(names) - set(given.names))
        message = "The feature names should match those that were passed during fit.\n"
        if unseen:
            message += "Feature names unseen at fit time:\n" + _lines(unseen)
        if gone:
            message += "Feature names seen at fit time, yet now missing:\n" + _lines(gone)
        if not unseen and not gone:
            message += "Feature names must be in the same order as they were in fit.\n"
        raise ValueError(message)


def _lines(names: Sequence[str]) -> str:
    return "".join(f"- {name}\n" for name in names[:5]) + ("- ...\n" if len(names) > 5 else "")


def read_labels(y: Any, count: int) -> NDArray:
    """Reads class labels [N] or [N, 1] of one kind, also of nullable and categorical dtypes.

    Returns:
        [N]; nullable values and objects in the dtype of their numbers or booleans.

    Raises:
        ValueError: If the labels have the wrong shape or length, have mixed types, or contain a
            missing value.

    Example:
        >>> read_labels(pd.Series([True, False], dtype="boolean"), 2).dtype
        dtype('bool')
    """
    if y is None:
        raise ValueError(
            "requires y to be passed, but the target y is None; pass a class for each sequence."
        )
    # NumPy would make strings of mixed kinds in a list.
    labels = np.asarray(y, object) if isinstance(y, list | tuple) else np.asarray(y)
    if labels.ndim == 2 and labels.shape[1] == 1:
        warnings.warn(
            "A column-vector y was passed when a 1d array was expected; use y.ravel().",
            _conversion_warning(),
            stacklevel=3,
        )
        labels = labels.ravel()
    if labels.ndim != 1:
        raise ValueError(
            f"y should be a 1d array, got an array of shape {labels.shape} instead; pass a class "
            "for each sequence."
        )
    if len(labels) != count:
        raise ValueError(
            "Found input variables with inconsistent numbers of samples: "
            f"{[count, len(labels)]}; pass a class for each sequence."
        )
    if (missing := np.asarray(pd.isna(labels))).any():
        row = int(np.argmax(missing))
        what = "NaN" if isinstance(labels[row], float) else labels[row]
        raise ValueError(
            f"Input y contains {what}, first in row {row} (counting from 0); remove these "
            "sequences."
        )
    if labels.dtype == object:
        labels = _convert_objects(labels, keep_strings=not isinstance(y, list | tuple))
    if labels.dtype.kind == "c":
        raise ValueError("Complex data not supported; pass classes as numbers or strings.")
    if labels.dtype.kind == "f":
        if np.isinf(labels).any():
            raise ValueError("Input y contains infinity; remove these sequences.")
        if (labels != np.round(labels)).any():
            raise ValueError(
                "Unknown label type: continuous. Expected classes, got numbers such as "
                f"{quote(labels[labels != np.round(labels)][0])}; pass integers or strings."
            )
    return labels


def _convert_objects(labels: NDArray, *, keep_strings: bool) -> NDArray:
    """Converts objects to numbers, booleans or strings of one kind; mixed kinds are refused."""
    kind = pd.api.types.infer_dtype(labels, skipna=False)
    if kind in ("boolean", "integer", "floating", "mixed-integer-float", "complex"):
        return np.array(labels.tolist())
    if kind == "string":
        return labels if keep_strings else labels.astype(str)
    if kind.startswith("mixed"):
        examples = {type(label).__name__: label for label in labels.tolist()}
        raise ValueError(
            "expected classes of one kind in y, got "
            + " and ".join(f"{quote(label)} ({name})" for name, label in examples.items())
            + "; convert all classes to strings, such as by [str(label) for label in y]."
        )
    return labels


def _conversion_warning() -> type[Warning]:
    """scikit-learn's own warning class if scikit-learn is loaded, because its tools expect it."""
    other = sys.modules.get("sklearn.exceptions")
    return UserWarning if other is None else other.DataConversionWarning
