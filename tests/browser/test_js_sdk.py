"""The JavaScript SDK: its types, declarations and own tests, and that its protocol is as it is defined.

Its tests are written in its own language, for Node's own runner. This runs them and shows what they say.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from midstream import protocol
from midstream.options import StartOptions

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "clients" / "js"
INSTALLED = PACKAGE / "node_modules" / ".package-lock.json"  # what npm leaves behind when it is through
LOCK = PACKAGE / "package-lock.json"
TSC = str(PACKAGE / "node_modules" / ".bin" / "tsc")  # to find it, npx takes half a second
TIMEOUT_S = 540


def run(*command: str, **env: str) -> str:
    """Run a command of the package's, and fail with what it says."""
    env = os.environ | {"MIDSTREAM_PYTHON": sys.executable} | env
    done = subprocess.run(
        command, cwd=PACKAGE, env=env, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    if done.returncode:
        pytest.fail(f"{' '.join(command)}\n{done.stdout}{done.stderr}", pytrace=False)
    return done.stdout


@pytest.fixture(scope="module", autouse=True)
def _installed() -> None:
    if not shutil.which("npm"):
        pytest.fail(
            "npm was not found: install Node 20 or newer (Debian, Ubuntu: apt install npm)", pytrace=False
        )
    if not INSTALLED.exists() or INSTALLED.stat().st_mtime < LOCK.stat().st_mtime:
        run("npm", "ci", "--no-audit", "--no-fund")


def constants() -> dict[str, object]:
    """What `protocol.js` says of the protocol beside its types."""
    show = "import('./src/protocol.js').then((protocol) => console.log(JSON.stringify(protocol)))"
    exported: dict[str, object] = json.loads(run("node", "-e", show))
    return exported


@pytest.mark.parametrize("project", [".", "../../web"])
def test_types_are_strict(project: str) -> None:
    run(TSC, "-p", project)


def test_the_declarations_are_those_of_the_source(tmp_path: Path) -> None:
    run(TSC, "-p", "tsconfig.types.json", "--outDir", str(tmp_path))
    fresh = {file.name: file.read_text() for file in tmp_path.iterdir()}
    kept = {file.name: file.read_text() for file in (PACKAGE / "types").iterdir()}
    assert kept == fresh, "run `npm run types` in clients/js, and commit what it writes"


@pytest.fixture
def server_starter() -> Iterator[str]:
    """The port of one that starts servers, for all files of its tests: each by itself would load it anew."""
    command = [sys.executable, "-m", "tests.server.server_starter"]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as starter:
        assert starter.stdout
        yield starter.stdout.readline().strip()


@pytest.mark.timeout(TIMEOUT_S + 60)
def test_its_own_tests_pass(server_starter: str) -> None:
    run("npm", "test", MIDSTREAM_SERVER_STARTER=server_starter)


def test_the_protocol_is_that_of_the_definition() -> None:
    mirror = constants()
    assert (mirror["VERSION"], mirror["SUBPROTOCOL"]) == (protocol.VERSION, protocol.JSON_SUBPROTOCOL)
    assert mirror["MAX_INDEX"] == protocol.MAX_INDEX
    assert mirror["PARAMS"] == list(protocol.Params.__struct_fields__)
    own = StartOptions.__annotations__.keys() - set(protocol.Params.__struct_fields__)
    assert sorted(mirror["START_FIELDS"]) == sorted(own)  # type: ignore[call-overload]
    # 1006 is never sent: it stands for a connection that broke.
    assert set(mirror["RETRYABLE_CLOSE_CODES"]) == protocol.RETRYABLE_CLOSE_CODES | {1006}  # type: ignore[call-overload]
    answers = mirror["ANSWERS"]
    assert isinstance(answers, dict)
    assert answers.keys() | {"credit", "replace"} == tags(protocol.ClientFrame)
    assert set(answers.values()) <= tags(protocol.ServerEvent)


def tags(union: object) -> set[object]:
    return {kind.__struct_config__.tag for kind in get_args(union)}


def test_the_lock_names_no_registry_and_the_package_needs_nothing() -> None:
    assert "resolved" not in LOCK.read_text()
    assert "://" not in LOCK.read_text()
    assert "dependencies" not in json.loads((PACKAGE / "package.json").read_text())
