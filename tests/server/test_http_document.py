"""What docs/http.md shows is run as it stands, but for the port, and says what it is said to say."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path

from midstream.protocol import ERRORS
from realtime.http.openai.errors import error_object
from realtime.refusal import Refusal
from tests.server.server_process import PATIENCE_S, Served, streams

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/http.md").read_text()
CHUNK = r'data: \{"id":"cmpl-\w+","object":"text_completion".*\}\n\n'
EVENT = r'id: \d+\ndata: \{"type":"\w+","request_id":"tale".*\}\n\n'


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


WHOLE, STREAM, MODELS, MISSPELT, TALE, STEER, FOLLOW = blocks("sh")
SAID = {
    WHOLE: r'\{"id":"chatcmpl-\w+","object":"chat.completion".*"finish_reason":"\w+".*\}',
    STREAM: rf'({CHUNK})+data: \{{.*"choices":\[\],"usage":\{{.*\}}\}}\n\ndata: \[DONE\]\n\n',
    MODELS: r'\{"data":\[\{"id":"toy","object":"model".*\],"object":"list"\}',
    MISSPELT: r'\{"error":\{"message":"`temprature` is not supported .*"param":"temprature".*\}',
    STEER: r'\{"type":"paused".*\}\{"type":"adjusted".*"temperature":0.2.*\}\{"type":"resumed".*\}',
    FOLLOW: rf'{EVENT}.*\{{"type":"final","request_id":"tale".*"finish_reason":"cancelled".*\}}',
}


def shell(command: str, server: Served) -> subprocess.Popen[str]:
    command = command.replace("http://127.0.0.1:8000", server.http)
    return subprocess.Popen(["bash", "-c", command], stdout=subprocess.PIPE, text=True)


def said_by(command: str, server: Served) -> str:
    with shell(command, server) as running:
        said, _ = running.communicate(timeout=PATIENCE_S)
    assert running.returncode == 0
    return said


async def test_what_is_asked_by_curl_is_answered(slow: Served) -> None:
    for command in (WHOLE, STREAM, MODELS, MISSPELT):
        said = await asyncio.to_thread(said_by, command, slow)
        assert re.fullmatch(SAID[command], said, re.DOTALL), said


async def test_a_stream_is_steered_and_followed_by_curl(slow: Served) -> None:
    # The toy ends by itself now and then: this is to be steered to its end.
    with shell(TALE.replace("300", '4000, "ignore_eos": true'), slow) as reading:
        await slow.until(lambda now: streams(now, "running") == 1)
        for command in (STEER, FOLLOW):
            said = await asyncio.to_thread(said_by, command, slow)
            assert re.fullmatch(SAID[command], said, re.DOTALL), said
        told, _ = await asyncio.to_thread(reading.communicate)
    assert '"code":"request_taken"' in told.rpartition("data: ")[2]


async def test_openais_package_is_used_as_it_is_shown(slow: Served) -> None:
    (code,) = blocks("python")
    code = code.replace("http://127.0.0.1:8000", slow.http)
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout) > 3


def test_the_configuration_for_nginx_is_the_one_that_is_tested() -> None:
    assert blocks("nginx") == [(ROOT / "ops/nginx.conf").read_text()]


def test_every_error_of_openais_doors_is_named() -> None:
    told = TEXT.partition("## Errors")[2].partition("## ")[0]
    named = {
        (int(row[1]), code) for row in re.finditer(r"\| (\d+) \|(.*?)\|", told) for code in codes(row[2])
    }
    elsewhere = {"unknown_request", "request_finished", "unsupported", "model_loading"}
    here = {"not_found", "method_not_allowed", "upgrade_required"}
    told_here = {told_as(code) for code in (ERRORS.keys() - elsewhere) | here}
    assert named == told_here | {(400, "unsupported_parameter")}


def codes(cell: str) -> list[str]:
    return re.findall(r"`(\w+)`", cell)


def told_as(code: str) -> tuple[int, str]:
    error = error_object(Refusal(code, ""))["error"]
    return error["status"], error["code"]
