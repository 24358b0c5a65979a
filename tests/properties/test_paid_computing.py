"""What an engine computes for a tenant is what its quota was told of, whatever the tenant does: nothing is
had for nothing, again and again, and nothing is paid for twice.

Free is what steering throws away: the token in flight, and the last one before, which is computed once more
where another is sampled behind it. Paid for, and not computed, is what a start finds in a cache.
"""

from __future__ import annotations

import dataclasses
import os

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine import api
from midstream import protocol
from midstream.protocol import Credit, Params
from realtime.tenants.allowance import Allowance
from realtime.tenants.quota import Quotas
from tests.fakes.computed_tokens import ComputedTokens
from tests.fakes.recording_listener import RecordingListener
from tests.fakes.simulated_client import TENANT
from tests.fakes.simulated_server import Clock, EngineSize, SimulatedServer

EXAMPLES = os.environ.get("MIDSTREAM_EXAMPLES")
SETTINGS = settings(
    max_examples=int(EXAMPLES or 25),
    derandomize=EXAMPLES is None,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
# Three of the streams below fill one, and a step computes all that they lack; the other is roomy and slow.
SIZES = [
    EngineSize(kv_tokens=320, block=4, step_tokens=320, slots=32),
    EngineSize(kv_tokens=2048, block=16, step_tokens=16, slots=32),
]
ACTS = [
    "start",
    "start",
    "fork",
    "grant",
    "grant",
    "grant",
    "hold",
    "release",
    "resume",
    "rewind",
    "inject",
    "inject earlier",
    "cancel",
]
MOST_STREAMS = 6
STILL = Params(ignore_eos=True, max_tokens=10_000)


class Paid:
    def __init__(self, size: EngineSize, overlap: bool) -> None:
        clock = Clock()
        self.quotas = Quotas(lambda tenant: Allowance(tokens_per_minute=10**9), clock)
        size = dataclasses.replace(size, overlap=overlap)
        self.server = SimulatedServer(size, clock=clock, quotas=self.quotas)
        self.listener = RecordingListener(self.server)
        self.computed = ComputedTokens(self.server)
        self.asked = 0  # tokens that streams began with, or that were put in, and decoded
        self.frames = 0
        self._names = 0

    @property
    def charged(self) -> int:
        return self.quotas.taken()[TENANT].tokens

    def act(self, kind: str, pick: int, amount: int) -> None:
        streams = self.server.hub.streams
        if kind in ("start", "fork") and len(streams) >= MOST_STREAMS:
            return
        if kind == "start":
            self._start(prompt=[60 + (self._names + pick) % 40] * (20 * amount))
        elif streams:
            stream = streams[pick % len(streams)]
            self._act_on(kind, stream.request_id, len(stream.output), amount)

    def _act_on(self, kind: str, name: str, index: int, amount: int) -> None:
        back, tokens = max(0, index - amount), [50] * 5 * amount
        match kind:
            case "fork":
                self._start(fork=protocol.Fork(request_id=name))
            case "grant":
                self._send(protocol.Grant(request_id=name, limit=index + amount))
            case "hold":
                self._send(protocol.Pause(request_id=name))
            case "release":
                self._send(protocol.Pause(request_id=name, kv="release"))
            case "resume":
                self._send(protocol.Resume(request_id=name))
            case "rewind":
                self._send(protocol.Rewind(request_id=name, to=back))
            case "inject":
                self._send(protocol.Inject(request_id=name, tokens=tokens))
            case "inject earlier":
                self._send(protocol.Inject(request_id=name, tokens=tokens, at=back))
            case _:
                self._send(protocol.Cancel(request_id=name))

    def _start(self, prompt: list[int] | None = None, fork: protocol.Fork | None = None) -> None:
        self._names += 1
        name = f"{self._names}"
        start = protocol.Start(
            request_id=name, prompt=prompt, fork=fork, params=STILL, credit=Credit(limit=1)
        )
        self._send(start)
        self.asked += sum(len(one.context) for one in self.server.hub.streams if one.request_id == name)

    def _send(self, frame: protocol.StreamFrame) -> None:
        self.frames += 1
        self.listener.send(frame)

    def tick(self) -> None:
        server = self.server
        while server.down:
            server.deliver_down()
        server.step()
        for output in server.up:
            for news in output.news:
                put_in = (change.count for change in news.changes if isinstance(change, api.Appended))
                self.asked += len(news.tokens) + sum(put_in)
        server.deliver_up(together=len(server.up))

    def finish(self) -> None:
        """Each goes on for a token, so that all is computed that was paid for."""
        while streams := self.server.hub.streams:
            name, index = streams[0].request_id, len(streams[0].output)
            self._send(protocol.Resume(request_id=name))
            self._send(protocol.Grant(request_id=name, limit=index + 1))
            self.rest()
            self._send(protocol.Cancel(request_id=name))
            self.rest()

    def rest(self) -> None:
        while not self.server.at_rest:
            self.tick()

    def check(self) -> None:
        thrown_away = 2 * self.frames
        assert self.computed.total <= self.charged + thrown_away
        assert self.charged <= self.asked + self.computed.again + thrown_away


def acts() -> st.SearchStrategy[list[tuple[str, int, int, int]]]:
    return st.lists(
        st.tuples(
            st.sampled_from(ACTS), st.integers(0, 5), st.integers(1, 5), st.sampled_from([0, 1, 1, 70])
        ),
        min_size=40,
        max_size=60,
    )


@given(acts=acts(), size=st.sampled_from(SIZES), overlap=st.booleans())
@SETTINGS
def test_what_is_computed_is_paid_for_once(
    acts: list[tuple[str, int, int, int]], size: EngineSize, overlap: bool
) -> None:
    paid = Paid(size, overlap)
    paid.act("start", 0, 4)
    for kind, pick, amount, steps in acts:
        paid.act(kind, pick, amount)
        for _ in range(steps):
            paid.tick()
    paid.finish()
    paid.check()
