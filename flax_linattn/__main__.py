"""``python -m flax_linattn``: the command ``flax-linattn``."""

from flax_linattn.cli import run

if __name__ == "__main__":
    run()
