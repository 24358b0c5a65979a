"""A call whose arguments are almost JSON, `call:name{key:value}`: keys stand bare, and strings between
delimiters of the model's own. They are told as JSON, character for character."""

from __future__ import annotations

import copy
import json
import re

from realtime.tools.call_reader import LONGEST_NAME, Step
from realtime.tools.delimiters import Delimiters
from realtime.tools.json_scanner import SPACE

MOST_NESTED = 64
_PREFIX = "call:"
# What ends and begins nothing; a comma in an object has a key follow.
_IN_OBJECTS = re.compile(f"[A-Za-z0-9:+\\-._{SPACE}]*")
_IN_LISTS = re.compile(f"[A-Za-z0-9:+\\-._,{SPACE}]*")


class BracedCall:
    def __init__(self, quote: str, delimiters: Delimiters) -> None:
        self.name: str | None = None
        self.told = ""
        self._delimiters = delimiters
        self._quote = delimiters.mark(quote)
        self._read = ""  # of the name
        self._held = ""  # that may become a quote
        self._open = ""  # brackets
        self._in_string = self._in_key = self._key_due = False

    @property
    def in_arguments(self) -> int | None:
        return None if self.name is None else 1

    def take_plain(self, text: str, at: int) -> int:
        if self._held or self._in_key or self._key_due:
            return at
        if not self._in_string:
            within = (_IN_LISTS if self._open.endswith("[") else _IN_OBJECTS).match(text, at)
            assert within is not None, "it may be empty"
            self.told += within[0]
            return within.end()
        end = text.find(self._quote[0], at)
        end = len(text) if end < 0 else end
        self._take(text[at:end])
        return end

    def copy(self) -> BracedCall:
        return copy.copy(self)

    def step(self, char: str) -> Step:
        if self.name is None:
            return self._read_name(char)
        self._held += char
        if self._held == self._quote:
            self._held = ""
            return self._toggle()
        while self._held and not self._quote.startswith(self._held):
            first, self._held = self._held[0], self._held[1:]
            step = self._take(first)
            if step is not Step.MORE:
                return step
        return Step.MORE

    def _read_name(self, char: str) -> Step:
        if char != "{":
            self._read += char
            fits = _PREFIX.startswith(self._read) or self._read.startswith(_PREFIX)
            return Step.MORE if fits and len(self._read) < LONGEST_NAME else Step.BROKEN
        name = self._read.removeprefix(_PREFIX).strip()
        if not name:
            return Step.BROKEN
        self.name = name
        return self._take(char)

    def _toggle(self) -> Step:
        if self._in_key:
            return Step.BROKEN
        self._in_string = not self._in_string
        self.told += '"'
        if self._key_due and not self._in_string:
            self._key_due = False
        return Step.MORE

    def _take(self, char: str) -> Step:
        """A character, or all that stands within a string."""
        if self._in_string:
            self.told += json.dumps(self._delimiters.spelt(char), ensure_ascii=False)[1:-1]
        elif self._in_key:
            self._in_key = char != ":"
            self.told += json.dumps(char, ensure_ascii=False)[1:-1] if self._in_key else '":'
        elif self._key_due and char in SPACE:
            self.told += char
        elif self._key_due and char != "}":
            self._key_due, self._in_key = False, True
            self.told += '"' + json.dumps(char, ensure_ascii=False)[1:-1]
        elif char in "{[":
            self._open += char
            self.told += char
            self._key_due = char == "{"
            if len(self._open) > MOST_NESTED:
                return Step.BROKEN
        elif char in "}]":
            self._open = self._open[:-1]
            self.told += char
            self._key_due = False
            return Step.MORE if self._open else Step.WHOLE
        elif char.isascii() and (char.isalnum() or char in SPACE or char in ",:+-._"):
            self._key_due = char == "," and self._open.endswith("{")
            self.told += char
        else:
            return Step.BROKEN
        return Step.MORE
