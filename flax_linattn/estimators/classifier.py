"""A classifier of time series, in the manner of scikit-learn."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from flax_linattn import data
from flax_linattn.data.labels import in_order
from flax_linattn.estimators.base import Estimator, config_of, seed_of
from flax_linattn.estimators.sequences import as_labels, as_sequences, check_features
from flax_linattn.registry import get_task
from flax_linattn.tasks.classify import SeriesSource, predict_proba
from flax_linattn.tasks.init_run import InitRun
from flax_linattn.tasks.spec import Run
from flax_linattn.tasks.train import fit_data


class Classifier(Estimator):
    """Classes of time series: ``fit(X, y)``, then ``predict`` or ``predict_proba``.

    The model, its loss and its training are those of ``flax-linattn train classify``: attention on
    a causal convolution of each step, the mean over time, a linear head; a stratified share of the
    data selects the epoch and ends the training. Channels are standardised by what is trained on,
    and missing values (NaN) interpolated over time.

    X is [N, T, C], [N, T] of one channel, a list of [T_i, C] of unequal lengths, or a data frame of
    rows [C] whose MultiIndex has the sequence, and time last. y holds a class each: integers,
    booleans or strings.

    Args:
        mechanism: the attention, a name of ``ops.list_mechanisms``.
        epochs: most passes over the data.
        patience: passes without improvement before stopping.
        batch_size: sequences a step.
        learning_rate: of RAdam.
        validation_fraction: share of the sequences that selects the parameters.
        random_state: a seed, NumPy's random state, or None for its global one.
        run: a folder that keeps the run, for ``flax-linattn predict`` and ``stream``; default none.
        options: further options of ``flax-linattn train classify``, by name, such as
            ``{"num_layers": 1}``.

    Attributes:
        classes_: the classes, sorted.
        n_features_in_: T where X was [N, T], else C.
        feature_names_in_: names of the columns, where X was a data frame with text names.
        is_table_: whether X was [N, T].
        run_: the run, as ``tasks.load_run`` gives one.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> y = np.repeat(["falls", "rises"], 10)
        >>> X = np.where(y == "rises", 1, -1)[:, None] * np.arange(6) + rng.normal(size=(20, 6))
        >>> classifier = Classifier(epochs=3, random_state=0, options={
        ...     "features": 8, "num_layers": 1, "num_heads": 2, "hidden_features": 8})
        >>> classifier.fit(X, y).predict_proba(X[:3]).shape, classifier.classes_.tolist()
        ((3, 2), ['falls', 'rises'])
    """

    classes_: NDArray
    n_features_in_: int
    feature_names_in_: NDArray
    is_table_: bool

    def __init__(
        self,
        *,
        mechanism: str = "aaren",
        epochs: int = 100,
        patience: int = 10,
        batch_size: int = 16,
        learning_rate: float = 1e-3,
        validation_fraction: float = 0.2,
        random_state: Any = None,
        run: str | Path | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.mechanism = mechanism
        self.epochs = epochs
        self.patience = patience
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.validation_fraction = validation_fraction
        self.random_state = random_state
        self.run = run
        self.options = options

    def fit(self, X: Any, y: Any, *, init_run: InitRun | Run | str | Path | None = None) -> Self:
        """Trains on sequences and their classes; what was learned before is forgotten.

        Args:
            X: the sequences.
            y: a class each.
            init_run: a run of the same channels and classes whose parameters and scales training
                starts from, such as ``run_`` of a fitted classifier, or its folder;
                ``tasks.InitRun`` says what else is taken over.

        Raises:
            ValueError: X or y is something else, they differ in number, or the classes are too
                small for a part that validates; a parameter is out of range.
            TypeError: X is sparse; a parameter is of another type.
        """
        given = as_sequences(X)
        labels = as_labels(y, len(given.series))
        classes = np.unique(labels)
        if len(classes) < 2:
            raise ValueError(f"expected at least two classes in y, got 1 class: {classes[0]!r}.")
        names = list(map(str, classes.tolist()))
        ordered = in_order(names)
        index = np.array([ordered.index(name) for name in names], np.int32)
        dataset = data.TimeSeriesDataset(
            "data",
            given.series,
            index[np.searchsorted(classes, labels)],
            ordered,
            tuple(f"dim_{c}" for c in range(given.series[0].shape[1])),
        )
        task: Any = get_task("classify")
        options = self._options(
            mechanism=self.mechanism,
            epochs=self.epochs,
            patience=self.patience,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            validation_fraction=self.validation_fraction,
            seed=seed_of(self.random_state),
        )
        init = InitRun.of(init_run)
        config = config_of(task, init, options)
        # There is no test part: what stands for one only tells the longest sequence.
        source = SeriesSource(dataset, dataset, config)
        run = fit_data(task, config, source, self.run, init_run=init)
        self.run_ = run._replace(data=None)
        self.classes_, self._order = classes, index
        self.n_features_in_, self.is_table_ = given.features, given.is_table
        if given.names is not None:
            self.feature_names_in_ = given.names
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        return self

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Probabilities of the classes, float64 [N, classes], in the order of ``classes_``.

        Raises:
            NotFittedError: ``fit`` was not called.
            ValueError: X is something else, or has other features than in ``fit``.
        """
        run = self._fitted()
        given = as_sequences(X)
        check_features(given, self)
        dataset = data.TimeSeriesDataset(
            "X",
            given.series,
            np.zeros(len(given.series), np.int32),
            run.problem.classes,
            run.problem.channels,
        )
        probabilities = predict_proba(run, dataset).astype(np.float64)[:, self._order]
        return probabilities / probabilities.sum(axis=1, keepdims=True)

    def predict(self, X: Any) -> NDArray:
        """The likeliest class of each sequence, [N], of the dtype of ``classes_``.

        Raises:
            NotFittedError: ``fit`` was not called.
            ValueError: as ``predict_proba``.
        """
        best = np.argmax(self.predict_proba(X), axis=1)
        return self.classes_[best]

    def score(self, X: Any, y: Any) -> float:
        """The share of sequences whose class is predicted.

        Raises:
            NotFittedError: ``fit`` was not called.
            ValueError: as ``predict_proba``, or y has another number.
        """
        predicted = self.predict(X)
        return float(np.mean(predicted == as_labels(y, len(predicted))))

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags

        tags = super().__sklearn_tags__()
        inputs = dataclasses.replace(tags.input_tags, three_d_array=True)
        targets = dataclasses.replace(tags.target_tags, required=True)
        return dataclasses.replace(
            tags,
            estimator_type="classifier",
            classifier_tags=ClassifierTags(),
            input_tags=inputs,
            target_tags=targets,
        )
