"""An MCP server that has its own way: `python -m tests.fakes.odd_mcp_server endless|again|silent`, over its
standard input and output. It lists another tool each time that it is asked, on a page behind which there is
always one more, or to be taken as true for an hour; or it answers nothing."""

from __future__ import annotations

import json
import sys
from typing import Any

VERSION = "2026-07-28"


def answer(method: str, asked: int) -> dict[str, Any]:
    """`asked`: how often for tools."""
    if method == "server/discover":
        own = {"serverInfo": {"name": "odd", "version": "1"}}
        return {"supportedVersions": [VERSION], "capabilities": {"tools": {}}, **own, **for_an_hour()}
    tools = [{"name": f"tool{asked}", "inputSchema": {"type": "object"}}]
    return {"tools": tools, **({"nextCursor": "on"} if sys.argv[1] == "endless" else {}), **for_an_hour()}


def for_an_hour() -> dict[str, Any]:
    return {"resultType": "complete", "ttlMs": 3_600_000, "cacheScope": "private"}


def main() -> None:
    asked = 0
    for line in sys.stdin:
        request = json.loads(line)
        if "id" in request and sys.argv[1] != "silent":
            asked += request["method"] == "tools/list"
            told = answer(request["method"], asked)
            print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": told}), flush=True)


if __name__ == "__main__":
    main()
