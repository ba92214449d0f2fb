from flax_linattn.tasks.events.data import EventsSpec
from flax_linattn.tasks.events.options import (
    EventsConfig,
    EventsData,
    EventsFit,
    EventsModel,
    EventsStreamOptions,
    thp,
)
from flax_linattn.tasks.events.stream import EventsStream

__all__ = [
    "EventsConfig",
    "EventsData",
    "EventsFit",
    "EventsModel",
    "EventsSpec",
    "EventsStream",
    "EventsStreamOptions",
    "thp",
]
