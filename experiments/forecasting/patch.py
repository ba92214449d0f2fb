"""The patch forecaster compared with baselines and published models, on the same windows.

    FLAX_LINATTN_DATA=FOLDER python -m experiments.forecasting.patch

Every model trains on the same batches of windows of 96 rows in the same order, for equally many
steps with a cosine schedule, and uses the parameters with the lowest validation error. Sizes and
learning rates are chosen by six trials each on the validation rows of ETTh1 at the shortest
horizon, for all series. PatchTST and DLinear need the extra ``peers``; without it they are not run.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

from experiments.experiment import data_folder
from experiments.forecasting.data_sets import EMBEDDED, file_options
from experiments.forecasting.peers import PEERS, RATES, available, train_peer
from experiments.intervals import interval, mean_text, over_sets, text
from experiments.measured import Measured, Rows
from experiments.options import task_config
from experiments.rules import ONE_SOURCE, below, source
from experiments.statements import Judge, Statement
from experiments.verdicts import NotMeasuredError, Rule, Verdict
from flax_linattn import inference, tasks, training
from flax_linattn.bench import Journal
from flax_linattn.bench.report import markdown
from flax_linattn.tasks.forecast.evaluate import evaluate_baselines
from flax_linattn.tasks.forecast.windows import PanelWindows
from flax_linattn.tasks.options import TooFewRowsError

LENGTH = 96
HORIZONS = (96, 192, 336, 720)
SERIES = ("ETTh1", "ETTh2", "ETTm2", "Exchange", "ECL", "Traffic speed")
OURS = "aaren"
MECHANISMS = (
    "elementwise_series:order=2",
    "taylorshift",
    "linear",
    "forgetting_aaren",
    "gated_linear",
    "softmax",
)
SIMPLE = "simple methods"
TRIALS = tuple((features, rate) for features in (32, 64) for rate in RATES)
"""Widths and first rates of ours."""
DLINEAR_RATES = (1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5)

STATED = "2026-11-25T02:20:00+00:00"
"""After runs of the patch model on ETTh1, ETTh2 and ETTm2, by which its training was designed, but
before PatchTST or DLinear were trained here."""
NOT_ABOVE = Rule(
    "A model's errors are at most another's over series if the 95 % confidence interval of the "
    "difference of their mean squared errors, in percent of the other's, lies below 2, and not "
    "if it lies above: one mean over horizons and seeds per series, by Student's t over series.",
    STATED,
)
BELOW = Rule(
    "A model is below a baseline on a series if the 95 % confidence interval of the difference "
    "of their mean squared errors, in percent of the baseline's, averaged over horizons, by "
    "Student's t over seeds, lies below 0, and not if it lies above.",
    STATED,
)

PUBLISHED: dict[str, dict[str, tuple[float, ...]]] = {
    "PatchTST": {
        "ETTh1": (0.414, 0.460, 0.501, 0.500),
        "ETTh2": (0.302, 0.388, 0.426, 0.431),
        "ETTm2": (0.175, 0.241, 0.305, 0.402),
        "Exchange": (0.088, 0.176, 0.301, 0.901),
    },
    "DLinear": {
        "ETTh1": (0.386, 0.437, 0.481, 0.519),
        "ETTh2": (0.333, 0.477, 0.594, 0.831),
        "ETTm2": (0.193, 0.284, 0.369, 0.554),
        "Exchange": (0.088, 0.176, 0.313, 0.839),
    },
}
"""Mean squared errors from 96 rows as Liu et al., iTransformer (2024), print them in table 10."""
PAPERS = ("softmax", "aaren")
"""Columns of Aaren's table 5 as run here: the encoder-decoders of the papers."""


@dataclasses.dataclass(frozen=True)
class Size:
    """Settings of the training at one scale."""

    series: tuple[str, ...] = SERIES
    horizons: tuple[int, ...] = HORIZONS
    mechanisms: tuple[str, ...] = MECHANISMS
    seeds: int = 3
    steps: int = 1000
    validations: int = 4
    peers: bool = dataclasses.field(default_factory=available)


def make_config(size: Size, series: str, horizon: int, **options: Any) -> Any:
    """The options of a run; None where the file of the series is not available."""
    options_of_series = file_options(series, data_folder())
    if options_of_series is None:
        return None
    # As the preset was when the table was measured: nothing is left to the data, nor to the clock.
    fixed = {
        "context_length": LENGTH,
        "patch_length": 16,
        "ridge_maps": "shared",
        "time_limit": 0.0,
    }
    options_of_series = {**options_of_series, "stride": 1, **fixed, **OPTIONS.get(series, {})}
    return task_config(
        "forecast",
        preset="patch",
        horizon=horizon,
        steps=size.steps,
        validate_every=size.steps // size.validations,
        patience=size.validations,
        **{**options_of_series, **options},
    )


OPTIONS: dict[str, dict[str, Any]] = {
    "ETTm2": {"stride": 4},
    "ECL": {"stride": 2, "channels": ""},
    "Traffic speed": {
        "channels": "773869,769953,760987,773953,717492,716571,767454,769867,764853,717463,717510,"
        "769372"
    },
}
"""Strides are of training windows; ECL has both clients, the traffic every 18th of
207 sensors."""


def measure(size: Size, journal: Journal) -> None:
    chosen = choose(size, journal)
    stages = [(0, size.horizons, ("PatchTST", "DLinear", OURS))]
    stages += [(0, size.horizons[:1], size.mechanisms)]
    stages += [
        (seed, size.horizons, ("PatchTST", "DLinear", OURS)) for seed in range(1, size.seeds)
    ]
    for series in size.series:
        for horizon in size.horizons:
            key = {"series": series, "horizon": horizon, "model": SIMPLE}
            write_row(journal, key, size, evaluate_simple)
    for seed, horizons, models in stages:
        for horizon in horizons:
            for series in size.series:
                for model in models:
                    if model in PEERS and not size.peers:
                        continue
                    key = {"series": series, "horizon": horizon, "model": model, "seed": seed}
                    options = chosen[model if model in PEERS else OURS]
                    write_row(journal, key, size, partial(train_model, options=options))


def write_row(
    journal: Journal, key: dict[str, Any], size: Size, measure: Callable[..., dict[str, Any]]
) -> None:
    """Writes a row, unless the file is missing or too short for this horizon.

    The key names series and horizon, and perhaps a seed (default 0) and a ``context`` (``LENGTH``).
    """
    context = key.get("context", LENGTH)
    seed = key.get("seed", 0)
    config = make_config(size, key["series"], key["horizon"], seed=seed, context_length=context)
    if config is None:
        return
    try:
        load_windows(config)
    except TooFewRowsError:
        return
    journal.row(key, partial(measure, size, config, key))


def choose(size: Size, journal: Journal) -> dict[str, dict[str, Any]]:
    """The options of each model whose trial had the least validation error."""
    trials: dict[str, list[dict[str, Any]]] = {
        OURS: [{"features": f, "hidden_features": 2 * f, "learning_rate": r} for f, r in TRIALS]
    }
    if size.peers:
        trials["PatchTST"] = [{**o, "rate": r} for o in PEERS["PatchTST"] for r in RATES]
        trials["DLinear"] = [{**PEERS["DLinear"][0], "rate": r} for r in DLINEAR_RATES]
    chosen = {}
    for model, candidates in trials.items():
        results = []
        for number, options in enumerate(candidates):
            key = {"series": EMBEDDED, "horizon": HORIZONS[0], "model": model, "trial": number}
            config = make_config(size, EMBEDDED, HORIZONS[0], seed=0)
            results.append(journal.row(key, partial(train_model, size, config, key, options)))
        best = min(range(len(results)), key=lambda i: results[i]["validation"])
        chosen[model] = candidates[best]
    return chosen


@functools.lru_cache(maxsize=2)
def _load_windows(config_json: str) -> tuple[Any, Any, training.Splits]:
    task = tasks.get_task("forecast")
    config = task.Config.from_json(json.loads(config_json)).resolve()
    rows = task.load(config)
    described = task.describe(rows, config)
    return rows, described, task.batches(rows, config, described, 1)


def load_windows(config: Any) -> tuple[Any, Any, training.Splits]:
    """Rows, what is learned of them, and windows.

    Raises:
        TooFewRowsError: there are too few rows.
    """
    return _load_windows(json.dumps(config.to_json(), sort_keys=True))


def evaluate_simple(size: Size, config: Any, key: Mapping[str, Any]) -> dict[str, Any]:
    """Errors of the last value, the last season and the ridge on the test rows."""
    rows, described, splits = load_windows(config)
    run = tasks.Run(tasks.get_task("forecast"), config.resolve(), described, None, rows)
    assert isinstance(splits.test, PanelWindows)
    values = evaluate_baselines(run, splits.test)
    names = ("naive", "seasonal_naive", "ridge")
    return {f"{n}_{m}": values[f"{n}_{m}"] for n in names for m in ("mse", "mae")}


def train_model(
    size: Size, config: Any, key: Mapping[str, Any], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Trains a model; a trial is not tested."""
    model, is_trial = key["model"], "trial" in key
    if model in PEERS:
        _, _, splits = load_windows(config)
        options = {**options}
        rate = options.pop("rate")
        return {
            "options": {**options, "rate": rate},
            **train_peer(
                model,
                options,
                rate,
                splits.train,
                splits.validation,
                None if is_trial else splits.test,
                lengths=(config.data.context_length, key["horizon"]),
                seed=key.get("seed", 0),
                steps=size.steps,
                validate_every=size.steps // size.validations,
            ),
        }
    run, values, lines = fit_run(config.replace(mechanism=model, **options))
    results = {
        "options": dict(options),
        "validation": min(line["validation_mse"] for line in lines),
        "seconds": values["train_seconds"],
        "parameters": sum(p.size for p in jax.tree.leaves(nnx.state(run.model, nnx.Param))),
    }
    if not is_trial:
        results |= {"mse": values["test_mse"], "mae": values["test_mae"]}
        results |= measure_stream(run.model)
    return results


def fit_run(config: Any) -> tuple[tasks.Run, dict[str, Any], list[dict[str, Any]]]:
    """A run of ours, its report without baselines, and the lines of its metrics."""
    task: Any = tasks.get_task("forecast")
    task.test_baselines = lambda run, batches: {}
    with tempfile.TemporaryDirectory() as folder:
        values = tasks.train(task, config, training.Session(folder, progress=False))
        lines = (Path(folder) / "metrics.jsonl").read_text().splitlines()
        return tasks.load_run(folder), values, [json.loads(line) for line in lines]


def chosen_options() -> dict[str, Any]:
    """Of ours, as the trials of the stored table chose them."""
    rows = (row for row in stored_rows() if row["model"] == OURS and "mse" in row)
    return next(rows)["options"]


@functools.cache
def stored_rows() -> list[dict[str, Any]]:
    """The rows of the stored table."""
    return json.loads((Path(__file__).parent / "patch.json").read_text())["rows"]


def measure_stream(model: Any) -> dict[str, Any]:
    """Bytes of the state and microseconds an observation, compiled; nothing of what cannot."""
    if not model.streams:
        return {}
    x = np.random.default_rng(0).normal(size=(1, 2000, *model.observation_shape))
    run: Any = nnx.jit(lambda model, x: inference.unroll(model, x)[:, -1])
    x = x.astype(np.float32)
    jax.block_until_ready(run(model, x))
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        jax.block_until_ready(run(model, x))
        times.append(time.perf_counter() - begin)
    leaves = jax.tree.leaves(jax.eval_shape(lambda: model.init_state(1)))
    return {
        "state_bytes": sum(leaf.size * leaf.dtype.itemsize for leaf in leaves),
        "microseconds": 1e6 * statistics.median(times) / x.shape[1],
    }


def errors(rows: Rows, model: str, metric: str = "mse") -> Errors:
    """Errors of each seed, by series and horizon; one for simple methods.

    Raises:
        NotMeasuredError: there is none.
    """
    by_series: Errors = {}
    for row in rows:
        name = f"{model}_{metric}" if row["model"] == SIMPLE else metric
        if "trial" in row or row["model"] not in (model, SIMPLE) or name not in row:
            continue
        of_cell = by_series.setdefault(row["series"], {}).setdefault(row["horizon"], {})
        of_cell[row.get("seed", 0)] = row[name]
    if not by_series:
        raise NotMeasuredError(model)
    return by_series


Errors = dict[str, dict[int, dict[int, float]]]


def compare(rows: Rows, ours: str, other: str) -> dict[str, dict[int, float]]:
    """How much larger our error is, in percent, by series and seed: the mean over horizons.

    A baseline's error is that of all seeds.
    """
    mine, theirs = errors(rows, ours), errors(rows, other)
    by_series: dict[str, dict[int, float]] = {}
    for series, cells in mine.items():
        by_seed: dict[int, list[float]] = {}
        for horizon, values in cells.items():
            others = theirs.get(series, {}).get(horizon, {})
            for seed, value in values.items():
                base = others.get(0 if other in BASELINES else seed)
                if base is not None:
                    by_seed.setdefault(seed, []).append(100 * (value / base - 1))
        if by_seed:
            by_series[series] = {seed: statistics.mean(each) for seed, each in by_seed.items()}
    return by_series


BASELINES = ("naive", "seasonal_naive", "ridge")


def not_above(other: str) -> Judge:
    """The verdict on our errors over series, against another model's."""

    def judge(rows: Rows) -> Verdict:
        by_series = {name: list(each.values()) for name, each in compare(rows, OURS, other).items()}
        over = over_sets(by_series, source)
        each = ", ".join(f"{name} {statistics.mean(own):+.1f}" for name, own in by_series.items())
        word = below(over, 2, NOT_ABOVE, over="series").under(ONE_SOURCE)
        return Verdict(word, f"{text(over, 1)} % of its error: {each}")

    return judge


def below_ridge(series: str) -> Judge:
    """The verdict on our errors on one series, against the ridge's."""

    def judge(rows: Rows) -> Verdict:
        own = compare(rows, OURS, "ridge").get(series)
        if own is None:
            raise NotMeasuredError(f"{OURS} on {series}")
        # One horizon has more seeds than the others: only the common seeds count.
        gap = interval(list(own.values()))
        gap_text = text(gap, 1) if gap else f"{statistics.mean(own.values()):+.1f}, one seed"
        return Verdict(below(gap, 0, BELOW), f"{gap_text} %")

    return judge


def table(rows: Rows, size: Size) -> str:
    """Errors by series and horizon; then mechanisms at the shortest one; then the trials."""
    models = ["PatchTST", "DLinear", *(m.replace("_", " ") for m in BASELINES), f"`{OURS}`"]
    header = ["series, horizon", *(f"{name}, published" for name in PUBLISHED)]
    header += [*(f"{name}, papers' model" for name in PAPERS), *models]
    lines = []
    for series in size.series:
        for number, horizon in enumerate(size.horizons):
            cells = [
                _cell(rows, name, series, horizon)
                for name in ("PatchTST", "DLinear", *BASELINES, OURS)
            ]
            if set(cells) == {"-"}:
                continue
            printed = [
                f"{PUBLISHED[name][series][number]:.3f}" if series in PUBLISHED[name] else "-"
                for name in PUBLISHED
            ]
            lines.append(
                [f"{series}, {horizon}", *printed, *_papers(f"{series}, {horizon}"), *cells]
            )
    parts = ["Mean squared error (mean absolute error in brackets):", markdown(header, lines)]
    mechanisms = [OURS, *size.mechanisms]
    lines = []
    for name in mechanisms:
        own = [row for row in rows if row["model"] == name and "mse" in row]
        if own:
            cells = [_cell(rows, name, series, size.horizons[0]) for series in size.series]
            first = next(row for row in own if row["horizon"] == size.horizons[0])
            lines.append([f"`{name}`", *cells, f"{first['parameters']:,}", *_costs(first)])
    titles = ["parameters", "train, s", "state, bytes", "microseconds per observation"]
    parts.append(f"With each mechanism, {size.horizons[0]} rows ahead (costs on {EMBEDDED}):")
    parts.append(markdown(["mechanism", *size.series, *titles], lines))
    trials = [row for row in rows if "trial" in row]
    lines = [
        [f"`{row['model']}`" if row["model"] == OURS else row["model"],
         ", ".join(f"{k} {v}" for k, v in row["options"].items()),
         f"{row['validation']:.4f}", f"{row['seconds']:.0f}"]
        for row in trials
    ]  # fmt: skip
    parts.append(f"Trials, validation rows of {EMBEDDED}, {size.horizons[0]} rows ahead:")
    parts.append(markdown(["model", "options", "MSE", "train, s"], lines))
    return "\n\n".join(parts)


def _cell(rows: Rows, model: str, series: str, horizon: int) -> str:
    try:
        mse = errors(rows, model)[series][horizon].values()
        mae = errors(rows, model, "mae")[series][horizon].values()
    except (KeyError, NotMeasuredError):
        return "-"
    return f"{mean_text([*mse], 3)} ({statistics.mean(mae):.3f})"


def _costs(row: Mapping[str, Any]) -> list[str]:
    seconds = f"{row['seconds']:.0f}"
    if "state_bytes" not in row:
        return [seconds, "-", "-"]
    return [seconds, f"{row['state_bytes']:,}", f"{row['microseconds']:.0f}"]


@functools.cache
def _papers_runs() -> list[dict[str, Any]]:
    return json.loads((Path(__file__).parent / "aaren-cpu.json").read_text())["runs"]


def _papers(row: str) -> list[str]:
    """Errors of the papers' models, as the page of Aaren's tables has them."""
    cells = []
    for column in PAPERS:
        own = [
            run["report"]["test_mse"]
            for run in _papers_runs()
            if (run["row"], run["column"]) == (row, column)
        ]
        cells.append(f"{statistics.mean(own):.3f}" if own and not row.startswith("ECL") else "-")
    return cells


EXPERIMENT = Measured(
    module="experiments.forecasting.patch",
    needs_data=True,
    extras="plots,peers",
    about="not of a paper: the patch forecaster compared with ridge, DLinear and PatchTST",
    sizes={"": Size()},
    measure=measure,
    table=table,
    statements=(
        Statement("ours", "its errors are at most PatchTST's", not_above("PatchTST")),
        Statement("ours", "its errors are at most DLinear's", not_above("DLinear")),
        *(
            Statement("ours", f"it is below the ridge on {series}", below_ridge(series))
            for series in SERIES
        ),
    ),
    left_out={
        "": "whole electricity and traffic sets, which are not available: instead two clients of "
        "ECL, and the speeds at 12 sensors over a week, whose test rows have the shortest "
        "horizons only; weather and ETTm1, for the same reason. Statistical models, and contexts "
        "of more than 96 rows, are in tables of their own. Missing numbers are for lack of time"
    },
)

if __name__ == "__main__":
    EXPERIMENT.main()
