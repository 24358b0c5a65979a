"""A stream that is built from its journal: told what another gateway's was told, in the same order, it is the
same. What that has commanded its engine it commands again, to nobody; what it commands beyond that was never
heard by the engine.

It hangs on nothing but the journal. Whatever else a stream has come by (how far its listener had read, whose
account was full) must change no command: the commands are compared.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import cached_property, partial
from typing import cast

import msgspec
from msgspec.structs import replace

from engine import api
from engine.command_digest import digest
from engine.int32 import of_int32
from midstream.protocol import Guard
from realtime.guards.pattern import Pattern
from realtime.guards.watches import patterns_of
from realtime.hub.frame_tokenizing import openings, past_injects, tools_length
from realtime.hub.output_rules import output_rules
from realtime.hub.stream_record import Origin, StreamRecord
from realtime.hub.told import asked_at, guards_in, tell
from realtime.refusal import Refusal
from realtime.stream.memory import MemoryAccount
from realtime.stream.owner import Owner
from realtime.stream.pending_commands import Computing
from realtime.stream.stream import Stream
from realtime.text.grammar import NoCompilerError, OutputRules, of_known
from realtime.text.served_model import ServedModel

A_TURN = 64  # news, before others have their turn, where no guards read them
UNLIMITED = 1 << 62

# Each time that it yields others are to have their turn; guards that it yields are put in next.
Telling = Iterator[list[Guard] | None]

_decode = msgspec.msgpack.Decoder(api.News).decode


class JournalError(Exception):
    """The stream that came of it is not the one whose journal it is, or it has been given up."""


class RebuiltStream:
    def __init__(
        self,
        number: int,
        key: bytes,
        journal: api.Journal,
        model: ServedModel,
        *,
        owner: Owner,
        window: int,
        ahead_s: float,
    ) -> None:
        """`ahead_s`: of the wall's clock is ours. Raises JournalError."""
        if not journal.record:
            raise JournalError("there is no record of it")
        self.record = record = msgspec.msgpack.decode(journal.record, type=StreamRecord)
        self.stream: Stream  # once it has been told all
        self.has_begun = False  # whether an engine has, with its prompt
        self._heard = 0  # news
        self._patterns: list[Pattern] = []  # of guards, until they have them
        self._journal = journal
        self._ahead_s = ahead_s
        self._model = model
        self._mute = _Mute(record.fingerprint or "", journal.commands)
        of_it = partial(Stream, owner=owner, window=window, memory=MemoryAccount(UNLIMITED))
        self._make = partial(of_it, number, record.start, now=journal.history.began + ahead_s)
        self._of_parent = partial(
            RebuiltStream, number, key, model=model, owner=owner, window=window, ahead_s=ahead_s
        )

    def _begin(self) -> Telling:
        record, model = self.record, replace(self._model, fingerprint=self.record.fingerprint)
        start, prompt = record.start, of_int32(self._journal.prompt).tolist()
        if record.origin is not None:
            yield None  # what that has to be read is as long again
            yield from self._parent.replay()
        if record.params.guards:
            yield record.params.guards
        if record.origin is not None:
            of = self._parent.stream.context
            context = of.fork(start.request_id, record.origin.index, record.params, model)
            del of, self._parent  # as long as this one is, and so is each that it comes from
        else:
            put_in = [inject.tokens or [] for inject in past_injects(start)]  # whose text has become tokens
            for opening in openings(start, prompt, record.params, self._rules, model, put_in):
                context = opening.context
                yield None
        self.stream = self._make(context, model=model, engine=None if record.waits else self._mute)
        self.stream.outbox.interval = 1  # whatever may have been sent was, with whichever others
        # What its gateway had granted to the engine was granted by the client.
        prefetch = 0 if start.credit is None else start.credit.prefetch
        self.stream.credit.grant(self._journal.credit - prefetch)

    @property
    def rules_length(self) -> int:
        """Of what `try_rules` reads, in characters; a fork's is somewhere in its parent's record."""
        if self.record.origin is not None:
            return len(self.record.origin.record)
        return tools_length(self.record.start.tools) if self.record.start.tools else 0

    def try_rules(self) -> None:
        """Have compiled what its tools ask for, which takes long once: for a thread, before it is told."""
        if self.record.origin is not None:
            self._parent.try_rules()
        elif self.record.start.tools:
            try:
                _ = self._rules
            except NoCompilerError:
                raise  # it may be asked for again
            except Refusal:
                pass  # it is raised again, when it is told

    def try_known_rules(self) -> None:
        """The same; raises `NotKnownError` where something would have to be compiled."""
        with of_known():
            self.try_rules()

    def make_patterns(self, guards: list[Guard]) -> None:
        """What these look for, which takes long, before they are put in: for a thread."""
        self._patterns = patterns_of(guards)

    @cached_property
    def _parent(self) -> RebuiltStream:
        """Of a fork."""
        assert self.record.origin is not None
        return self._of_parent(_journal_of(self.record.origin))

    @cached_property
    def _rules(self) -> OutputRules | None:
        return output_rules(self.record.start, of_int32(self._journal.prompt).tolist(), self._model)

    def replay(self) -> Telling:
        """Tell it all."""
        yield from self._begin()
        notes = deque(self._journal.history.notes)
        for note in notes:  # who asked at a token had been sent it, however little is granted now
            self.stream.credit.grant(asked_at(note.told))
            yield None
        for told in self._journal.history.news:
            if isinstance(told, api.TokensTold):
                yield from self._tell_run(told, notes)
            else:
                yield from self._tell_due(notes)
                yield from self.receive(_decode(told.news), told.at + self._ahead_s)
        for note in notes:
            yield from self._tell(note)
        self.stream.take_events()
        self.stream.outbox.interval = self.record.start.stream_interval

    def receive(self, news: api.News, now: float, *, told: int = 1) -> Telling:
        """And read on until nothing is left. `told`: as how many news it was told before."""
        self.stream.have_under_way(len(news.changes))  # nothing is answered that was not sent
        self.stream.receive_news(news, now)
        self.has_begun |= news.admitted is not None
        yield from self._read_on(now)
        self.stream.take_decoded_turns()
        self.stream.take_acted()
        self._heard += told
        if not self._heard % A_TURN or self.stream.context.guards is not None:
            self.stream.take_events()
            yield None

    def unsaid(self) -> list[api.AnyCommand]:
        """What the engine has not heard. Raises JournalError where it has heard something else."""
        # By a gateway of another version more may have been under way at once.
        self.stream.have_under_way(self.stream.under_way + self._mute.lacks)
        if self._mute.lacks or self._mute.digest != self._journal.digest:
            raise JournalError("its commands are not those that its engine has heard")
        return self._mute.unsaid

    def _tell_run(self, told: api.TokensTold, notes: deque[api.NoteTaken]) -> Telling:
        """Tokens that came one by one, as many at once as it takes."""
        tokens, at = of_int32(told.tokens).tolist(), 0
        while at < len(tokens):
            yield from self._tell_due(notes)
            most = 1
            if self.stream.takes_runs:
                most = A_TURN - self._heard % A_TURN
                most = min(most, notes[0].heard - self._heard) if notes else most
            run = tokens[at : at + most]
            news = api.News(0, index=told.index + at, tokens=run)
            yield from self.receive(news, told.at + self._ahead_s, told=len(run))
            at += len(run)

    def _tell_due(self, notes: deque[api.NoteTaken]) -> Telling:
        while notes and notes[0].heard <= self._heard:
            yield from self._tell(notes.popleft())

    def _tell(self, note: api.NoteTaken) -> Telling:
        if guards := guards_in(note.told):
            yield guards
        self.stream.take_events()  # nobody acts on what has not been sent
        now = note.at + self._ahead_s
        tell(self.stream, note.told, now, self._engine)
        yield None
        yield from self._read_on(now)

    def _read_on(self, now: float) -> Telling:
        while self.stream.reading and not self.stream.concluded:
            yield None
            self.stream.receive_news(api.News(self.stream.number), now)

    def _engine(self, fingerprint: str) -> Computing:
        """Another: what the last has heard is nothing to it."""
        self._mute = _Mute(fingerprint, self._journal.commands)
        return self._mute


def _journal_of(origin: Origin) -> api.Journal:
    """As it was when it was forked. None of its commands is said to anybody."""
    record = cast(bytes, origin.record)  # it is read alike
    return api.Journal(record, 0, 0, origin.history, origin.prompt, origin.credit, UNLIMITED, 0)


class _Mute:
    """In an engine's place: it is told what the engine has heard, which is compared and not kept, since each
    command may be a hundred times as long as what was noted of it; and then what that has not heard."""

    step = 0

    def __init__(self, fingerprint: str, heard: int) -> None:
        """`heard`: so many commands."""
        self.fingerprint = fingerprint
        self.lacks = heard  # commands until it has been told what the engine has heard
        self.digest = 0  # of those
        self.unsaid: list[api.AnyCommand] = []

    def say(self, command: api.AnyCommand) -> None:
        if isinstance(command, api.Submit | api.Grant):
            return
        if self.lacks:
            self.lacks -= 1
            self.digest = digest(command, self.digest)
        else:
            self.unsaid.append(command)
