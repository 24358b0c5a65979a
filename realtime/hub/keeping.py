"""What is kept of a stream for whoever may adopt it: its record and its history. The engine that computes it
has both, and writes the history on; this one is for the next engine, which was told nothing of what was
before.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from engine import api
from engine.history import MOST_BYTES, History, kept_bytes
from realtime.hub.told import Lost, Submitted, encode_told


class Keeping:
    def __init__(
        self,
        keep: api.Keep,
        wall: Callable[[], float],
        *,
        prompt_tokens: int,
        waits: bool = False,
        adopted: api.Journal | None = None,
    ) -> None:
        """`keep`: by its record. `wall`: the time that all gateways have. `waits`: for its first engine.
        `adopted`: what its engine has kept of it so far."""
        self.is_there = self.is_found = adopted is not None
        self._keep = keep
        self._wall = wall
        self._prompt_tokens = prompt_tokens
        self._begins = adopted is None and not waits  # with an engine
        self._history = History(wall(), None if adopted is None else adopted.history)

    @property
    def history_bytes(self) -> int:
        """With its record's, which a fork has of its parent's."""
        return self._history.bytes + len(self._keep.record)

    @property
    def heard(self) -> int:
        """News of it from its engines."""
        return self._history.heard

    def so_far(self) -> tuple[bytes, api.History] | None:
        """Its record, and its history until now; None where that is not kept."""
        return (self._keep.record, self._history.told()) if self._history.whole else None

    def hear(self, news: api.News) -> None:
        self._history.tell(news, self._wall())
        self._check()

    def note(self, told: bytes) -> None:
        """It was told this, now; nothing, where nobody can build it any more."""
        if told:
            self._history.note(self.heard, told, self._wall())
            self._check()
        else:
            self._give_up()

    def submitted(self, fingerprint: str) -> api.Keep | None:
        """What an engine of this fingerprint is told, for it to keep the stream; None where nobody can any
        more. One that has it goes on keeping it."""
        if self.is_there:
            return replace(self._keep, record=b"")
        if not self._begins:
            self.note(encode_told(Submitted(fingerprint)))
        if not self._history.whole:
            return None
        history = None if self._begins else self._history.told()
        self.is_there, self._begins = True, False
        return replace(self._keep, history=history)

    def lost(self, *, lacks_credit: bool) -> None:
        """Its engine is gone, with all that was kept there."""
        self.is_there = self.is_found = False
        self._keep = replace(self._keep, moves=self._keep.moves + 1)
        self.note(encode_told(Lost(lacks_credit)))

    def _check(self) -> None:
        """Its engine gives it up as well."""
        if kept_bytes(self._keep, self._prompt_tokens, self._history) > MOST_BYTES:
            self._give_up()

    def _give_up(self) -> None:
        self._history.give_up()
        self.is_there = self.is_found = False
