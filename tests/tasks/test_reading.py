"""Files as users have them, through the forecasting task: what is told, and what is read."""

import numpy as np
import pytest

from flax_linattn import tasks
from flax_linattn.data import Dialect
from flax_linattn.tasks.forecast import ForecastConfig
from tests.tasks.commands import fail

FORECAST = tasks.get_task("forecast")
ROWS = 1200


def written(tmp_path, load, times=None, separator=","):
    times = np.datetime64("2024-01-01", "h") + np.arange(ROWS) if times is None else times
    lines = [f"{time}{separator}{value}" for time, value in zip(times, load, strict=True)]
    path = tmp_path / "sales.csv"
    path.write_text(f"date{separator}load\n" + "\n".join(lines) + "\n")
    return path


def notes(path, **options):
    return FORECAST.notes(FORECAST.load(ForecastConfig.of(csv=path, **options).resolve()))


@pytest.fixture
def load():
    return 50 + 10 * np.sin(np.arange(ROWS) * 2 * np.pi / 24)


def test_codes_and_far_values_are_told_and_may_be_taken_as_missing(tmp_path, load):
    load[::11] = -9999
    load[[200, 700]] = 450, -300
    path = written(tmp_path, load)
    code, far = notes(path)
    assert code == (
        "values that repeat, apart from all others: 1 ('load' -9999 110 times, first in line 2); "
        "say so with missing_values where one stands for a missing value"
    )
    assert far == (
        "values more than 30 deviations from the median of their channel: 2 ('load' 450, line 202, "
        "'load' -300, line 702); leave the cell empty where one stands for a missing value"
    )
    missing, left = notes(path, missing_values=("-9999",))
    assert missing.endswith(": 110") and left == far


def test_times_in_utc_are_told(tmp_path, load):
    times = [f"{t}:00+02:00" for t in np.datetime64("2024-01-01", "h") + np.arange(ROWS)]
    path = written(tmp_path, load, times)
    assert notes(path) == ["times and the calendar are in UTC, the first 2023-12-31T22:00:00"]


def test_options_of_the_file_are_those_of_the_run(tmp_path, load):
    texts = [f"{x:.3f}".replace(".", ",") for x in load]
    days = [f"{day.day}.{day.month}.{day.year}" for day in
            (np.datetime64("2021-01-01") + np.arange(ROWS)).tolist()]  # fmt: skip
    path = written(tmp_path, texts, days, separator=";")
    config = ForecastConfig.of(csv=path, decimal=",", day_first=True)
    assert config.data.dialect == Dialect(decimal=",", day_first=True)
    assert ForecastConfig.from_json(config.to_json()) == config
    loaded = FORECAST.load(config.resolve())
    np.testing.assert_allclose(loaded.series.values[:, 0], load, atol=1e-3)
    assert loaded.series.step == np.timedelta64(1, "D")
    weekly = FORECAST.load(config.replace(resample="1w").resolve())
    assert weekly.series.step == np.timedelta64(7, "D")


def test_a_refusal_names_the_flag(tmp_path, load, capsys):
    texts = [f"{x:.3f}".replace(".", ",") for x in load]
    path = written(tmp_path, texts, separator=";")
    args = ["train", "forecast", "--csv", str(path), "--run", str(tmp_path / "run")]
    message = fail(capsys, *args)
    assert "sales.csv:2: expected a number with decimals after '.' in column 2 (load)" in message
    assert message.endswith("(--decimal)\n")
    gaps = np.cumsum(np.random.default_rng(0).integers(1, 4000, ROWS)) * np.timedelta64(1, "s")
    path = written(tmp_path, load, np.datetime64("2024-01-01", "s") + gaps)
    message = fail(capsys, *args)
    assert "expected rows at one distance in time" in message
    assert message.endswith("(--resample, --times, --id-column)\n")
