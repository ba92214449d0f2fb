"""A forecaster of one or several series of one or more channels, in the manner of scikit-learn."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from flax_linattn import data
from flax_linattn.checks import OptionError, at_least, listed
from flax_linattn.data.cells import join_cells, split_cells
from flax_linattn.data.dialect import Dialect
from flax_linattn.data.frames import NIXTLA_ID
from flax_linattn.estimators.base import Estimator, config_of, seed_of
from flax_linattn.estimators.history import FrameOptions, History
from flax_linattn.estimators.reading import TARGET, as_future, as_history, as_time
from flax_linattn.registry import get_task
from flax_linattn.storage import write_whole
from flax_linattn.tasks.forecast.options import ForecastData
from flax_linattn.tasks.forecast.panel import (
    MAX_NAMES,
    name_notes,
    panel_of,
    read_series,
    row_notes,
    with_frequency,
)
from flax_linattn.tasks.forecast.rows import Row, row_of
from flax_linattn.tasks.forecast.spec import checksum_of
from flax_linattn.tasks.forecast.stream import ForecastStream
from flax_linattn.tasks.forecast.windows import forecast_each, rows_after
from flax_linattn.tasks.init_run import InitRun
from flax_linattn.tasks.run import check_run_dir
from flax_linattn.tasks.spec import Run
from flax_linattn.tasks.train import fit_data

DATA_FILE = "data.parquet"
"""The series in the folder of a run that is kept."""


class Forecaster(Estimator):
    """The next steps of one or several series: ``fit(series).predict()``.

    The model and its training are those of ``flax-linattn train forecast``; the last tenth of the
    rows, or as many as a horizon where that is more, selects the epoch. No row is kept for a test.

    A series is an array [T, C] or [T], or a data frame or pandas series, whose index, or a column,
    may hold times; NaN is a missing value. Forecasts have its form: [H, C], or a data frame with
    the times to come.

    A panel of series, from all of which one model learns, is a data frame with the columns
    ``unique_id``, ``ds`` and ``y`` of Nixtla's libraries, or with a MultiIndex whose last level is
    time, as in sktime; ``options`` may give the names ``id_column``, ``time_column`` and
    ``targets``. Where targets are named, such as by y, further columns are covariates: those that
    never change within a series, which may be strings, and others, which ``X_future`` has to give
    for the horizon. ``options={"known_future": ...}`` names those that are known.

    Args:
        horizon: rows to forecast.
        input_length: context length: number of past rows that a forecast is made from; 0 chooses
            it by the rows that select the epoch.
        mechanism: the attention, a name of ``ops.list_mechanisms`` with a causal form.
        epochs: most passes over the data; default those of the preset.
        batch_size: windows a step.
        learning_rate: of Adam, the largest.
        random_state: a seed, NumPy's random state, or None for its global one.
        run: a folder that keeps the run with its series, for ``flax-linattn predict`` and
            ``stream``; default none.
        options: further options of ``flax-linattn train forecast``, by name, such as
            ``{"model": "decoder"}``, which leaves the preset.

    Attributes:
        n_features_in_: C.
        feature_names_in_: names of the channels, where the series was a data frame.
        run_: the run, as ``tasks.load_run`` gives one.

    Example:
        >>> hours = np.arange(120)
        >>> forecaster = Forecaster(horizon=4, input_length=24, epochs=1, random_state=0, options={
        ...     "features": 8, "num_layers": 1, "num_heads": 2, "hidden_features": 8})
        >>> forecaster.fit(np.sin(2 * np.pi * hours / 24)).predict().shape
        (4,)
    """

    n_features_in_: int
    feature_names_in_: NDArray

    def __init__(
        self,
        horizon: int = 24,
        *,
        input_length: int = 0,
        mechanism: str = "aaren",
        epochs: int | None = None,
        batch_size: int = 32,
        learning_rate: float | None = None,
        random_state: Any = None,
        run: str | Path | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.horizon = horizon
        self.input_length = input_length
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
        """Trains on one or several series; what was learned before is forgotten.

        Args:
            X: the series.
            y: left out.
            init_run: a run of the same channels whose parameters and scales training starts from,
                such as ``run_`` of a fitted forecaster, or its folder; ``tasks.InitRun`` says what
                else is taken over. Parameters of this estimator that are None are that run's.

        Raises:
            ValueError: X is something else or too short; a parameter is out of range.
            TypeError: a parameter is of another type, or X holds objects that are no numbers.
        """
        at_least(1, horizon=self.horizon)
        at_least(0, input_length=self.input_length)
        given = dict(self.options or {})
        written = {field.name for field in dataclasses.fields(Dialect)} & given.keys()
        options = FrameOptions(
            given.get("id_column") or NIXTLA_ID,
            times=given.get("times", "report"),
            resample=given.get("resample", ""),
            dialect=Dialect(**{name: given[name] for name in written}),
        )
        history = as_history(X, options=options)
        task: Any = get_task("forecast")
        init = InitRun.of(init_run)
        config = self._config(task, history, init)
        series = tuple(with_frequency(one, config.data.freq) for one in history.series)
        panel = panel_of(series, config.data, self._split)
        for note in (*panel.warnings, *_row_notes(panel.series)):
            warnings.warn(note, UserWarning, stacklevel=2)
        if self.run is not None:
            check_run_dir(Path(self.run), task, config, resume=False)
            _keep(Path(self.run) / DATA_FILE, history, config.data)
        run = fit_data(task, config, panel, self.run, init_run=init)
        self.run_ = run._replace(data=None)
        self._history = dataclasses.replace(history, series=series)
        self.n_features_in_ = len(history.feature_names)
        if history.channels is not None:
            self.feature_names_in_ = np.array(history.feature_names, object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        return self

    def _split(self, series: data.TimeSeries, is_panel: bool = True) -> data.Split:
        """All rows but the last to train, and these to select the epoch.

        Raises:
            ValueError: there are too few.
        """
        held = max(self.horizon, series.num_steps // 10)
        trained = series.num_steps - held
        if trained < (1 if is_panel else self.input_length + self.horizon):
            raise OptionError(
                f"expected at least {self.input_length + self.horizon + held} rows for "
                f"input_length={self.input_length} and horizon={self.horizon}, the last {held} of "
                f"which select the epoch, got n_samples={series.num_steps}; give more, or lower "
                "both.",
                "input_length",
                "horizon",
            )
        return data.chronological_split(series.num_steps, f"{trained}/{held}/0")

    def _config(self, task: Any, history: History, init_run: InitRun | None) -> Any:
        split, names = "0.9/0.1/0", history.series[0].channels
        if history.ids is None:
            parts = self._split(history.series[0], is_panel=False)
            split = f"{len(parts.train)}/{len(parts.validation)}/0"
        options = self._options(
            horizon=self.horizon,
            input_length=self.input_length,
            mechanism=self.mechanism,
            epochs=self.epochs,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            split=split,
            seed=seed_of(self.random_state),
        )
        if history.ids is not None:
            options["id_column"] = history.options.id
            if TARGET in names:  # the form of Nixtla's libraries
                options.setdefault("targets", TARGET)
        if self.run is not None:
            options |= {"csv": (Path(self.run) / DATA_FILE).resolve(), "header": "yes"}
        config = config_of(task, init_run, options)
        if history.ids is not None and config.data.targets and config.model.model == "patch":
            targets = split_cells(config.data.targets)
            covariates = [name for name in names if name not in targets]
            options.setdefault("known_future", join_cells(covariates))
        return config.replace(known_future=options.get("known_future", config.data.known_future))

    def predict(self, X: Any = None, X_future: Any = None) -> Any:
        """The rows after the last one of each series.

        Args:
            X: what is known by now, ``input_length`` rows or more, of the channels that were
                fitted; default the series that were fitted. A panel may have other series.
            X_future: the known future covariates of the rows to come: a frame of the form of X
                with their columns and times, or float64 [H, F] for an array. Those that never
                change within a series may be left out. A missing value repeats the last known
                one, with a warning. Default: X ends with these rows, in which
                the channels to forecast are missing.

        Returns:
            float64 [H, C], or [H] where the series is [T]; of a frame its own kind, with the times
            to come, or the numbers of rows, and for a panel its ids.

        Raises:
            NotFittedError: ``fit`` was not called.
            ValueError: other channels or times than those of ``fit``, or too few rows; of
                ``X_future``, other times than those to come.
        """
        return self._ahead(self._fitted(), X, X_future)

    def predict_quantiles(
        self, X: Any = None, levels: float | Sequence[float] | None = None, X_future: Any = None
    ) -> Any:
        """Quantiles of the rows after the last one of each series.

        The model has to have learned them, by ``options={"quantiles": "0.1,0.5,0.9"}``, perhaps
        with ``"conformal": True``.

        Args:
            X: as of ``predict``.
            levels: one or Q of those that were learned; default all.
            X_future: as of ``predict``.

        Returns:
            float64 [H, C, Q], or [H, Q] where the series is [T]; of pandas a data frame indexed as
            that of ``predict``, whose columns are pairs of a channel and a level; of a frame with a
            column of times they are named such as y@0.9.

        Raises:
            NotFittedError: ``fit`` was not called.
            ValueError: as ``predict``; or a level was not learned.
        """
        run = self._fitted()
        learned = run.config.model.levels
        if not learned:
            raise OptionError(
                "the model has learned no quantiles; fit it with some, such as "
                "options={'quantiles': '0.1,0.5,0.9'}.",
                "quantiles",
            )
        chosen = learned if levels is None else tuple(np.atleast_1d(levels).tolist())
        if not chosen or set(chosen) - set(learned):
            raise OptionError(
                f"expected levels of those that were learned ({listed([*map(str, learned)])}), got "
                f"{listed([*map(str, chosen)]) or 'none'}; fit with others, such as "
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
        """Forecasts of every series that is long enough, in the form of the history."""
        history, problem = self._history, run.problem
        if X is not None:
            history = as_history(X, problem.channels, history.options)
        freq = run.config.data.freq
        series = tuple(problem.in_zone(with_frequency(one, freq)) for one in history.series)
        history = dataclasses.replace(history, series=series)
        for one in series:
            problem.check_fits(one)
        if X_future is not None and not problem.known_future:
            raise ValueError(
                "this Forecaster was fitted without known future covariates; leave X_future out, "
                "or fit with options={'known_future': ...}."
            )
        future = self._future(run, history, X_future) if problem.known_future else None
        ahead, note = forecast_each(run, series, future)
        notes = [note] if note else []
        if X is not None:
            has_horizon = problem.known_future and future is None
            notes += _row_notes(series, problem.targets if has_horizon else None)
        if X_future is not None and future is not None:
            notes += _missing_ahead(history, future)
        for note in notes:
            warnings.warn(note, UserWarning, stacklevel=3)
        return history.like(ahead, problem.target_names, outputs, levels)

    def _future(
        self, run: Run, history: History, X_future: Any
    ) -> list[dict[str, NDArray[np.float64]]] | None:
        """What is known of the horizon of each series; None where the series end with it."""
        problem = run.problem
        known = [problem.channels[which] for which in problem.known_future]
        static = {problem.channels[which] for which in problem.static}
        needed = [name for name in known if name not in static]
        horizon, series = run.config.data.horizon, history.series
        indices = [rows_after(run, one) for one in series]
        if X_future is not None:
            return as_future(X_future, history, known, needed, indices)
        if not needed:
            return [{} for _ in series]
        if all(np.isnan(one.values[-1, list(problem.targets)]).all() for one in series):
            return None
        after = series[0].index[-1]
        raise ValueError(
            f"expected X_future with {listed(needed)} for the {horizon} rows after {after}, got "
            "none; give it, or fit with known_future as those that are known (options="
            "{'known_future': ''} for none)."
        )

    def stream(self, series: Any = None) -> ForecasterStream:
        """A stream that continues one of the series that were fitted, in constant time a row.

        Args:
            series: its id, in a panel.

        Raises:
            NotFittedError: ``fit`` was not called.
            ValueError: there is no such series; the mechanism has no state of constant size.
        """
        run = self._fitted()
        return ForecasterStream(run, self._history.select(series))


def _row_notes(
    series: Sequence[data.TimeSeries], targets: Sequence[int] | None = None
) -> list[str]:
    """Notes on repeated times, gaps and missing values of each series.

    With ``targets`` the rows after their last value are those to forecast, and are left out.
    """
    found = []
    for one in series:
        if targets is not None:
            observed = ~np.isnan(one.values[:, list(targets)]).all(axis=1)
            stop = int(np.flatnonzero(observed)[-1]) + 1
            one = dataclasses.replace(one, values=one.values[:stop], index=one.index[:stop])
        found.append((one.name, row_notes(one)))
    return name_notes(found)


def _missing_ahead(
    history: History, future: Sequence[Mapping[str, NDArray[np.float64]]]
) -> list[str]:
    """A note on each known future covariate with missing values in the horizon."""
    missing: dict[str, list[str]] = {}
    for one, known in zip(history.series, future, strict=True):
        for name, values in known.items():
            if np.isnan(values).any():
                missing.setdefault(name, []).append(repr(one.name))
    return [
        f"missing values of {name!r} in the horizon"
        + ("" if history.ids is None else f" of series {listed(names, MAX_NAMES)}")
        + " repeat the last known one; give them in X_future"
        for name, names in missing.items()
    ]


def _keep(path: Path, history: History, source: ForecastData) -> None:
    """Writes the series of a run, if its commands read there what it was trained on.

    Raises:
        ValueError: they would not; nothing stays.
    """
    channels = history.series[0].channels
    time = "time" if history.options.time is None else str(history.options.time)
    while time in channels:
        time += "_"
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        frame = data.to_frame(
            history.series[0] if history.ids is None else history.series,
            time_column=time,
            id_column=source.id_column,
        )
        with write_whole(path) as file:
            frame.to_parquet(file, index=False)
        read = read_series(source)
        if _content(read) == _content(history.series):
            return
        why = f"it has the channels {list(read[0].channels)}, and other rows"
    except ValueError as error:
        why = str(error)
    path.unlink(missing_ok=True)
    raise OptionError(
        f"a run keeps its series as a table, and of the channels {list(channels)} that table is "
        f"not read as it was written: {why}. Name no channel like a column of times (time, date); "
        "or leave run out.",
        "run",
    )


def _content(series: Sequence[data.TimeSeries]) -> list[tuple[tuple[str, ...], str]]:
    return [(one.channels, checksum_of(one, one.num_steps)) for one in series]


class ForecasterStream:
    """Forecasts as rows come, one step of the model each.

    Args:
        run: the trained run.
        history: of one series, whose last rows were seen before.

    Attributes:
        forecast: what ``step`` returned last; at first the forecast from the history.
    """

    def __init__(self, run: Run, history: History) -> None:
        (series,), options = history.series, run.config.data
        self._stream = ForecastStream(run, series="" if history.ids is None else series.name)
        self._one = history.ndim == 1
        self._channels = series.channels
        for at in range(max(0, series.num_steps - options.input_length), series.num_steps):
            self.step(*reversed(row_of(series, at, run.problem.known_future, options.horizon)))

    def step(self, row: Any, time: Any = None) -> NDArray[np.float64]:
        """Takes in a row.

        Args:
            row: the channels, [C] in the order of ``fit``, or by name as a mapping or a pandas
                series, or a number where there is one; NaN is a missing value. With channels that
                are known for the horizon, theirs [H, F] follow those [C], flattened.
            time: of the row: a ``datetime``, ``numpy.datetime64``, pandas period or text; not
                needed where the model knows no calendar. After times that had a zone it has one,
                too, but perhaps another.

        Returns:
            The rows after it, float64 [H, C], or [H] where the series was [T]; of a model with
            quantiles [H, C, 1 + Q], or [H, 1 + Q], the mean first.

        Raises:
            ValueError: other channels, no time, or one before the last one.
        """
        values = np.atleast_1d(np.asarray(self._ordered(row), np.float64))
        forecast = self._stream.step(Row(None if time is None else as_time(time), values))
        self.forecast: NDArray[np.float64] = forecast[:, 0] if self._one else forecast
        return self.forecast

    def _ordered(self, row: Any) -> Any:
        """The channels of a row with names in the order of ``fit``; another row as it is."""
        if not hasattr(row, "keys"):
            return row
        names = list(row.keys())
        texts = [str(name) for name in names]
        if sorted(texts) != sorted(self._channels):
            raise ValueError(
                f"expected a row of {', '.join(self._channels)}, got {', '.join(texts) or 'none'}; "
                "name these, or give their values in this order."
            )
        return [row[names[texts.index(name)]] for name in self._channels]
