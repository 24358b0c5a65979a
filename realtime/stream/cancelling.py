"""The cancel of one stream: how it ends it, and who waits to hear of that. Its reply is `final`."""

from __future__ import annotations

from msgspec.structs import replace

from midstream.protocol import Error, Final, FinishReason
from realtime.stream.memory import ELSEWHERE_BYTES
from realtime.stream.pending_commands import PendingCommand, SendReply
from realtime.stream.weights import text_bytes

End = tuple[FinishReason, str | None]  # why it ended, and what exactly ended it


class Cancelling:
    def __init__(self) -> None:
        self.command: PendingCommand | None = None  # the last that was asked for
        self.end: End = ("cancelled", None)
        self._others: list[tuple[str, SendReply]] = []  # who else cancelled, each with a ref
        self.bytes = 0  # of those

    @property
    def asked(self) -> bool:
        return self.command is not None

    @property
    def ref(self) -> str | None:
        return None if self.command is None else self.command.ref

    def ends_by(self, end: End) -> None:
        """Unless somebody has cancelled before."""
        if self.command is None:
            self.end = end

    def told_to(self, ref: str, send_reply: SendReply) -> None:
        """Whoever does not listen."""
        self._others.append((ref, send_reply))
        self.bytes += ELSEWHERE_BYTES + text_bytes(ref)

    def answer(self, reply: Final | Error) -> None:
        others, self._others, self.bytes = self._others, [], 0
        for ref, send_reply in others:
            send_reply(replace(reply, ref=ref))
