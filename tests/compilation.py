"""Compilation for tests: time goes into compiling, hardly any into running."""

import contextlib
from collections.abc import Iterator

import jax
import pytest


@contextlib.contextmanager
def optimisation(wanted: bool) -> Iterator[None]:
    """Compiles with or without optimisation inside."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", not wanted)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture(autouse=True)
def compile_quickly(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compiles without optimisation, in half the time; the slow tests with it, as users do."""
    with optimisation("slow" in request.keywords):
        yield
