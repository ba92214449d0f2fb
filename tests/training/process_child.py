"""One process of several that train together; it prints the loss curve."""

import json
import os
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp

from flax_linattn.training import Parallel, start_process
from tests.training.problem import Source, make_batches, recorded, train

if __name__ == "__main__":
    folder, address, count, index, *how = sys.argv[1:]
    os.environ["XLA_FLAGS"] = os.environ["XLA_FLAGS"].replace("device_count=8", "device_count=2")
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    start_process(address, int(count), int(index), heartbeat_timeout=10)

    def disturb(step, batch):
        """Time to be caught at work."""
        time.sleep(0.05 if "slow" in how else 0)
        if "fail" in how and index == "1" and step == 6:
            raise OSError("no more data")

    def validate(model, step):
        """Of a sum over parameters, and of what differs between processes."""
        return {"size": jnp.sum(model.layers[0].kernel[...] ** 2), "process": int(index) + 0.1}

    _, result = train(
        Path(folder + index if "apart" in how else folder),
        epochs=200 if "slow" in how else 3,
        train=recorded(
            Source(make_batches(), disturb), Path(folder).parent / f"ids-{count}-{index}"
        ),
        validation=make_batches(seed=None),
        resume="resume" in how,
        parallel=Parallel(shard_parameters="fsdp" in how),
        validate=validate if "validate" in how else None,
        checkpoint_every_steps=2,
        patience=int(index) + 1 if "differ" in how else None,
    )
    if "validate" in how:
        print(json.dumps([line["validation_process"] for line in result.history]))
    print(json.dumps([line["validation_loss"] for line in result.history]))
