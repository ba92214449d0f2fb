"""``python -m flax_linattn.cli``."""

from flax_linattn.cli import run

if __name__ == "__main__":
    run()
