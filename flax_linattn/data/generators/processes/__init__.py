"""Point processes of known likelihood: sampling, scoring and fitting in NumPy float64."""

from flax_linattn.data.generators.processes.event_types import (
    IndependentEventTypes,
    event_type_frequencies,
)
from flax_linattn.data.generators.processes.hawkes import HawkesProcess
from flax_linattn.data.generators.processes.hawkes_fit import MAX_EVENT_TYPES
from flax_linattn.data.generators.processes.poisson import SIN, SIN_END, PoissonProcess, SinePoisson
from flax_linattn.data.generators.processes.process import LogLikelihood, Process
from flax_linattn.data.generators.processes.renewal import RenewalProcess

__all__ = [
    "MAX_EVENT_TYPES",
    "SIN",
    "SIN_END",
    "HawkesProcess",
    "IndependentEventTypes",
    "LogLikelihood",
    "PoissonProcess",
    "Process",
    "RenewalProcess",
    "SinePoisson",
    "event_type_frequencies",
]
