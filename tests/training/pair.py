"""A run of one of two processes that start at once on one folder, as a command would end."""

import sys
import time
from pathlib import Path

import jax

from flax_linattn.training import FitConfig, Objective, Parallel, Session, Splits, fit
from tests.training.problem import OPTIMIZER, Net, loss_fn, make_batches


def main(run_dir: Path, epochs: int, seed: int, go: Path, resume: bool) -> None:
    model, batches = Net(seed), make_batches(seed=seed)
    config = FitConfig(epochs=epochs, seed=seed)
    session = Session(run_dir, resume=resume, progress=False, parallel=Parallel("none"))
    while not go.exists():
        time.sleep(0.001)
    with session.holding():
        if not resume and not (run_dir / "checkpoints").exists():
            (run_dir / "seed").write_text(str(seed))
        fit(
            model,
            Objective(loss_fn, OPTIMIZER),
            Splits(batches, make_batches(count=10, seed=None)),
            config=config,
            session=session,
        )


if __name__ == "__main__":
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    try:
        main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]),
             "resume" in sys.argv)  # fmt: skip
    except ValueError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
