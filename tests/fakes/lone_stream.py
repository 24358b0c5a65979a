"""A stream alone, with the test as its engine and its listener: frames and news by hand, events and commands
looked at. It knows no hub, no engine and no reader."""

from __future__ import annotations

from typing import Any, Literal

from engine import api, toy_model
from midstream import protocol
from midstream.protocol import Credit, Params
from realtime.stream.context import Context, of_prompt
from realtime.stream.engine_commands import SteeringFrame
from realtime.stream.memory import MemoryAccount
from realtime.stream.outbox import OutgoingEvent
from realtime.stream.owner import Owner
from realtime.stream.params import resolved
from realtime.stream.stream import Stream
from realtime.text.served_model import ServedModel
from tests.fakes.simulated_server import toy_tokenizer

CONTEXT = 40
MODEL = ServedModel("toy", toy_tokenizer(), vocab=toy_model.VOCAB, context=CONTEXT, fingerprint="fp")
PROMPT = [1, 2, 3]
WINDOW = 8
CANCELLED = api.Finish("cancelled")
RUN_OUT = api.Finish("length")


class Heard:
    """An engine that does nothing but keep what it is told."""

    step = 0

    def __init__(self, fingerprint: str, commands: list[api.AnyCommand]) -> None:
        self.fingerprint = fingerprint
        self.say = commands.append


class LoneStream:
    def __init__(
        self,
        *,
        credit: Credit | None = None,
        interval: int = 1,
        on_disconnect: Literal["cancel", "pause", "continue"] = "cancel",
        grace_ms: int | None = None,
        model: ServedModel = MODEL,
        asked: dict[str, Any] | None = None,
        memory: MemoryAccount | None = None,
        context: Context | None = None,
        **params: Any,
    ) -> None:
        """`asked`: further fields of its start; `context`: with what it begins, if it is a fork."""
        self.commands: list[api.AnyCommand] = []
        self.now = 1000.0
        self.memory = memory or MemoryAccount(1 << 30)
        start = protocol.Start(
            request_id="a",
            ref="start",
            credit=credit,
            stream_interval=interval,
            return_tokens=True,
            on_disconnect=on_disconnect,
            grace_ms=grace_ms,
            **(asked or {}),
        )
        complete = resolved(Params(**params), context_left=model.context - len(PROMPT), vocab=model.vocab)
        self.stream = Stream(
            7,
            start,
            context or of_prompt(start, PROMPT, complete, None, model),
            model=model,
            owner=Owner(0, 0),
            window=WINDOW,
            engine=Heard(model.fingerprint or "", self.commands),
            memory=self.memory,
            now=self.now,
        )
        self.index = 0

    # -- as its engine ---------------------------------------------------------------------------

    def admit(self, found: int = 0) -> None:
        """It runs for the first time."""
        self.stream.receive_news(api.News(7, admitted=found), self.now)

    def write(
        self,
        text: str,
        *changes: api.AnyChange,
        finish: api.Finish | None = None,
        logprob: api.Logprob | None = None,
    ) -> None:
        """The engine writes a text, a byte a token, and answers what it was asked behind it."""
        logprobs = None if logprob is None else [logprob]
        for byte in text.encode():
            self.stream.receive_news(
                api.News(7, index=self.index, tokens=[byte], logprobs=logprobs), self.now
            )
            self.index += 1
        if changes or finish:
            self.answer(*changes, finish=finish)

    def answer(self, *changes: api.AnyChange, finish: api.Finish | None = None) -> None:
        self.stream.receive_news(api.News(7, changes=list(changes), finish=finish), self.now)
        if changes:
            self.index = changes[-1].index

    def lose_engine(self) -> None:
        """What it was sent and has not answered goes with it."""
        self.commands.clear()
        self.stream.lose_engine(self.now)
        assert self.commands == [], "there is nobody to hear of it"

    def new_engine(self, fingerprint: str = MODEL.fingerprint or "") -> api.Submit:
        """Another engine; what is sent to it behind the submission stays in `commands`."""
        self.stream.submit(Heard(fingerprint, self.commands), self.now)
        submit = self.commands.pop(0)
        assert isinstance(submit, api.Submit)
        return submit

    # -- as its listener -------------------------------------------------------------------------

    def steer(self, frame: SteeringFrame) -> None:
        self.stream.steer(frame, 0, self.now)

    def cancel(self, ref: str | None = None) -> None:
        self.stream.cancel(self.now, 0, ref)

    def detach(self) -> None:
        self.stream.detach(self.now, 0)

    def attach(self, after: int = -1, *, anew: bool = True) -> list[OutgoingEvent]:
        """Attach, and what comes of it at once."""
        self.stream.attach(after, 0, "attach", anew=anew)
        return self.take()

    def take(self) -> list[OutgoingEvent]:
        return self.stream.take_events()

    def final(self) -> protocol.Final:
        last = self.take()[-1]
        assert isinstance(last, protocol.Final)
        return last


def text(events: list[OutgoingEvent]) -> str:
    return "".join(event.delta for event in events if isinstance(event, protocol.Token))


def kinds(events: list[OutgoingEvent]) -> list[str]:
    return [type(event).__name__ for event in events]


def seqs(events: list[OutgoingEvent]) -> list[Any]:
    return [event.seq for event in events if isinstance(event, protocol.StreamEvent)]
