"""Who hears what becomes of the streams of stories: accounts of them as the SDK keeps them, and of the frames
that were answered. In the end they must be what the server has.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from midstream import protocol
from midstream.protocol import MAX_INDEX, StreamFrame
from midstream.stream_core import StreamCore
from realtime.refusal import Refusal
from realtime.stream.outbox import OutgoingEvent
from realtime.stream.pending_commands import Reply
from realtime.stream.stream import Stream
from tests.fakes.checking_client import SILENT
from tests.fakes.recording_listener import RecordingListener
from tests.fakes.simulated_server import SimulatedServer


class Account:
    """Of one stream."""

    def __init__(self, start: protocol.Start) -> None:
        self.start = start
        self.name = start.request_id
        self.core = self._before = StreamCore()
        self._answered = -1
        self.calls: list[str] = []  # that ever were, by id
        self.unknown = False  # it was refused, or the server has forgotten it

    @property
    def index(self) -> int:
        return self.core.index

    @property
    def live(self) -> bool:
        return not self.unknown and self.core.final is None

    def forget(self) -> None:
        """As a page that was loaded anew."""
        self._before, self.core, self._answered = self.core, StreamCore(), -1

    def remember(self) -> None:
        """It is told nothing instead of what it has forgotten."""
        if self.core.seq < 0:
            self.core = self._before

    def hear(self, event: protocol.StreamEvent) -> bool:
        """Whether it is news."""
        encoded = msgspec.msgpack.encode(event)  # nothing of the server's own is kept
        if not self.core.receive(msgspec.msgpack.decode(encoded, type=type(event))):
            return False
        if event.ref is not None and not isinstance(event, protocol.Final | protocol.Started):
            assert int(event.ref) > self._answered, f"{event} came behind an answer to {self._answered}"
            self._answered = int(event.ref)
        if isinstance(event, protocol.ToolCall):
            self.calls.append(event.call_id)
        elif isinstance(event, protocol.Snapshot):
            self.calls += [call.call_id for call in event.tool_calls]
        return True

    def check_so_far(self, stream: Stream) -> None:
        """Where it has heard all that was given out, it knows what somebody would be told who knows nothing."""
        spans = stream.output.spans
        if self.core.seq + 1 != stream.outbox.seq or (spans is not None and spans.reading):
            return
        snapshot, _ = stream._told.snapshot(stream.outbox.sent, model="", fingerprint=None)
        snapshot.seq = 0
        other = Account(self.start)
        other.hear(snapshot)
        if self.core.final is not None:
            other.core.pause_reason = None  # which the final behind a snapshot ends
        known, anew = self._known, other._known
        differs = {what: (known[what], anew[what]) for what in known if known[what] != anew[what]}
        assert not differs, f"stream {self.name}, as it was told, and told anew: {differs}"

    @property
    def _known(self) -> dict[str, object]:
        core = self.core
        return {
            "text": core.text,
            "tokens": core.tokens,
            "reasoning": core.spans.reasoning,
            "calls": core.spans.calls,
            "paused": core.pause_reason,
            "parameters": core.params,
        }

    def check(self, stream: Stream) -> None:
        """It has ended, and all is heard: what was told is what is."""
        core, output = self.core, stream.output
        assert core.text == output.text(len(output), flushed=True), "text"
        assert core.tokens == list(output.tokens), "tokens"
        assert core.spans.reasoning == output.reasoning(), "reasoning"
        assert core.params == stream.context.params, "parameters"
        final = core.final
        assert final is not None
        assert (final.index, final.usage.injected_tokens) == (len(output), output.injected()), "final"
        assert "server failed" not in (final.stop_reason or ""), final.stop_reason
        told = [(call.call_id, call.name, call.index, call.end) for call in core.spans.calls]
        assert told == [(call.call_id, call.name, call.index, call.end) for call in output.calls], "calls"
        for call, one in zip(core.spans.calls, output.calls, strict=True):
            written = "".join(one.arguments)  # what is told in whole tokens may end before
            part = self.start.whole_arguments and one.end is None
            assert written.startswith(call.arguments) if part else written == call.arguments, "arguments"


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
