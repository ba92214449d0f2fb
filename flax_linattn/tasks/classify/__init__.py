"""Time-series classification: JapaneseVowels, or a .ts/.arff pair of the user's own."""

from flax_linattn.tasks.classify.options import ClassifyConfig
from flax_linattn.tasks.classify.problem import ClassifyProblem
from flax_linattn.tasks.classify.stream import ClassifyStream, Prediction
from flax_linattn.tasks.classify.task import ClassifyTask

__all__ = ["ClassifyConfig", "ClassifyProblem", "ClassifyStream", "ClassifyTask", "Prediction"]
