"""The toy environment."""

from collections.abc import Iterator

import pytest

from tests.control import toys


@pytest.fixture(scope="session", autouse=True)
def countdown() -> Iterator[str]:
    with toys.registered(toys.COUNTDOWN, toys.Countdown) as env_id:
        yield env_id
