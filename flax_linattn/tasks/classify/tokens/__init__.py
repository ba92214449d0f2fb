"""Classes of long sequences of tokens: ListOps, Pathfinder, bytes of texts, pixels of images."""

from flax_linattn.tasks.classify.tokens.data import SequenceProblem
from flax_linattn.tasks.classify.tokens.options import (
    SequenceConfig,
    SequenceData,
    SequenceFit,
    SequenceModel,
)
from flax_linattn.tasks.classify.tokens.task import (
    SequenceStream,
    SequenceStreamOptions,
    SequenceTask,
)

__all__ = [
    "SequenceConfig",
    "SequenceData",
    "SequenceFit",
    "SequenceModel",
    "SequenceProblem",
    "SequenceStream",
    "SequenceStreamOptions",
    "SequenceTask",
]
