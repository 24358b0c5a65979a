"""Configuration of the model tests: the marker `slow`, for tests that run the default model."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: runs the default model, which is made first if need be")
