"""``flax-linattn predict RUN``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import tyro

from flax_linattn.cli import flags
from flax_linattn.tasks.predict import predict_run
from flax_linattn.tasks.run import Checkpoint


def predict_command(args: Sequence[str]) -> int:
    """Predicts with a run.

    Args:
        args: the command line.

    Returns:
        The exit status.
    """
    with flags.only(flags.own(_predict)):
        tyro.cli(_predict, args=args, prog="flax-linattn predict")
    return 0


def _predict(
    run: Path,
    /,
    out: Path,
    input: Path | None = None,
    seed_index: int | None = None,
    checkpoint: Checkpoint = "best",
) -> None:
    """Writes what a run's model predicts to a file.

    Of a series these are the steps after its last row, in the units of the file; of sequences,
    texts and images their classes; of events when the next one comes; of symbols the next one; of
    episodes the next action.

    Args:
        run: the run folder.
        out: the file to write: .csv, .json, .jsonl, or .parquet (which takes pyarrow).
        input: data to predict from: a table for a run on a series, a .ts or .arff file for one on
            sequences, images or a folder of them for one on images, a file of lines as "stream"
            reads them for one on tokens or symbols, events, or episodes. Labels in it do not
            count. Default the run's own: its series up to the last row, else what it was tested on.
        seed_index: index of the run in a folder of several seeds, from 0; default the run that
            validated best.
        checkpoint: best are the parameters that were selected, last those that training ended with.
    """
    table = predict_run(run, input, out, seed_index=seed_index, checkpoint=checkpoint)
    print(f"# {table.num_rows:,} rows: {out}", file=sys.stderr)
