"""What the listener of one stream is told of its output: tokens, what goes beside them, what is void, and a
snapshot of all that stands. It knows neither engine nor commands."""

from __future__ import annotations

from collections.abc import Sequence

from midstream import protocol
from midstream.protocol import Beside, TokenLogprob
from realtime.stream.context import Context
from realtime.stream.outbox import Outbox, PendingToken
from realtime.stream.span_events import tell_lengths
from realtime.stream.told_arguments import ToldArguments
from realtime.stream.tool_loop import ToolLoop
from realtime.tools.parts import Lengths


class ToldOutput:
    def __init__(self, context: Context, outbox: Outbox, tools: ToolLoop, *, whole_arguments: bool) -> None:
        self._context = context
        self._output = context.output
        self._outbox = outbox
        self._tools = tools
        self._arguments = ToldArguments(context.output.spans, whole=whole_arguments)
        # How many injected tokens were read, and how much was known, when what lies beside was taken.
        self._taken = self._taken_before = self._read

    # -- more of it ------------------------------------------------------------------------------

    def take_beside(self) -> Sequence[Beside]:
        """What came with the last token, or without any."""
        if self._output.spans is None:
            return ()
        beside = self._output.spans.take_beside()
        self._taken_before, self._taken = self._taken, self._read
        self._tools.tell_approvals(beside)
        return beside

    @property
    def _read(self) -> tuple[int, Lengths]:
        return (0, Lengths()) if self._output.spans is None else self._output.spans.read

    def put(
        self, index: int, delta: str, token: int, logprob: TokenLogprob | None, beside: Sequence[Beside]
    ) -> None:
        self._outbox.put(PendingToken(index, delta, token, logprob, self._arguments.tell(beside)))

    def put_without_token(self, index: int, text: str, beside: Sequence[Beside]) -> None:
        """Held back until the end, or part of a call by an injection."""
        told = self._arguments.tell(beside)
        if text or told:
            injected, behind = self._taken_before
            self._outbox.put(PendingToken(index, text, None, beside=told, injected=injected, behind=behind))

    # -- less of it ------------------------------------------------------------------------------

    def cut(self, index: int, *, ends: bool = False, by_guard: bool = False) -> None:
        """Output from `index` on is void."""
        self._outbox.drop_from(index)
        self._context.cut(index, ends=ends, by_guard=by_guard)
        self._go_back()

    def cut_behind(self, behind: int) -> None:
        """Of the tokens behind the prompt only so many stand."""
        index = self._context.cut_behind(behind)
        self._outbox.drop_from(index, self._output.injected())
        self._go_back()
        self._outbox.put(self.rewound(index))

    def take_back(self, index: int, *, by_guard: bool = True) -> None:
        """Nobody need be told, but who was told of it, or is about to be told of text that is held back again
        since it may begin what the stream stops at now."""
        sent = self._outbox.sent
        length = self._output.length_with(min(index, self._outbox.known))
        self.cut(index, by_guard=by_guard)
        if sent > index or self._output.text_length < length:
            self._outbox.put(self.rewound(index))

    def forget_untold(self) -> None:
        """It ends with what its listener knows, or is about to."""
        if self._outbox.known < len(self._output):
            self._context.cut(self._outbox.known, ends=True)
            self._take_back()

    def _go_back(self) -> None:
        self._take_back()
        self._tools.go_back()

    def _take_back(self) -> None:
        self._taken = self._read
        self._arguments.go_back()

    # -- where it stands -------------------------------------------------------------------------

    def rewound(self, index: int, ref: str | None = None) -> protocol.Rewound:
        event = protocol.Rewound(
            request_id=self._outbox.request_id, ref=ref, index=index, text_length=self._output.text_length
        )
        if self._output.spans is not None:
            tell_lengths(event, self._arguments.of_rewound(self._output.spans.lengths))
        return event

    def snapshot(
        self, count: int, *, model: str, fingerprint: str | None
    ) -> tuple[protocol.Snapshot, Lengths]:
        """After so many output tokens, and how much is told there of what lies beside."""
        outbox, output = self._outbox, self._output
        snapshot = protocol.Snapshot(
            request_id=outbox.request_id,
            index=count,
            text=output.text(count, flushed=outbox.final_sent),
            tokens=list(output.tokens[:count]) if outbox.shows_tokens else None,
            model=model,
            prompt_tokens=len(self._context.prompt),
            params=self._context.params,
            fingerprint=fingerprint,
            paused=outbox.paused,
            injected_tokens=output.injected(before=count),
            epoch=outbox.epoch,
        )
        spans = output.spans
        if spans is None:
            return snapshot, Lengths()
        lengths, snapshot.reasoning, snapshot.tool_calls = spans.snapshot(
            output.tokens, count, told=outbox.told_behind, flushed=outbox.final_sent
        )
        self._tools.tell_approvals(snapshot.tool_calls)
        return snapshot, self._arguments.of_snapshot(lengths, snapshot.tool_calls)
