"""Tools of an MCP server in another process, by both transports, as tools of an agent."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import midstream
from midstream import Agent, ToolProgress
from tests.fakes.scripts import saying, spelt
from tests.server.server_process import PATIENCE_S, Served, environment

mcp: Any = pytest.importorskip("mcp")
bridge: Any = pytest.importorskip("midstream.mcp")

SERVER = [sys.executable, "-m", "tests.fakes.mcp_server"]
ROOT = Path(__file__).parents[2]
ODD = Path(__file__).parents[1] / "fakes" / "odd_mcp_server.py"


@pytest.fixture
async def told() -> AsyncIterator[tuple[int, asyncio.Queue[str]]]:
    """What a server tells of itself and its tools, and at which port it is heard."""
    words: asyncio.Queue[str] = asyncio.Queue()

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        words.put_nowait((await reader.read()).decode())
        writer.close()

    listener = await asyncio.start_server(hear, "127.0.0.1")
    async with listener:
        yield listener.sockets[0].getsockname()[1], words


@pytest.fixture(params=["stdio", "http"])
async def where(request: pytest.FixtureRequest, told: tuple[int, asyncio.Queue[str]]) -> AsyncIterator[Any]:
    """A server to connect to."""
    port, words = told
    if request.param == "stdio":
        yield stdio(port)
        return
    async with by_http(port):
        yield await heard(words)


@asynccontextmanager
async def by_http(port: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """It ends at the latest behind this."""
    process = await asyncio.create_subprocess_exec(
        *SERVER, "http", str(port), cwd=ROOT, env=environment(), stderr=asyncio.subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def stdio(port: int) -> Any:
    return mcp.StdioServerParameters(
        command=SERVER[0],
        args=[*SERVER[1:], "stdio", str(port)],
        cwd=ROOT,
        env={"PYTHONPATH": os.environ.get("PYTHONPATH", "")},
    )


async def heard(words: asyncio.Queue[str]) -> str:
    return await asyncio.wait_for(words.get(), PATIENCE_S)


async def test_its_tools_are_told_and_called_and_their_progress_is_seen(scripted: Served, where: Any) -> None:
    script = saying(
        spelt({"city": "Oslo", "days": 2}, "forecast") + spelt({}, "x_station_list"),
        spelt({"city": "Rome"}, "x_fail"),
        "I see.",
    ).replace('"forecast"', '"x_forecast"')
    async with (
        bridge.connect(where, prefix="x_") as server,
        midstream.connect(scripted.http) as client,
    ):
        told = {tool.name: tool for tool in server.tools}
        assert set(told) == {"x_forecast", "x_station_list", "x_wait", "x_fail"}
        assert told["x_forecast"].description == "The weather of the next days."
        assert set(told["x_forecast"].parameters["properties"]) == {"city", "days"}
        run = await client.run(Agent(tools=server.tools), script)
        events = [event async for event in run]
        progress = [
            (event.done, event.total, event.message) for event in events if isinstance(event, ToolProgress)
        ]
        assert progress == [(1, 2, "day 1"), (2, 2, "day 2")]
        forecast, stations, failed = run.outcomes
        assert forecast.content == "mild in Oslo for 2 days"
        assert "Paris" in (stations.content or "")
        assert "there is no Rome" in (failed.error or "")
        assert await run.answer() == "I see."


async def test_a_stream_that_is_stopped_cancels_its_tool_there(
    scripted: Served, where: Any, told: tuple[int, asyncio.Queue[str]]
) -> None:
    async with bridge.connect(where) as server, midstream.connect(scripted.http) as client:
        run = await client.run(Agent(tools=server.tools), saying(spelt({"city": "Oslo"}, "wait"), "Never."))
        reading = asyncio.create_task(run.answer())
        assert await heard(told[1]) == "begun"
        await run.stream.cancel()
        assert await heard(told[1]) == "cancelled"
        await reading


def test_without_async(scripted: Served) -> None:
    call = spelt({"city": "Oslo", "days": 1}, "forecast")
    with bridge.connect(stdio(0)) as server, midstream.sync.connect(scripted.http) as client:
        run = client.run(Agent(tools=server.tools), saying(call, "Thanks."))
        assert run.answer() == "Thanks."
        assert [one.content for one in run.outcomes] == ["mild in Oslo for 1 days"]


@pytest.mark.parametrize("there", [[sys.executable, "-c", "pass"], "http://127.0.0.1:9/mcp"])
async def test_where_there_is_no_server_it_says_so(there: Any) -> None:
    with pytest.raises(Exception, match=r"Connection closed|connection attempts failed"):
        async with bridge.connect(there):
            raise AssertionError


@pytest.mark.parametrize("by", ["stdio", "http"])
async def test_one_that_says_nothing_is_waited_for_no_longer_than_asked(by: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        there: Any = f"http://127.0.0.1:{silent.getsockname()[1]}/mcp"
        if by == "stdio":
            there = [sys.executable, str(ODD), "silent"]
        with pytest.raises(bridge.ToolError, match=r"the MCP server has not told its tools within 0.5 s"):
            async with bridge.connect(there, open_timeout=0.5):
                raise AssertionError


@asynccontextmanager
async def falling_silent(unanswered: list[str]) -> AsyncIterator[str]:
    """One that begins a session, and answers no goodbye, nor these methods: as one that hangs."""
    known: dict[str, Any] = {
        "initialize": {
            "protocolVersion": "2025-06-18",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "silent", "version": "1"},
        },
        "tools/list": {"tools": [{"name": "wait", "inputSchema": {"type": "object"}}]},
    }

    def answer_to(asked: dict[str, Any]) -> bytes:
        method = asked.get("method")
        if method == "notifications/initialized":
            return b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n"
        said: dict[str, Any] = {"error": {"code": -32601, "message": "there is no such method"}}
        if method in known and method not in unanswered:
            said = {"result": known[method]}
        elif method != "server/discover":
            return b""
        body = json.dumps({"jsonrpc": "2.0", "id": asked["id"], **said})
        about = f"Content-Type: application/json\r\nMcp-Session-Id: s\r\nContent-Length: {len(body)}"
        return f"HTTP/1.1 200 OK\r\n{about}\r\n\r\n{body}".encode()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):
            while head := (await reader.readuntil(b"\r\n\r\n")).decode().lower():
                fields = dict(line.split(": ", 1) for line in head.splitlines()[1:] if line)
                body = await reader.readexactly(int(fields.get("content-length", "0")))
                writer.write(answer_to(json.loads(body or "{}")))
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1") as listener:
        yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/mcp"


async def test_one_that_answers_no_goodbye_is_left_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge, "CLOSE_S", 0.1)
    async with asyncio.timeout(PATIENCE_S), falling_silent([]) as there, bridge.connect(there) as server:
        assert [tool.name for tool in server.tools] == ["wait"]


async def test_one_that_hangs_before_it_has_told_its_tools_is_left_so_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bridge, "CLOSE_S", 0.1)
    async with asyncio.timeout(PATIENCE_S), falling_silent(["tools/list"]) as there:
        with pytest.raises(bridge.ToolError, match=r"has not told its tools within 0.5 s"):
            async with bridge.connect(there, open_timeout=0.5):
                raise AssertionError


async def test_one_that_dies_is_told_by_its_calls_and_then_left_in_peace(
    told: tuple[int, asyncio.Queue[str]],
) -> None:
    port, words = told
    async with by_http(port) as process, bridge.connect(await heard(words)) as server:
        wait = next(tool for tool in server.tools if tool.name == "wait")
        call = asyncio.create_task(wait.function(city="Oslo"))
        assert await heard(words) == "begun"
        process.kill()
        with pytest.raises(mcp.MCPError):
            await call


async def test_one_whose_list_of_tools_has_no_end_is_asked_no_further() -> None:
    with pytest.raises(midstream.MidstreamError, match="has no end"):
        async with bridge.connect([sys.executable, str(ODD), "endless"]):
            raise AssertionError


async def test_it_is_asked_anew_whatever_it_said_before() -> None:
    async with bridge.connect([sys.executable, str(ODD), "again"]) as server:
        assert [tool.name for tool in server.tools] == ["tool1"]
        await server.list_tools()
        assert [tool.name for tool in server.tools] == ["tool2"]


def test_a_tool_that_is_json_is_told_and_called_as_it_is() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    tool = midstream.JsonTool(
        name="double", function=lambda n: 2 * n, parameters=schema, description="Twice."
    )
    assert json.loads(json.dumps(midstream.tool_of(tool).function.parameters)) == schema
    call = midstream.Call(call_id="a", name="double", arguments='{"n": 4}', index=0, end=1)
    assert midstream.run_call(call, [tool]) == 8
    broken = midstream.Call(call_id="a", name="double", arguments='{"n": 4', index=0, end=1)
    with pytest.raises(midstream.BadCall, match="do not fit"):
        midstream.run_call(broken, [tool])
