"""The past of a stream: what its start says again, where nobody but its client knows the stream any more.

It has the steering that took effect, each at its token, and follows rewinds; output is the core's. What the
server alone knows (the tokens with which a call was amended, what another connection put in) cannot be said
again as long as it stands. Frames and events in; pure.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from midstream import protocol
from midstream.protocol import (
    MAX_PAST_CALLS,
    MAX_PAST_STEERING,
    Amend,
    Frame,
    Inject,
    Message,
    Params,
    PastAdjust,
    PastInject,
    Start,
    StreamEvent,
    ToolResult,
)
from midstream.spans import Call, Spans


class _Unknown(Struct):
    """Something that stands before the output token at `index`."""

    index: int


class Past:
    def __init__(self) -> None:
        self._steps: list[tuple[PastAdjust | PastInject | _Unknown, int]] = []  # with how many tokens that is
        self._sent: list[Frame] = []  # that have no answer yet
        self._results: dict[str, ToolResult] = {}  # that wait for others, by call
        self._begun: Params | None = None
        self._missing = 0  # tokens that were put in while nothing was heard of it
        self._paused = False
        self._waits = False  # for results of calls, by itself

    @property
    def waiting(self) -> list[ToolResult]:
        """Results that the server has, and has not put in: it waits for others."""
        return list(self._results.values())

    @property
    def paused(self) -> bool:
        """Whether a client has."""
        return self._paused

    def start(
        self, start: Start, tokens: Sequence[int], index: int, text_length: int, spans: Spans
    ) -> Start | None:
        """Its start, with all that has come since: `tokens` are the output that stands, up to `index`, its
        text so long, and `spans` beside that. None where that cannot be said exactly."""
        begun = self._begun
        told = start.on_disconnect != "cancel" and start.fork is None and not start.approvals
        known = len(tokens) == index and not self._missing
        few = len(self._steps) <= MAX_PAST_STEERING and len(spans.calls) <= MAX_PAST_CALLS
        if begun is None or begun.guards or not (told and known and few):
            return None
        steering: list[PastAdjust | PastInject] = []
        for step, _ in self._steps:
            if isinstance(step, _Unknown) or (isinstance(step, PastAdjust) and step.params.guards):
                return None
            if step.index > index:  # behind tokens that were decoded ahead of credit, and never came
                return None
            steering.append(step)
        credit = None if start.credit is None else replace(start.credit, limit=min(start.credit.limit, index))
        calls = spans.calls
        past = protocol.Past(
            tokens=list(tokens),
            text_length=text_length,
            reasoning_length=len(spans.reasoning) or None,
            arguments_length=len(calls[-1].arguments) if calls else None,
            call_ids=[call.call_id for call in calls],
            told_calls=spans.told or None,
            waits=self._waits,
            steering=steering,
        )
        return replace(start, past=past, params=begun, credit=credit)

    # -- what happens ----------------------------------------------------------------------------------

    def sent(self, frame: Frame) -> None:
        if isinstance(frame, Inject | Amend | ToolResult):
            self._sent.append(frame)

    def refused(self, frame: Frame) -> None:
        self._sent = [one for one in self._sent if one is not frame]

    def receive(self, event: StreamEvent, spans: Spans) -> None:
        """The stream's next event; `spans` are those that stand with it. Few events have to do with its
        calls, of which there may be thousands."""
        match event:
            case protocol.Started(params=params) if self._begun is None:
                self._begun = replace(params)
            case protocol.Adjusted(index=index, params=params):
                self._adjust(index, params)
            case protocol.Injected():
                self._inject(event, spans)
            case protocol.Rewound(index=index):
                self.rewind(index, spans)
            case protocol.Paused(reason="client"):
                self._paused = True
            case protocol.Paused(reason="tool_call"):
                self._waits = True
            case protocol.Resumed():
                self._paused = self._waits = False

    def begin(self, snapshot: protocol.Snapshot) -> None:
        """It was started again: one whose server knows nothing of `waits` goes on."""
        self._waits = snapshot.paused == "tool_call"

    def miss(self, snapshot: protocol.Snapshot) -> None:
        """It stands for events that never came."""
        self._missing = snapshot.injected_tokens - sum(count for _, count in self._steps)
        self._paused = snapshot.paused == "client"
        self.begin(snapshot)
        params, known = snapshot.params, self._params
        if known is None or params == known:
            return
        if params.grammar != known.grammar:  # which began at some token
            self._steps.append((_Unknown(snapshot.index), 0))
        self._adjust(snapshot.index, params)

    @property
    def _params(self) -> Params | None:
        """In force."""
        adjusts = (step.params for step, _ in reversed(self._steps) if isinstance(step, PastAdjust))
        return next(adjusts, self._begun)

    @property
    def _put(self) -> list[PastInject | _Unknown]:
        return [step for step, _ in self._steps if not isinstance(step, PastAdjust)]

    def _adjust(self, index: int, params: Params) -> None:
        """In place of others at that token; but one with another grammar tells that this one begins there."""
        there = list[PastAdjust]()
        while self._steps and isinstance(last := self._steps[-1][0], PastAdjust) and last.index == index:
            there.append(last)
            self._steps.pop()
        others = [one for one in there if one.params.grammar != params.grammar]
        now = PastAdjust(index=index, params=replace(params))
        self._steps += [(step, 0) for step in (*others[:1], now)]

    def _inject(self, event: protocol.Injected, spans: Spans) -> None:
        frame = next((one for one in self._sent if event.ref is not None and one.ref == event.ref), None)
        if frame is not None:
            self._sent.remove(frame)
        if isinstance(frame, ToolResult):
            self._results[frame.call_id] = frame
        if isinstance(frame, Inject) and frame.resume:
            self._paused = self._waits = False  # whether or not its `resumed` has come
        cuts = isinstance(frame, Amend) and any(step.index == event.index for step in self._put)
        if event.count or cuts:  # perhaps a part of what was put in is left
            self._steps.append((self._put_in(event, frame, spans), event.count))

    def _put_in(self, event: protocol.Injected, frame: Frame | None, spans: Spans) -> PastInject | _Unknown:
        index, by_itself = event.index, event.ref is None and event.reason is None
        if isinstance(frame, Inject):
            text, messages, tokens = frame.text, frame.messages, frame.tokens
            for message in messages or ():  # its call has a result, and none that waits is put in any more
                self._results.pop(message.tool_call_id or "", None)
            return PastInject(index=index, text=text, messages=messages, tokens=tokens, grammar=frame.grammar)
        if self._results and (by_itself or isinstance(frame, ToolResult)):
            results, self._results = self._results, {}
            told = [_message(call, results[call.call_id]) for call in spans.calls if call.call_id in results]
            return PastInject(index=index, messages=told)
        return _Unknown(index)

    def rewind(self, index: int, spans: Spans) -> None:
        """Output from `index` on is void, and these calls are left, of which one may be open again."""
        left = {call.call_id for call in spans.calls if call.whole}
        self._results = {call: result for call, result in self._results.items() if call in left}
        stood, self._steps = self._steps, []
        for step, count in stood:
            if isinstance(step, PastAdjust):
                self._adjust(min(step.index, index), step.params)
            elif step.index <= index:
                self._steps.append((step, count))


def _message(call: Call, result: ToolResult) -> Message:
    """As the server tells it to the model."""
    content = json.dumps({"error": result.error}) if result.content is None else result.content
    return Message(role="tool", content=content, name=call.name, tool_call_id=call.call_id)
