"""A classifier of time series, with the interface of scikit-learn."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from flax_linattn import data, models
from flax_linattn.compilation import cached_programs
from flax_linattn.data.labels import in_order
from flax_linattn.estimators.base import Estimator, make_config, make_seed
from flax_linattn.estimators.sequences import check_features, read_labels, read_sequences
from flax_linattn.registry import get_task
from flax_linattn.tasks.classify import SeriesSource, predict_proba
from flax_linattn.tasks.init_run import InitRun
from flax_linattn.tasks.spec import Run
from flax_linattn.tasks.train_run import fit_data


class Classifier(Estimator):
    """Classifies time series: ``fit(X, y)``, then ``predict`` or ``predict_proba``.

    Model and training are the same as in ``flax-linattn train classify``: linear maps in closed
    form on MiniRocket features, and an attention classifier, which is added where it lowers the
    loss of a held-out, stratified fraction of the data. ``options={"model": "attention"}`` trains
    only the attention classifier, ``options={"model": "closed-form"}`` fits only MiniRocket
    features and linear maps. Channels are standardized by the training data, and missing values
    (NaN) interpolated over time. A warning says if the classifier is no better on held-out data
    than the most frequent class.

    X is an array [N, T, C], an array or data frame [N, T] of one channel, a list of [T_i, C] of
    unequal lengths, or a data frame of rows [C] whose MultiIndex holds the sequence and, last, the
    time. y holds the class of each sequence: integers, booleans or strings.

    Args:
        mechanism: Attention mechanism, a name of ``ops.list_mechanisms``.
        epochs: Maximum number of passes over the data. Default: that of the command.
        patience: Passes without improvement after which training of the attention stops.
        batch_size: Sequences of a training step.
        learning_rate: Learning rate of RAdam.
        validation_fraction: Fraction of the sequences that selects the parameters.
        random_state: Seed, random state or generator of NumPy, or None for NumPy's global state.
        run: Folder to save the run in, for ``flax-linattn predict`` and ``stream``; default none.
        options: Further options of ``flax-linattn train classify`` by name, such as
            ``{"num_layers": 1}``.

    Attributes:
        classes_: The classes, sorted.
        n_features_in_: T where X was [N, T], else C.
        feature_names_in_: Names of the columns, where X was a data frame with string names.
        is_table_: Whether X was [N, T].
        run_: The run, as ``tasks.load_run`` returns it.

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
    is_table_: bool

    def __init__(
        self,
        *,
        mechanism: str = "aaren",
        epochs: int | None = None,
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
        """Trains on sequences and their classes, from new parameters.

        Args:
            X: The sequences.
            y: The class of each sequence.
            init_run: Run with the same channels and classes whose parameters and scales training
                starts from, such as ``run_`` of a fitted classifier, or its folder; see
                ``tasks.InitRun``.

        Raises:
            ValueError: If X or y has the wrong shape, their lengths differ, the classes are too
                small for a validation part, or a parameter is out of range.
            TypeError: If X is sparse, or a parameter has the wrong type.
        """
        given = read_sequences(X)
        labels = read_labels(y, len(given.series))
        classes = np.unique(labels)
        if len(classes) < 2:
            raise ValueError(
                f"expected at least two classes in y, got 1 class: {classes.tolist()[0]!r}; pass "
                "sequences of another class, too."
            )
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
        options = self._run_options(
            task,
            mechanism=self.mechanism,
            epochs=self.epochs,
            patience=self.patience,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            validation_fraction=self.validation_fraction,
            seed=make_seed(self.random_state),
        )
        init = InitRun.of(init_run)
        config = make_config(task, init, options)
        # There is no test part: the second data set only determines the maximum length.
        source = SeriesSource(dataset, dataset, config)
        run = fit_data(task, config, source, self.run, init_run=init)
        _warn_if_useless(run, source)
        self.run_ = run._replace(data=None)
        self.classes_, self._order = classes, index
        self.is_table_ = given.is_table
        self._set_features(given.features, given.names)
        return self

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Probabilities of the classes, float64 [N, classes], in the order of ``classes_``.

        Raises:
            NotFittedError: If ``fit`` was not called.
            ValueError: If X has the wrong shape, or its features differ from the features of
                ``fit``.
        """
        run = self._fitted()
        given = read_sequences(X)
        check_features(given, self)
        dataset = data.TimeSeriesDataset(
            "X",
            given.series,
            np.zeros(len(given.series), np.int32),
            run.data_spec.classes,
            run.data_spec.channels,
        )
        with cached_programs():
            probabilities = predict_proba(run, dataset).astype(np.float64)[:, self._order]
        return probabilities / probabilities.sum(axis=1, keepdims=True)

    def predict(self, X: Any) -> NDArray:
        """The most probable class of each sequence, [N], with the dtype of ``classes_``.

        Raises:
            NotFittedError: If ``fit`` was not called.
            ValueError: If X is invalid; see ``predict_proba``.
        """
        best = np.argmax(self.predict_proba(X), axis=1)
        return self.classes_[best]

    def score(self, X: Any, y: Any) -> float:
        """Accuracy: the fraction of sequences whose class is predicted.

        Raises:
            NotFittedError: If ``fit`` was not called.
            ValueError: If X is invalid (see ``predict_proba``), or y has another length.
        """
        predicted = self.predict(X)
        return float(np.mean(predicted == read_labels(y, len(predicted))))

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


def _warn_if_useless(run: Run, source: SeriesSource) -> None:
    """Warns if a run is no better on held-out sequences than their most frequent class."""
    labels = source.validation.labels
    if isinstance(run.model, models.MiniRocketClassifier):
        if run.model.weights[:, 1].any():  # the accuracy is that of the linear maps alone
            return
        labels = np.concatenate([source.fitted.labels, labels])
        accuracy = float(run.model.held_out_accuracy[...])
    else:
        accuracy = np.mean(predict_proba(run, source.validation).argmax(axis=1) == labels)
    constant = np.bincount(labels).max() / len(labels)
    if accuracy <= constant:
        warnings.warn(
            f"the classifier predicts {100 * accuracy:.0f} % of held-out sequences correctly, the "
            f"most frequent class {100 * constant:.0f} %; pass more sequences, or channels that "
            "distinguish the classes.",
            stacklevel=3,
        )
