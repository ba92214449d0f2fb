"""All measurements on a GPU or TPU, by one command that resumes where it stopped.

    python -m experiments.accelerator

It runs ``pieces.PIECES`` in their order, each in a process of its own: checks, the floor of the
device, attention, the papers' figures at the papers' sizes, streams.
"""

import time

BEGAN = time.monotonic()
"""When this process did, nearly: the time of a call counts from here."""
