"""scikit-learn's own checks of the estimators, and its tools on the classifier."""

import numpy as np
import pytest

from flax_linattn.estimators import Classifier, Forecaster

sklearn = pytest.importorskip("sklearn")

from sklearn.base import clone, is_classifier  # noqa: E402
from sklearn.model_selection import GridSearchCV, cross_val_score  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import StandardScaler  # noqa: E402
from sklearn.utils.estimator_checks import estimator_checks_generator  # noqa: E402

SMALL = {"features": 8, "num_layers": 1, "num_heads": 2, "hidden_features": 8}
TINY = Classifier(
    batch_size=32,
    learning_rate=0.02,
    random_state=0,
    options={**SMALL, "steps": 40, "validate_every": 20},
)

FORECASTER = Forecaster(
    horizon=1,
    context_length=4,
    random_state=0,
    options={**SMALL, "patch_length": 2, "steps": 2, "validate_every": 2},
)

EXPECTED_FAILED_CHECKS = {
    "Classifier": {},
    "Forecaster": {
        "check_fit1d": "a series of one channel may be [T]",
        "check_methods_sample_order_invariance": "the model learns the order of the rows",
        "check_methods_subset_invariance": "a forecast follows the last of all rows",
    },
}
"""Checks that do not apply to an estimator, and why."""

LONGER = {**SMALL, "steps": 400, "validate_every": 100}
"""For the check that asks for an accuracy: above 0.83 on what was trained on."""

QUICK = (
    "check_estimator_cloneable",
    "check_estimator_tags_renamed",
    "check_valid_tag_types",
    "check_estimator_repr",
    "check_no_attributes_set_in_init",
    "check_estimators_unfitted",
    "check_do_not_raise_errors_in_init_or_set_params",
    "check_mixin_order",
    "check_estimator_sparse_tag",
    "check_parameters_default_constructible",
    "check_get_params_invariance",
    "check_set_params",
    "check_requires_y_none",
)
"""Those that fit nothing."""


def checks():
    for estimator in (TINY, FORECASTER):
        kind = type(estimator).__name__
        with pytest.warns(UserWarning, match="does not inherit from"):
            found = list(estimator_checks_generator(estimator))
        for _, check in found:
            name = getattr(check, "func", check).__name__
            marks = [] if name in QUICK else [pytest.mark.slow]
            if (reason := EXPECTED_FAILED_CHECKS[kind].get(name)) is not None:
                marks.append(pytest.mark.xfail(reason=reason, strict=True))
            if name.startswith("check_n_features_in"):  # labels are random, so the warning is right
                marks.append(pytest.mark.filterwarnings("ignore:the classifier predicts"))
            options = ",".join(f"{k}={v}" for k, v in getattr(check, "keywords", {}).items())
            name = f"{kind}-{name}({options})" if options else f"{kind}-{name}"
            yield pytest.param(estimator, check, id=name, marks=marks)


@pytest.mark.parametrize(("estimator", "check"), list(checks()))
@pytest.mark.filterwarnings("ignore:Estimator .* does not inherit from")
@pytest.mark.filterwarnings("ignore:y is ignored")  # the checks pass one
def test_check(estimator, check):
    estimator = clone(estimator)
    if "check_classifiers_train" in str(check):
        estimator.set_params(options=LONGER)
    check(estimator)


def test_its_tools_know_what_an_estimator_is():
    assert is_classifier(TINY) and not is_classifier(Forecaster())
    for estimator in (TINY, Forecaster(horizon=3, options=SMALL)):
        again = clone(estimator)
        assert again is not estimator and again.get_params() == estimator.get_params()


@pytest.mark.slow
def test_cross_validation_pipelines_and_grids():
    """Of lists of unequal lengths, and of tables behind a scaler."""
    rng = np.random.default_rng(0)
    y = np.tile([0, 1], 30)
    X = [
        label * np.linspace(0, 2, length)[:, None] + 0.3 * rng.normal(size=(length, 1))
        for label, length in zip(y, rng.integers(5, 9, 60), strict=True)
    ]
    assert np.mean(cross_val_score(TINY, X, y, cv=3)) > 0.8
    table = np.stack([own[:5, 0] for own in X])
    pipeline = make_pipeline(StandardScaler(), clone(TINY))
    grid = GridSearchCV(pipeline, {"classifier__mechanism": ["aaren", "softmax"]}, cv=2)
    assert grid.fit(table, y).best_score_ > 0.6
    assert grid.predict_proba(table).shape == (60, 2)
