"""``python -m flax_linattn.cli``."""

from flax_linattn.cli import run

run()
