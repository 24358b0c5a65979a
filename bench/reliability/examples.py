"""The tests that draw their examples, with many more of them than in `make test`, and others each time."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

EXAMPLES = 300  # of each property
VARIABLE = "MIDSTREAM_EXAMPLES"  # which these tests look at
TIMEOUT_S = 3600  # of one test
SHOWN = 2000  # characters, of the end of what failed


async def measure(scale: float) -> dict[str, Any]:
    examples = max(1, int(scale * EXAMPLES))
    files = drawing_tests()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--timeout={TIMEOUT_S}", *files),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=os.environ | {VARIABLE: str(examples)},
    )
    try:
        said, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    told = said.decode(errors="replace").rstrip()
    return {
        "name": "examples",
        "goal": f"{EXAMPLES} of each property, drawn anew, none wrong",
        "met": process.returncode == 0,
        "files": len(files),
        "examples": examples,
        "found": told.splitlines()[-1] if process.returncode == 0 else told[-SHOWN:],
    }


def drawing_tests() -> list[str]:
    return [str(path) for path in sorted(Path("tests").rglob("test_*.py")) if VARIABLE in path.read_text()]
