"""What clients know of the streams of stories, as the SDK keeps it of what they are told. At any time it must
be what would be told anew, and in the end what the server has.
"""

from __future__ import annotations

import msgspec

from midstream import protocol
from midstream.past import Past
from midstream.protocol import StreamFrame
from midstream.stream_core import StreamCore
from realtime.stream.stream import Stream


class Account:
    """Of one stream."""

    def __init__(self, start: protocol.Start) -> None:
        self.start = start
        self.name = start.request_id
        self.core = self._before = StreamCore()
        self.past: Past | None = Past()  # until it has missed something
        self._answered = -1
        self.calls: list[str] = []  # that ever were, by id
        self.guarded = False  # ever: what its guards void comes again, later
        self.unknown = False  # it was refused, or the server has forgotten it

    @property
    def index(self) -> int:
        return self.core.index

    @property
    def live(self) -> bool:
        return not self.unknown and self.core.final is None

    def forget(self) -> None:
        """As a page that was loaded anew."""
        self._before, self.core, self._answered, self.past = self.core, StreamCore(), -1, None

    def remember(self) -> None:
        """It is told nothing instead of what it has forgotten."""
        if self.core.seq < 0:
            self.core = self._before

    def say(self, frame: StreamFrame) -> None:
        if isinstance(frame, protocol.Start | protocol.Adjust) and frame.params.guards:
            self.guarded = True
        if self.past is not None:
            self.past.sent(frame)

    def hear(self, event: protocol.StreamEvent) -> bool:
        """Whether it is news."""
        encoded = msgspec.msgpack.encode(event)  # nothing of the server's own is kept
        event, missed = msgspec.msgpack.decode(encoded, type=type(event)), event.seq != self.core.seq + 1
        if not self.core.receive(event):
            return False
        if missed:
            self.past = None
        elif self.past is not None:
            self.past.receive(event, self.core.spans)
        if event.ref is not None and not isinstance(event, protocol.Final | protocol.Started):
            in_order = self.guarded or int(event.ref) > self._answered
            assert in_order, f"{event} came behind an answer to {self._answered}"
            self._answered = int(event.ref)
        if isinstance(event, protocol.ToolCall):
            self.calls.append(event.call_id)
        elif isinstance(event, protocol.Snapshot):
            self.calls += [call.call_id for call in event.tool_calls]
        return True

    def has_heard_all(self, stream: Stream) -> bool:
        """That was given out."""
        return self.core.seq + 1 == stream.outbox.seq

    def check_so_far(self, stream: Stream) -> None:
        """Where it has heard all that was given out, it knows what would be told to who knows nothing."""
        spans = stream.output.spans
        if not self.has_heard_all(stream) or (spans is not None and spans.reading):
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
