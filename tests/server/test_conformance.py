"""RFC 6455, case by case: the Autobahn suite against our transport, with the limits of production.

Its cases about performance, which need others, are left to `python -m bench.reliability conformance`.
"""

from __future__ import annotations

from bench.reliability.conformance import BEHAVIOUR, DOCUMENTED, GOOD, verdict, verdicts
from realtime.config import Options
from realtime.transport.websocket_protocol import WebSocketLimits


async def test_every_case_about_behaviour_passes_but_the_documented_one() -> None:
    found = await verdicts(BEHAVIOUR, WebSocketLimits(), Options().max_message_bytes)
    assert {case for case, *how in found if verdict(*how) not in GOOD} == DOCUMENTED
    assert len(found) == 247
