"""The end of one stream: exactly one `final`, behind everything that its client still gets. It knows what was
told, and what waits for an answer. It knows no engine, and does not say whether a stream ends."""

from __future__ import annotations

from msgspec.structs import replace

from midstream.protocol import Final
from realtime.refusal import Refusal
from realtime.stream.answers import answer
from realtime.stream.cancelling import Cancelling, End
from realtime.stream.context import Context
from realtime.stream.counts import Counts
from realtime.stream.outbox import Outbox
from realtime.stream.pending_commands import PendingCommands
from realtime.stream.reading_on import ReadingOn
from realtime.stream.stopwatch import Stopwatch
from realtime.stream.told_output import ToldOutput


class Ending:
    def __init__(
        self,
        context: Context,
        outbox: Outbox,
        told: ToldOutput,
        commands: PendingCommands,
        reading_on: ReadingOn,
        cancelling: Cancelling,
        counts: Counts,
        stopwatch: Stopwatch,
    ) -> None:
        self.final: Final | None = None  # there is one once it has ended
        self._waits: End | None = None  # how it ended, while tokens wait for credit
        self._context = context
        self._outbox = outbox
        self._told = told
        self._commands = commands
        self._reading_on = reading_on
        self._cancelling = cancelling
        self._counts = counts
        self._stopwatch = stopwatch

    @property
    def concluded(self) -> bool:
        """Whether it has come to its end, delivered or not."""
        return self.final is not None or self._waits is not None

    def conclude(self, end: End, now: float) -> None:
        """It came to its own end; what was decoded ahead of the client's credit is still to be delivered."""
        if not self._outbox.beyond_credit:
            self.end(end, now)
        elif self._cancelling.asked:
            self.cancel(now)
        else:
            self._waits = end
            self.refuse_pending()

    def deliver(self, now: float) -> None:
        """There may be credit for all that it waits with."""
        if self._waits is not None and not self._outbox.beyond_credit:
            self.end(self._waits, now)

    def cancel(self, now: float) -> None:
        """As whoever asked for it first has said."""
        self.end(self._cancelling.end, now)

    def end(self, end: End, now: float) -> None:
        self._close()
        reason, why = end
        spans = self._context.output.spans
        one_was_enough = reason == "stop" and why is None
        if one_was_enough or (reason == "stop" and why == "eos" and spans is not None and spans.called):
            end = "tool_calls", why
        self._tell(end, now)

    def fail(self, why: str, now: float) -> None:
        """It has failed somewhere, and may again where its text is brought to its end: then it ends with what
        it has told."""
        try:
            self._close()
        except Exception:  # noqa: BLE001 - whoever has it fail says why
            if undeliverable := self._outbox.undeliverable:
                self._outbox.drop_from(undeliverable[0].index)
            self.refuse_pending()
        self._tell(("error", why), now)

    def refuse_pending(self) -> None:
        """Frames that came too late for the engine: each has one reply, if it asked for two things too."""
        request_id = self._outbox.request_id
        refused = Refusal(
            "request_finished", f"Request {request_id} ended before this could take effect."
        ).event(request_id)
        for pending in self._commands.clear():
            if pending.wants_reply:
                self._commands.refused(pending)
                answer(self._outbox, pending, replace(refused, ref=pending.ref))

    def _close(self) -> None:
        """Its text, and what was asked of it: there is nothing to come."""
        undeliverable = self._outbox.undeliverable
        self._told.forget_untold()  # what a guard has found
        if undeliverable:
            # Nothing that was sent can be taken back any more.
            self._told.cut(undeliverable[0].index, ends=True)
        self.refuse_pending()  # also what would take back what stands: nothing is withheld
        output = self._context.output
        rest = output.flush()  # guards have judged it, or are no more
        self._told.put_without_token(len(output), rest, self._told.take_beside())

    def _tell(self, end: End, now: float) -> None:
        self._reading_on.forget()
        self._waits = None
        known = self._outbox.known
        self.final = Final(
            request_id=self._outbox.request_id,
            ref=self._cancelling.ref,
            index=known,
            finish_reason=end[0],
            stop_reason=end[1],
            usage=self._counts.usage(),
            timing=self._stopwatch.timing(known - self._context.inherited, now),
        )
        self._outbox.put(self.final)
        self._cancelling.answer(self.final)
        self._reading_on.tell_now()
