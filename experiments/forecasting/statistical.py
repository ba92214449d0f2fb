"""Exponential smoothing fitted to each window, compared with the patch forecaster and the ridge.

    FLAX_LINATTN_DATA=FOLDER python -m experiments.forecasting.statistical

AutoETS and MSTL are from statsforecast (extra ``peers``), with their defaults. All models forecast
the same windows of the test rows, one in ``STRIDE``: a prime, so that windows start at all hours.
AutoETS ignores seasons of more than 24 rows; MSTL removes any season first if the context has two
periods of it.
"""

from __future__ import annotations

import dataclasses
import time
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments import rules
from experiments.forecasting import patch
from experiments.intervals import over_sets, text
from experiments.measured import Measured, Rows
from experiments.statements import Judge, Statement
from experiments.verdicts import NotMeasuredError, Rule, Verdict
from flax_linattn import data, tasks
from flax_linattn.bench import Journal
from flax_linattn.bench.report import markdown
from flax_linattn.tasks.forecast.baselines import baseline_forecasts, fitted_ridge
from flax_linattn.tasks.forecast.evaluate import sum_errors
from flax_linattn.tasks.forecast.options import ForecastData
from flax_linattn.tasks.forecast.windows import Forecast, WindowBatch, model_forecast

STRIDE = 97
"""Rows from one window to the next."""
STRIDES = {"ETTm2": 389}
"""Of a series with four times the rows of the others."""
LONG = 512
ETS, MSTL = "AutoETS", "MSTL and AutoETS"
SIMPLE = ("seasonal_naive", "ridge")
STATED = "2026-11-25T18:32:00+00:00"
"""Before any of these series but the traffic was forecast by AutoETS."""
BELOW = Rule(
    "A model's errors are below another's over series if the 95 % confidence interval of the "
    "difference of their mean squared errors, in percent of the other's, lies below 0, and not "
    "if it lies above: one number per series, by Student's t over series.",
    STATED,
)


@dataclasses.dataclass(frozen=True)
class Size:
    """What is forecast, from which contexts; ours from the first alone."""

    series: tuple[str, ...] = patch.SERIES
    horizon: int = patch.HORIZONS[0]
    contexts: tuple[int, ...] = (patch.LENGTH, LONG)
    strides: dict[str, int] = dataclasses.field(default_factory=lambda: STRIDES)
    steps: int = 1000


def measure(size: Size, journal: Journal) -> None:
    of_patch = patch.Size(steps=size.steps, peers=False)
    cases = [
        (series, context, model)
        for series in size.series
        for context in size.contexts
        for model in (*SIMPLE, ETS, MSTL)
    ]
    cases += [(series, size.contexts[0], patch.OURS) for series in size.series]
    for series, context, model in cases:
        key = {"series": series, "horizon": size.horizon, "context": context, "model": model}
        if fits(of_patch, key):
            stride = size.strides.get(series, STRIDE)
            patch.write_row(journal, key, of_patch, partial(evaluate_model, stride))


def fits(size: patch.Size, key: dict[str, Any]) -> bool:
    """Whether the file is available and the context has the two seasons that MSTL needs."""
    config = patch.make_config(size, key["series"], key["horizon"])
    if config is None or key["model"] != MSTL:
        return config is not None
    return key["context"] >= 2 * season_length(config)


def season_length(config: Any) -> int:
    """Rows of a season, as the seasonal naive forecast has them."""
    _, described, _ = patch.load_windows(config)
    return int(config.data.season or described.season)


def evaluate_model(
    stride: int, size: patch.Size, config: Any, key: dict[str, Any]
) -> dict[str, Any]:
    """Errors of a model on every ``stride``-th test window, and the time of one of a channel."""
    model, options = key["model"], config.data
    run = make_run(model, config)
    test = patch.load_windows(config)[2].test
    assert isinstance(test, data.Windows)
    windows = data.Windows(
        test.arrays,
        test.rows,
        context_length=options.context_length,
        horizon=options.horizon,
        stride=stride,
        batch_size=test.batch_size,
        seed=None,
    )
    forecast = make_forecast(model, run, windows)
    begin = time.process_time()
    sums = sum_errors({model: forecast}, run, windows)[model].metrics()
    seconds = time.process_time() - begin
    return {
        "mse": sums["mse"],
        "mae": sums["mae"],
        "season": season_length(config),
        "windows": windows.num_examples,
        "milliseconds": 1e3 * seconds / windows.num_examples / len(run.data_spec.targets),
    }


def make_run(model: str, config: Any) -> tasks.Run:
    """A trained run of ours, or for another model one without parameters."""
    rows, described, _ = patch.load_windows(config)
    if model == patch.OURS:
        run, *_ = patch.fit_run(config.replace(**patch.chosen_options()))
        return run._replace(data=rows)
    return tasks.Run(tasks.get_task("forecast"), config.resolve(), described, None, rows)


def make_forecast(model: str, run: tasks.Run, windows: data.Windows) -> Forecast:
    """How a model forecasts windows."""
    if model == patch.OURS:
        return model_forecast(run)
    if model in SIMPLE:
        ridge = fitted_ridge(run) if model == "ridge" else None
        return baseline_forecasts(run, windows, ridge)[model]
    make = ets if model == ETS else mstl
    return refit_forecast(make(season_length(run.config)), run.config.data)


def ets(season: int) -> Any:
    """AutoETS, which leaves out a season of more than 24 rows."""
    from statsforecast.models import AutoETS

    return AutoETS(season_length=season)


def mstl(season: int) -> Any:
    """The season by loess, and what is left by AutoETS."""
    from statsforecast import models

    return models.MSTL(season, trend_forecaster=models.AutoETS(model="ZZN"))


def refit_forecast(model: Any, options: ForecastData) -> Forecast:
    """The forecasts of a statistical model, fitted to each channel of each window."""

    def one(window: NDArray) -> NDArray:
        return np.asarray(model.forecast(y=window.astype(np.float64), h=options.horizon)["mean"])

    def forecast(batch: WindowBatch) -> NDArray:
        real = batch.arrays["weight"] > 0
        contexts = batch.arrays["values"][real][:, : options.context_length]
        return np.stack([np.stack([*map(one, channels.T)], axis=-1) for channels in contexts])

    return forecast


def errors(rows: Rows, model: str, context: int) -> dict[str, dict[str, Any]]:
    """The rows of a model by series."""
    return {
        row["series"]: row for row in rows if (row["model"], row["context"]) == (model, context)
    }


def below(model: str, other: str) -> Judge:
    """The verdict on the errors of two models from 96 rows."""

    def judge(rows: Rows) -> Verdict:
        mine, theirs = (errors(rows, name, patch.LENGTH) for name in (model, other))
        percents = {
            series: 100 * (mine[series]["mse"] / theirs[series]["mse"] - 1)
            for series in mine.keys() & theirs.keys()
        }
        if not percents:
            raise NotMeasuredError(f"{model} compared with {other}")
        over = over_sets({name: [of] for name, of in percents.items()}, rules.source)
        each = ", ".join(f"{name} {percents[name]:+.0f}" for name in mine if name in percents)
        word = rules.below(over, 0, BELOW, over="series").under(rules.ONE_SOURCE)
        return Verdict(word, f"{text(over, 0)} % of its error: {each}")

    return judge


def table(rows: Rows, size: Size) -> str:
    """Errors by series and context, and times of the statistical models."""
    models = (*SIMPLE, ETS, MSTL, patch.OURS)
    header = ["series", "windows", "season", "context"]
    header += [f"`{m}`" if m == patch.OURS else m.replace("_", " ") for m in models]
    header += [f"{name}, ms per channel" for name in (ETS, MSTL)]
    lines = []
    for series in size.series:
        for context in size.contexts:
            of_each = [errors(rows, model, context).get(series) for model in models]
            known = [row for row in of_each if row is not None]
            if not known:
                continue
            cells = [f"{r['mse']:.3f} ({r['mae']:.3f})" if r else "-" for r in of_each]
            costs = [f"{r['milliseconds']:.0f}" if r else "-" for r in of_each[2:4]]
            about = [f"{known[0][name]}" for name in ("windows", "season")]
            lines.append([series, *about, f"{context}", *cells, *costs])
    title = f"Mean squared error {size.horizon} rows ahead, and mean absolute error in brackets:"
    return "\n\n".join([title, markdown(header, lines)])


EXPERIMENT = Measured(
    module="experiments.forecasting.statistical",
    needs_data=True,
    extras="plots,peers",
    about="not of a paper: exponential smoothing fitted to each window",
    sizes={"": Size()},
    measure=measure,
    table=table,
    statements=(
        Statement("ours", "its errors are below AutoETS's", below(patch.OURS, ETS)),
        Statement("ours", "the ridge's errors are below AutoETS's", below("ridge", ETS)),
        Statement(
            "ours",
            "AutoETS's errors are below the seasonal naive forecast's",
            below(ETS, "seasonal_naive"),
        ),
    ),
    left_out={
        "": f"all but one test window in {STRIDE} (ETTm2 {STRIDES['ETTm2']}); ours but with seed "
        "0 from 96 rows; multiplicative models, which need positive values (these are scaled); "
        "MSTL where the context has less than two seasons"
    },
)

if __name__ == "__main__":
    EXPERIMENT.main()
