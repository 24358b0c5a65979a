"""SECURITY.md promises nothing without a test that is there, and speaks of options that are."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from realtime.config import Options

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "SECURITY.md").read_text()
PROMISES = re.findall(r"^\| (?!promise|---)(.+) \| (`tests/.*) \|$", TEXT, re.MULTILINE)


def test_all_that_is_promised_stands_in_a_table() -> None:
    promised = TEXT.partition("## What is promised")[2].partition("## What is not promised")[0]
    rows = [line for line in promised.splitlines() if line.startswith("| ") and "---" not in line]
    assert len([row for row in rows if not row.startswith("| promise |")]) == len(PROMISES) > 10


@pytest.mark.parametrize(("promise", "tests"), PROMISES, ids=[promise[:40] for promise, _ in PROMISES])
def test_a_promise_is_held_by_tests(promise: str, tests: str) -> None:
    names = re.findall(r"`([^`]+)`", tests)
    assert names
    for name in names:
        assert "def test_" in (ROOT / name).read_text(), name


def test_options_are_the_servers() -> None:
    options = {field.name.replace("_", "-") for field in dataclasses.fields(Options)}
    assert set(re.findall(r"`(?:midstream serve )?--([a-z-]+)", TEXT)) <= options
