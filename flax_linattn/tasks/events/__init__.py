"""Events at irregular times: when the next one comes, and of which mark."""

from flax_linattn.tasks.events.options import (
    EventsConfig,
    EventsData,
    EventsFit,
    EventsModel,
    thp,
)
from flax_linattn.tasks.events.problem import EventsProblem
from flax_linattn.tasks.events.stream import EventsStream
from flax_linattn.tasks.events.stream_options import EventsStreamOptions

__all__ = [
    "EventsConfig",
    "EventsData",
    "EventsFit",
    "EventsModel",
    "EventsProblem",
    "EventsStream",
    "EventsStreamOptions",
    "thp",
]
