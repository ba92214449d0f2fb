"""Prediction with a trained run, for every task."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from flax_linattn.checks import OptionError
from flax_linattn.tasks.options import Checkpoint
from flax_linattn.tasks.prediction_table import check_out, write_table
from flax_linattn.tasks.run import load_run
from flax_linattn.tasks.spec import Run


def predict_run(
    run_dir: str | Path,
    input: str | Path | None = None,
    out: str | Path | None = None,
    *,
    seed_index: int | None = None,
    checkpoint: Checkpoint = "best",
) -> pd.DataFrame:
    """Predicts with a trained run, and optionally writes the table to a file.

    The task defines the rows of the table: the steps after the last row of a series, or one row for
    each sequence, image or episode.

    Args:
        run_dir: Run folder.
        input: Data to predict from. Default: the run's own data (its series up to the last row, or
            its test data).
        out: File to write, .csv, .json, .jsonl or .parquet.
        seed_index: Index of the run in a folder of several seeds, from 0. Default: the run with the
            best validation value.
        checkpoint: "best" (the selected parameters) or "last" (the last parameters).

    Returns:
        The table of predictions, as the file holds it.

    Raises:
        FileNotFoundError: If the run or the input is missing.
        ValueError: If files are damaged, the data do not match the run, or the file format is
            unknown.
    """
    if out is not None:
        check_out(Path(out))  # now, rather than after the model has run
    run = load_run(run_dir, seed_index, checkpoint=checkpoint)
    table = predict(run, None if input is None else Path(input))
    if out is not None:
        write_table(Path(out), table)
    return table


def predict(run: Run, input: Path | None = None) -> pd.DataFrame:
    """Predicts with a run that is already loaded; see ``predict_run``."""
    try:
        return run.task.predict(run, input)
    except OptionError as error:
        names = ["input" if name == "test_file" else name for name in error.options]
        raise OptionError(str(error), *names, **error.values) from error
