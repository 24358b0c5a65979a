"""An engine that is driven by a client which a stranger made from the published description of the link."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.fakes.certificates import Authority
from tests.server.listening_engine import ListeningEngine, listening
from tests.server.server_process import PATIENCE_S

ROOT = Path(__file__).parents[2]


def run(*command: str) -> str:
    """In a process that finds nothing of ours by where it stands."""
    done = subprocess.run(
        [sys.executable, "-P", *command],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
        env={},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


async def test_a_client_made_from_the_description_has_tokens_computed(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    cert, key = map(str, authority.signed("engine"))
    token = tmp_path / "token"
    token.write_text("sesame")
    certified = ("--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-file", str(authority.cert))
    engine = ListeningEngine("--token-file", str(token), *certified, listen="grpc:127.0.0.1:0")
    proto = ROOT / "engine/listening"
    made = (
        "-m",
        "grpc_tools.protoc",
        f"-I{proto}",
        f"--python_out={tmp_path}",
        f"--grpc_python_out={tmp_path}",
    )
    run(*made, "engine_link.proto")
    shown, by = map(str, authority.signed("stranger"))

    async def stranger(token: str) -> dict[str, Any]:
        target = engine.address.removeprefix("grpc:tls:").replace("127.0.0.1", "localhost")
        script = str(Path(__file__).with_name("engine_stranger.py"))
        files = (str(authority.cert), by, shown)
        told: dict[str, Any] = json.loads(
            await asyncio.to_thread(run, script, str(tmp_path), target, token, *files)
        )
        return told

    async with listening([engine]):
        refused = await stranger("guess")
        assert refused["hello"] == ["Failed", "its token is not this engine's"]
        told = await stranger("sesame")
        assert told["hello"][:2] == ["Hello", "toy"]
        assert len(told["tokens"]) == 12
        assert told["finish"][0] == "length"
        assert told["ours"] == []
        assert (await stranger("sesame"))["tokens"] == told["tokens"]
