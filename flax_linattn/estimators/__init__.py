"""Estimators in the manner of scikit-learn: ``fit`` on arrays or data frames, then ``predict``.

They train as the commands do, by the tasks' models, losses and loop. scikit-learn is not needed;
where it is installed, ``clone``, ``Pipeline`` and ``cross_val_score`` take these estimators. What
goes in as a data frame comes out as one.
"""

from flax_linattn.estimators.base import Estimator, NotFittedError
from flax_linattn.estimators.classifier import Classifier
from flax_linattn.estimators.forecaster import Forecaster, ForecasterStream

__all__ = ["Classifier", "Estimator", "Forecaster", "ForecasterStream", "NotFittedError"]
