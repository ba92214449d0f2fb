"""Tasks: what ties data, model, loss and metrics together."""

from flax_linattn.tasks.classify import train_classifier
from flax_linattn.tasks.classify_config import ClassifyConfig
from flax_linattn.tasks.classify_data import ClassifyProblem
from flax_linattn.tasks.classify_evaluate import ClassifyRun, load_classifier
from flax_linattn.tasks.classify_model import build_classifier
from flax_linattn.tasks.evaluate import evaluate_run
from flax_linattn.tasks.forecast import train_forecaster
from flax_linattn.tasks.forecast_config import ForecastConfig
from flax_linattn.tasks.forecast_data import ForecastProblem
from flax_linattn.tasks.forecast_evaluate import ForecastRun, load_forecaster
from flax_linattn.tasks.forecast_rows import Row
from flax_linattn.tasks.forecast_stream import ForecastStream
from flax_linattn.tasks.runs import RunConfig

__all__ = [
    "ClassifyConfig",
    "ClassifyProblem",
    "ClassifyRun",
    "ForecastConfig",
    "ForecastProblem",
    "ForecastRun",
    "ForecastStream",
    "Row",
    "RunConfig",
    "build_classifier",
    "evaluate_run",
    "load_classifier",
    "load_forecaster",
    "train_classifier",
    "train_forecaster",
]
