"""Cut connections: they are reset, closed, silenced and stalled, at any byte and again while they come back.

The proxy of the tests stands between the Python client and the server. Whatever it does, texts and the
results of steering are those of an uncut run.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import midstream
from bench.reliability.scoring import Score, keep_playing, quiet_run
from bench.reliability.trial_server import complaints, serving
from tests.fakes.cutting_proxy import STALL_S, CutKind, CuttingProxy, cuts
from tests.fakes.steering_clients import STEERING_CLIENTS
from tests.server.server_process import Served

CUTS, SEED = 10_000, 40_000
CLIENTS, SEEDS = 20, range(12)
MOST_BYTES = 4000  # of a connection before it is cut: a handshake takes some hundred
SILENCE_S = 0.6 * STALL_S  # what stalls is given up, and the connection after it is cut as well
RECONNECT_S = 600.0  # an outage is cut again and again before it is over
# On a busy machine the client takes a slow line for a silent one, and there its cut is lost.
ANY_NUMBER = 10**9
HOWS: tuple[CutKind, ...] = ("reset",) * 10 + ("close",) * 10 + ("silence", "stall")


async def measure(scale: float) -> dict[str, Any]:
    async with serving("--log-level", "warning") as served:
        score = await quiet_run(served.http, SEEDS, STEERING_CLIENTS)
        each = max(int(CUTS * scale / CLIENTS), 1)
        done = await asyncio.gather(*(cut(served, score, SEED + number, each) for number in range(CLIENTS)))
        await served.until_idle()
        score.wrong += complaints(served)
    return {
        "name": "connection faults",
        "cuts": sum(done),
        "streams played through them": score.plays,
        "wrong": score.wrong,
        "goal": f"{CUTS} cuts, texts and steering as if there had been none",
        "met": not score.wrong,
    }


async def cut(served: Served, score: Score, seed: int, count: int, hows: tuple[CutKind, ...] = HOWS) -> int:
    """Play with one client until so many cuts have come about; the first is of what stands open."""
    plan = itertools.chain([None], cuts(seed, ANY_NUMBER, MOST_BYTES, hows))
    encoding: midstream.dial.Encoding = "json" if seed % 2 else "msgpack"
    async with CuttingProxy(served.port, plan) as proxy:
        client = await midstream.connect(
            proxy.url, encoding=encoding, silence_s=SILENCE_S, reconnect_s=RECONNECT_S
        )
        proxy.cut()
        await keep_playing(client, score, STEERING_CLIENTS, lambda: proxy.cuts_done > count)
        await client.close()
    return proxy.cuts_done
