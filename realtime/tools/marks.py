"""Marks: which delimiters may stand where among the spans of what a model writes, and what may become
one."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from realtime.tools.spelling import Mark, Spelling


class Marks:
    """Of one spelling; a copy of a reader goes by the same."""

    def __init__(self, spelling: Spelling, *, with_tools: bool) -> None:
        self._known = {
            "content": spelling.marks(with_tools=with_tools),
            "gap": spelling.marks_in_gap(with_tools=with_tools),
            "reasoning": dict.fromkeys(spelling.reasoning_closes, Mark.FILL),
        }
        self._beginnings = _beginnings([*self._known["gap"], *self._known["reasoning"]])
        self._firsts = {mode: _first_of(known) for mode, known in self._known.items()}

    def find(self, mode: str, text: str) -> Mark | None:
        """What all of this text is, in such a span."""
        return self._known[mode].get(text)

    def may_become(self, text: str) -> bool:
        """Whether more of it might be one, and it is none."""
        return text in self._beginnings

    def plain_until(self, mode: str, text: str, at: int, end: int) -> int:
        """Where the next one may begin, or else the end."""
        found = self._firsts[mode].search(text, at, end)
        return found.start() if found else end


def _first_of(marks: Collection[str]) -> re.Pattern[str]:
    firsts = "".join(re.escape(mark[0]) for mark in marks)
    return re.compile(f"[{firsts}]" if firsts else r"(?!)")


def _beginnings(marks: Iterable[str]) -> frozenset[str]:
    return frozenset(mark[:length] for mark in marks for length in range(1, len(mark)))
