"""Events at irregular times: sequences of them, and the files that hold them."""

from flax_linattn.data.events.load import load_events
from flax_linattn.data.events.rows import EventFileError
from flax_linattn.data.events.sequences import SINGLE_EVENT_TYPE, EventSequences, Piece
from flax_linattn.data.events.split import EventSplit, split_events

__all__ = [
    "SINGLE_EVENT_TYPE",
    "EventFileError",
    "EventSequences",
    "EventSplit",
    "Piece",
    "load_events",
    "split_events",
]
