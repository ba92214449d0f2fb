from flax_linattn.fitted_variable import FittedVariable
from flax_linattn.models.backbone import Backbone, BackboneState
from flax_linattn.models.channel_mixing import ChannelMixing
from flax_linattn.models.classifier import ClassifierState, SequenceClassifier
from flax_linattn.models.decision_embedding import DecisionColumns, DecisionEmbedding
from flax_linattn.models.decision_transformer import DecisionTransformer
from flax_linattn.models.embedding import (
    Embedding,
    FeatureEmbedding,
    ObservationEmbedding,
    OneHotEmbedding,
    TokenEmbedding,
)
from flax_linattn.models.encoder_decoder import EncoderDecoder, HorizonState
from flax_linattn.models.event_embedding import EventColumns, EventEmbedding
from flax_linattn.models.event_forecaster import EventForecaster, NextEvent
from flax_linattn.models.forecaster import Forecaster, ForecasterState
from flax_linattn.models.head import Head
from flax_linattn.models.image_classifier import ImageClassifier, vit_layers
from flax_linattn.models.known_future import KnownFuture
from flax_linattn.models.language import LANGUAGE_LAYERS, LanguageModel
from flax_linattn.models.layers import (
    CLASSIFIER_LAYERS,
    DECISION_LAYERS,
    EVENT_LAYERS,
    FORECASTER_LAYERS,
    Layers,
    Mechanisms,
    window_layers,
)
from flax_linattn.models.log_normal import LogNormalMixture
from flax_linattn.models.minirocket import MiniRocketFeatures, MiniRocketState
from flax_linattn.models.minirocket_classifier import (
    MiniRocketClassifier,
    MiniRocketClassifierState,
)
from flax_linattn.models.moments import Moments, MomentsState
from flax_linattn.models.patch_forecaster import PATCH_LAYERS, PatchForecaster, PatchState
from flax_linattn.models.perceiver import PERCEIVER_LAYERS, PerceiverReader, PerceiverState
from flax_linattn.models.pooling import POOLINGS, LastPooling, MeanPooling, Pooling, SumPooling
from flax_linattn.models.quantiles import QuantileHead
from flax_linattn.models.saved import load_model, save_model
from flax_linattn.models.sequence_model import SequenceModel
from flax_linattn.models.sizes import SIZES, get_size
from flax_linattn.models.token_embeddings import ConvTokenEmbedding, LinearTokenEmbedding
from flax_linattn.models.window import (
    PROJECTIONS,
    READOUTS,
    WindowModel,
    WindowState,
)

__all__ = [
    "CLASSIFIER_LAYERS",
    "DECISION_LAYERS",
    "EVENT_LAYERS",
    "FORECASTER_LAYERS",
    "LANGUAGE_LAYERS",
    "PATCH_LAYERS",
    "PERCEIVER_LAYERS",
    "POOLINGS",
    "PROJECTIONS",
    "READOUTS",
    "SIZES",
    "Backbone",
    "BackboneState",
    "ChannelMixing",
    "ClassifierState",
    "ConvTokenEmbedding",
    "DecisionColumns",
    "DecisionEmbedding",
    "DecisionTransformer",
    "Embedding",
    "EncoderDecoder",
    "EventColumns",
    "EventEmbedding",
    "EventForecaster",
    "FeatureEmbedding",
    "FittedVariable",
    "Forecaster",
    "ForecasterState",
    "Head",
    "HorizonState",
    "ImageClassifier",
    "KnownFuture",
    "LanguageModel",
    "LastPooling",
    "Layers",
    "LinearTokenEmbedding",
    "LogNormalMixture",
    "MeanPooling",
    "Mechanisms",
    "MiniRocketClassifier",
    "MiniRocketClassifierState",
    "MiniRocketFeatures",
    "MiniRocketState",
    "Moments",
    "MomentsState",
    "NextEvent",
    "ObservationEmbedding",
    "OneHotEmbedding",
    "PatchForecaster",
    "PatchState",
    "PerceiverReader",
    "PerceiverState",
    "Pooling",
    "QuantileHead",
    "SequenceClassifier",
    "SequenceModel",
    "SumPooling",
    "TokenEmbedding",
    "WindowModel",
    "WindowState",
    "get_size",
    "load_model",
    "save_model",
    "vit_layers",
    "window_layers",
]
