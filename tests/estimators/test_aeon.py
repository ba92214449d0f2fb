"""aeon's own checks of the classifier, by an adapter as its users write one."""

import pytest

from flax_linattn.estimators import Classifier

pytest.importorskip("aeon", reason="aeon is not installed")

from aeon.classification.base import BaseClassifier
from aeon.testing.estimator_checking import check_estimator

SHORT = {"features": 8, "num_layers": 1, "num_heads": 2, "hidden_features": 8, "steps": 2}


class AeonClassifier(BaseClassifier):
    """A ``Classifier`` on arrays of aeon, whose last axis is time."""

    _tags = {  # noqa: RUF012
        "X_inner_type": ["np-list", "numpy3D"],
        "capability:multivariate": True,
        "capability:unequal_length": True,
        "capability:missing_values": True,
    }

    def __init__(self, random_state=0):
        self.random_state = random_state
        super().__init__()

    def _fit(self, X, y):
        self.model_ = Classifier(random_state=self.random_state, options=SHORT)
        self.model_.fit([own.T for own in X], y)
        return self

    def _predict(self, X):
        return self.model_.predict([own.T for own in X])

    def _predict_proba(self, X):
        return self.model_.predict_proba([own.T for own in X])


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # of aeon's own code
def test_checks_of_aeon():
    results = check_estimator(AeonClassifier(), verbose=False)
    assert {name: found for name, found in results.items() if found != "PASSED"} == {}
