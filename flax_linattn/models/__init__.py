"""Models: a backbone of transformer blocks, and heads on it."""

from flax_linattn.models.backbone import Backbone, BackboneState
from flax_linattn.models.classifier import ClassifierState, SequenceClassifier
from flax_linattn.models.encoder_decoder import EncoderDecoder
from flax_linattn.models.forecaster import Forecaster, ForecasterState
from flax_linattn.models.moments import Moments, MomentsState
from flax_linattn.models.pooling import POOLINGS, LastPooling, MeanPooling, Pooling, SumPooling
from flax_linattn.models.sizes import SIZES, Size, get_size

__all__ = [
    "POOLINGS",
    "SIZES",
    "Backbone",
    "BackboneState",
    "ClassifierState",
    "EncoderDecoder",
    "Forecaster",
    "ForecasterState",
    "LastPooling",
    "MeanPooling",
    "Moments",
    "MomentsState",
    "Pooling",
    "SequenceClassifier",
    "Size",
    "SumPooling",
    "get_size",
]
