"""Connections that hear what becomes of the streams of stories, and which frames were answered: each must be,
and once.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from midstream import protocol
from midstream.protocol import MAX_INDEX, StreamFrame
from realtime.refusal import Refusal
from realtime.stream.outbox import OutgoingEvent
from realtime.stream.pending_commands import Reply
from realtime.stream.stream import Stream
from tests.fakes.checking_client import SILENT
from tests.fakes.recording_listener import RecordingListener
from tests.fakes.simulated_server import SimulatedServer


class Answers:
    """Each frame has one, and one only; where another listens that hears it, too."""

    def __init__(self) -> None:
        self.refused = 0
        self._asked: dict[str, tuple[StreamFrame, RecordingListener]] = {}
        self._heard: dict[str, set[tuple[str, int | None]]] = {}  # by ref: what, and which event it was

    @property
    def asked(self) -> int:
        return len(self._asked)

    def ask(self, frame: StreamFrame, listener: RecordingListener) -> StreamFrame:
        """Returns the frame as it arrives."""
        frame.ref = str(len(self._asked))
        self._asked[frame.ref] = frame, listener
        self._heard[frame.ref] = set()
        arrives: StreamFrame = msgspec.msgpack.decode(
            msgspec.msgpack.encode(frame), type=protocol.StreamFrame
        )
        return arrives

    def hear(self, event: OutgoingEvent | Reply, *, again: bool = False) -> None:
        """`again`: it may have been heard before."""
        self.refused += isinstance(event, protocol.Error)
        if event.ref is not None and not (again and self._heard[event.ref]):
            seq = getattr(event, "seq", None)
            if isinstance(seq, int) and isinstance(event, protocol.Final):
                seq = MAX_INDEX  # behind a snapshot it comes once more
            self._heard[event.ref].add((type(event).__name__, seq if isinstance(seq, int) else None))

    def check(self) -> None:
        for ref, (frame, listener) in self._asked.items():
            heard = self._heard[ref]
            assert heard or listener.gone or isinstance(frame, SILENT), f"nobody answered {frame}"
            assert len({seq is None for _, seq in heard}) == len(heard), f"{frame} was answered by {heard}"


class Client(Protocol):
    """Whose connections these are."""

    def hear(self, stream: Stream, events: list[OutgoingEvent]) -> None: ...

    def hear_refusal(self, frame: StreamFrame, error: protocol.Error) -> None: ...


class Listener(RecordingListener):
    """A connection, which hands on what it hears. One that is not `ready` reads nothing for now."""

    def __init__(self, server: SimulatedServer, answers: Answers, client: Client) -> None:
        super().__init__(server)
        self._answers = answers
        self._client = client

    def flush(self) -> None:
        if self.ready and not self.gone:
            woken, self._woken = self._woken, {}
            for stream in woken:
                self._client.hear(stream, self._server.hub.take_events(stream))

    def send_reply(self, event: Reply) -> None:
        self._answers.hear(event)

    def send_refusal(self, refusal: Refusal, frame: StreamFrame) -> None:
        super().send_refusal(refusal, frame)
        self._answers.hear(self.errors[-1])
        self._client.hear_refusal(frame, self.errors[-1])
