"""Examples that steer by what they read, with the default model, which ends and calls as the toy does not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from engine.model.default_model import DEFAULT_MODEL
from tests.server.server_process import Served
from tests.server.test_examples import said_by

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    server = Served(model=DEFAULT_MODEL)
    yield server
    server.end()


@pytest.mark.parametrize("name", ["agent", "editor", "moderate", "steer"])
def test_an_example_comes_to_its_end(served: Served, name: str) -> None:
    assert said_by(name, served.http)
