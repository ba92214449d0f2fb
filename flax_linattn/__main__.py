"""``python -m flax_linattn`` and the script ``flax-linattn``."""

import sys

try:
    from flax_linattn.terminal import exit_on_interrupt
except KeyboardInterrupt:  # in the milliseconds before there is a handler
    sys.exit(130)


def run() -> None:
    """Runs the command ``flax-linattn``; Ctrl-C during its imports ends it, too."""
    exit_on_interrupt()
    from flax_linattn import cli

    cli.run()


if __name__ == "__main__":
    run()
