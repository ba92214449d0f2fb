"""A training run in a process of its own, slow enough to be caught at work."""

import sys
import time
from pathlib import Path

import jax

from tests.training.problem import Source, make_batches, train

if __name__ == "__main__":
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    train(
        Path(sys.argv[1]),
        epochs=int(sys.argv[2]),
        train=Source(make_batches(), lambda step, batch: time.sleep(0.01)),
        resume="resume" in sys.argv,
        checkpoint_every_steps=2,
    )
