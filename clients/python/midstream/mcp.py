"""Tools of MCP servers, as tools of an agent or a stream. Needs the extra `mcp`.

    async with midstream.mcp.connect("http://127.0.0.1:9000/mcp") as server:
        agent = midstream.Agent(tools=[weather, *server.tools])

`with` does the same without `async`. What the server says of its progress is the run's `ToolProgress`; a call
that nobody wants any more is cancelled there too.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from contextvars import copy_context
from functools import partial
from types import TracebackType
from typing import Any

import mcp
from mcp import types

from midstream.errors import MidstreamError
from midstream.protocol import MAX_TOOL_NAME
from midstream.sync import LoopThread
from midstream.tool_tasks import progress as tell_progress
from midstream.tools import JsonTool

MOST_PAGES = 100  # of a list of tools
CLOSE_S = 10.0  # for its goodbye, or for its process to end, which is killed after a few seconds
Where = str | Sequence[str] | mcp.StdioServerParameters


class ToolError(MidstreamError):
    """A tool of the server's says that it failed, and how; or its tools cannot be told."""


class Server:
    """A server that one is connected to. `tools` are those that it had then."""

    def __init__(self, client: mcp.Client, prefix: str) -> None:
        self.tools: list[JsonTool] = []
        self._client = client
        self._prefix = prefix
        self._loop = asyncio.get_running_loop()

    async def list_tools(self) -> None:
        """Ask it anew which there are."""
        tools, cursor = list[types.Tool](), None
        for _ in range(MOST_PAGES):
            listed = await self._client.list_tools(cursor=cursor, cache_mode="refresh")
            tools += listed.tools
            cursor = listed.next_cursor
            if cursor is None:
                break
        else:
            raise ToolError(f"its list of tools has no end: there is more behind {MOST_PAGES} pages")
        self.tools = [
            JsonTool(
                name=_name(self._prefix + tool.name),
                description=tool.description,
                parameters=tool.input_schema,
                function=partial(self._call, tool.name),
            )
            for tool in tools
        ]

    async def _call(self, name: str, /, **arguments: Any) -> Any:
        """From whichever loop: the connection belongs to the one that made it."""
        context = copy_context()

        async def report(progress: float, total: float | None, message: str | None) -> None:
            context.run(tell_progress, progress, total, message)

        call = self._client.call_tool(name, arguments, progress_callback=report)
        if asyncio.get_running_loop() is self._loop:
            return _told(await call)
        return _told(await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, self._loop)))


class connect:  # noqa: N801 - used as the verb that it is
    """Connect to an MCP server: `async with midstream.mcp.connect(where) as server`, or `with`.

    `where` is the address of one that speaks streamable HTTP, or the command that starts one which speaks
    over its standard input and output. `prefix` stands before the names of its tools. One that has not told
    them within `open_timeout` seconds is a ToolError; it may have to be downloaded first.
    """

    def __init__(self, where: Where, *, prefix: str = "", open_timeout: float | None = 60) -> None:
        self._where = where if isinstance(where, str | mcp.StdioServerParameters) else _command(where)
        self._prefix = prefix
        self._open_timeout = open_timeout
        self._closing: asyncio.Event
        self._session: asyncio.Task[None]
        self._thread: LoopThread

    async def __aenter__(self) -> Server:
        opened: asyncio.Future[Server] = asyncio.get_running_loop().create_future()
        self._closing = asyncio.Event()
        self._session = asyncio.create_task(self._hold(opened))
        try:
            either: list[asyncio.Future[Any]] = [self._session, opened]
            done, _ = await asyncio.wait(
                either, timeout=self._open_timeout, return_when=asyncio.FIRST_COMPLETED
            )
        except BaseException:
            self._session.cancel()
            raise
        if not done:
            self._session.cancel()
            await self._ended()
            raise ToolError(f"the MCP server has not told its tools within {self._open_timeout} s")
        if not opened.done():
            try:
                await self._session  # which says why not
            except ExceptionGroup as several:
                raise _only(several) from None
        return opened.result()

    async def _hold(self, opened: asyncio.Future[Server]) -> None:
        """The library opens and closes a session in one task; ours may be another each time."""
        async with mcp.Client(self._where) as client:
            server = Server(client, self._prefix)
            await server.list_tools()
            opened.set_result(server)
            await self._closing.wait()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        await self._ended()

    async def _ended(self) -> None:
        """One that does not answer its goodbye either is left without."""
        try:
            await asyncio.wait([self._session], timeout=CLOSE_S)
        finally:
            self._session.cancel()
        await asyncio.wait([self._session])
        if not self._session.cancelled():
            self._session.exception()  # the connection was lost, as its calls have said

    def __enter__(self) -> Server:
        self._thread = LoopThread()
        try:
            return self._thread.run(self.__aenter__())
        except BaseException:
            self._thread.stop()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.run(self.__aexit__(kind, error, trace))
        self._thread.stop()


def _only(error: Exception) -> Exception:
    """What its library has wrapped, where that is one."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _command(words: Sequence[str]) -> mcp.StdioServerParameters:
    command, *arguments = words
    return mcp.StdioServerParameters(command=command, args=arguments)


def _name(name: str) -> str:
    """As a model may call it."""
    return re.sub(r"[^a-zA-Z0-9_.-]", "_", name)[:MAX_TOOL_NAME]


def _told(result: types.CallToolResult) -> Any:
    """Its texts, or else its value. Raises ToolError where the tool says that it failed."""
    text = "\n".join(_text(block) for block in result.content)
    if result.is_error:
        raise ToolError(text or "it failed, and does not say how")
    return text if result.content or result.structured_content is None else result.structured_content


def _text(block: types.ContentBlock) -> str:
    """What a model of text can be shown of it."""
    match block:
        case types.TextContent(text=text):
            return text
        case types.EmbeddedResource(resource=types.TextResourceContents(text=text)):
            return text
        case types.ResourceLink(uri=uri):
            return str(uri)
    return f"[{block.type}]"
