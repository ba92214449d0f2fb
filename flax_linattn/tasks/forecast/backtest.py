"""Backtests: a forecaster over folds of the rows after its training rows."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from flax_linattn import training
from flax_linattn.checkpoint.arrays import fingerprint
from flax_linattn.checks import OptionError, check_integers
from flax_linattn.storage import file_lock
from flax_linattn.tasks.baselines import TIE, Baselines
from flax_linattn.tasks.figures import has_figures
from flax_linattn.tasks.files import read_json, write_json
from flax_linattn.tasks.forecast.baselines import baseline_forecasts, fitted_ridge, ridge_forecast
from flax_linattn.tasks.forecast.evaluate import Errors, sum_errors
from flax_linattn.tasks.forecast.figures import plot_folds
from flax_linattn.tasks.forecast.panel import SeriesPanel, own_panel
from flax_linattn.tasks.forecast.quantiles import NO_TRUE_VALUES
from flax_linattn.tasks.forecast.ridge import Ridge, fit_ridge
from flax_linattn.tasks.forecast.rows import series_row
from flax_linattn.tasks.forecast.stream import ForecastStream
from flax_linattn.tasks.forecast.windows import Forecast, PanelWindows, model_forecast, stack
from flax_linattn.tasks.run import load_run
from flax_linattn.tasks.spec import Run
from flax_linattn.tasks.task import Report
from flax_linattn.tasks.train_run import train

BASELINES = Baselines(
    "mse", ("naive", "seasonal_naive", "ridge", "refitted_ridge"), title="mean MSE of the folds"
)
NOTE = (
    "the folds of one series are not independent: their standard deviation (_sd) is the variation "
    "of the error over time, not the uncertainty of the mean"
)
Mode = Literal["plain", "carry", "refit"]


def backtest(
    run_dir: str | Path,
    *,
    folds: int = 4,
    refit: bool = False,
    carry: bool = False,
    context: int | None = None,
    epochs: int | None = None,
    progress: bool = True,
    parallel: training.Parallel | None = None,
) -> Report:
    """Tests a run on consecutive folds of equal length: all rows after its training part.

    The forecasts of a fold begin after each row whose horizon lies in the fold. By default, the
    run's model forecasts from windows. With ``carry``, one stream over all rows, with ``context``
    past rows, makes the forecasts. With ``refit``, a new model is trained on all rows before the
    fold, for ``epochs``, with the options and seed of the run; the validation fraction of the run
    selects its parameters.

    The baselines are the same as in ``evaluate``, with the ridge of the model's training rows.
    Without ``refit``, a ridge that is fitted again before each fold is added (``refitted_ridge``).
    In all folds, errors are on values scaled by the training rows of the run.

    Results are saved in the folder ``backtest`` of the run; finished folds are not computed again.
    """
    check_integers(1, folds=folds)
    mode = _mode(refit, carry, context, epochs)
    run_dir = Path(run_dir)
    run = load_run(run_dir)
    if run.data_spec.members:
        raise OptionError(
            f"expected a run on one series, but {run_dir} was trained on a panel; use evaluate "
            "instead.",
            "run",
        )
    panel = own_panel(run)
    (series,), options = panel.series, run.config.data
    rows = range(run.data_spec.parts.train.stop, run.data_spec.parts.test.stop)
    parts = fold_rows(rows, folds)
    if len(parts[0]) < options.horizon:
        max_folds = len(rows) // options.horizon
        raise OptionError(
            f"expected folds of at least {options.horizon} rows (the horizon), got folds={folds} "
            f"of the {len(rows)} rows after the training part; "
            + (f"use at most {max_folds}." if max_folds else "train with more rows to test on."),
            "folds",
        )
    targets = series.values[:, list(run.data_spec.targets)]
    known = [not np.isnan(targets[part.start : part.stop]).all() for part in parts]
    if not any(known):
        raise ValueError(NO_TRUE_VALUES)
    given = {"context": context, "epochs": epochs}
    suffix = "".join(f"-{name}-{value}" for name, value in given.items() if value is not None)
    folder = run_dir / "backtest" / f"{mode}-{folds}{suffix}"
    with file_lock(run_dir / "backtest" / "lock", f"the backtests of {run_dir}"):
        if mode == "refit":
            how: dict[str, Any] = {"parallel": parallel, "progress": progress and "lines"}
            tester: _Tester = _Refitted(run, folder, epochs, how)
        else:
            tester = _Fixed(run, panel, folder, mode, context)
        table = [
            {
                "fold": number,
                **({"from": str(series.times[part.start])} if series.times is not None else {}),
                **({"from": str(series.index[part.start])} if series.has_integer_times else {}),
                **_fold(tester if has_truth else None, folder, number, part),
            }
            for number, (part, has_truth) in enumerate(zip(parts, known, strict=True), 1)
        ]
        report = _summary(run, mode, table)
        write_json(folder / "backtest.json", report.all_values)
        if has_figures():
            plot_folds(report.values, folder / "backtest.png")
    return report


def _mode(refit: bool, carry: bool, context: int | None, epochs: int | None) -> Mode:
    """Returns the mode of the options, or raises if they exclude each other."""
    if refit and carry:
        raise OptionError(
            "refit trains a new model for each fold, and carry continues one stream over all "
            "folds; choose one of them.",
            "refit",
            "carry",
        )
    if context is not None and not carry:
        raise OptionError(
            "context is for the stream of carry; set carry=True, or remove context.",
            "context",
            "carry",
        )
    if epochs is not None and not refit:
        raise OptionError(
            "epochs is for models that refit trains; set refit=True, or remove epochs.",
            "epochs",
            "refit",
        )
    return "refit" if refit else "carry" if carry else "plain"


def fold_rows(rows: range, folds: int) -> list[range]:
    """Splits rows into consecutive folds whose lengths differ by at most one row.

    Example:
        >>> fold_rows(range(10, 20), 3)
        [range(10, 13), range(13, 16), range(16, 20)]
    """
    ends = [rows.start + len(rows) * number // folds for number in range(folds + 1)]
    return [range(begin, end) for begin, end in itertools.pairwise(ends)]


def rows_before(split: Sequence[tuple[int, int]], begin: int) -> tuple[range, range]:
    """Training and validation rows before a fold, in the proportion of the run's split.

    Example:
        >>> rows_before(((0, 60), (60, 80), (80, 100)), 88)
        (range(0, 66), range(66, 88))
    """
    train, validation = (stop - start for start, stop in split[:2])
    count = begin * train // (train + validation)
    return range(count), range(count, begin)


_Tested = tuple[dict[str, Errors], NDArray | float, int]
"""Errors by forecast, their scale, and the number of windows."""


class _Fixed:
    """Tests folds by the run's own parameters."""

    def __init__(
        self, run: Run, panel: SeriesPanel, folder: Path, mode: Mode, context: int | None
    ) -> None:
        self._run, self._panel, self._folder = run, panel, folder
        self._arrays, _ = stack(panel.series, [run.data_spec])
        self._stream = ForecastStream(run, context=context) if mode == "carry" else None
        self._model, self._context = fingerprint(run.model), context

    @functools.cached_property
    def _ridge(self) -> Ridge:
        return fitted_ridge(self._run, self._panel)

    def key(self, part: range) -> dict[str, Any]:
        return {
            "model": self._model,
            "checksum": self._run.data_spec.checksum,
            "season": self._run.config.data.season,
            "context": self._context,
            "rows": [part.start, part.stop],
        }

    def test(self, number: int, part: range) -> _Tested:
        run, options = self._run, self._run.config.data
        windows = PanelWindows([run.data_spec], self._arrays, [part], run.config)
        train, validation = rows_before(run.data_spec.split, part.start)
        targets = self._arrays["values"][:, list(run.data_spec.targets)]
        lengths = options.context_length, options.horizon
        refitted = fit_ridge(targets, [train], [validation], *lengths, maps="auto")
        forecasts = {
            "test": model_forecast(run) if self._stream is None else self._streamed(number),
            **baseline_forecasts(run, windows, self._ridge),
            "refitted_ridge": ridge_forecast(run, refitted),
        }
        errors = sum_errors(forecasts, run, windows)
        if self._stream is not None:
            self._stream.save(self._state(number))
        return errors, 1.0, windows.num_examples

    def _state(self, number: int) -> Path:
        return self._folder / f"fold-{number}.npz"

    def _streamed(self, number: int) -> Forecast:
        """The forecasts of a stream that receives all rows in their order."""
        stream, data_spec, (series,) = self._stream, self._run.data_spec, self._panel.series
        known, horizon = data_spec.known_future, self._run.config.data.horizon
        assert stream is not None
        earlier = [path for n in range(1, number) if (path := self._state(n)).is_file()]
        if earlier and not stream.num_steps:
            stream.load(earlier[-1])
        targets = list(data_spec.targets)
        mean, std = data_spec.standardizer.mean[targets], data_spec.standardizer.std[targets]
        forecast = np.zeros((0, 0))

        def up_to(row: int) -> NDArray:
            nonlocal forecast
            while stream.num_steps <= row:
                forecast = stream.step(series_row(series, stream.num_steps, known, horizon))
            mean_forecast = forecast[..., 0] if self._run.config.model.levels else forecast
            return (mean_forecast - mean) / std

        return lambda batch: np.stack([up_to(row) for row in batch.last.tolist()])


class _Refitted:
    """Trains a model on the rows before each fold, in a run folder of its own."""

    def __init__(self, run: Run, folder: Path, epochs: int | None, how: Mapping[str, Any]) -> None:
        self._run, self._folder, self._how = run, folder, how
        config = run.config.run_config(run.seed_index or 0)
        self._config = config if epochs is None else config.replace(epochs=epochs, steps=0)

    def _fold_config(self, part: range) -> Any:
        train, validation = rows_before(self._run.data_spec.split, part.start)
        return self._config.replace(split=f"{len(train)}/{len(validation)}/{len(part)}")

    def key(self, part: range) -> dict[str, Any]:
        return {
            "config": self._fold_config(part).to_json(),
            "checksum": self._run.data_spec.checksum,
        }

    def test(self, number: int, part: range) -> _Tested:
        config, folder = self._fold_config(part), self._folder / str(number)
        resume = any((folder / "checkpoints").glob("step_*"))
        train(self._run.task, config, training.Session(folder, resume=resume, **self._how))
        run = load_run(folder)
        windows, ridge = run.task.test_batches(run, None), fitted_ridge(run)
        assert isinstance(windows, PanelWindows)
        forecasts = {"test": model_forecast(run), **baseline_forecasts(run, windows, ridge)}
        errors = sum_errors(forecasts, run, windows)
        scale = run.data_spec.standardizer.std / self._run.data_spec.standardizer.std
        return errors, scale[list(run.data_spec.targets)], windows.num_examples


_Tester = _Fixed | _Refitted


def _fold(tester: _Tester | None, folder: Path, number: int, part: range) -> dict[str, Any]:
    """The table row of a fold, computed or read; without a tester the fold has no known value."""
    row: dict[str, Any] = {"begin": part.start, "end": part.stop, "num_windows": 0}
    if tester is None:
        return row
    path, key = folder / f"fold-{number}.json", tester.key(part)
    if path.is_file():
        stored = read_json(path)
        if stored.get("key") == key:
            row = stored["row"]
            return row
    errors, scale, row["num_windows"] = tester.test(number, part)
    for name, sums in errors.items():
        metrics = sums.metrics(scale)
        row |= {f"{name}_{metric}": metrics[metric] for metric in ("mse", "mae")}
    write_json(path, {"key": key, "row": row})
    return row


def _summary(run: Run, mode: Mode, folds: list[dict[str, Any]]) -> Report:
    """The means over folds with known values, and a table of all folds."""
    values: dict[str, Any] = {"mode": mode, "folds": len(folds)}
    table = [row for row in folds if row["num_windows"]]
    for name in (name for name in table[0] if name.endswith(("_mse", "_mae"))):
        column = [row[name] for row in table]
        values[name] = float(np.mean(column))
        if len(column) > 1:
            values[f"{name}_sd"] = float(np.std(column, ddof=1))
    for name in BASELINES.names:
        if f"{name}_mse" in values:
            ahead = sum(row["test_mse"] < (1 - TIE) * row[f"{name}_mse"] for row in table)
            values[f"folds_ahead_of_{name}"] = ahead
    chosen = [row for row in table if row["begin"] < run.data_spec.split[1][1]]
    optimistic = "validation rows, which selected the model and the ridge, and is optimistic"
    note = _folds(chosen if mode != "refit" else [], "contains", optimistic)
    empty = [row for row in folds if not row["num_windows"]]
    note += _folds(empty, "has", "no known value to test on, and is excluded from the means")
    values["note"] = NOTE + note
    values["by_fold"] = [dict.fromkeys(table[0]) | row for row in folds]
    return Report(values, ("by_fold",), baselines=BASELINES)


def _folds(rows: Sequence[Mapping[str, Any]], verb: str, what: str) -> str:
    """A clause on folds, by their numbers; empty without any."""
    numbers = [str(row["fold"]) for row in rows]
    names = f"fold {numbers[0]}" if len(numbers) == 1 else f"each of folds {', '.join(numbers)}"
    return f"; {names} {verb} {what}" if numbers else ""
