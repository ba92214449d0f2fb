"""Numbers in docs/time-series.md."""

from tests.experiments.prose import Allowed, Sentence

SENTENCES: list[Sentence] = []
ALLOWED: list[Allowed] = []
