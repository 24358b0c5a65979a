"""Guards of every kind that text and length can set off, and what the toy says does."""

from __future__ import annotations

from midstream.protocol import Budget, Guard

OF_TEXT = [
    Guard(name="one", do="rewind", regex="th"),
    Guard(name="two", do="rewind", times=1, then="pause", regex=r"\b[a-m]\w*\b"),
    Guard(name="three", do="pause", regex="(?i)[r-t]"),
    Guard(name="four", do="finish", regex="o.{3,}o"),
    Guard(name="five", do="tell", regex=" "),
    Guard(name="six", do="pause", budget=Budget(tokens=5)),
    Guard(name="seven", do="rewind", times=16, regex="[aeiou]$"),
]
