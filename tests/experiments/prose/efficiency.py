"""Numbers in docs/efficiency.md."""

from tests.experiments.prose import Allowed, Sentence

SENTENCES: list[Sentence] = []
ALLOWED: list[Allowed] = [Allowed("(1.5, the noise of a shared machine)", "a flag's default")]
