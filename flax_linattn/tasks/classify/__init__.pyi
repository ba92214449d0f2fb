from flax_linattn.tasks.classify.class_stream import Prediction
from flax_linattn.tasks.classify.image_options import ImageConfig
from flax_linattn.tasks.classify.images import ImageSpec, ImageTask
from flax_linattn.tasks.classify.series.data import ClassifySpec, SeriesSource
from flax_linattn.tasks.classify.series.options import ClassifyConfig, ClassifyStreamOptions
from flax_linattn.tasks.classify.series.stream import ClassifyStream
from flax_linattn.tasks.classify.series.task import ClassifyTask, predict_proba
from flax_linattn.tasks.classify.tokens.data import SequenceSpec
from flax_linattn.tasks.classify.tokens.options import SequenceConfig, SequenceStreamOptions
from flax_linattn.tasks.classify.tokens.task import (
    SequenceStream,
    SequenceTask,
)

__all__ = [
    "ClassifyConfig",
    "ClassifySpec",
    "ClassifyStream",
    "ClassifyStreamOptions",
    "ClassifyTask",
    "ImageConfig",
    "ImageSpec",
    "ImageTask",
    "Prediction",
    "SequenceConfig",
    "SequenceSpec",
    "SequenceStream",
    "SequenceStreamOptions",
    "SequenceTask",
    "SeriesSource",
    "predict_proba",
]
