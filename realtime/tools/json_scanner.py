"""The JSON scanner: one character at a time, where a value ends. It knows strings, escapes and brackets, and
which characters stand outside of strings; what it lets through may be no JSON all the same."""

from __future__ import annotations

import re

SPACE = " \t\r\n"
BLANKS = re.compile(f"[{SPACE}]*")
_OUTSIDE_STRINGS = frozenset('{}[],:"+-.0123456789Eetrufalsn' + SPACE)
_IN_STRING = re.compile(r'(?:[^"\\]|\\.)*+', re.DOTALL)  # escapes among it, which are whole
_WITHIN = re.compile(f"[{{\\[,:+\\-.0-9Eetrufalsn{SPACE}]*")  # in brackets, what ends nothing
_CLOSING = re.compile(r"[\]}]*")


def signs_in(text: str) -> int:
    """How many characters stand outside of strings, of which the last may be open: each may be a value. In
    JSON one at least stands between two strings."""
    parts = text.replace("\\\\", "").replace('\\"', "").split('"')
    return sum(map(len, parts[::2])) + parts[2:-1:2].count("")


class JsonScanner:
    """Of one value, whose first character is the first that it is shown."""

    __slots__ = ("depth", "escaped", "in_string")

    def __init__(self) -> None:
        self.depth = 0
        self.in_string = self.escaped = False

    def pass_plain(self, text: str, at: int) -> int:
        """In the midst of a string, or of brackets, pass what stands there from `at` on, as far as it ends
        neither. Returns how far that is."""
        if not self.in_string:
            return self._pass_within(text, at)
        return at if self.escaped else end_of(_IN_STRING, text, at, len(text))

    def _pass_within(self, text: str, at: int) -> int:
        """Brackets and what stands between them, of which a call may have thousands, a run at a time."""
        while self.depth:
            begun, at = at, end_of(_WITHIN, text, at, len(text))
            self.depth += text.count("[", begun, at) + text.count("{", begun, at)
            closed, at = at, end_of(_CLOSING, text, at, at + self.depth - 1)
            self.depth -= at - closed
            if at == begun:
                break
        return at

    def takes(self, char: str) -> bool:
        """Whether it may stand here in any JSON."""
        return self.in_string or char in _OUTSIDE_STRINGS

    def ends_with(self, char: str) -> bool:
        """Whether this character is the value's last. A number or a word has none: it ends before what
        follows."""
        if self.in_string:
            if self.escaped:
                self.escaped = False
            elif char == "\\":
                self.escaped = True
            elif char == '"':
                self.in_string = False
                return self.depth == 0
        elif char == '"':
            self.in_string = True
        elif char in "{[":
            self.depth += 1
        elif char in "}]":
            self.depth -= 1
            return self.depth <= 0
        return False

    def ends_before(self, char: str) -> bool:
        """Whether a number or a word ends before this character."""
        return self.depth == 0 and not self.in_string and (char in ",}]" or char in SPACE)


def end_of(run: re.Pattern[str], text: str, at: int, until: int) -> int:
    """Where a run ends that begins there."""
    found = run.match(text, at, until)
    assert found is not None, "it may be empty"
    return found.end()
