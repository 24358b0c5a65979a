"""Clients of OpenAI's API for Node, as they are: `openai` and `ai`. The tests are in Node's own language."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.server.keyed_server import Keyed
from tests.server.server_process import Served

FOLDER = Path(__file__).parent / "node"
DOCUMENT = Path(__file__).parents[2] / "docs/http.md"
LOCK = FOLDER / "package-lock.json"
INSTALLED = FOLDER / "node_modules" / ".package-lock.json"  # what npm leaves behind when it is through
MOST_S = 100


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=FOLDER,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=MOST_S,
        check=False,
    )


@pytest.fixture(scope="module")
def _packages() -> None:
    if not shutil.which("npm"):
        pytest.skip("npm was not found: install Node 20 or newer (Debian, Ubuntu: apt install npm)")
    if not INSTALLED.exists() or INSTALLED.stat().st_mtime < LOCK.stat().st_mtime:
        done = run("npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts")
        if done.returncode:
            pytest.skip(f"the packages could not be had: {done.stderr}")


@pytest.mark.usefixtures("_packages")
@pytest.mark.parametrize("name", ["openai", "ai"])
async def test_the_package_understands_what_it_is_told(slow: Served, full: Keyed, name: str) -> None:
    done = await asyncio.to_thread(
        run,
        *("node", "--test", f"{name}.test.js"),
        MIDSTREAM_SLOW=slow.http,
        MIDSTREAM_FULL=full.served.http,
        MIDSTREAM_KEY=full.admin,
        MIDSTREAM_POOR_KEY=full.poor,
    )
    if done.returncode:
        pytest.fail(f"{done.stdout}{done.stderr}", pytrace=False)


@pytest.mark.usefixtures("_packages")
async def test_what_the_documentation_shows_runs_as_it_stands(slow: Served) -> None:
    found = re.search(r"```js\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert found is not None
    code = found[1].replace("http://127.0.0.1:8000", slow.http)
    done = await asyncio.to_thread(run, "node", "--input-type=module", "--eval", code)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout) > 3


def test_the_lock_names_no_registry() -> None:
    assert "resolved" not in LOCK.read_text()
    assert "://" not in LOCK.read_text()
