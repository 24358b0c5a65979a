"""What one stream reads of its output without a new token: what was injected, a part at a time, and what its
guards have yet to read, be it what the next token will say. What is found is told beside tokens, and what
comes behind it waits here meanwhile. It knows no engine, and no end."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from engine import api
from realtime.stream.context import Context
from realtime.stream.guarding import Guarding
from realtime.stream.pending_commands import PendingCommands
from realtime.stream.spanned_text import READ_AT_ONCE
from realtime.stream.told_output import ToldOutput


class RestOfNews(Struct, eq=False):
    """What is left of a step's news behind its tokens: what commands did, and how it ended."""

    changes: deque[api.AnyChange]
    finish: api.Finish | None
    held: bool  # whether the stream waits for results there
    # Whether what was decoded before will be void, or the stream was steered behind an end that is held.
    withheld: bool
    now: float


class PutOff(Struct, eq=False):
    """News from the token on, or the end, of which guards have yet to read what it says."""

    news: api.News
    now: float


class ReadingOn:
    def __init__(
        self, context: Context, told: ToldOutput, guarding: Guarding, commands: PendingCommands
    ) -> None:
        self.put_off: PutOff | None = None
        self.rest: RestOfNews | None = None  # of the last news, until what was injected before is read
        self._told_later: list[Callable[[], None]] = []
        self._context = context
        self._output = context.output
        self._told = told
        self._guarding = guarding
        self._commands = commands
        self._enough = READ_AT_ONCE  # of what is injected, by the bytes that are read then

    @property
    def waits(self) -> PutOff | RestOfNews | None:
        """What is to be taken in behind what is still to be read."""
        return self.put_off or self.rest

    @property
    def finish(self) -> api.Finish | None:
        """Behind that."""
        return self.put_off.news.finish if self.put_off else self.rest.finish if self.rest else None

    def put_off_from(self, news: api.News, at: int, now: float) -> None:
        """From the token on that is `at` this place among theirs, or else from the end."""
        logprobs = None if news.logprobs is None else news.logprobs[at:]
        self.put_off = PutOff(
            replace(
                news,
                early=[],
                index=news.index + at,
                tokens=news.tokens[at:],
                logprobs=logprobs,
                admitted=None,
                forced=0,
            ),
            now,
        )

    def forget(self) -> None:
        self.put_off = self.rest = None

    def read_on(self) -> None:
        """In a turn of its own, of which others wait for no more than this."""
        guards, spans = self._context.guards, self._output.spans
        if spans is not None:
            self._enough = spans.bytes_read + READ_AT_ONCE
        if guards is not None and guards.reading:
            guards.read_on()
        elif spans is not None and spans.reading:
            spans.read_on()
            self.put_beside(len(self._output), "")

    @property
    def reads_spans(self) -> bool:
        """Whether spans are still to be read of what was injected last."""
        return self._output.spans is not None and self._output.spans.reading

    @property
    def has_read_enough(self) -> bool:
        """In this turn: more is to be injected in the next."""
        return self._output.spans is not None and self._output.spans.bytes_read >= self._enough

    def tell_later(self, tell: Callable[[], None]) -> None:
        """Behind the rest."""
        self._told_later.append(tell)

    def tell_now(self) -> None:
        """What was to be told then."""
        told, self._told_later = self._told_later, []
        for tell in told:
            tell()

    def put_beside(self, index: int, text: str) -> None:
        """What is told without a token: held back until the end, or part of a call by an injection."""
        beside = self._told.take_beside()
        if self._context.guards is not None:
            self._context.guards.read(text, beside)
        if self._commands.stands_at(index) == index:
            self._told.put_without_token(index, text, beside)
