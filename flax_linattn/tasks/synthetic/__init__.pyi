from flax_linattn.tasks.synthetic.data import SyntheticSpec
from flax_linattn.tasks.synthetic.options import (
    SyntheticConfig,
    SyntheticData,
    SyntheticFit,
    SyntheticModel,
    SyntheticStreamOptions,
    recall,
)
from flax_linattn.tasks.synthetic.stream import SyntheticStream

__all__ = [
    "SyntheticConfig",
    "SyntheticData",
    "SyntheticFit",
    "SyntheticModel",
    "SyntheticSpec",
    "SyntheticStream",
    "SyntheticStreamOptions",
    "recall",
]
