"""A forecaster as a stream: its error on the test rows, compared with that on windows.

python -m experiments.forecasting.streaming RUN
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from experiments import command
from experiments.pages import write_page
from flax_linattn import tasks
from flax_linattn.bench.journal import write_json
from flax_linattn.bench.origin import provenance
from flax_linattn.bench.report import markdown, source_line
from flax_linattn.tasks.forecast import ForecastStream, Row
from flax_linattn.tasks.forecast.evaluate import Errors
from flax_linattn.tasks.forecast.panel import read_run_series

FOLDER = Path(__file__).parent
RESULTS = "streaming.json"


def stream_errors(run: tasks.Run, context: int | None) -> dict[str, float]:
    """Errors of a stream that begins a window before the test rows, on standardized values."""
    options, data_spec = run.config.to_json(), run.data_spec
    (series,), targets = read_run_series(run), list(data_spec.targets)
    mean, std = data_spec.standardizer.mean[targets], data_spec.standardizer.std[targets]
    first, stop = data_spec.split[-1]
    stream = ForecastStream(run, context=context)
    errors = Errors(len(targets))
    for row in range(first - options["context_length"], stop - options["horizon"]):
        time = None if series.times is None else series.times[row].item()
        forecast = stream.step(Row(time, series.values[row]))
        if row >= first - 1:
            truth = series.values[row + 1 : row + 1 + options["horizon"], targets]
            errors.add(((forecast - mean) / std)[None], ((truth - mean) / std)[None])
    return errors.metrics()


def main() -> None:
    """Measures a run and writes streaming.json and its page."""
    about = (__doc__ or "").splitlines()[0]
    parser = command.parser("experiments.forecasting.streaming", about, FOLDER)
    parser.add_argument("run", type=Path, help="the folder of a run with --model decoder")
    options = parser.parse_args()
    run = tasks.load_run(options.run)
    report = tasks.evaluate_run(options.run)
    length = run.config.to_json()["context_length"]
    rows: dict[str, dict[str, Any]] = {
        f"windows of {length} rows": {k: report[f"test_{k}"] for k in ("mse", "mae")},
        f"a stream, --context {length} (default)": stream_errors(run, None),
        "a stream, --context 0: forgets nothing": stream_errors(run, 0),
    }
    config = run.config.to_json() | {"csv": None}
    head = provenance("python -m experiments.forecasting.streaming RUN")
    write_json(options.output / RESULTS, {**head, "config": config, "rows": rows})
    print(render(options.output), end="")


def render(folder: Path = FOLDER) -> str:
    """Writes the page of what is stored; returns it."""
    stored = folder / RESULTS
    results = json.loads(stored.read_text())
    rows = results["rows"].items()
    lines = [[name, f"{row['mse']:.3f}", f"{row['mae']:.3f}"] for name, row in rows]
    facts = [["measured", source_line(results)]]
    return write_page(stored.with_suffix(".md"), [markdown(["", "MSE", "MAE"], lines)], facts)


if __name__ == "__main__":
    main()
