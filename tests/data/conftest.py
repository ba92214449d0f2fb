"""What the tests of readers share."""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

SECONDS = 5.0
"""Of a core; what is bounded takes a tenth of it, and what is quadratic many times as long."""


@pytest.fixture
def bounded() -> Callable[[], AbstractContextManager[None]]:
    """A context that must not take long."""

    @contextmanager
    def context() -> Iterator[None]:
        gc.freeze()  # else collections walk what other tests have left, again and again
        begin = time.process_time()
        try:
            yield
        finally:
            gc.unfreeze()
        assert time.process_time() - begin < SECONDS

    return context
