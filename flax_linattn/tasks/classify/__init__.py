"""Classification: of time series, of sequences of tokens, of images."""

from flax_linattn.tasks.classify.images import ImageConfig, ImageProblem
from flax_linattn.tasks.classify.series import (
    ClassifyConfig,
    ClassifyProblem,
    ClassifyStream,
    ClassifyTask,
    Prediction,
)
from flax_linattn.tasks.classify.tokens import SequenceConfig, SequenceProblem, SequenceStream

__all__ = [
    "ClassifyConfig",
    "ClassifyProblem",
    "ClassifyStream",
    "ClassifyTask",
    "ImageConfig",
    "ImageProblem",
    "Prediction",
    "SequenceConfig",
    "SequenceProblem",
    "SequenceStream",
]
