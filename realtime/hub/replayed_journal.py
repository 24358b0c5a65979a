"""The journal of a stream, told again: a stream that is told what another gateway's was told, in the same
order, is the same. What that has commanded its engine it commands again, to nobody, and what is beyond that
was never heard by the engine.

It hangs on nothing but the journal. Whatever else a stream has come by (how far its listener had read, whose
account was full) must change no command: the commands are compared.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from engine import api
from engine.command_digest import digest
from engine.int32 import of_int32
from realtime.hub.told import tell
from realtime.stream.stream import Stream

A_TURN = 64  # news, before others have their turn

_decode = msgspec.msgpack.Decoder(api.News).decode


class JournalError(Exception):
    """The stream that came of it is not the one whose journal it is."""


class Mute:
    """In an engine's place: it is told what the engine may have heard."""

    step = 0

    def __init__(self, fingerprint: str) -> None:
        self.fingerprint = fingerprint
        self.told: list[api.AnyCommand] = []

    def say(self, command: api.AnyCommand) -> None:
        if not isinstance(command, api.Submit | api.Grant):
            self.told.append(command)


def replay(stream: Stream, journal: api.Journal, ahead_s: float) -> Iterator[int | None]:
    """Tell the stream all of it. None, where others are to have their turn; in the end, how many news it has
    heard. `ahead_s`: of the wall's clock is ours."""
    notes = iter(journal.notes)
    note = next(notes, None)
    heard = 0
    for at, news in _news(journal):
        while note is not None and note.heard <= heard:
            _tell(stream, note, ahead_s)
            note = next(notes, None)
        receive(stream, news, at + ahead_s)
        heard += 1
        if not heard % A_TURN:
            stream.take_events()
            yield None
    while note is not None:
        _tell(stream, note, ahead_s)
        note = next(notes, None)
    stream.take_events()
    yield heard


def receive(stream: Stream, news: api.News, now: float) -> None:
    """And read on until nothing is left of what was injected."""
    stream.receive_news(news, now)
    _read_on(stream, now)
    stream.take_decoded_turns()
    stream.take_acted()


def unsaid(mute: Mute, journal: api.Journal) -> list[api.AnyCommand]:
    """What the engine has not heard. Raises JournalError where it has heard something else."""
    seen = 0
    for command in mute.told[: journal.commands]:
        assert isinstance(command, api.Command)
        seen = digest(command, seen)
    if len(mute.told) < journal.commands or seen != journal.digest:
        raise JournalError("its commands are not those that its engine has heard")
    return mute.told[journal.commands :]


def _tell(stream: Stream, note: api.NoteTaken, ahead_s: float) -> None:
    stream.take_events()  # nobody acts on what has not been sent
    tell(stream, note.told, note.at + ahead_s)
    _read_on(stream, note.at + ahead_s)


def _read_on(stream: Stream, now: float) -> None:
    while stream.reading and not stream.concluded:
        stream.receive_news(api.News(stream.number), now)


def _news(journal: api.Journal) -> Iterator[tuple[float, api.News]]:
    for told in journal.news:
        if isinstance(told, api.TokensTold):
            for behind, token in enumerate(of_int32(told.tokens)):
                yield told.at, api.News(0, index=told.index + behind, tokens=[token])
        else:
            yield told.at, _decode(told.news)
