"""What several files of unit tests share."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from realtime.stream import params
from tests.fakes.absent_devices import AbsentDevices
from tests.fakes.built_again import build_again, check_all


@pytest.fixture(autouse=True)
def the_same_seeds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams that ask for no seed draw the same ones in each run of a test: what fails once fails again."""
    chance = random.Random(request.node.nodeid)
    monkeypatch.setattr(params, "_seed", lambda: chance.getrandbits(53))


@pytest.fixture
def built_again(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever stream a test makes could be adopted by another gateway in the end."""
    with monkeypatch.context() as patch:
        kept = build_again(patch)
        yield
        check_all(kept)


@pytest.fixture(scope="session")
def absent_devices(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AbsentDevices]:
    """The process that compiles for devices that are not there."""
    devices = AbsentDevices(tmp_path_factory.mktemp("triton"))
    yield devices
    devices.end()
