"""`-m "not slow"` leaves out what runs a real model."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: runs the default model, which is made first if need be")
