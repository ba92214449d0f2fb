from flax_linattn.tasks.forecast.options import (
    ForecastConfig,
    ForecastStreamOptions,
)
from flax_linattn.tasks.forecast.rows import Row
from flax_linattn.tasks.forecast.spec import ForecastSpec, SeriesInfo
from flax_linattn.tasks.forecast.stream import ForecastStream
from flax_linattn.tasks.forecast.task import ForecastTask

__all__ = [
    "ForecastConfig",
    "ForecastSpec",
    "ForecastStream",
    "ForecastStreamOptions",
    "ForecastTask",
    "Row",
    "SeriesInfo",
]
