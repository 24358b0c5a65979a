"""Streams that are built again: what each stream of a test is told is written down as a gateway has its
engine keep it, and in the end another is built of that, which must be the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from engine import api
from engine.listening.journal import Journal
from midstream import protocol
from realtime.hub import rebuilt_stream
from realtime.hub.frame_tokenizing import Opening
from realtime.hub.keeping import Keeping
from realtime.hub.rebuilt_stream import RebuiltStream
from realtime.hub.stream_key import StreamKey
from realtime.hub.stream_record import engine_key, keep
from realtime.hub.told import Abandoned, Detached, Released, TimedOut, Told, encode_told
from realtime.stream.owner import Owner
from realtime.stream.past import begun
from realtime.stream.stream import Stream
from tests.fakes.simulated_server import seen_of

KEY = StreamKey("tenant", "a")


class Kept:
    """One stream's journal, as its engine would have it."""

    def __init__(self, start: protocol.Start, arguments: dict[str, Any], context: Any) -> None:
        self.arguments = arguments
        self.rules = context.rules
        self.journal: Journal | None = None
        waits = arguments["engine"] is None
        kept = keep(
            KEY,
            replace(start, on_disconnect="continue"),
            Opening(context.params, context),
            grace_s=1,
            deadline=1,
            fingerprint=arguments["model"].fingerprint,
            waits=waits,
        )
        assert kept is not None or start.fork is not None
        prompt_tokens = len(context.prompt)
        self.keeping = (
            None if kept is None else Keeping(kept, lambda: 0.0, prompt_tokens=prompt_tokens, waits=waits)
        )

    def say(self, command: api.AnyCommand) -> None:
        if self.keeping is None:
            return  # a fork
        if isinstance(command, api.Submit):
            assert command.keep is not None
            if command.keep.record:
                self.journal = Journal(command, command.keep, 0)
        elif self.journal is not None:
            self.journal.take(command)

    def hear(self, news: api.News) -> None:
        assert self.journal is not None
        assert self.keeping is not None
        if news != api.News(news.stream):  # else it only reads on
            self.keeping.hear(news)
            self.journal.tell(news, 0)

    def note(self, told: Told) -> None:
        if self.keeping is None:
            return
        heard, said = self.keeping.heard, encode_told(told)
        self.keeping.note(said)
        if self.journal is not None and self.keeping.is_there:
            self.journal.note(api.Note(0, heard, said), 0)

    def check(self, stream: Stream) -> None:
        if self.journal is None or self.keeping is None or not self.keeping.is_there or stream.reading:
            return
        rebuilt = RebuiltStream(
            stream.number,
            engine_key(KEY),
            self.journal.told(),
            self.arguments["model"],
            owner=Owner(0, 0),
            window=self.arguments["window"],
            ahead_s=0,
        )
        for _ in rebuilt.replay():
            pass
        assert rebuilt.unsaid() == []
        assert seen_of(rebuilt.stream) == seen_of(stream)


class Heard:
    """An engine, and what keeps its commands."""

    def __init__(self, engine: Any, kept: Kept) -> None:
        self._engine, self._kept = engine, kept

    @property
    def step(self) -> int:
        step: int = self._engine.step
        return step

    @property
    def fingerprint(self) -> str:
        fingerprint: str = self._engine.fingerprint
        return fingerprint

    def say(self, command: api.AnyCommand) -> None:
        self._kept.say(command)
        self._engine.say(command)


def build_again(patch: pytest.MonkeyPatch) -> dict[Stream, Kept]:  # noqa: C901 - a table
    """From now on each stream is kept; returns them, as they come."""
    all_kept: dict[Stream, Kept] = {}
    init, submit, receive = Stream.__init__, Stream.submit, Stream.receive_news

    def begin(self: Stream, number: int, start: Any, context: Any, **arguments: Any) -> None:
        if not isinstance(arguments["engine"], rebuilt_stream._Mute):
            all_kept[self] = kept = Kept(start, arguments, context)
            arguments["keeping"] = kept.keeping
        init(self, number, start, context, **arguments)

    def submitted(self: Stream, engine: Any, now: float, **more: Any) -> None:
        kept = all_kept.get(self)
        submit(
            self, engine if kept is None or isinstance(engine, Heard) else Heard(engine, kept), now, **more
        )

    def heard(self: Stream, news: api.News, now: float) -> Any:
        if (kept := all_kept.get(self)) is not None and kept.journal is not None:
            kept.hear(news)
        return receive(self, news, now)

    def noting(name: str, of: Any) -> None:
        method = getattr(Stream, name)

        def noted(self: Stream, *arguments: Any, **more: Any) -> Any:
            done = method(self, *arguments, **more)
            if (kept := all_kept.get(self)) is not None and (told := of(arguments)) is not None:
                kept.note(told)
            return done

        patch.setattr(Stream, name, noted)

    patch.setattr(Stream, "__init__", begin)
    patch.setattr(Stream, "submit", submitted)
    patch.setattr(Stream, "receive_news", heard)
    for name in ("steer", "steer_call"):
        noting(name, lambda arguments: arguments[0])
    noting("detach", lambda arguments: Detached())
    noting("abandon", lambda arguments: Abandoned())
    noting("release_kv", lambda arguments: Released())
    noting("time_out", lambda arguments: TimedOut())
    noting("attach", lambda arguments: protocol.Attach(request_id="a", after=-1))
    cancel = Stream.cancel

    def cancelled(self: Stream, now: float, step: int, ref: str | None = None, *more: Any) -> None:
        cancel(self, now, step, ref, *more)
        if (kept := all_kept.get(self)) is not None:
            kept.note(protocol.Cancel(request_id="a", ref=ref))

    patch.setattr(Stream, "cancel", cancelled)
    patch.setattr(rebuilt_stream, "openings", opened)
    return all_kept


def opened(start: Any, prompt: Any, params: Any, rules: Any, model: Any, put_in: Any) -> Iterator[Opening]:
    for context in begun(start, prompt, params, _rules[0], model, put_in):
        yield Opening(params, context)


_rules: list[Any] = [None]  # of the one that is being built


def check_all(all_kept: dict[Stream, Kept]) -> None:
    for stream, kept in all_kept.items():
        _rules[0] = kept.rules
        kept.check(stream)
