"""What tests of tasks share."""

import sys

import pytest

from flax_linattn import registry

BINS = registry.Entry("tests.tasks.bins:BinsTask", "next symbols of a real series")


@pytest.fixture
def no_figures(monkeypatch):
    """Runs whose figures nobody looks at draw none."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)


@pytest.fixture(scope="module")
def outside_task():
    """A task that the package does not know, registered for the tests of a module."""
    registry.register_task("bins", *BINS)
    yield "bins"
    del registry.TASKS["bins"]
