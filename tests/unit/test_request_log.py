"""The line of the log that a request leaves behind: what it was and took, and no word of what it said."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from msgspec.structs import replace
from structlog.testing import LogCapture

from midstream import protocol
from midstream.protocol import Credit, Params
from realtime.observability.request_log import RequestLog
from tests.fakes.checking_client import Reader
from tests.fakes.simulated_client import SIZE, TENANT, endless, rest, run_out, start
from tests.fakes.simulated_server import Clock, SimulatedServer


class Logged:
    """A server whose requests are logged."""

    def __init__(self, kept: LogCapture) -> None:
        self._kept = kept
        self.log = RequestLog()
        self.clock = Clock()
        self.server = SimulatedServer(SIZE, clock=self.clock, observer=self.log)
        self.reader = Reader(self.server)

    @property
    def lines(self) -> list[Any]:
        return self._kept.entries

    def line(self) -> Any:
        (line,) = self.lines
        return line


@pytest.fixture
def logged() -> Iterator[Logged]:
    kept = LogCapture()
    structlog.configure(processors=[kept], cache_logger_on_first_use=False)
    yield Logged(kept)
    structlog.reset_defaults()


def test_a_request_leaves_one_line_when_it_has_ended(logged: Logged) -> None:
    logged.reader.send(start(params=Params(max_tokens=5, ignore_eos=True)))
    assert logged.lines == []
    for _ in range(9):
        logged.clock.advance(0.25)
        logged.server.tick()
    final = run_out(logged.server, logged.reader.accounts[0])
    line = logged.line()
    assert line == {
        "event": "request",
        "log_level": "info",
        "request_id": "a",
        "tenant": TENANT,
        "key": None,
        "model": "toy",
        "route": "websocket",
        "finish_reason": "length",
        "tokens_in": final.usage.prompt_tokens,
        "tokens_cached": 0,
        "tokens_out": 5,
        "wasted_tokens": 0,
        "queue_ms": final.timing.queue_ms,
        "ttft_ms": final.timing.ttft_ms,
        "total_ms": final.timing.total_ms,
        "paused_ms": 0.0,
        "tokens_per_s": 4.0,
        **dict.fromkeys(("pauses", "adjusts", "injects", "rewinds", "disconnects", "retries"), 0),
    }
    assert line["ttft_ms"] >= 250


def test_what_was_done_to_it_is_counted(logged: Logged) -> None:
    begun = endless(credit=Credit(limit=8), on_disconnect="continue")
    logged.reader.send(begun)
    rest(logged.server)
    for frame in (
        protocol.Pause(request_id="a"),
        protocol.Resume(request_id="a"),
        protocol.Adjust(request_id="a", params=Params(temperature=0.5)),
        protocol.Adjust(request_id="a", params=Params(temperature=0.6)),
        protocol.Inject(request_id="a", tokens=[5, 6, 7]),
        protocol.Rewind(request_id="a", to=2),
        protocol.Pause(request_id="a"),
    ):
        logged.reader.send(frame)
        logged.server.tick()
    logged.reader.leave()
    other = Reader(logged.server)
    other.take_over(logged.reader, logged.reader.accounts[0])
    other.send(protocol.Cancel(request_id="a"))
    final = run_out(logged.server, other.accounts[0])
    line = logged.line()
    counted = [line[name] for name in ("pauses", "adjusts", "injects", "rewinds", "disconnects", "retries")]
    assert counted == [2, 2, 1, 1, 1, 1]
    assert line["wasted_tokens"] == final.usage.discarded_tokens > 0
    assert line["finish_reason"] == "cancelled"


def test_asking_for_one_that_has_ended_adds_nothing(logged: Logged) -> None:
    begun = start(params=Params(max_tokens=1, ignore_eos=True))
    logged.reader.send(begun)
    run_out(logged.server, logged.reader.accounts[0])
    logged.reader.send(replace(begun))
    assert logged.line()["retries"] == 0


def test_no_line_holds_what_was_said(logged: Logged) -> None:
    words = "Once upon a canary"
    params = Params(max_tokens=200, ignore_eos=True, stop=["e"], seed=1)
    logged.reader.prompt = True  # else it has credit for a few tokens alone
    logged.reader.send(start(prompt=words, params=params))
    account = logged.reader.accounts[0]
    assert run_out(logged.server, account).finish_reason == "stop"
    said = {value for value in logged.line().values() if isinstance(value, str)}
    assert said == {"request", "info", "a", TENANT, "toy", "websocket", "stop"}
