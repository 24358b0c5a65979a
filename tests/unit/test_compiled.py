"""Compiled functions: what one process compiled the next one finds, as long as the sources are the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

MODULE = """
from engine.compiled import compiled

@compiled()
def doubled(number):
    return 2 * number

@compiled("i8(i8)")
def more(number):
    return doubled(number) + 1

print(more(20), sum(more.stats.cache_hits.values()))
"""


@pytest.fixture
def module(tmp_path: Path) -> Path:
    file = tmp_path / "module.py"
    file.write_text(MODULE)
    return file


def found_again(module: Path, caches: Path | str) -> int:
    """How much a new process has not compiled."""
    environment = os.environ | {"XDG_CACHE_HOME": str(caches)}
    done = subprocess.run(
        [sys.executable, module], env=environment, capture_output=True, text=True, check=True
    )
    result, hits = map(int, done.stdout.split())
    assert (result, done.stderr) == (41, "")
    return hits


def test_what_one_process_compiled_the_next_one_finds(module: Path, tmp_path: Path) -> None:
    assert found_again(module, tmp_path) == 0
    assert found_again(module, tmp_path) == 1
    for file in tmp_path.rglob("*.nb?"):
        file.write_bytes(b"")  # as a machine leaves it whose power fails
    assert found_again(module, tmp_path) == 0


def test_where_nothing_can_be_kept_it_is_compiled_each_time(module: Path) -> None:
    assert found_again(module, "/dev/null") == 0
