"""sktime's own checks of the estimators, by adapters as its users write them.

sktime's metadata exclude the newest pandas: ``pip install --no-deps sktime scikit-base``.
"""

import numpy as np
import pytest

from flax_linattn.estimators import Classifier, Forecaster

pytest.importorskip("sktime", reason="sktime is not installed")

from sktime.classification.base import BaseClassifier
from sktime.forecasting.base import BaseForecaster, ForecastingHorizon
from sktime.utils.estimator_checks import check_estimator

SMALL = {"features": 8, "num_layers": 1, "num_heads": 2, "hidden_features": 8}
SHORT = {**SMALL, "steps": 2, "validate_every": 2}
OF_ADAPTERS = ["test_class_has_doctest_example", "test_get_test_params_coverage"]
"""Checks that are about the text of the adapters below."""
pytestmark = pytest.mark.slow


class SktimeClassifier(BaseClassifier):
    """A ``Classifier`` on a list of data frames, one for each sequence."""

    _tags = {  # noqa: RUF012
        "X_inner_mtype": "df-list",
        "capability:multivariate": True,
        "capability:unequal_length": True,
        "capability:missing_values": True,
        "capability:predict_proba": True,
        "capability:random_state": True,
        "property:randomness": "derandomized",
    }

    def __init__(self, random_state=0):
        self.random_state = random_state
        super().__init__()

    def _fit(self, X, y):
        self.model_ = Classifier(random_state=self.random_state, options=SHORT).fit(X, y)
        return self

    def _predict(self, X):
        return self.model_.predict(X)

    def _predict_proba(self, X):
        return self.model_.predict_proba(X)

    @classmethod
    def get_test_params(cls, parameter_set="default"):
        return {"random_state": 0}


class SktimeForecaster(BaseForecaster):
    """A ``Forecaster`` of a frame and its future covariates, for any steps of its horizon."""

    _tags = {  # noqa: RUF012
        "y_inner_mtype": ["pd.DataFrame", "pd-multiindex", "pd_multiindex_hier"],
        "X_inner_mtype": ["pd.DataFrame", "pd-multiindex", "pd_multiindex_hier"],
        "scitype:y": "both",
        "capability:multivariate": True,
        "capability:exogenous": True,
        "capability:missing_values": True,
        "capability:insample": False,
        "capability:random_state": True,
        "property:randomness": "derandomized",
        "requires-fh-in-fit": True,
        "X-y-must-have-same-index": True,
    }

    def __init__(self, random_state=0):
        self.random_state = random_state
        super().__init__()

    def _fit(self, y, X, fh):
        steps = int(fh.to_relative(self.cutoff).to_numpy().max())
        options = {**SHORT, "patch_length": 2}
        if X is not None:
            options["known_future"] = ",".join(_known(X).columns)
        self.model_ = Forecaster(
            steps, context_length=4, random_state=self.random_state, options=options
        ).fit(_joined(y, X))
        return self

    def _predict(self, fh, X):
        """From all rows that are known by now, which updates may have added."""
        steps = np.arange(1, self.model_.horizon + 1)
        ahead = ForecastingHorizon(steps).to_absolute_index(self.cutoff)
        if X is not None:
            X = _known(X)
            if X.index.nlevels == 1:  # sktime gives the steps of the horizon alone
                X = X.reindex(ahead)
        found = self.model_.predict(_joined(self._y, self._X), X_future=X)
        wanted = found.index.get_level_values(-1).isin(fh.to_absolute_index(self.cutoff))
        return found[wanted]

    @classmethod
    def get_test_params(cls, parameter_set="default"):
        return {"random_state": 0}


def _known(X):
    """Covariates, whose names may be those of targets."""
    return X.set_axis([f"known {column}" for column in X.columns], axis=1)


def _joined(y, X):
    return y if X is None else y.join(_known(X))


@pytest.mark.filterwarnings("default")  # of sktime's own code
@pytest.mark.parametrize("adapter", [SktimeClassifier, SktimeForecaster])
def test_checks_of_sktime(adapter):
    results = check_estimator(adapter, tests_to_exclude=OF_ADAPTERS, verbose=False)
    assert {name: found for name, found in results.items() if found != "PASSED"} == {}
