"""JSON that comes in pieces, of which no token is given out in parts: a string, a number and a word are held
until they are whole. It may turn out to be no JSON all the same."""

from __future__ import annotations

import re

_STRINGS = re.compile(r'(?:[^"]++|"(?:[^"\\]++|\\.)*+")*+', re.DOTALL)  # as far as those are whole
_WORDS = "+-.0123456789_abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def whole_length(text: str) -> int:
    """How many of its characters are tokens that are whole, whatever follows."""
    found = _STRINGS.match(text)
    assert found is not None, "it may be empty"
    return len(text.rstrip(_WORDS)) if found.end() == len(text) else found.end()


class WholeTokens:
    """What is told is `whole_length` of all that it was shown, without looking at that again."""

    def __init__(self, begun: str = "") -> None:
        """`begun`: what it was shown before."""
        self._within = ""  # a text within the like of which the next piece begins
        self._held: list[str] = []
        self.take(begun)

    @property
    def held(self) -> int:
        """How many characters are not told."""
        return sum(map(len, self._held))

    def take(self, text: str) -> str:
        """What is whole with this piece."""
        known = self._within + text
        end = whole_length(known)
        rest, before = known[end:], len(self._within)
        self._within = ""
        if rest.startswith('"'):
            escapes = (len(rest) - len(rest.rstrip("\\"))) % 2
            self._within = '"' + "\\" * escapes
        begins_string = not before and rest.startswith('"')  # what was held ends before that
        if not end and not begins_string:
            self._held.append(text)
            return ""
        said = "".join(self._held) + text[: end - before]
        self._held = [rest]
        return said

    def take_rest(self) -> str:
        """What was held, since nothing follows."""
        rest, self._held, self._within = "".join(self._held), [], ""
        return rest
