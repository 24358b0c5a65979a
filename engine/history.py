"""The history of a stream that may outlive its gateway: what that was told of it and said of it, in order.

Tokens that came one by one are kept as runs of numbers, and all else as the bytes that went over the link.
Its gateway writes one, which the next engine begins with, and the engine another, for the next gateway. Pure:
it is told the time, the wall's.
"""

from __future__ import annotations

from array import array

from msgspec.structs import replace

from engine import api
from engine.int32 import int32
from engine.packed import packed

MOST_BYTES = 1 << 20  # that one stream takes where it is kept, as `kept_bytes` counts them
ENTRY_BYTES = 150  # of a note, or of news that are no run, beside what they say
_TOKEN, TOKEN_BYTES = "i", 4


class History:
    def __init__(self, began: float, before: api.History | None = None) -> None:
        """`before`: what it goes on from, with its own beginning."""
        self.whole = True
        self.bytes = 0
        self.heard = 0  # news
        self._began = began if before is None else before.began
        self._notes = [] if before is None else list(before.notes)
        self._news = [] if before is None else list(before.news)
        self._run = array(_TOKEN)
        self._run_began = (0.0, 0)  # when, and the index of the first
        for note in self._notes:
            self.bytes += ENTRY_BYTES + len(note.told)
        for told in self._news:
            if isinstance(told, api.TokensTold):
                self.heard += len(told.tokens) // self._run.itemsize
                self.bytes += ENTRY_BYTES + len(told.tokens)
            else:
                self.heard += 1
                self.bytes += ENTRY_BYTES + len(told.news)

    def note(self, heard: int, told: bytes, now: float) -> None:
        """Its gateway was told this, when it had heard so many news."""
        if self.whole:
            self._notes.append(api.NoteTaken(now, heard, told))
            self.bytes += ENTRY_BYTES + len(told)

    def tell(self, news: api.News, now: float) -> None:
        self.heard += 1
        if not self.whole:
            return
        if _is_token(news):
            if self._run and news.index != self._run_began[1] + len(self._run):
                self._end_run()
            if not self._run:
                self._run_began = (now, news.index)
            self._run.append(news.tokens[0])
            self.bytes += self._run.itemsize
        else:
            self._end_run()
            told = packed(replace(news, stream=0))
            self._news.append(api.NewsTold(now, told))
            self.bytes += ENTRY_BYTES + len(told)

    def told(self) -> api.History:
        """As it is now, whenever that goes out."""
        self._end_run()
        return api.History(self._began, self._notes.copy(), self._news.copy())

    def give_up(self) -> None:
        """It takes too much."""
        self.whole = False
        self._run = array(_TOKEN)
        self._notes, self._news = [], []
        self.bytes = 0

    def _end_run(self) -> None:
        if self._run:
            self._news.append(api.TokensTold(*self._run_began, int32(self._run)))
            self._run = array(_TOKEN)
            self.bytes += ENTRY_BYTES


def kept_bytes(keep: api.Keep, prompt_tokens: int, history: History) -> int:
    """What a stream takes where it is kept: the same for its gateway and its engine, so that the one knows
    when the other gives it up."""
    own = ENTRY_BYTES + len(keep.key) + TOKEN_BYTES * prompt_tokens
    return own + history.bytes + (len(keep.record) if history.whole else 0)


def _is_token(news: api.News) -> bool:
    """And nothing else."""
    more = news.early or news.changes or news.logprobs is not None or news.finish is not None
    return len(news.tokens) == 1 and not more and news.admitted is None and not news.forced
