"""Events at irregular times: sequences of them, and the files that hold them."""

from flax_linattn.data.events.easytpp import load_easytpp
from flax_linattn.data.events.jodie import load_jodie
from flax_linattn.data.events.load import load_events
from flax_linattn.data.events.npz import load_event_npz
from flax_linattn.data.events.rmtpp import load_rmtpp
from flax_linattn.data.events.sequences import UNMARKED, EventSequences, Piece
from flax_linattn.data.events.split import EventSplit, split_events
from flax_linattn.data.events.table import load_event_table

__all__ = [
    "UNMARKED",
    "EventSequences",
    "EventSplit",
    "Piece",
    "load_easytpp",
    "load_event_npz",
    "load_event_table",
    "load_events",
    "load_jodie",
    "load_rmtpp",
    "split_events",
]
