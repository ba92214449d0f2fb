"""All measurements on a GPU or TPU, by one command that resumes where it stopped.

    python -m experiments.accelerator

The command runs ``pieces.PIECES`` in order, each in its own process: checks, the roofline of the
device, attention, the papers' figures at the papers' sizes, and streams.
"""

import time

BEGAN = time.monotonic()
"""When this process did, nearly: the time of a call counts from here."""
