"""``python -m flax_linattn``: the command ``flax-linattn``."""

from flax_linattn.cli import main

if __name__ == "__main__":
    main()
