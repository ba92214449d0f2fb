"""What a run's model says of data whose answers are not known, whatever its task."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from flax_linattn.checks import OptionError
from flax_linattn.tasks.prediction_table import check_out, write_table
from flax_linattn.tasks.run import Checkpoint, load_run
from flax_linattn.tasks.spec import Run


def predict_run(
    run_dir: str | Path,
    input: str | Path | None = None,
    out: str | Path | None = None,
    *,
    seed_index: int | None = None,
    checkpoint: Checkpoint = "best",
) -> pd.DataFrame:
    """Predicts with a run, and writes a table.

    What the rows are is up to the task: the steps after a series' last row, or one row for each
    sequence, image or episode.

    Args:
        run_dir: the run folder.
        input: data to predict from; default the run's own: its series up to the last row, or what
            it was tested on.
        out: a .csv, .json, .jsonl or .parquet file to write.
        seed_index: index of the run in a folder of several seeds, from 0; default the run that
            validated best.
        checkpoint: the "best" parameters, those that were selected, or the "last" ones.

    Returns:
        What the file holds.

    Raises:
        FileNotFoundError: the run or the input is missing.
        ValueError: damaged files, data that do not fit the run, or an unknown file format.
    """
    if out is not None:
        check_out(Path(out))  # now, rather than after the model has run
    run = load_run(run_dir, seed_index, checkpoint=checkpoint)
    table = predict(run, None if input is None else Path(input))
    if out is not None:
        write_table(Path(out), table)
    return table


def predict(run: Run, input: Path | None = None) -> pd.DataFrame:
    """As ``predict_run``, of a run that is loaded."""
    try:
        return run.task.predict(run, input)
    except OptionError as error:
        names = ["input" if name == "test_file" else name for name in error.options]
        raise OptionError(str(error), *names, **error.values) from error
