"""A forecaster of one series of one or more channels, in the manner of scikit-learn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from flax_linattn import data
from flax_linattn.checks import OptionError, at_least, listed
from flax_linattn.estimators.base import Estimator, config_of, options_of, seed_of
from flax_linattn.estimators.histories import History, as_history, as_time, write_history
from flax_linattn.registry import get_task
from flax_linattn.tasks.forecast.options import ForecastData
from flax_linattn.tasks.forecast.panel import SeriesPanel, read_series, with_frequency
from flax_linattn.tasks.forecast.rows import Row, row_of
from flax_linattn.tasks.forecast.spec import checksum_of
from flax_linattn.tasks.forecast.stream import ForecastStream
from flax_linattn.tasks.forecast.windows import HorizonForecast, forecast_after
from flax_linattn.tasks.init_run import InitRun
from flax_linattn.tasks.run import check_run_dir
from flax_linattn.tasks.spec import Run
from flax_linattn.tasks.train import fit_data

DATA_FILE = "data.csv"
"""The series in the folder of a run that is kept."""


class Forecaster(Estimator):
    """The next steps of a series: ``fit(series).predict()``.

    The model and its training are those of ``flax-linattn train forecast``; the last tenth of the
    rows, or as many as a horizon where that is more, selects the epoch. No row is kept for a test.

    A series is an array [T, C] or [T], or a data frame or pandas series, whose index may hold
    times; NaN is a missing value. Forecasts have its form: [H, C], or a data frame with the times
    to come.

    Args:
        horizon: rows to forecast.
        input_length: rows that a forecast sees.
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
        input_length: int = 96,
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
        """Trains on a series; what was learned before is forgotten.

        Args:
            X: the series.
            y: left out.
            init_run: a run of the same channels whose parameters and scales training starts from,
                such as ``run_`` of a fitted forecaster, or its folder; ``tasks.InitRun`` says what
                else is taken over. Parameters of this estimator that are None are that run's.

        Raises:
            ValueError: X is something else or too short; a parameter is out of range.
            TypeError: a parameter is of another type.
        """
        history = as_history(X)
        series = history.series
        at_least(1, horizon=self.horizon, input_length=self.input_length)
        held = max(self.horizon, series.num_steps // 10)
        trained = series.num_steps - held
        if trained < self.input_length + self.horizon:
            raise OptionError(
                f"expected at least {self.input_length + self.horizon + held} rows for "
                f"input_length={self.input_length} and horizon={self.horizon}, the last {held} of "
                f"which select the epoch, got {series.num_steps}; give more, or lower both.",
                "input_length",
                "horizon",
            )
        task: Any = get_task("forecast")
        given = InitRun.of(init_run)
        config = self._config(task, f"{trained}/{held}/0", given)
        series = with_frequency(series, config.data.freq)
        split = data.chronological_split(series.num_steps, config.data.split)
        if self.run is not None:
            check_run_dir(Path(self.run), task, config, resume=False)
            _keep(Path(self.run) / DATA_FILE, series, config.data)
        panel = SeriesPanel.of_one(series, split)
        run = fit_data(task, config, panel, self.run, init_run=given)
        self.run_ = run._replace(data=None)
        self._history = history._replace(series=series)
        self.n_features_in_ = len(series.channels)
        if hasattr(history.given, "columns"):
            self.feature_names_in_ = np.array(history.given.columns, object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        return self

    def _config(self, task: Any, split: str, init_run: InitRun | None) -> Any:
        options = options_of(
            self.options,
            horizon=self.horizon,
            input_length=self.input_length,
            mechanism=self.mechanism,
            epochs=self.epochs,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            split=split,
            seed=seed_of(self.random_state),
        )
        if self.run is not None:
            options |= {"csv": (Path(self.run) / DATA_FILE).resolve(), "header": "yes"}
        return config_of(task, init_run, options)

    def predict(self, X: Any = None) -> Any:
        """The rows after the last one of a series.

        Args:
            X: what is known by now, ``input_length`` rows or more, of the channels that were
                fitted; default the series that was fitted.

        Returns:
            float64 [H, C], or [H] where the series is [T]; of pandas its own kind, indexed by the
            times to come, or by the numbers of rows.

        Raises:
            NotFittedError: ``fit`` was not called.
            ValueError: other channels or times than those of ``fit``, or too few rows.
        """
        run = self._fitted()
        history, ahead = self._ahead(run, X)
        return history.like(ahead.values[..., 0], ahead.row_index, self._names(history, run))

    def predict_quantiles(
        self, X: Any = None, levels: float | Sequence[float] | None = None
    ) -> Any:
        """Quantiles of the rows after the last one of a series.

        The model has to have learned them, by ``options={"quantiles": "0.1,0.5,0.9"}``, perhaps
        with ``"conformal": True``.

        Args:
            X: as of ``predict``.
            levels: one or Q of those that were learned; default all.

        Returns:
            float64 [H, C, Q], or [H, Q] where the series is [T]; of pandas a data frame indexed as
            that of ``predict``, whose columns are pairs of a channel and a level.

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
        history, ahead = self._ahead(run, X)
        quantiles = ahead.values[..., [1 + learned.index(level) for level in chosen]]
        return history.quantiles_like(quantiles, ahead.row_index, self._names(history, run), chosen)

    def _ahead(self, run: Run, X: Any) -> tuple[History, HorizonForecast]:
        """What is forecast from, and the forecast."""
        history = self._history if X is None else as_history(X, run.problem.channels)
        series = run.problem.in_zone(with_frequency(history.series, run.config.data.freq))
        run.problem.check_fits(series)
        return history, forecast_after(run, series)

    def stream(self) -> ForecasterStream:
        """A stream that goes on after the series that was fitted, in constant time a row.

        Raises:
            NotFittedError: ``fit`` was not called.
            ValueError: the mechanism has no state of constant size.
        """
        return ForecasterStream(self._fitted(), self._history)

    def _names(self, history: History, run: Run) -> list[Any]:
        """Of the forecast channels, as the data frame has them."""
        if not hasattr(history.given, "columns"):
            return list(run.problem.target_names)
        return [history.given.columns[target] for target in run.problem.targets]


def _keep(path: Path, series: data.TimeSeries, source: ForecastData) -> None:
    """Writes the series of a run, if its commands read there what it was trained on.

    Raises:
        ValueError: they would not; nothing stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    write_history(path, series)
    try:
        (read,) = read_series(source)
        same = checksum_of(read, read.num_steps) == checksum_of(series, series.num_steps)
        why = f"it has the channels {list(read.channels)}, and other rows"
        if same and read.channels == series.channels:
            return
    except ValueError as error:
        why = str(error)
    path.unlink()
    raise OptionError(
        f"a run keeps its series as a table, and of the channels {list(series.channels)} that "
        f"table is not read as it was written: {why}. Name no channel like a column of times "
        "(time, date) or a comment (#), nor with blanks around it; or leave run out.",
        "run",
    )


class ForecasterStream:
    """Forecasts as rows come, one step of the model each.

    Args:
        run: the trained run.
        history: whose last rows were seen before.

    Attributes:
        forecast: what ``step`` returned last; at first the forecast from the history.
    """

    def __init__(self, run: Run, history: History) -> None:
        self._stream = ForecastStream(run)
        self._one = np.ndim(history.given) == 1
        self._channels = history.series.channels
        series, options = history.series, run.config.data
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
