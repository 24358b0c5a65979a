"""WebSocket conformance (RFC 6455), by the cases of the Autobahn test suite, as `kosoku` runs them, against
an echo on our transport.

The limits are those of production, but for group 9: it sends messages of 16 MiB, in fragments of 64 bytes, as
fast as it can, and measures how that goes; there, what production refuses is allowed. Groups 12 and 13 are
about compression, which is not offered.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from kosoku import FailureError, run_fuzzingclient

from realtime.config import Options
from realtime.transport import http_protocol, websocket_protocol
from realtime.work_ledger import WorkLedger

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

GOOD = {"OK", "NON-STRICT", "INFORMATIONAL"}
BEHAVIOUR = [f"{group}.*" for group in (1, 2, 3, 4, 5, 6, 7, 10)]
PERFORMANCE = ["9.*"]

# Known, and left so: the suite wants a close inside of a fragmented message taken for clean; the core of
# `websockets` answers it with 1002, because a message is missing its end.
DOCUMENTED = {"7.1.5"}

AT_ONCE = 8  # many cases are waits
ECHO_SHARE = 1.0  # of the event loop: nobody else is there

ROOMY = websocket_protocol.WebSocketLimits(max_fragments=1 << 20)
ROOMY_BYTES = 16 << 20


async def echo(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        await send({**message, "type": "websocket.send"})


@asynccontextmanager
async def serving(limits: websocket_protocol.WebSocketLimits, message_bytes: int) -> AsyncIterator[str]:
    """The address of an echo server."""
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        echo,
        http=http_protocol.protocol_class(http_protocol.HttpLimits()),
        ws=websocket_protocol.protocol_class(limits, ledger=WorkLedger(ECHO_SHARE)),
        ws_max_size=message_bytes,
        lifespan="off",
        log_config=None,
    )
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve([listening]))
    try:
        yield f"127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


async def verdicts(
    cases: list[str], limits: websocket_protocol.WebSocketLimits, message_bytes: int
) -> list[tuple[str, str, str]]:
    """Of every case its number, and how its exchange and its closing were."""
    async with serving(limits, message_bytes) as address:
        try:
            results = await run_fuzzingclient(address, cases, concurrency=AT_ONCE)
        except FailureError as failure:
            results = failure.results
    return [(case.case_id, case.behavior.value, case.behavior_close.value) for case in results]


def by_group(found: Iterable[tuple[str, str, str]]) -> dict[str, dict[str, int]]:
    groups: dict[str, Counter[str]] = {}
    for case, exchange, closing in found:
        groups.setdefault(case.partition(".")[0], Counter())[verdict(exchange, closing)] += 1
    return {group: dict(counts) for group, counts in sorted(groups.items(), key=lambda item: int(item[0]))}


def verdict(exchange: str, closing: str) -> str:
    """The worse of the two."""
    return exchange if closing in GOOD else f"closing {closing}"


async def measure(scale: float) -> dict[str, Any]:
    """All groups; below a scale of 1, what is not about performance."""
    found = await verdicts(BEHAVIOUR, websocket_protocol.WebSocketLimits(), Options().max_message_bytes)
    if scale >= 1:
        found += await verdicts(PERFORMANCE, ROOMY, ROOMY_BYTES)
    failed = {case for case, *how in found if verdict(*how) not in GOOD}
    return {
        "name": "WebSocket conformance",
        "groups": by_group(found),
        "cases": len(found),
        "failed": sorted(failed),
        "goal": f"none failed but {', '.join(sorted(DOCUMENTED))}, which is documented",
        "met": failed <= DOCUMENTED,
    }
