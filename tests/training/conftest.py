"""Processes that the tests start share one start of Python."""

from collections.abc import Iterator

import pytest

from tests.training.children import Children, children


@pytest.fixture(scope="session", name="children")
def _children(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Children]:
    with children(tmp_path_factory.mktemp("children")) as found:
        yield found
