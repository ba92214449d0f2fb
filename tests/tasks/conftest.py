"""What tests of tasks share."""

import sys

import pytest

from flax_linattn import registry

SYMBOLS = registry.Entry("tests.tasks.symbols:SymbolsTask", "next symbols of a real series")


@pytest.fixture
def no_figures(monkeypatch):
    """Runs whose figures nobody looks at draw none."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)


@pytest.fixture(scope="module")
def third_task():
    """A task that the package does not know, registered for the tests of a module."""
    registry.register_task("symbols", *SYMBOLS)
    yield "symbols"
    del registry.TASKS["symbols"]
