"""What the README shows is run as it stands, but for the port."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.server.server_process import PATIENCE_S, Served

README = Path(__file__).parents[2] / "README.md"


def example(heading: str) -> str:
    section = README.read_text().partition(f"## {heading}\n")[2]
    found = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert found is not None
    return found[1]


def said_by(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


async def test_the_fifteen_lines_steer(slow: Served) -> None:
    code = example("Fifteen lines").replace("http://127.0.0.1:8000", slow.http)
    assert len([line for line in code.splitlines() if line]) <= 15
    # The toy ends by itself now and then: this example is to be steered to its end.
    said = said_by(code.replace("max_tokens=200", "max_tokens=200, ignore_eos=True"))
    cooler = re.search(r"\[cooler from token (\d+)\]", said)
    paused = re.search(r"\[paused at token (\d+)\]", said)
    cancelled = re.search(r"\[cancelled at token (\d+)\]", said)
    assert cooler is not None
    assert paused is not None
    assert cancelled is not None
    assert 20 <= int(cooler[1]) < int(paused[1]) < int(cancelled[1])


def test_the_engine_is_a_library_in_ten_lines() -> None:
    assert re.fullmatch(r"\[\d+(, \d+){,19}\] (eos|length)\n", said_by(example("As a library")))
