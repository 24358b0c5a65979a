"""JSON paths, and the reading of arguments by them: which values of a JSON text that is being written stand
at a path, and what each says.

A path is `$`, and behind it `.name`, `["name"]`, `[0]` or `[*]`, which is any member or element. What a value
says is a string's text, without escapes, or else its JSON. The reader is told the text piece by piece, and
its state is a few small values. What it reads may turn out to be no JSON: then it says what it can.
"""

from __future__ import annotations

import copy
import json
import re
from typing import Literal, NamedTuple

LONGEST_PATH = 256
LONGEST_ESCAPE = 12  # the two halves of a pair
_STEP = re.compile(r"""\.([^\W\d]\w*)|\[(\d{1,9})\]|\[(\*)\]|\.(\*)|\[("(?:[^"\\]|\\.)*")\]""")
_BEHIND_WORDS = ",:]} \t\r\n"
_HIGH_HALVES = ("d8", "d9", "da", "db")
_LOW_HALVES = ("dc", "dd", "de", "df")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
ANY = None
Step = str | int | None  # a name, a number, or any
Path = tuple[Step, ...]


class PathError(ValueError):
    """What is wrong with a path, to go behind its name in a sentence."""


def parsed(path: str) -> Path:
    if len(path) > LONGEST_PATH:
        raise PathError(f"has {len(path)} characters; it may have {LONGEST_PATH}")
    if not path.startswith("$"):
        raise PathError("does not begin with `$`")
    steps, at = list[Step](), 1
    while at < len(path):
        found = _STEP.match(path, at)
        if found is None:
            raise PathError(f'cannot be read from "{path[at : at + 20]}" on')
        steps.append(_step(*found.groups()))
        at = found.end()
    return tuple(steps)


def _step(name: str | None, number: str | None, *others: str | None) -> Step:
    if name is not None:
        return name
    if number is not None:
        return int(number)
    quoted = others[-1]
    if quoted is None:
        return ANY
    try:
        return str(json.loads(quoted))
    except ValueError:
        raise PathError(f"has {quoted}, which is no string of JSON") from None


class Said(NamedTuple):
    """What a character adds to the value at the path, and whether that begins with it, or has ended."""

    text: str = ""
    begins: bool = False
    ends: bool = False


NOTHING = Said()


class ValueReader:
    """Of one JSON text. What stands within a value that is an object or a list is told as it is written."""

    __slots__ = ("_escape", "_expects_key", "_key", "_mode", "_open", "_path", "_stack", "_within")

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open = 0  # containers
        self._stack: tuple[Step, ...] = ()  # of each of them, as deep as the path goes, where in it this is
        self._expects_key = False
        self._mode: Literal["between", "key", "string", "word"] = "between"
        self._key = ""  # that is being read
        self._escape = ""  # that is being read
        self._within = False  # the value at the path

    def copy(self) -> ValueReader:
        return copy.copy(self)

    @property
    def open(self) -> int:
        """How many containers are."""
        return self._open

    def read(self, char: str) -> Said:
        if self._mode in ("key", "string"):
            return self._read_string(char)
        ended = False
        if self._mode == "word" and char in _BEHIND_WORDS:
            self._mode, ended = "between", self._end()
        said = self._read_between(char)
        return said._replace(ends=True) if ended else said

    # -- strings ---------------------------------------------------------------------------------

    def _read_string(self, char: str) -> Said:
        if len(self._escape) in (6, 7) and char != "\\u"[len(self._escape) - 6]:
            self._escape = self._escape[6:]  # half a pair that stands alone stands for nothing
        if self._escape:
            return self._say(char, self._read_escape(char))
        if char == "\\":
            self._escape = char
            return self._say(char, "")
        if char != '"':
            return self._say(char, char)
        mode, self._mode = self._mode, "between"
        if mode == "key":
            self._stack = (*self._stack[:-1], self._key)
            self._expects_key = False
        elif self._end():
            return Said(ends=True)
        return self._raw(char)

    def _say(self, char: str, text: str) -> Said:
        """A character of a string, which makes it longer by this text."""
        if self._mode == "key" and len(self._key) <= LONGEST_PATH:  # a path names none that is longer
            self._key += text
        whole = self._mode == "string" and self._within and self._open == len(self._path)
        return Said(text) if whole else self._raw(char)

    def _read_escape(self, char: str) -> str:
        """What it stands for, once it is whole."""
        self._escape += char
        if self._escape[1] != "u":
            escape, self._escape = self._escape, ""
            return _ESCAPES.get(escape[1], escape[1])
        if len(self._escape) == 12 and self._escape[8:10].lower() not in _LOW_HALVES:
            self._escape = self._escape[6:]  # the one before stands alone
        if len(self._escape) == 6 and self._escape[2:4].lower() in _HIGH_HALVES:
            return ""  # the other is to come
        if len(self._escape) not in (6, 12):
            return ""
        escape, self._escape = self._escape, ""
        return _decoded(escape)

    # -- between strings -------------------------------------------------------------------------

    def _read_between(self, char: str) -> Said:
        match char:
            case '"' if self._expects_key:
                self._mode, self._key = "key", ""
            case '"':
                begins = self._begin()
                self._mode = "string"
                return Said(begins=True) if begins else self._raw(char)
            case "{" | "[":
                begins = self._begin()
                self._enter(char)
                return self._raw(char, begins=begins)
            case "}" | "]":
                said = self._raw(char)
                self._open, self._expects_key = max(0, self._open - 1), False
                self._stack = self._stack[: self._open]
                return said._replace(ends=True) if self._end() else said
            case "," if self._stack and self._open == len(self._stack):
                last = self._stack[-1]
                if isinstance(last, int):
                    self._stack = (*self._stack[:-1], last + 1)
                else:
                    self._expects_key = True
            case _ if char not in _BEHIND_WORDS and self._mode == "between":
                begins = self._begin()
                self._mode = "word"
                return self._raw(char, begins=begins)
        return self._raw(char)

    def _raw(self, char: str, *, begins: bool = False) -> Said:
        return Said(char, begins) if self._within else NOTHING

    def _enter(self, char: str) -> None:
        self._expects_key = char == "{" and self._open < len(self._path)
        if self._open < len(self._path):
            self._stack = (*self._stack, 0 if char == "[" else "")
        self._open += 1

    def _begin(self) -> bool:
        """Whether the value that begins here is the one at the path."""
        if self._within or self._open != len(self._path):
            return False
        steps = zip(self._path, self._stack, strict=True)
        self._within = all(want is ANY or want == here for want, here in steps)
        return self._within

    def _end(self) -> bool:
        """Whether the value that ends here is that one."""
        ended = self._within and self._open == len(self._path)
        self._within = self._within and not ended
        return ended


def decoded(text: str, begin: int, until: int, most: int) -> tuple[str, list[int]]:
    """What the string says that begins at `begin`, as far as before `until`, and where each of its characters
    begins; of so many characters of the text."""
    first = max(begin + 1, until - most)
    at = max(begin + 1, first - LONGEST_ESCAPE)  # be it within one: it is read to its end before the first
    written = text[begin + 1 : at]
    at -= (len(written) - len(written.rstrip("\\"))) % 2
    reader, said, places = ValueReader(()), list[str](), list[int]()
    reader.read('"')
    for place in range(at, until):
        more = reader.read(text[place]).text
        if at >= first:
            places += [at] * len(more)
            said.append(more)
        at = place + 1 if more else at
    return "".join(said), places


def _decoded(escape: str) -> str:
    """Of one escape, or of the two halves of a pair; of a half that stands alone, nothing."""
    try:
        return bytes.fromhex(escape.replace("\\u", "")).decode("utf-16-be", "ignore")
    except ValueError:
        return ""
