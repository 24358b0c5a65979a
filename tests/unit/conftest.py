"""What several files of unit tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes.built_again import build_again, check_all


@pytest.fixture
def built_again(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever stream a test makes could be adopted by another gateway in the end."""
    with monkeypatch.context() as patch:
        kept = build_again(patch)
        yield
        check_all(kept)
