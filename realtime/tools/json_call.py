"""A call as one JSON object: its name under one key, its arguments under another, in either order."""

from __future__ import annotations

import copy
import json

from realtime.tools.call_reader import LONGEST_NAME, LONGEST_UNTOLD, LONGEST_VALUE, Step
from realtime.tools.delimiters import Delimiters
from realtime.tools.json_scanner import SPACE, JsonScanner

NAMES = frozenset({"name", "tool_name"})
ARGUMENTS = frozenset({"arguments", "parameters"})
BESIDE = frozenset({"id", "type", "tool_call_id", "function"})


class JsonCall:
    """Arguments are told as they come, character for character; where they are JSON within a string, all at
    once. Until the name is known they wait."""

    def __init__(self, delimiters: Delimiters) -> None:
        self.name: str | None = None
        self.told = ""
        self._delimiters = delimiters
        self._phase = "begin"
        self._depth = 0  # of objects around the name
        self._key = ""
        self._value = ""
        self._quoted = False  # whether the arguments are a string
        self._scanner = JsonScanner()
        self._has_arguments = False

    @property
    def in_arguments(self) -> int | None:
        return 1 if self._has_arguments else None

    @property
    def quoted(self) -> bool:
        """Whether its arguments are text within a string."""
        return self._quoted

    def take_plain(self, text: str, at: int) -> int:
        if self._phase != "value" or self._key not in ARGUMENTS or self._quoted:
            return at
        end = self._scanner.pass_plain(text, at)
        self.told += text[at:end]
        return end

    def copy(self) -> JsonCall:
        again = copy.copy(self)
        again._scanner = copy.copy(self._scanner)
        return again

    def step(self, char: str) -> Step:
        if self._phase == "key name":
            return self._read_key(char)
        if self._phase == "value":
            return self._read_value(char)
        return Step.MORE if char in SPACE else self._read_structure(char)

    def _read_structure(self, char: str) -> Step:
        """Around keys and values."""
        match self._phase, char:
            case "begin", "{":
                self._depth, self._phase = 1, "key"
            case "key", '"':
                self._start("key name")
                return self._read_key(char)
            case (("key" | "after"), "}"):
                return self._close()
            case "after", ",":
                self._phase = "key"
            case "colon", ":":
                self._phase = "before value"
            case "before value", "{" if self._key == "function":
                self._depth, self._phase = self._depth + 1, "key"
            case "before value", _:
                return self._begin_value(char)
            case _:
                return Step.BROKEN
        return Step.MORE

    def _start(self, phase: str) -> None:
        self._phase, self._value, self._scanner = phase, "", JsonScanner()

    def _read_key(self, char: str) -> Step:
        self._value += char
        if not self._scanner.ends_with(char):
            return Step.MORE if len(self._value) < LONGEST_NAME else Step.BROKEN
        self._key, self._phase = self._value[1:-1], "colon"
        fits = self.name is not None or self._key in NAMES | ARGUMENTS | BESIDE
        return Step.MORE if fits else Step.BROKEN

    def _begin_value(self, char: str) -> Step:
        if char in ",:}]" or (self._key in ARGUMENTS and self._has_arguments):
            return Step.BROKEN
        if self._key in ARGUMENTS:
            self._has_arguments, self._quoted = True, char == '"'
        self._start("value")
        return self._read_value(char)

    def _read_value(self, char: str) -> Step:
        if self._value and self._scanner.ends_before(char):
            self._end_value()
            return self.step(char)
        if not self._scanner.takes(char):
            return Step.BROKEN
        ended = self._scanner.ends_with(char)
        streamed = self._key in ARGUMENTS and not self._quoted
        if streamed:
            self.told += char
            self._value = char
        else:
            self._value += char
        if ended:
            return self._end_value()
        if streamed:
            fits = self.name is not None or len(self.told) < LONGEST_UNTOLD
        else:
            fits = len(self._value) < (LONGEST_VALUE if self._key in ARGUMENTS else LONGEST_NAME)
        return Step.MORE if fits else Step.BROKEN

    def _end_value(self) -> Step:
        self._phase = "after"
        if self._key in NAMES or (self._key in ARGUMENTS and self._quoted):
            text = _string(self._delimiters.spelt(self._value))
            if text is None:
                return Step.BROKEN
            if self._key in ARGUMENTS:
                self.told += text
            elif self.name is None:
                self.name = text
        return Step.MORE

    def _close(self) -> Step:
        self._depth, self._phase = self._depth - 1, "after"
        if self._depth:
            return Step.MORE
        if not self.name:
            return Step.BROKEN
        if not self._has_arguments:
            self.told += "{}"
        return Step.WHOLE


def _string(spelt: str) -> str | None:
    try:
        value = json.loads(spelt)
        value.encode()  # an escape may have made half a character of it
    except (AttributeError, ValueError):
        return None
    return str(value)
