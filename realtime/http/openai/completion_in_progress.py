"""A completion while it is written: its starts go to the hub, their events become chunks or a whole response.

It knows the choices of one request and its dialect. Of several choices of a prompt the first goes ahead, and
the others follow when its prompt is computed, as forks of it. What is kept for a whole response is on its
listener's account. How bytes travel is no business of its, nor what frames mean.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol, TypeVar

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from midstream import protocol
from midstream.protocol import Beside, Start
from realtime.http.listener import GOING_AWAY, HttpListener, ListenerSource
from realtime.http.openai.choice_accumulator import Choice
from realtime.http.openai.errors import error_object
from realtime.http.openai.logprobs import EncodedLogprob
from realtime.http.openai.requests import Body
from realtime.http.openai.response_types import (
    AnyChoice,
    CompletionDetails,
    CompletionObject,
    PromptDetails,
    Usage,
)
from realtime.http.sse import TOO_SLOW, format_event
from realtime.hub.frame_tokenizing import text_length
from realtime.hub.hub import Hub
from realtime.hub.observers import Caller
from realtime.pieces import Pieces
from realtime.refusal import Refusal
from realtime.stream.memory import Holding
from realtime.stream.outbox import OutgoingEvent
from realtime.stream.weights import weight
from realtime.text.served_model import ServedModel
from realtime.text.tokenizer import Tokenizer
from realtime.work_budget import steering_s
from realtime.work_ledger import PayerWork

EVENTS_A_TURN = 16  # streams whose events are taken before others have their turn
_CHOICES = b'"choices":['  # in a string each quote would have a backslash before it

_encode = msgspec.json.Encoder().encode

T = TypeVar("T")


class Dialect(Protocol):
    """What `chat` and `text` have in common."""

    @property
    def BODY(self) -> type[Body]: ...  # noqa: N802 - a module has constants

    PREFIX: str
    WHOLE: str
    CHUNK: str

    def first_chunk(self, index: int) -> AnyChoice | None: ...
    def encoded_logprob(self, told: protocol.TokenLogprob, tokenizer: Tokenizer) -> EncodedLogprob: ...
    def text_chunk(self, choice: Choice, text: str, logprobs: list[EncodedLogprob]) -> AnyChoice: ...
    def beside_chunk(self, choice: Choice, event: Beside) -> AnyChoice | None: ...
    def snapshot_chunks(self, choice: Choice, event: protocol.Snapshot) -> list[AnyChoice]: ...
    def rewind_chunk(self, choice: Choice, event: protocol.Rewound) -> AnyChoice: ...
    def final_chunk(self, choice: Choice, reason: str) -> AnyChoice: ...
    def whole_choice(self, choice: Choice, reason: str) -> Pieces[AnyChoice]: ...


class CompletionSource(ListenerSource):
    def __init__(
        self,
        hub: Hub,
        caller: Caller,
        dialect: Dialect,
        prompts: list[list[Start]],
        work: PayerWork,
        *,
        include_usage: bool,
    ) -> None:
        self._hub = hub
        self._tenant = caller.tenant
        self._dialect = dialect
        self._include_usage = include_usage
        self._id = prompts[0][0].request_id
        self._created = int(time.time())
        self._asked_model = prompts[0][0].model
        self._firsts = [first.request_id for first, *_ in prompts]
        self._work = work
        self._ready_starts = deque(first for first, *_ in prompts)
        # What is not started yet, behind the first choice of each prompt.
        self._waiting_starts = {first.request_id: others for first, *others in prompts}
        self._forked = {first.request_id: first for first, *others in prompts if others}
        self._shows_logprobs = isinstance(prompts[0][0].params.logprobs, int)
        starts = [start for choices in prompts for start in choices]
        self._choices = {
            start.request_id: Choice(index, logprobs=self._shows_logprobs)
            for index, start in enumerate(starts)
        }
        self._fingerprints: set[str] = set()  # of the engines that had a part in it
        self._opened = False
        # A snapshot stands in for text that was sent before, and not for its log probabilities.
        super().__init__(HttpListener(hub, caller, work, keeps_events=self._shows_logprobs))
        self._kept = Holding(self._listener.memory)
        self._held_starts = Holding(self._listener.memory)
        self._held_starts.update(sum(map(weight, self._forked.values())))

    # -- its life --------------------------------------------------------------------------------

    async def begin(self) -> Refusal | None:
        """Start what can be started at once; returns why that is refused, if it is."""
        while not (self.over or self._listener.failure or self._listener.waiting == len(self._firsts)):
            await self.wait_for_news()
        failure = self._listener.failure
        if failure is None or failure.status != 400:
            return failure
        await self._take_back()
        return self._of_its_prompt(failure)

    def _of_its_prompt(self, refusal: Refusal) -> Refusal:
        """Which of several it is about is said first."""
        if len(self._firsts) == 1 or self._listener.refused not in self._firsts:
            return refusal
        at = self._firsts.index(self._listener.refused)
        return Refusal(refusal.code, f"Of `prompt[{at}]`: {refusal.message}")

    async def _take_back(self) -> None:
        """What was begun of a request that is refused for what it asks: whatever it says of who goes away,
        nobody comes again for that."""
        left = dict.fromkeys(self._firsts)
        while (first := next(filter(self._is_live, left), None)) is not None:  # a long one begins meanwhile
            del left[first]
            cancel = partial(self._receive, protocol.Cancel(request_id=first))
            await self._work.do(cancel, steering_s(0))

    def _is_live(self, request_id: str) -> bool:
        return self._hub.is_live(self._tenant, request_id)

    async def wait_for_news(self) -> None:
        await self.start_ready()
        await super().wait_for_news()

    async def start_ready(self) -> None:
        """Start what is ready to be, piece by piece."""
        while self._ready_starts and not (self.over or self._listener.failure):
            await self._work.do(self._start_next, steering_s(text_length(self._ready_starts[0])))

    def _start_next(self) -> None:
        start = self._ready_starts.popleft()
        if start.fork is not None and not self._can_fork(start.request_id, start.fork.request_id):
            self._ready_starts.appendleft(self._unforked(start))  # which is paid for as such
            return
        self._receive(start)
        if not (self._ready_starts or self._waiting_starts):
            self._forked.clear()
            self._held_starts.update(0)

    def _can_fork(self, *either: str) -> bool:
        """Or is there already, where it is asked for again."""
        return any(self._hub.is_known(self._tenant, request_id) for request_id in either)

    def _unforked(self, start: Start) -> Start:
        """The same from its prompt: of many prompts the first choices may have ended, and be forgotten."""
        assert start.fork is not None
        first = self._forked[start.fork.request_id]
        params = replace(first.params, seed=start.params.seed)
        return replace(first, request_id=start.request_id, params=params)

    def _receive(self, frame: protocol.StreamFrame) -> None:
        self._hub.receive_frame(self._tenant, frame, self._listener)

    # -- whole -----------------------------------------------------------------------------------

    async def body(self) -> list[bytes] | Refusal | None:
        """The whole response, encoded, choice by choice, which is held beside what it was made of until
        somebody has it."""
        whole = await self.whole()
        if not isinstance(whole, CompletionObject):
            return whole
        choices, whole.choices = whole.choices, []
        head, before, tail = _encode(whole).partition(_CHOICES)
        body = [head, before]
        for choice in choices:
            body.append(await self._work.do(partial(_encode, choice)))
            body.append(b",")
            self._kept.update(self._kept.bytes + len(body[-2]))
        body[-1] = tail
        return body

    @property
    def held_bytes(self) -> int:
        """About how much memory is kept for the whole response."""
        return self._kept.bytes

    async def whole(self) -> CompletionObject | Refusal | None:
        """The response when all of it is there; None if nobody waits for it any more."""
        while not (self.over or self._listener.failure or self._finished):
            await self._receive_news(self._keep)
            self._check_memory()
            self.accepted()
            if not (self._listener.failure or self._finished):
                await self.wait_for_news()
        if self.over:
            return None
        if self._listener.failure is not None:
            return self._listener.failure
        choices = [
            await self._work.finish(self._dialect.whole_choice(choice, _reason(choice)))
            for choice in self._choices.values()
        ]
        return self._object(self._dialect.WHOLE, choices, self._usage(), self._common_fingerprint())

    def _common_fingerprint(self) -> str | None:
        """Of the whole, unless it came from engines of several."""
        return self._fingerprints.copy().pop() if len(self._fingerprints) == 1 else None

    def _keep(self, choice: Choice, before: str, event: OutgoingEvent) -> None:
        if isinstance(event, protocol.Token):
            choice.keep(self._logprobs_of(event), event.index)

    def _check_memory(self) -> None:
        self._kept.update(sum(choice.bytes for choice in self._choices.values()))
        try:
            self._listener.memory.check()
        except Refusal as refusal:
            self._listener.refuse(refusal)

    # -- in chunks -------------------------------------------------------------------------------

    async def take(self) -> bytes:
        first = b"" if self._opened else self._first_chunks()
        chunks = first + b"".join(await self._receive_news(self._event_chunks))
        if self._listener.failure is not None:
            self._ended = True
            return chunks + _error(self._listener.failure)
        return chunks + self._last_chunks() if self._finished else chunks

    def too_slow_event(self) -> bytes:
        return _error(TOO_SLOW)

    def _first_chunks(self) -> bytes:
        self._opened = True
        return self._chunks(self._dialect.first_chunk(choice.index) for choice in self._choices.values())

    def _last_chunks(self) -> bytes:
        self._ended = True
        last = self._chunk([], self._usage()) if self._include_usage else b""
        return last + format_event(b"[DONE]")

    def _event_chunks(self, choice: Choice, before: str, event: OutgoingEvent) -> bytes:
        return self._chunks(self._events_for(choice, before, event))

    def _events_for(self, choice: Choice, before: str, event: OutgoingEvent) -> list[AnyChoice | None]:
        match event:
            case protocol.Token():
                logprobs = self._logprobs_of(event)
                if not event.delta and not logprobs and (choice.reasoning or choice.calls):
                    return []
                return [self._dialect.text_chunk(choice, event.delta, logprobs)]
            case protocol.Reasoning() | protocol.ToolCall() | protocol.ToolArguments():
                return [self._dialect.beside_chunk(choice, event)]
            case protocol.Snapshot(text=text) if not before:
                return [
                    self._dialect.text_chunk(choice, text, []),
                    *self._dialect.snapshot_chunks(choice, event),
                ]
            case protocol.Rewound():
                return [self._dialect.rewind_chunk(choice, event)]
            case protocol.Final() if self._listener.failure is None:
                return [self._dialect.final_chunk(choice, _reason(choice))]
        return []

    def _chunks(self, choices: Iterable[AnyChoice | None]) -> bytes:
        return b"".join(self._chunk([choice]) for choice in choices if choice is not None)

    def _chunk(self, choices: list[AnyChoice], usage: Usage | None = None) -> bytes:
        chunk = self._object(self._dialect.CHUNK, choices, usage, self._model.fingerprint)
        return format_event(_encode(chunk))

    # -- both ------------------------------------------------------------------------------------

    async def _receive_news(self, made_of: Callable[[Choice, str, OutgoingEvent], T]) -> list[T]:
        """What is made of each event that came, of its choice, and of the text before it; of many streams
        piece by piece. Log probabilities are dear to encode: they are paid for."""
        made: list[T] = []
        if self._shows_logprobs:
            for _ in range(self._listener.waiting):
                made += await self._work.do(lambda: self._receive_events(made_of, most=1))
            return made
        for left in range(self._listener.waiting, 0, -EVENTS_A_TURN):
            made += self._receive_events(made_of, EVENTS_A_TURN)
            if left > EVENTS_A_TURN:
                await asyncio.sleep(0)
        return made

    def _receive_events(self, made_of: Callable[[Choice, str, OutgoingEvent], T], most: int) -> list[T]:
        return [
            made_of(*self._receive_event(stream.request_id, event), event)
            for stream, events in self._listener.take(most)
            for event in events
        ]

    def _receive_event(self, request_id: str, event: OutgoingEvent) -> tuple[Choice, str]:
        """The choice that an event is about, which now knows it, and its text before that."""
        choice = self._choices[request_id]
        before = choice.text
        try:
            choice.receive(event)
        except Refusal as refusal:
            self._listener.refuse(refusal)
        if isinstance(event, protocol.Final):
            self._check_end(event)
        if isinstance(event, protocol.Started | protocol.Resumed | protocol.Snapshot) and event.fingerprint:
            self._fingerprints.add(event.fingerprint)
        if choice.begun:
            self._ready_starts += self._waiting_starts.pop(request_id, ())  # its prompt is computed
        return choice, before

    def _logprobs_of(self, event: OutgoingEvent) -> list[EncodedLogprob]:
        told = event.logprobs if isinstance(event, protocol.Token) else None
        return [self._dialect.encoded_logprob(one, self._model.tokenizer) for one in told or ()]

    def _check_end(self, final: protocol.Final) -> None:
        """Some ends are failures."""
        if final.finish_reason == "error":
            why = (final.stop_reason or "").removesuffix(".")  # of a grammar it is a sentence
            self._listener.fail(Refusal("engine_error", f"The answer could not be finished: {why}."))
        elif final.finish_reason == "cancelled" and self._hub.draining:
            self._listener.fail(GOING_AWAY)

    @property
    def _finished(self) -> bool:
        return all(choice.final is not None for choice in self._choices.values())

    @property
    def _model(self) -> ServedModel:
        served = self._hub.models.find(self._asked_model).served
        assert served is not None, "what has no model starts no stream"
        return served

    def _object(
        self, kind: str, choices: list[AnyChoice], usage: Usage | None, fingerprint: str | None
    ) -> CompletionObject:
        usage_or_unset = usage if usage or self._include_usage else UNSET
        name = self._model.name
        return CompletionObject(self._id, kind, self._created, name, fingerprint, choices, usage_or_unset)

    def _usage(self) -> Usage:
        """A prompt counts once, however many choices it has."""
        finals = {request_id: choice.final for request_id, choice in self._choices.items()}
        firsts = [finals[request_id] for request_id in self._firsts]
        prompt = sum(final.usage.prompt_tokens for final in firsts if final)
        cached = sum(final.usage.cached_tokens for final in firsts if final)
        output = sum(final.usage.completion_tokens for final in finals.values() if final)
        reasoned = sum(final.usage.reasoning_tokens for final in finals.values() if final)
        return Usage(prompt, output, prompt + output, PromptDetails(cached), CompletionDetails(reasoned))


def _reason(choice: Choice) -> str:
    if choice.final is None:
        return ""
    return "content_filter" if choice.final.finish_reason == "guard" else choice.final.finish_reason


def _error(refusal: Refusal) -> bytes:
    return format_event(_encode(error_object(refusal)))
