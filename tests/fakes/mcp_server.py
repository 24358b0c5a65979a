"""An MCP server as a process: `python -m tests.fakes.mcp_server stdio|http PORT`. It tells whoever listens at
the port where it can be reached, and what becomes of its tools, each in a connection of its own."""

from __future__ import annotations

import socket
import sys

import anyio
import uvicorn
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("trial")


def tell(words: str) -> None:
    with socket.create_connection(("127.0.0.1", int(sys.argv[2]))) as listener:
        listener.sendall(words.encode())


@server.tool()
async def forecast(city: str, days: int, ctx: Context) -> str:
    """The weather of the next days."""
    for day in range(days):
        await ctx.report_progress(day + 1, days, f"day {day + 1}")
    return f"mild in {city} for {days} days"


@server.tool(name="station/list")
async def stations() -> list[str]:
    """Which stations there are."""
    return ["Paris", "Oslo"]


@server.tool()
async def wait(city: str) -> str:
    """Never ends by itself."""
    tell("begun")
    try:
        await anyio.sleep_forever()
    finally:
        tell("cancelled")
    return city


@server.tool()
async def fail(city: str) -> str:
    """Always fails."""
    raise ToolError(f"there is no {city}")


class Announced(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        tell(f"http://127.0.0.1:{self.servers[0].sockets[0].getsockname()[1]}/mcp")


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        server.run("stdio")
    else:
        Announced(uvicorn.Config(server.streamable_http_app(), port=0, log_level="error")).run()
