"""A call as Python writes it, `name(key=value, …)`: each argument is told as JSON once it is whole."""

from __future__ import annotations

import ast
import copy
import json
import re
import warnings
from typing import Any

from realtime.tools.call_reader import LONGEST_NAME, LONGEST_VALUE, Step
from realtime.tools.delimiters import Delimiters
from realtime.tools.json_scanner import BLANKS, SPACE, end_of

LONGEST_LITERAL = (
    2048  # characters of what is no JSON, but for a string by itself: Python reads it for some ms
)
MOST_STEPS = 4096  # that are taken one by one through what stands: some 10 ms
# What stands in a string, by its quote, with escapes that are whole; in brackets; and in neither.
_IN_STRINGS = {quote: re.compile(rf"(?:[^{quote}\\]|\\.)*+", re.DOTALL) for quote in "\"'"}
_IN_BRACKETS, _IN_NONE = re.compile(r"""[^"'()\[\]{}]*"""), re.compile(r"""[^"'()\[\]{},]*""")
_STRING = re.compile(r"""(["'])(?:\\.|(?!\1)[^\\])*+\1""", re.DOTALL)


class PythonicCall:
    def __init__(self, delimiters: Delimiters) -> None:
        self.name: str | None = None
        self.told = ""
        self._delimiters = delimiters
        self._phase = "name"
        self._read = ""
        self._key: str | None = None
        self._arguments = 0
        self._depth = 0
        self._quote = ""
        self._escaped = False

    @property
    def in_arguments(self) -> int | None:
        return None if self.name is None else 0

    def take_plain(self, text: str, at: int) -> int:
        if self._phase == "key" and not self._read:
            return end_of(BLANKS, text, at, len(text))
        if self._phase != "value" or self._escaped:
            return at
        plain = _IN_STRINGS[self._quote] if self._quote else _IN_BRACKETS if self._depth else _IN_NONE
        end = end_of(plain, text, at, at + LONGEST_VALUE - len(self._read))
        self._read += text[at:end]
        return end

    def copy(self) -> PythonicCall:
        return copy.copy(self)

    def step(self, char: str) -> Step:
        match self._phase:
            case "name":
                return self._read_name(char)
            case "value" if not self._ends_value(char):
                self._read += char
                return Step.MORE if len(self._read) <= LONGEST_VALUE else Step.BROKEN
            case "value":
                return self._end_argument(char)
        return self._read_key(char)

    def _read_name(self, char: str) -> Step:
        if char == "(" and self._read:
            self.name, self._read, self._phase = self._read, "", "key"
            return Step.MORE
        self._read += char
        fits = is_of_name(char) and len(self._read) < LONGEST_NAME
        return Step.MORE if fits else Step.BROKEN

    def _read_key(self, char: str) -> Step:
        if char in SPACE:
            return Step.MORE
        if char == ")" and not self._read:
            return self._close()
        if char == "=" and self._read.isidentifier():
            self._key, self._read, self._phase = self._read, "", "value"
            return Step.MORE
        self._read += char
        return Step.MORE if self._read.isidentifier() and len(self._read) < LONGEST_NAME else Step.BROKEN

    def _ends_value(self, char: str) -> bool:
        if self._quote:
            if self._escaped:
                self._escaped = False
            elif char == "\\":
                self._escaped = True
            elif char == self._quote:
                self._quote = ""
        elif char in "'\"":
            self._quote = char
        elif char in "([{":
            self._depth += 1
        elif self._depth and char in ")]}":
            self._depth -= 1
        else:
            return not self._depth and char in ",)"
        return False

    def _end_argument(self, char: str) -> Step:
        try:
            value = json.dumps(
                _value(self._delimiters.spelt(self._read.strip())), ensure_ascii=False, allow_nan=False
            )
            value.encode()  # an escape may have made half a character of it
        except (ValueError, TypeError):
            return Step.BROKEN
        self.told += f"{', ' if self._arguments else '{'}{json.dumps(self._key)}: {value}"
        self._arguments += 1
        self._read, self._phase = "", "key"
        return self._close() if char == ")" else Step.MORE

    def _close(self) -> Step:
        self.told += "}" if self._arguments else "{}"
        return Step.WHOLE


def values_of(written: str, delimiters: Delimiters) -> dict[str, tuple[str, Any]]:
    """How each argument that is whole is written, and what that says, behind the bracket of a call; of very
    many the first alone."""
    call, values = PythonicCall(delimiters), dict[str, tuple[str, Any]]()
    text, at, steps = f"f({written}", 0, 0
    while (at := call.take_plain(text, at)) < len(text) and (steps := steps + 1) <= MOST_STEPS:
        key, spelt, arguments = call._key, call._read, call._arguments
        step = call.step(text[at])
        at += 1
        if call._arguments > arguments and key is not None:
            _, _, told = call.told.partition(": ")
            values[key] = spelt, json.loads(told[:-1] if step is Step.WHOLE else told)
            call.told = ""
        if step is not Step.MORE:
            break
    return values


def is_of_name(char: str) -> bool:
    """Whether it may stand in a tool's name."""
    return char.isalnum() or char in "_.-"


def _value(spelt: str) -> Any:
    """As JSON has it, or Python."""
    try:
        return json.loads(spelt)
    except (ValueError, RecursionError):
        pass
    if len(spelt) > LONGEST_LITERAL and not _STRING.fullmatch(spelt):
        raise ValueError("too long a literal")
    try:
        with warnings.catch_warnings():  # of escapes, which would be logged
            warnings.simplefilter("ignore")
            return ast.literal_eval(spelt)
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError("no literal") from None
