"""Time-series classification: JapaneseVowels, or a .ts/.arff pair of the user's own."""

from flax_linattn.tasks.classify.series.options import ClassifyConfig
from flax_linattn.tasks.classify.series.problem import ClassifyProblem
from flax_linattn.tasks.classify.series.stream import ClassifyStream, Prediction
from flax_linattn.tasks.classify.series.task import ClassifyTask

__all__ = ["ClassifyConfig", "ClassifyProblem", "ClassifyStream", "ClassifyTask", "Prediction"]
