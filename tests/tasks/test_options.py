"""Options that no run can have are refused before anything is read."""

from __future__ import annotations

import math

import pytest

from flax_linattn import tasks


@pytest.mark.parametrize("task", ["classify", "forecast"])
@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("learning_rate", 0.0, "learning_rate must be positive, got 0.0"),
        ("learning_rate", math.nan, "learning_rate must be positive, got nan"),
        ("dropout_rate", 1.0, r"dropout_rate must be in \[0, 1\), got 1.0"),
        ("dropout_rate", -0.1, r"dropout_rate must be in \[0, 1\), got -0.1"),
        ("epochs", 0, "epochs must be at least 1, got 0"),
        ("patience", 0, "patience must be at least 1, got 0"),
        ("batch_size", -1, "batch_size must be at least 1, got -1"),
    ],
)
def test_numbers_out_of_range(task, option, value, message):
    with pytest.raises(ValueError, match=message):
        tasks.get_task(task).Config.of(**{option: value})
