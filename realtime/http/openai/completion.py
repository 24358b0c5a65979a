"""One request as it is being answered: its starts to the hub, their events to chunks or a whole answer.

It knows the choices of one request and its dialect. Of several choices of a prompt the first goes ahead, and
the others follow when its prompt is computed: they find it in the cache. How bytes travel is no business of
its, nor what frames mean.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Protocol

import msgspec
from msgspec import UNSET

from midstream import protocol
from midstream.protocol import Start
from realtime.http.listener import Ear, Hearing
from realtime.http.openai.choices import Choice
from realtime.http.openai.errors import error_object
from realtime.http.openai.requests import Body
from realtime.http.openai.responses import Answer, AnyChoice, PromptDetails, Usage
from realtime.http.sse import SLOW, event
from realtime.hub.hub import Hub
from realtime.refusal import Refusal
from realtime.stream.outbox import Told
from realtime.text.tokenizer import Tokenizer

_encode = msgspec.json.Encoder().encode


class Dialect(Protocol):
    """What `chat` and `text` have in common."""

    @property
    def BODY(self) -> type[Body]: ...  # noqa: N802 - a module has constants

    PREFIX: str
    WHOLE: str
    CHUNK: str

    def opening(self, index: int) -> AnyChoice | None: ...
    def more(
        self, choice: Choice, text: str, event: protocol.Token | None, tokenizer: Tokenizer
    ) -> AnyChoice: ...
    def less(self, choice: Choice, event: protocol.Rewound) -> AnyChoice: ...
    def ending(self, choice: Choice, reason: str) -> AnyChoice: ...
    def whole(self, choice: Choice, reason: str, tokenizer: Tokenizer) -> AnyChoice: ...


class Answering(Hearing):
    def __init__(
        self, hub: Hub, tenant: str, dialect: Dialect, prompts: list[list[Start]], *, include_usage: bool
    ) -> None:
        self._hub = hub
        self._tenant = tenant
        self._dialect = dialect
        self._include_usage = include_usage
        self._id = prompts[0][0].request_id
        self._created = int(time.time())
        self._prompts = prompts
        self._behind = {first.request_id: others for first, *others in prompts}  # what is not started yet
        starts = [start for choices in prompts for start in choices]
        self._choices = {
            start.request_id: Choice(index, logprobs=isinstance(start.params.logprobs, int))
            for index, start in enumerate(starts)
        }
        self._opened = False
        # A snapshot stands in for text that was sent before, and not for its log probabilities.
        super().__init__(Ear(hub, keeps=any(choice.shows_logprobs for choice in self._choices.values())))

    # -- its life --------------------------------------------------------------------------------

    async def begin(self) -> Refusal | None:
        """Start what can be started at once; returns why that is refused, if it is."""
        for first, *_ in self._prompts:
            self._hub.receive(self._tenant, first, self._ear)
        while not (self.over or self._ear.failure or self._ear.waiting == len(self._prompts)):
            await self._ear.news()
        return self._ear.failure

    # -- whole -----------------------------------------------------------------------------------

    async def whole(self) -> Answer | Refusal | None:
        """The answer when all of it is there; None if there is nobody left to hear it."""
        while not (self.over or self._ear.failure or self._finished):
            for stream, events in self._ear.take():
                for told in events:
                    self._hear(stream.request_id, told)
            self.accepted()
            if not (self._ear.failure or self._finished):
                await self.news()
        if self.over:
            return None
        return self._ear.failure or self._answer(
            self._dialect.WHOLE,
            [
                self._dialect.whole(choice, _reason(choice), self._tokenizer)
                for choice in self._choices.values()
            ],
            self._usage(),
        )

    # -- in chunks -------------------------------------------------------------------------------

    def take(self) -> bytes:
        said = b"" if self._opened else self._opening()
        for stream, events in self._ear.take():
            for told in events:
                choice, before = self._hear(stream.request_id, told)
                said += self._chunks(self._said_of(choice, before, told))
        if self._ear.failure is not None:
            self._ended = True
            return said + _error(self._ear.failure)
        return said + self._closing() if self._finished else said

    def excuse(self) -> bytes:
        return _error(SLOW)

    def _opening(self) -> bytes:
        self._opened = True
        return self._chunks(self._dialect.opening(choice.index) for choice in self._choices.values())

    def _closing(self) -> bytes:
        self._ended = True
        last = self._chunk([], self._usage()) if self._include_usage else b""
        return last + event(b"[DONE]")

    def _said_of(self, choice: Choice, before: str, told: Told) -> list[AnyChoice | None]:
        match told:
            case protocol.Token():
                return [self._dialect.more(choice, told.delta, told, self._tokenizer)]
            case protocol.Snapshot(text=text) if not before:
                return [self._dialect.more(choice, text, None, self._tokenizer)]
            case protocol.Rewound():
                return [self._dialect.less(choice, told)]
            case protocol.Final() if self._ear.failure is None:
                return [self._dialect.ending(choice, _reason(choice))]
        return []

    def _chunks(self, choices: Iterable[AnyChoice | None]) -> bytes:
        return b"".join(self._chunk([choice]) for choice in choices if choice is not None)

    def _chunk(self, choices: list[AnyChoice], usage: Usage | None = None) -> bytes:
        return event(_encode(self._answer(self._dialect.CHUNK, choices, usage)))

    # -- both ------------------------------------------------------------------------------------

    def _hear(self, request_id: str, told: Told) -> tuple[Choice, str]:
        """The choice that an event is about, which now knows it, and its text before that."""
        choice = self._choices[request_id]
        before = choice.text
        try:
            choice.hear(told)
        except Refusal as refusal:
            self._ear.fail(refusal)
        if isinstance(told, protocol.Final):
            self._judge(told)
        if choice.begun:
            self._follow(request_id)
        return choice, before

    def _judge(self, final: protocol.Final) -> None:
        """Ends that are no answer."""
        if final.finish_reason == "error":
            self._ear.fail(Refusal("engine_error", f"The answer could not be finished: {final.stop_reason}."))
        elif final.finish_reason == "cancelled" and self._hub.draining:
            self._ear.fail(Refusal("draining", "The server is going away.", retry_after_ms=1000))

    def _follow(self, request_id: str) -> None:
        """A prompt is computed: its other choices can share it."""
        for start in self._behind.pop(request_id, ()):
            self._hub.receive(self._tenant, start, self._ear)

    @property
    def _finished(self) -> bool:
        return all(choice.final is not None for choice in self._choices.values())

    @property
    def _tokenizer(self) -> Tokenizer:
        assert self._hub.model is not None, "what has no model starts no stream"
        return self._hub.model.tokenizer

    def _answer(self, kind: str, choices: list[AnyChoice], usage: Usage | None) -> Answer:
        assert self._hub.model is not None, "what has no model starts no stream"
        told = usage if usage or self._include_usage else UNSET
        return Answer(self._id, kind, self._created, self._hub.model.name, choices, told)

    def _usage(self) -> Usage:
        """A prompt counts once, however many choices it has."""
        finals = {request_id: choice.final for request_id, choice in self._choices.items()}
        firsts = [finals[choices[0].request_id] for choices in self._prompts]
        prompt = sum(final.usage.prompt_tokens for final in firsts if final)
        cached = sum(final.usage.cached_tokens for final in firsts if final)
        output = sum(final.usage.completion_tokens for final in finals.values() if final)
        return Usage(prompt, output, prompt + output, PromptDetails(cached))


def _reason(choice: Choice) -> str:
    return choice.final.finish_reason if choice.final else ""


def _error(refusal: Refusal) -> bytes:
    return event(_encode(error_object(refusal)))
