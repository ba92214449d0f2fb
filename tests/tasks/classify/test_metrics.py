"""Counts by class and prediction, and the figures of each class."""

import numpy as np

from flax_linattn.tasks.classify.figures import draw_confusion
from flax_linattn.tasks.classify.metrics import class_figures


def test_a_class_without_examples_or_predictions_has_no_share():
    figures = class_figures(np.array([[2, 0, 1], [0, 0, 0], [1, 0, 4]]), ["a", "b", "c"])
    nothing = {"count": 0, "recall": None, "precision": None, "f1": None, "taken_for": ""}
    assert figures[1] == {"class": "b", **nothing}
    assert figures[2]["recall"] == figures[2]["precision"] == figures[2]["f1"] == 0.8
    assert figures[0]["taken_for"] == "c: 1"


def test_figures_of_one_and_of_many_long_classes(tmp_path):
    for count in (1, 30):
        path = tmp_path / f"{count}.png"
        draw_confusion(np.eye(count, dtype=int), [f"class {i}" for i in range(count)], path)
        assert path.read_bytes().startswith(b"\x89PNG")
