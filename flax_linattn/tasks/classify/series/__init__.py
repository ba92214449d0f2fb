"""Time-series classification: JapaneseVowels, or a .ts/.arff pair of the user's own."""

from flax_linattn.tasks.classify.class_stream import Prediction
from flax_linattn.tasks.classify.series.data import ClassifyProblem
from flax_linattn.tasks.classify.series.options import ClassifyConfig
from flax_linattn.tasks.classify.series.stream import ClassifyStream
from flax_linattn.tasks.classify.series.task import ClassifyTask, predict_proba

__all__ = [
    "ClassifyConfig",
    "ClassifyProblem",
    "ClassifyStream",
    "ClassifyTask",
    "Prediction",
    "predict_proba",
]
