"""What tests of tasks share."""

import os

import pytest

from flax_linattn import cli, registry
from tests.tasks.commands import SMALL_CLASSIFIER, no_drawing, no_training

BINS = registry.Entry("tests.tasks.bins:BinsTask", "next symbols of a real series")


@pytest.fixture
def no_figures():
    """Runs whose figures nobody looks at draw none."""
    with no_drawing():
        yield


@pytest.fixture
def no_steps():
    """Runs whose parameters matter to nobody keep their first ones."""
    with no_training():
        yield


@pytest.fixture(scope="session")
def classify_run(tmp_path_factory):
    """A finished small run on Japanese Vowels, made by the command; whoever harms it takes a copy.

    The first of the worker processes that needs it makes it for all.
    """
    base = tmp_path_factory.getbasetemp()
    folder = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    shared = folder / "classify-run"
    if not shared.exists():
        own = tmp_path_factory.mktemp("runs") / "classify"
        assert cli.main(["train", "classify", "--run", str(own), *SMALL_CLASSIFIER]) == 0
        try:
            own.rename(shared)
        except OSError:  # another process was first
            return own
    return shared


@pytest.fixture(scope="module")
def outside_task():
    """A task that the package does not know, registered for the tests of a module."""
    registry.register_task("bins", *BINS[:2])
    yield "bins"
    del registry.TASKS["bins"]
