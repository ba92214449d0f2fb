"""Compilation for tests: time goes into compiling, hardly any into running."""

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(autouse=True)
def compile_quickly(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compiles without optimisation, in half the time; the slow tests with it, as users do."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", "slow" not in request.keywords)
    yield
    jax.config.update("jax_disable_most_optimizations", before)
