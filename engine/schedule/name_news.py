"""The news of names: which have come and gone since they were last told, for whoever has asked.

It knows names, and not what they are of.
"""

from __future__ import annotations

from collections.abc import Iterable

from engine import api
from engine.block_digests import SHORT

DIGEST = (
    16  # bytes of the name of a block that keeps tokens for the first group of layers; others' are longer
)


class NameNews:
    def __init__(self) -> None:
        self._asked = False
        self._whole_is_due = False
        self._changes: dict[bytes, bool] = {}  # whether it has come; what came and went is none
        self._number = 0

    def ask(self) -> None:
        """Tell all of them next, and then what changes."""
        self._asked = self._whole_is_due = True
        self._changes.clear()

    def came(self, name: bytes) -> None:
        self._note(name, came=True)

    def went(self, names: Iterable[bytes]) -> None:
        if self._asked:
            for name in names:
                self._note(name, came=False)

    def take(self, names: Iterable[bytes]) -> api.BlockNews | None:
        """`names`: all that there are now."""
        if self._whole_is_due:
            self._whole_is_due = False
            self._changes.clear()
            return self._news(names, (), whole=True)
        if not self._changes:
            return None
        changes, self._changes = self._changes, {}
        added = [name for name, came in changes.items() if came]
        return self._news(added, (name for name, came in changes.items() if not came))

    def _news(
        self, added: Iterable[bytes], removed: Iterable[bytes], *, whole: bool = False
    ) -> api.BlockNews:
        self._number += 1
        return api.BlockNews(self._number, _short(added), _short(removed), whole)

    def _note(self, name: bytes, *, came: bool) -> None:
        if not self._asked:
            return
        if self._changes.get(name, came) != came:
            del self._changes[name]
        else:
            self._changes[name] = came


def _short(names: Iterable[bytes]) -> bytes:
    return b"".join(name[:SHORT] for name in names if len(name) == DIGEST)
