"""A forecaster of one series or a panel of series, with the interface of scikit-learn."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from flax_linattn import data
from flax_linattn.checks import OptionError, check_integers, itemize
from flax_linattn.compilation import cached_programs
from flax_linattn.data.series.frames import NIXTLA_ID
from flax_linattn.data.tables.cells import join_cells, split_cells
from flax_linattn.data.tables.dialect import Dialect
from flax_linattn.estimators.base import Estimator, make_config, make_seed
from flax_linattn.estimators.history import FrameOptions, History
from flax_linattn.estimators.reading import TARGET, convert_time, read_future, read_history
from flax_linattn.registry import get_task
from flax_linattn.storage import atomic_write
from flax_linattn.tasks.forecast.options import ForecastData
from flax_linattn.tasks.forecast.panel import (
    count_series,
    make_panel,
    name_notes,
    read_series,
    row_notes,
    with_frequency,
)
from flax_linattn.tasks.forecast.rows import Row, series_row
from flax_linattn.tasks.forecast.spec import compute_checksum
from flax_linattn.tasks.forecast.stream import ForecastStream
from flax_linattn.tasks.forecast.windows import (
    context_notes,
    forecast_each,
    horizon_notes,
    rows_after,
)
from flax_linattn.tasks.init_run import InitRun
from flax_linattn.tasks.options import TooFewRowsError
from flax_linattn.tasks.run import check_run_dir
from flax_linattn.tasks.spec import Run
from flax_linattn.tasks.train_run import fit_data

DATA_FILE = "data.parquet"
"""File of the series, in the folder of a run."""


class Forecaster(Estimator):
    """Forecasts the next steps of one or several series: ``fit(series).predict()``.

    Model and training are the same as in ``flax-linattn train forecast``. The last tenth of the
    rows, at least one horizon, selects the epoch; no rows are held out for a test.

    A series is an array [T, C] or [T], or a data frame or pandas series with times in its index or
    in a column; NaN is a missing value. Forecasts have the same form: [H, C], or a data frame that
    continues the times.

    A panel, all series of which train one model, is a data frame with the columns ``unique_id`` and
    ``ds`` of Nixtla's libraries, or with a MultiIndex whose last level is time, as in sktime. In
    such a frame ``y`` is the only target if there is a column of this name. Further columns are
    then covariates: static ones, which never change within a series and may be strings, and others,
    whose values for the horizon ``predict`` takes as ``X_future``.

    Args:
        horizon: Number of rows to forecast.
        context_length: Context length: number of past rows of a forecast. 0 chooses it on the rows
            that select the epoch.
        mechanism: Attention mechanism with a causal form, a name of ``ops.list_mechanisms``.
        epochs: Maximum number of passes over the data; default that of the preset.
        batch_size: Windows of a training step.
        learning_rate: Peak learning rate of Adam.
        random_state: Seed, random state or generator of NumPy, or None for NumPy's global state.
        run: Folder to save the run and its series in, for ``flax-linattn predict`` and ``stream``;
            default none.
        options: Further options of ``flax-linattn train forecast`` by name, such as
            ``{"model": "decoder"}``, ``{"quantiles": "0.1,0.9"}``, ``{"known_future": "price"}``,
            or ``id_column``, ``time_column`` and ``targets`` of frames with other names.

    Attributes:
        n_features_in_: C.
        feature_names_in_: Names of the channels, where the series was a data frame.
        run_: The run, as ``tasks.load_run`` returns it.

    Example:
        >>> hours = np.arange(120)
        >>> forecaster = Forecaster(horizon=4, context_length=24, epochs=1, random_state=0,
        ...     options={"features": 8, "num_layers": 1, "num_heads": 2, "hidden_features": 8})
        >>> forecaster.fit(np.sin(2 * np.pi * hours / 24)).predict().shape
        (4,)
    """

    def __init__(
        self,
        horizon: int = 24,
        *,
        context_length: int = 0,
        mechanism: str = "aaren",
        epochs: int | None = None,
        batch_size: int = 32,
        learning_rate: float | None = None,
        random_state: Any = None,
        run: str | Path | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.horizon = horizon
        self.context_length = context_length
        self.mechanism = mechanism
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.random_state = random_state
        self.run = run
        self.options = options

    def fit(
        self, X: Any, y: None = None, *, init_run: InitRun | Run | str | Path | None = None
    ) -> Self:
        """Trains on one or several series, from new parameters.

        Warns about gaps, repeated times and missing values.

        Args:
            X: The series, with the targets.
            y: Ignored, with a warning; an error if it is a frame or its length is not that of X.
            init_run: Run with the same channels whose parameters and scales training starts from,
                such as ``run_`` of a fitted forecaster, or its folder; see ``tasks.InitRun``.
                Parameters of this estimator that are None take the values of that run.

        Raises:
            ValueError: If X has the wrong shape or too few rows, or a parameter is out of range.
            TypeError: If X is neither an array nor a frame, or holds objects that are not numbers,
                or a parameter has the wrong type.
        """
        check_integers(1, horizon=self.horizon)
        check_integers(0, context_length=self.context_length)
        task: Any = get_task("forecast")
        given = self._run_options(task)
        written = {field.name for field in dataclasses.fields(Dialect)} & given.keys()
        options = FrameOptions(
            given.get("id_column") or NIXTLA_ID,
            targets=tuple(split_cells(given.get("targets", ""))),
            times=given.get("times", "report"),
            resample=given.get("resample", ""),
            dialect=Dialect(**{name: given[name] for name in written}),
        )
        history = read_history(X, options=options)
        if y is not None:
            _check_ignored(X, y)
        init = InitRun.of(init_run)
        config = self._config(task, history, init)
        series = tuple(with_frequency(one, config.data.freq) for one in history.series)
        history = dataclasses.replace(history, series=series)
        notes: list[str] = []
        if history.ids is not None:
            series, notes = self._long_enough(series)
        panel = make_panel(series, config.data, self._split)
        notes += [
            *panel.warnings,
            *name_notes([(one.name, row_notes(one)) for one in panel.series]),
        ]
        for note in notes:
            warnings.warn(note, UserWarning, stacklevel=2)
        if self.run is not None:
            check_run_dir(Path(self.run), task, config, resume=False)
            _save_series(Path(self.run) / DATA_FILE, history, config.data)
        run = fit_data(task, config, panel, self.run, init_run=init)
        self.run_ = run._replace(data=None)
        self._history = history
        names = np.array(history.feature_names, object)
        self._set_features(len(names), None if history.channels is None else names)
        return self

    def _split(self, series: data.TimeSeries, is_panel: bool = True) -> data.Split:
        """Splits a series: the last tenth of the rows selects the epoch, the others train."""
        if not is_panel and series.num_steps < self._min_rows:
            raise self._too_few_rows(f"n_samples={series.num_steps}")
        validation = max(self.horizon, series.num_steps // 10)
        train = series.num_steps - validation
        return data.chronological_split(series.num_steps, f"{train}/{validation}/0")

    @property
    def _min_rows(self) -> int:
        """Minimum number of rows with a training window before the validation rows."""
        window = (self.context_length or 1) + self.horizon
        # The smallest n with n - max(horizon, n // 10) >= window.
        return max(window + self.horizon, 10 * (window - 1) // 9 + 1)

    def _too_few_rows(self, longest: str) -> OptionError:
        """The error about series that are all too short; ``longest`` describes the longest."""
        needed = self._min_rows
        return TooFewRowsError(
            f"expected a series of at least {needed} rows for "
            f"context_length={self.context_length} and horizon={self.horizon} (the last "
            f"{max(self.horizon, needed // 10)} rows select the epoch), got {longest}; "
            "pass more rows, or lower context_length or horizon.",
            "context_length",
            "horizon",
        )

    def _long_enough(
        self, series: Sequence[data.TimeSeries]
    ) -> tuple[tuple[data.TimeSeries, ...], list[str]]:
        """The series of a panel with training rows, and a note on excluded series."""
        longest = max(series, key=lambda one: one.num_steps)
        if longest.num_steps < self._min_rows:
            suffix = f", the longest of {len(series)} series" if len(series) > 1 else ""
            raise self._too_few_rows(
                f"n_samples={longest.num_steps} in series {longest.name!r}{suffix}"
            )
        short = [one.name for one in series if one.num_steps <= self.horizon]
        note = f"excluded {count_series(short)} with fewer than {self.horizon + 1} rows"
        notes = [note] if short else []
        return tuple(one for one in series if one.num_steps > self.horizon), notes

    def _config(self, task: Any, history: History, init_run: InitRun | None) -> Any:
        split, names = "0.9/0.1/0", history.series[0].channels
        if history.ids is None:
            parts = self._split(history.series[0], is_panel=False)
            split = f"{len(parts.train)}/{len(parts.validation)}/0"
        options = self._run_options(
            task,
            horizon=self.horizon,
            context_length=self.context_length,
            mechanism=self.mechanism,
            epochs=self.epochs,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            split=split,
            seed=make_seed(self.random_state),
        )
        if history.ids is not None:
            options["id_column"] = history.options.id
            if TARGET in names:  # the form of Nixtla's libraries
                options.setdefault("targets", TARGET)
        if self.run is not None:
            options |= {"csv": (Path(self.run) / DATA_FILE).resolve(), "header": "yes"}
        config = make_config(task, init_run, options)
        if history.ids is not None and config.data.targets and config.model.model == "patch":
            targets = split_cells(config.data.targets)
            covariates = [name for name in names if name not in targets]
            options.setdefault("known_future", join_cells(covariates))
        return config.replace(known_future=options.get("known_future", config.data.known_future))

    def predict(self, X: Any = None, X_future: Any = None) -> Any:
        """Forecasts the rows after the last row of each series.

        Warns about gaps, repeated times and missing values among the last ``context_length`` rows
        of X.

        Args:
            X: At least ``context_length`` past rows of the channels of ``fit``; default the series
                of ``fit``. A panel may have other series.
            X_future: Known future covariates of the horizon: a frame of the form of X with these
                columns and times, or an array [H, F]. Static covariates may be missing. A missing
                value repeats the last known one, with a warning. Default: the last H rows of X
                hold them, with missing targets. Rows may be in any order.

        Returns:
            float64 [H, C], or [H] for a series [T]; a frame of the form of X with the times of the
            horizon, or its row numbers, and the ids of a panel.

        Raises:
            NotFittedError: If ``fit`` was not called.
            ValueError: If channels or times of X do not match the data of ``fit``, X has too few
                rows, or ``X_future`` lacks rows of the horizon.
        """
        return self._ahead(self._fitted(), X, X_future)

    def predict_quantiles(
        self, X: Any = None, levels: float | Sequence[float] | None = None, X_future: Any = None
    ) -> Any:
        """Forecasts quantiles of the rows after the last row of each series.

        The model must be fitted with quantiles, such as ``options={"quantiles": "0.1,0.5,0.9"}``;
        they are calibrated (conformal prediction) unless ``"conformal": False`` is added.

        Args:
            X: See ``predict``.
            levels: One or Q of the fitted levels; default all.
            X_future: See ``predict``.

        Returns:
            float64 [H, C, Q], or [H, Q] for a series [T]; or a frame as of ``predict``, whose
            columns are pairs of a channel and a level, or strings such as y@0.9 where the times are
            a column.

        Raises:
            NotFittedError: If ``fit`` was not called.
            ValueError: If X is invalid (see ``predict``), or a level was not fitted.
        """
        run = self._fitted()
        learned = run.config.model.levels
        if not learned:
            raise OptionError(
                "expected a model with quantiles, got one that forecasts the mean only; fit it "
                "with options={'quantiles': '0.1,0.5,0.9'}.",
                "quantiles",
            )
        chosen = learned if levels is None else tuple(np.atleast_1d(levels).tolist())
        if not chosen or set(chosen) - set(learned):
            raise OptionError(
                f"expected levels among the fitted ones ({itemize([*map(str, learned)])}), got "
                f"{itemize([*map(str, chosen)]) or 'none'}; fit with other levels, such as "
                "options={'quantiles': '0.1,0.5,0.9'}.",
                "quantiles",
            )
        at = [1 + learned.index(level) for level in chosen]
        return self._ahead(run, X, X_future, at, chosen)

    def _ahead(
        self,
        run: Run,
        X: Any,
        X_future: Any,
        outputs: int | Sequence[int] = 0,
        levels: Sequence[float] = (),
    ) -> Any:
        """Forecasts every series that is long enough, in the form of the history."""
        history, data_spec = self._history, run.data_spec
        if X is not None:
            history = read_history(X, data_spec.channels, history.options)
        freq = run.config.data.freq
        series = tuple(data_spec.in_zone(with_frequency(one, freq)) for one in history.series)
        history = dataclasses.replace(history, series=series)
        for one in series:
            data_spec.check_fits(one)
        if X_future is not None and not data_spec.known_future:
            raise ValueError(
                "expected no X_future, since this Forecaster was fitted without known future "
                "covariates; remove X_future, or fit with options={'known_future': ...}."
            )
        future = self._future(run, history, X_future) if data_spec.known_future else None
        with cached_programs():
            ahead, note = forecast_each(run, series, future)
        notes = [note] if note else []
        if X is not None:
            has_horizon = future is None  # else X_future holds the known future covariates
            notes += name_notes(
                [
                    (series[place].name, context_notes(run, series[place], has_horizon))
                    for place in ahead
                ]
            )
        if X_future is not None and future is not None:
            notes += _missing_ahead(history, future)
        for note in notes:
            warnings.warn(note, UserWarning, stacklevel=3)
        return history.like(ahead, data_spec.target_names, outputs, levels)

    def _future(
        self, run: Run, history: History, X_future: Any
    ) -> list[dict[str, NDArray[np.float64]]] | None:
        """Known future covariates of each series; None if the series include the horizon."""
        data_spec = run.data_spec
        known = [data_spec.channels[which] for which in data_spec.known_future]
        static = {data_spec.channels[which] for which in data_spec.static}
        needed = [name for name in known if name not in static]
        horizon, series = run.config.data.horizon, history.series
        indices = [rows_after(run, one) for one in series]
        if X_future is not None:
            return read_future(X_future, history, known, needed, indices)
        if not needed:
            return [{} for _ in series]
        if all(np.isnan(one.values[-1, list(data_spec.targets)]).all() for one in series):
            return None
        after = series[0].index[-1]
        raise ValueError(
            f"expected X_future with {itemize(needed)} for the {horizon} rows after {after}, got "
            "none; pass it, or fit with fewer columns in options={'known_future': ...} ('' for "
            "none)."
        )

    def stream(self, series: Any = None) -> ForecasterStream:
        """Starts a stream that continues one series of ``fit``, in constant time per row.

        Args:
            series: Id of the series, in a panel.

        Raises:
            NotFittedError: If ``fit`` was not called.
            ValueError: If there is no such series, or the mechanism has no state of constant size.
        """
        run = self._fitted()
        return ForecasterStream(run, self._history.select(series))


def _check_ignored(X: Any, y: Any) -> None:
    """Warns that y is ignored; refuses a y that has another length than X, or is a frame."""
    sizes = [len(given) if hasattr(given, "__len__") else 0 for given in (X, y)]
    if hasattr(y, "columns") or sizes[0] != sizes[1]:
        raise ValueError(
            f"expected the series in X alone, got X with {sizes[0]} rows and y "
            f"({type(y).__name__}) with {sizes[1]}; pass y=None and an array or frame X that holds "
            "the targets, and name the targets in options={'targets': ...} if X has other columns."
        )
    warnings.warn(
        "y is ignored, because X holds the series with the targets; pass y=None.",
        UserWarning,
        stacklevel=3,
    )


def _missing_ahead(
    history: History, future: Sequence[Mapping[str, NDArray[np.float64]]]
) -> list[str]:
    """Notes on known future covariates with missing values in the horizon."""
    missing: dict[str, list[str]] = {}
    for one, known in zip(history.series, future, strict=True):
        for name, values in known.items():
            if np.isnan(values).any():
                missing.setdefault(name, []).append(repr(one.name))
    notes = horizon_notes(missing, of_panel=history.ids is not None)
    return [f"{note}; pass them in X_future" for note in notes]


def _save_series(path: Path, history: History, source: ForecastData) -> None:
    """Writes the series of a run to a table; refuses series that are not read back unchanged."""
    channels = history.series[0].channels
    time = "time" if history.options.time is None else str(history.options.time)
    while time in channels:
        time += "_"
    try:
        frame = data.to_frame(
            history.series[0] if history.ids is None else history.series,
            time_column=time,
            id_column=source.id_column,
        )
        with atomic_write(path) as file:
            frame.to_parquet(file, index=False)
        read = read_series(source)
        saved, given = (
            [(one.channels, compute_checksum(one, one.num_steps)) for one in series]
            for series in (read, history.series)
        )
        if saved == given:
            return
        why = f"the table has the channels {list(read[0].channels)}, and other rows"
    except ValueError as error:
        why = str(error)
    path.unlink(missing_ok=True)
    raise OptionError(
        f"expected series that a run can save as a table, got the channels {list(channels)}, whose "
        f"table is not read back unchanged: {why}. Rename channels that have the name of a column "
        "of times (time, date), or remove run.",
        "run",
    )


class ForecasterStream:
    """Stream of forecasts after each new row, by one step of the model.

    Args:
        run: The trained run.
        history: A single series, whose last rows the stream receives first.

    Attributes:
        forecast: Last return value of ``step``; at first the forecast from the history.
    """

    def __init__(self, run: Run, history: History) -> None:
        (series,), options = history.series, run.config.data
        self._stream = ForecastStream(run, series="" if history.ids is None else series.name)
        self._one = history.ndim == 1
        self._channels = series.channels
        for at in range(max(0, series.num_steps - options.context_length), series.num_steps):
            self.step(
                *reversed(series_row(series, at, run.data_spec.known_future, options.horizon))
            )

    def step(self, row: Any, time: Any = None) -> NDArray[np.float64]:
        """Adds one row and forecasts the rows after it.

        Args:
            row: The channels [C] in the order of ``fit``, a mapping or pandas series of them, or a
                number; NaN is a missing value. Known future covariates [H, F], flattened, follow.
            time: Time of the row: a ``datetime``, ``numpy.datetime64``, pandas period or string, or
                an integer if the times of the series are integers. Only required if the model
                receives time features. It must have a time zone (any) if the times of the series
                have one.

        Returns:
            The next rows, float64 [H, C], or [H] for a series [T]; of a model with quantiles
            [H, C, 1 + Q] or [H, 1 + Q], the mean first.

        Raises:
            ValueError: If the channels of the row differ, its time is missing, or its time is
                before the last one.
        """
        values = np.atleast_1d(np.asarray(self._ordered(row), np.float64))
        forecast = self._stream.step(Row(None if time is None else convert_time(time), values))
        self.forecast: NDArray[np.float64] = forecast[:, 0] if self._one else forecast
        return self.forecast

    def _ordered(self, row: Any) -> Any:
        """The channels of a row in the order of ``fit``; a row without names is not changed."""
        if not hasattr(row, "keys"):
            return row
        names = list(row.keys())
        texts = [str(name) for name in names]
        if sorted(texts) != sorted(self._channels):
            raise ValueError(
                f"expected a row with the channels {', '.join(self._channels)}, got "
                f"{', '.join(texts) or 'none'}; pass these names, or the values in this order."
            )
        return [row[names[texts.index(name)]] for name in self._channels]
