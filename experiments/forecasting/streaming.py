"""A forecaster as a stream: its error on the test rows beside that on windows.

python -m experiments.forecasting.streaming RUN
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from flax_linattn import tasks
from flax_linattn.bench.provenance import commit
from flax_linattn.bench.report import markdown
from flax_linattn.tasks.forecast_evaluate import evaluate_run, load_series
from flax_linattn.tasks.forecast_metrics import Errors

RESULT = Path(__file__).with_suffix(".json")


def streamed(run: tasks.ForecastRun, context: int | None) -> dict[str, float]:
    """Errors of a stream that begins a window before the test rows, on standardised values."""
    config, problem = run.config, run.problem
    series, targets = load_series(run), list(problem.targets)
    mean, std = problem.standardizer.mean[targets], problem.standardizer.std[targets]
    first, stop = problem.split[-1]
    stream = tasks.ForecastStream(run, context=context)
    errors = Errors(len(targets))
    for row in range(first - config.input_length, stop - config.horizon):
        time = None if series.times is None else series.times[row].item()
        forecast = stream.step(tasks.Row(time, series.values[row]))
        if row >= first - 1:
            truth = series.values[row + 1 : row + 1 + config.horizon, targets]
            errors.add(((forecast - mean) / std)[None], ((truth - mean) / std)[None])
    return errors.metrics()


def main() -> None:
    """Measures a run and writes streaming.json and its page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path, help="the folder of a run with --model decoder")
    parser.add_argument("--output", type=Path, default=RESULT)
    options = parser.parse_args()
    run = tasks.load_forecaster(options.run)
    report = evaluate_run(options.run)
    length = run.config.input_length
    rows: dict[str, dict[str, Any]] = {
        f"windows of {length} rows": {k: report[f"test_{k}"] for k in ("mse", "mae")},
        f"a stream, --context {length} (default)": streamed(run, None),
        "a stream, --context 0: forgets nothing": streamed(run, 0),
    }
    result = {"commit": commit(), "config": run.config.to_json() | {"csv": None}, "rows": rows}
    options.output.write_text(json.dumps(result, indent=1) + "\n")
    print(write(options.output).read_text(), end="")


def write(path: Path) -> Path:
    """Writes the page of a stored result beside it."""
    rows = json.loads(path.read_text())["rows"]
    lines = [[name, f"{row['mse']:.3f}", f"{row['mae']:.3f}"] for name, row in rows.items()]
    page = path.with_suffix(".md")
    page.write_text(markdown(["", "MSE", "MAE"], lines) + "\n")
    return page


if __name__ == "__main__":
    main()
