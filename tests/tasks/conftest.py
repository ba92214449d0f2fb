"""What tests of tasks share."""

import sys

import pytest


@pytest.fixture
def no_figures(monkeypatch):
    """Runs whose figures nobody looks at draw none."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
