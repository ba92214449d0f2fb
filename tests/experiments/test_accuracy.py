"""The errors against the float64 reference are measured, with where they came from."""

import dataclasses
import json

import pytest

from experiments.accuracy import errors


def test_the_errors_are_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(errors.ops, "list_mechanisms", lambda: ("aaren",))
    chosen = [("float64", "parallel"), ("bfloat16", "auto")]
    monkeypatch.setattr(errors, "cases", lambda mechanism, length: chosen)
    size = errors.Size(lengths=(16,), heads=1, dim=4)
    experiment = dataclasses.replace(errors.EXPERIMENT, sizes={"": size})
    experiment.collect("", tmp_path, progress=False)
    page = experiment.render("", tmp_path)
    assert page.startswith("Largest in float64: output ") and "(aaren, parallel, 16 tokens)" in page
    assert "At 16 tokens:" in page and "| aaren | auto |" in page
    stored = json.loads((tmp_path / "errors.json").read_text())
    assert stored["commit"] and stored["cores"] and stored["date"]
    cases = {(c["dtype"], c["form"]): c for c in stored["rows"][0]["cases"]}
    assert cases["float64", "parallel"]["output"] < 1e-15
    assert 0 < cases["bfloat16", "auto"]["gradient"] < 0.1


@pytest.mark.parametrize(
    "name",
    [
        "gated_delta",  # a recurrence, with arguments of tokens
        "reformer",  # whose queries have no gradient
        pytest.param("forgetting", marks=pytest.mark.slow),
        pytest.param("rwkv", marks=pytest.mark.slow),
    ],
)
def test_gates_and_recurrences(monkeypatch, name):
    monkeypatch.setattr(errors, "cases", lambda mechanism, length: [("float64", "parallel")])
    (case,) = errors.measure_mechanism(errors.Size(heads=2, dim=4), name, 16)["cases"]
    assert 0 < case["output"] < 1e-13 and 0 < case["gradient"] < 1e-12
