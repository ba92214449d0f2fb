"""Estimators with scikit-learn's interface: ``fit`` on arrays or data frames, then ``predict``.

Models, losses and training are the same as in the commands. scikit-learn is optional: where it is
installed, ``clone``, ``Pipeline`` and ``cross_val_score`` accept these estimators. A data frame as
input gives a data frame as output.
"""

from flax_linattn.estimators.base import Estimator, NotFittedError
from flax_linattn.estimators.classifier import Classifier
from flax_linattn.estimators.forecaster import Forecaster, ForecasterStream

__all__ = ["Classifier", "Estimator", "Forecaster", "ForecasterStream", "NotFittedError"]
