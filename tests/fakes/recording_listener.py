"""A listener that writes down all that it hears, and judges nothing: for tests that look at it themselves."""

from __future__ import annotations

import asyncio

from midstream import protocol
from realtime.hub.observers import Caller
from realtime.hub.starting import tenant_number
from realtime.refusal import Refusal
from realtime.stream.outbox import OutgoingEvent
from realtime.stream.pending_commands import Reply
from realtime.stream.stream import Stream
from tests.fakes.simulated_client import TENANT
from tests.fakes.simulated_server import SimulatedServer


class RecordingListener:
    """A listener that writes everything down and judges nothing."""

    def __init__(self, server: SimulatedServer, tenant: str = TENANT) -> None:
        self.gone = False
        self.memory = server.hub.accounts.of_listener(tenant)
        self.number = tenant_number(tenant)
        self.takes_over = True
        self.paid_s = 0.0  # of work behind long texts
        self.payer = self
        self.debt_s = 0.0
        self.owed_s = 0.0  # of work when frames took effect
        self.ready = True  # whether it takes what it is woken for
        self.heard: list[OutgoingEvent] = []
        self.answers: list[Reply] = []
        self.lost: list[str] = []
        self.errors: list[protocol.Error] = []
        self._server = server
        self._tenant = tenant
        self._woken: dict[Stream, None] = {}

    def send(self, frame: protocol.StreamFrame) -> None:
        self._server.hub.receive_frame(self._tenant, frame, self)

    def attach(self, after: int = -1, ref: str | None = None) -> list[str]:
        """The kinds of all that comes at once."""
        before = len(self.heard)
        self.send(protocol.Attach(request_id="a", after=after, ref=ref))
        return [type(event).__name__ for event in self.heard[before:]]

    def hear_token(self) -> None:
        """Until it has heard one token more."""
        before = len(self.heard)
        while not any(isinstance(event, protocol.Token) for event in self.heard[before:]):
            assert not self._server.at_rest, "there is none to come"
            self._server.tick()

    def leave(self) -> None:
        self.gone = True
        self._server.hub.detach(self)

    def error(self) -> protocol.Error:
        return self.errors.pop()

    @property
    def final(self) -> protocol.Final:
        last = self.heard[-1]
        assert isinstance(last, protocol.Final)
        return last

    # -- as the hub's listener -------------------------------------------------------------------

    @property
    def caller(self) -> Caller:
        return Caller("http", tenant=self._tenant)

    def owe(self, work_s: float) -> None:
        self.owed_s += work_s

    async def pay(self, work_s: float) -> None:
        self.paid_s += work_s
        await asyncio.sleep(0)  # as where that is as much as one may have done in a turn

    def wake(self, stream: Stream) -> None:
        """As a connection does: whoever keeps up is given what there is at once."""
        self._woken[stream] = None
        self.flush()

    def flush(self) -> None:
        if not self.ready:
            return
        for stream in self._woken:
            self.heard += self._server.hub.take_events(stream)
        self._woken.clear()

    def forget(self, stream: Stream) -> None:
        self.lose(stream)

    def lose(self, stream: Stream) -> None:
        self._woken.pop(stream, None)
        self.lost.append(stream.request_id)

    def send_reply(self, event: Reply) -> None:
        self.answers.append(event)

    def send_refusal(self, refusal: Refusal, frame: protocol.StreamFrame) -> None:
        self.errors.append(refusal.event(frame.request_id, frame.ref))
