"""The journal of a stream that may outlive its gateway: what that was told of it and said of it, in order.

Tokens that came one by one are kept as runs of numbers, and all else as the bytes that went over the link.
Where it becomes too long it is given up: the stream ends with its gateway then. Pure: it is told the time.
"""

from __future__ import annotations

from array import array

import msgspec
from msgspec.structs import replace

from engine import api
from engine.command_digest import digest
from engine.int32 import int32
from engine.listening import limits

ENTRY_BYTES = 150  # of a note, or of news that are no run, beside what they say
_TOKEN = "i"
_encode = msgspec.msgpack.Encoder().encode


class Journal:
    def __init__(self, submit: api.Submit, keep: api.Keep, now: float) -> None:
        self.keep = keep
        self.whole = bool(keep.record)  # whether the stream can be built from it
        self.adoptions = 0
        self._began = now
        self._prompt = array(_TOKEN, submit.tokens if self.whole else ())
        self._credit = submit.credit
        self._notes: list[api.NoteTaken] = []
        self._news: list[api.TokensTold | api.NewsTold] = []
        self._run = array(_TOKEN)
        self._run_began = (0.0, 0)  # when, and the index of the first
        self._commands = 0
        self._digest = 0
        self.bytes = (
            ENTRY_BYTES + len(keep.record) + len(keep.key) + self._prompt.itemsize * len(self._prompt)
        )

    def take(self, command: api.AnyCommand) -> None:
        """From the stream's gateway."""
        match command:
            case api.Grant(credit=credit):
                self._credit = credit
            case api.Command():
                self._commands += 1
                self._digest = digest(command, self._digest)

    def note(self, note: api.Note, now: float) -> None:
        if self.whole:
            self._notes.append(api.NoteTaken(now, note.heard, note.told))
            self._grow(ENTRY_BYTES + len(note.told))

    def tell(self, news: api.News, now: float) -> None:
        """To the stream's gateway, or to nobody, where it has none."""
        if not self.whole:
            return
        if _is_token(news):
            if self._run and news.index != self._run_began[1] + len(self._run):
                self._end_run()
            if not self._run:
                self._run_began = (now, news.index)
            self._run.append(news.tokens[0])
            self._grow(self._run.itemsize)
        else:
            self._end_run()
            told = _encode(replace(news, stream=0))
            self._news.append(api.NewsTold(now, told))
            self._grow(ENTRY_BYTES + len(told))

    def told(self) -> api.Journal:
        self._end_run()
        return api.Journal(
            record=self.keep.record if self.whole else b"",
            moves=self.keep.moves,
            adoptions=self.adoptions,
            began=self._began,
            prompt=int32(self._prompt),
            credit=self._credit,
            notes=self._notes,
            news=self._news,
            commands=self._commands,
            digest=self._digest,
        )

    def give_up(self) -> None:
        """It takes too much."""
        self.whole = False
        self._prompt, self._run = array(_TOKEN), array(_TOKEN)
        self._notes, self._news = [], []
        self.bytes = ENTRY_BYTES + len(self.keep.key)

    def _grow(self, size: int) -> None:
        self.bytes += size
        if self.bytes > limits.JOURNAL_BYTES:
            self.give_up()

    def _end_run(self) -> None:
        if self._run:
            self._news.append(api.TokensTold(*self._run_began, int32(self._run)))
            self._run = array(_TOKEN)
            self.bytes += ENTRY_BYTES


def _is_token(news: api.News) -> bool:
    """And nothing else."""
    more = news.early or news.changes or news.logprobs is not None or news.finish is not None
    return len(news.tokens) == 1 and not more and news.admitted is None and not news.forced
