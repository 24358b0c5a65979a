"""What the server says of its own interfaces: valid by the validators, and true by the types."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any, get_args

import pytest

from midstream import protocol
from tests.server.server_process import Served

FOLDER = Path(__file__).parents[1] / "documents"
INSTALLED = FOLDER / "node_modules" / ".package-lock.json"
MOST_S = 300


def run(*command: str, given: str = "") -> str:
    done = subprocess.run(
        command, cwd=FOLDER, input=given, capture_output=True, text=True, timeout=MOST_S, check=False
    )
    if done.returncode:
        pytest.fail(f"{' '.join(command)}\n{done.stdout}{done.stderr}", pytrace=False)
    return done.stdout


@pytest.fixture(scope="module")
def _validators() -> None:
    if not shutil.which("npm"):
        pytest.fail(
            "npm was not found: install Node 20 or newer (Debian, Ubuntu: apt install npm)", pytrace=False
        )
    lock = FOLDER / "package-lock.json"
    if not INSTALLED.exists() or INSTALLED.stat().st_mtime < lock.stat().st_mtime:
        run("npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts")


def fetched(server: Served, path: str) -> dict[str, Any]:
    status, text = server.get(path)
    assert status == 200
    document: dict[str, Any] = json.loads(text)
    return document


@pytest.mark.usefixtures("_validators")
def test_the_asyncapi_document_is_valid(server: Served) -> None:
    document = fetched(server, "/asyncapi.json")
    assert run("node", "asyncapi.js", given=json.dumps(document)) == ""


@pytest.mark.usefixtures("_validators")
def test_a_document_that_is_not_valid_is_found_out() -> None:
    broken = json.dumps({"asyncapi": "3.0.0", "info": {"title": "no version"}})
    done = subprocess.run(
        ["node", "asyncapi.js"],
        cwd=FOLDER,
        input=broken,
        capture_output=True,
        text=True,
        timeout=MOST_S,
        check=False,
    )
    assert "version" in done.stdout


def test_it_names_every_frame_and_event(server: Served) -> None:
    messages = fetched(server, "/asyncapi.json")["components"]["messages"]
    kinds = [*get_args(protocol.ClientFrame), *get_args(protocol.ServerEvent)]
    assert {message["title"] for message in messages.values()} == {kind.__name__ for kind in kinds}
    assert len(messages) == len(kinds)
