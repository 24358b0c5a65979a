"""The journal of a stream that may outlive its gateway: all that another needs to go on with it.

Where it becomes too long it is given up: the stream ends with its gateway then. Pure: it is told the time.
"""

from __future__ import annotations

from array import array

from msgspec.structs import replace

from engine import api
from engine.command_digest import digest
from engine.history import History, kept_bytes
from engine.int32 import int32
from engine.listening import limits

_TOKEN = "i"


class Journal:
    def __init__(self, submit: api.Submit, keep: api.Keep, now: float) -> None:
        self.keep = replace(keep, history=None)
        self.adoptions = keep.adoptions
        self._history = History(now, keep.history)
        self._prompt = array(_TOKEN, submit.tokens[: submit.prompt])
        self._credit = submit.credit
        self._commands = 0
        self._digest = 0
        if not keep.record:
            self.give_up()

    @property
    def whole(self) -> bool:
        """Whether the stream can be built from it."""
        return self._history.whole

    @property
    def bytes(self) -> int:
        return kept_bytes(self.keep, len(self._prompt), self._history)

    def is_ahead_of(self, keep: api.Keep) -> bool:
        """Whether somebody has adopted the stream since whoever says this had it: it was told there what is
        not known here. A start of the same name is another stream, and has another record."""
        is_it = not keep.record or keep.record == self.keep.record
        return self.whole and is_it and self.adoptions > keep.adoptions

    def take(self, command: api.AnyCommand) -> None:
        """From the stream's gateway."""
        match command:
            case api.Grant(credit=credit):
                self._credit = credit
            case api.Command():
                self._commands += 1
                self._digest = digest(command, self._digest)

    def note(self, note: api.Note, now: float) -> None:
        if note.told:
            self._history.note(note.heard, note.told, now)
            self._check()
        else:
            self.give_up()

    def tell(self, news: api.News, now: float) -> None:
        """To the stream's gateway, or to nobody, where it has none."""
        self._history.tell(news, now)
        self._check()

    def told(self) -> api.Journal:
        return api.Journal(
            record=self.keep.record,
            moves=self.keep.moves,
            adoptions=self.adoptions,
            history=self._history.told(),
            prompt=int32(self._prompt),
            credit=self._credit,
            commands=self._commands,
            digest=self._digest,
        )

    def give_up(self) -> None:
        """It takes too much, of which its record may be most, or cannot be built any more."""
        self.keep = replace(self.keep, record=b"")
        self._history.give_up()
        self._prompt = array(_TOKEN)

    def _check(self) -> None:
        if self.bytes > limits.JOURNAL_BYTES:
            self.give_up()
