"""What every test runs under: eight simulated devices, strict dtypes, bounded property tests."""

import gc
import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests import compilation, times

# Read once, when jax starts its backend: set before anything imports jax.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.update(compilation.environment())

import jax
import pytest
from hypothesis import settings

from flax_linattn.compilation import prune
from flax_linattn.ops import registry

# Until all is collected, which makes little garbage.
gc.disable()

# float32 + float64 and their like raise: a silent promotion hides a lost accumulation dtype.
jax.config.update("jax_numpy_dtype_promotion", "strict")

# An example may compile, so there is no deadline; in CI the examples are the same every time.
settings.register_profile("linattn", deadline=None, max_examples=20)
settings.register_profile(
    "linattn-ci", settings.get_profile("linattn"), derandomize=True, database=None
)
settings.load_profile("linattn-ci" if os.environ.get("CI") else "linattn")


def pytest_report_header() -> str:
    folder = os.environ.get("JAX_COMPILATION_CACHE_DIR", "nowhere")
    return f"compilation: {compilation.MODE}, programs are kept in {folder}"


def pytest_sessionstart(session: pytest.Session) -> None:
    """Before any worker process begins."""
    if not hasattr(session.config, "workerinput"):
        prune()


def pytest_collection_finish() -> None:
    """What is there stays: looking through it for garbage time and again takes a tenth of all."""
    gc.collect()
    gc.freeze()
    gc.enable()
    gc.set_threshold(50_000, 10, 10)
    SPENT[0] = _processor_seconds()  # collecting is of no test


def _processor_seconds() -> float:
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


SPENT = [0.0]
"""A processor's seconds of this process until the last test began."""
WORKED = [0.0]
"""When this process last did the work of ``tests.times``, by the clock."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Gives reports the processor's seconds of each test, and those of a fixed piece of work."""
    if call.when == "teardown":
        own = _processor_seconds() - SPENT[0]
        item.user_properties.append(("processor_seconds", round(own, 3)))
        if time.monotonic() > WORKED[0] + 60:
            item.user_properties.append(("work_seconds", times.work_seconds()))
            WORKED[0] = time.monotonic()
        SPENT[0] = _processor_seconds()
    return (yield)


MAPS = Path("/proc/self/maps")
TESTS = itertools.count()


@pytest.fixture(autouse=True)
def forget_programs() -> Iterator[None]:
    """Every compiled program holds memory and maps of it, of which Linux gives a process 65,530."""
    yield
    if next(TESTS) % 25 == 0 and MAPS.exists() and MAPS.read_bytes().count(b"\n") > 32_000:
        jax.clear_caches()
        gc.collect()


@pytest.fixture
def own_mechanisms() -> Iterator[None]:
    """Mechanisms that a test registers are gone after it."""
    tables = (registry.REGISTRY, registry.MECHANISMS)
    names = [*registry.REGISTRY]
    yield
    for table in tables:
        for name in table.keys() - set(names):
            del table[name]


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real data sets that FLAX_LINATTN_DATA names; the test skips where none is."""
    value = os.environ.get("FLAX_LINATTN_DATA")
    if not value:
        pytest.skip("FLAX_LINATTN_DATA is not set to a folder of real data sets")
    path = Path(value)
    if not path.is_dir():
        pytest.fail(f"FLAX_LINATTN_DATA names {value!r}, which is not a folder")
    return path
