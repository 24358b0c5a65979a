"""File pages: they go and come again, unless they were written to."""

from __future__ import annotations

import mmap
import re
import sys
from pathlib import Path

import pytest

from engine.memory.file_pages import let_go_of_file_pages

SIZE = 64 * mmap.PAGESIZE
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux alone says what is mapped")


def resident(file: Path) -> int:
    """Bytes of the file's mappings."""
    found = re.findall(
        rf"{re.escape(str(file))}\n(?:\w+: .*\n)*?Rss: +(\d+) kB", Path("/proc/self/smaps").read_text()
    )
    assert found
    return sum(map(int, found)) * 1024


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "some weights"
    made.write_bytes(bytes(range(256)) * (SIZE // 256))
    return made


def mapped(file: Path) -> mmap.mmap:
    """As weights are: private, and they could be written to. All of it has been read."""
    with file.open("rb") as opened:
        made = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY)
    assert made[:] == file.read_bytes()
    return made


def test_pages_that_were_read_go_and_come_again(file: Path) -> None:
    weights = mapped(file)
    assert resident(file) == SIZE
    let_go_of_file_pages()
    assert resident(file) == 0
    assert weights[:] == file.read_bytes()
    weights.close()


def test_what_was_written_stays(file: Path) -> None:
    weights = mapped(file)
    weights[5] = 77
    let_go_of_file_pages()
    assert weights[5] == 77
    weights.close()


def test_a_system_that_says_nothing_is_left_alone(tmp_path: Path, file: Path) -> None:
    weights = mapped(file)
    let_go_of_file_pages(smaps=tmp_path / "absent")
    assert resident(file) == SIZE
    weights.close()
