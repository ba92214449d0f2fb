"""Numbers in docs/results.md."""

from tests.experiments.prose import Allowed, Sentence

SENTENCES: list[Sentence] = []
ALLOWED: list[Allowed] = []
