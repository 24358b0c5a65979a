"""A call whose arguments stand each between tags of its own, as text: what it is of JSON's kinds the tool's
schema says. Texts are told as they come, everything else once it is whole."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Collection, Mapping

from realtime.tools.call_reader import LONGEST_NAME, LONGEST_VALUE, Step
from realtime.tools.delimiters import Delimiters
from realtime.tools.formats import Tags
from realtime.tools.json_scanner import BLANKS, end_of


class TaggedCall:
    """`other_kinds`: of each tool the arguments that are no text. `opened`: whether the tag before the name
    has been read."""

    def __init__(
        self,
        tags: Tags,
        delimiters: Delimiters,
        other_kinds: Mapping[str, Collection[str]],
        *,
        opened: bool,
    ) -> None:
        self.name: str | None = None
        self.told = ""
        self._delimiters = delimiters
        mark = delimiters.mark
        self._name_open = mark(tags.name_open)
        self._name_ends = {mark(end): end for end in tags.name_ends}
        self._key_open = mark(tags.key_open)
        # Of each end of a key whether a text follows: None where the schema says.
        self._key_ends = {mark(tags.key_end): True if tags.other_key_end else None}
        if tags.other_key_end:
            self._key_ends[mark(tags.other_key_end)] = False
        self._value_open, self._value_end = mark(tags.value_open), mark(tags.value_end)
        self._call_end = mark(tags.call_end)
        newline, alone = ("\n?", "|\n\\Z") if tags.newlines else ("", "")
        self._may_end = re.compile(newline + _whole_or_begun(self._value_end) + alone)
        self._newlines = tags.newlines
        self._other_kinds = other_kinds
        self._phase = "name" if opened or not tags.name_open else "open"
        self._read = ""  # that is not made anything of yet
        self._key = ""
        self._arguments = 0
        self._begun = False  # whether the value's first character was read
        self._is_text = True
        self._value = ""  # where it is no text

    @property
    def in_arguments(self) -> int | None:
        """A name may end where the first argument, or the call's end, begins."""
        if self.name is None:
            return None
        begun = {"key": self._key_open, "end": self._call_end}
        return len(begun.get(self._phase, ""))

    def take_plain(self, text: str, at: int) -> int:
        if self._phase == "between" and not self._read:
            return end_of(BLANKS, text, at, len(text))
        if self._phase != "value" or not self._begun:
            return at
        while self._read:
            may_end = self._may_end.match(self._read + text[at : at + len(self._value_end)])
            if may_end or self._short_until(text, at) < at:
                return at
            self._take(self._read[0])
            self._read = self._read[1:]
        found = self._may_end.search(text, at)
        end = found.start() if found else len(text)
        end = max(at, min(end, self._short_until(text, at)))
        self._take(text[at:end])
        return end

    def _short_until(self, text: str, at: int) -> int:
        """How far the value is surely not too long, if it goes on there: behind that it breaks off as soon as
        what looked like its end is known to be none, and that is found one by one."""
        if self._is_text:
            return len(text)
        return at + LONGEST_VALUE - len(self._value) - len(self._value_end) - self._newlines

    def copy(self) -> TaggedCall:
        return copy.copy(self)

    def step(self, char: str) -> Step:
        self._read += char
        match self._phase:
            case "open":
                return self._await({self._name_open: "name"})
            case "name":
                return self._read_name()
            case "between":
                return self._await({self._key_open: "key", self._call_end: "end"})
            case "key":
                return self._read_key()
            case "value open":
                return self._await({self._value_open: "value"})
        return self._read_value()

    def _await(self, phases: Mapping[str, str]) -> Step:
        """One of these tags, behind blanks."""
        read = self._read = self._read.lstrip()
        if read in phases:
            return self._enter(phases[read])
        return Step.MORE if any(tag.startswith(read) for tag in phases) else Step.BROKEN

    def _enter(self, phase: str) -> Step:
        self._phase, self._read = phase, ""
        if phase == "value":
            self._begin_value()
        if phase != "end":
            return Step.MORE
        self.told += "}" if self._arguments else "{}"
        return Step.WHOLE

    def _read_name(self) -> Step:
        end = next((end for end in self._name_ends if self._read.endswith(end)), None)
        if end is None:
            return Step.MORE if len(self._read) < LONGEST_NAME else Step.BROKEN
        name = self._delimiters.spelt(self._read[: -len(end)]).strip()
        if not name:
            self._read = ""  # blanks before it say nothing, however many they are
            return Step.MORE if end == "\n" else Step.BROKEN
        self.name = name
        return self._enter("key" if end == self._key_open else "end" if end == self._call_end else "between")

    def _read_key(self) -> Step:
        end = next((end for end in self._key_ends if self._read.endswith(end)), None)
        if end is None:
            return Step.MORE if len(self._read) < LONGEST_NAME else Step.BROKEN
        self._key = self._delimiters.spelt(self._read[: -len(end)]).strip()
        is_text = self._key_ends[end]
        others = self._other_kinds.get(self.name or "", ())
        self._is_text = self._key not in others if is_text is None else is_text
        return self._enter("value open" if self._value_open else "value")

    # -- values ----------------------------------------------------------------------------------

    def _begin_value(self) -> None:
        self._begun = False
        self.told += f"{', ' if self._arguments else '{'}{json.dumps(self._key, ensure_ascii=False)}: "
        self.told += '"' if self._is_text else ""
        self._arguments += 1

    def _read_value(self) -> Step:
        if not self._begun:
            self._begun = True
            if self._newlines and self._read == "\n":
                self._read = ""
                return Step.MORE
        while self._read:
            follows = self._behind_end(self._read)
            if follows == self._key_open:
                self._end_value()
                return self._enter("key")
            if follows == self._call_end:
                self._end_value()
                return self._enter("end")
            if follows is not None:
                return Step.MORE
            self._take(self._read[0])
            self._read = self._read[1:]
        return Step.MORE if len(self._value) <= LONGEST_VALUE else Step.BROKEN

    def _behind_end(self, read: str) -> str | None:
        """What follows the value's end, if this is the end: a tag, or so far nothing whole. None if it is
        text, as what so many blanks follow is."""
        if self._newlines and read.startswith("\n"):
            read = read[1:]
        if len(read) < len(self._value_end):
            return "" if self._value_end.startswith(read) else None
        if not read.startswith(self._value_end):
            return None
        if len(read) > LONGEST_NAME:
            return None
        behind = read[len(self._value_end) :].lstrip()
        if behind in (self._key_open, self._call_end):
            return behind
        return "" if self._key_open.startswith(behind) or self._call_end.startswith(behind) else None

    def _take(self, text: str) -> None:
        if self._is_text:
            self.told += json.dumps(self._delimiters.spelt(text), ensure_ascii=False)[1:-1]
        else:
            self._value += text

    def _end_value(self) -> None:
        if self._is_text:
            self.told += '"'
            return
        value = self._delimiters.spelt(self._value)
        try:
            json.loads(value, parse_constant=_refuse)
            self.told += value.strip()
        except (ValueError, RecursionError):
            self.told += json.dumps(value, ensure_ascii=False)
        self._value = ""


def _whole_or_begun(tag: str) -> str:
    """A pattern: all of a tag, or of the end of a text as much as it has of one."""
    pattern = ""
    for char in reversed(tag):
        pattern = re.escape(char) + (f"(?:{pattern}|\\Z)" if pattern else "")
    return pattern


def _refuse(constant: str) -> None:
    raise ValueError(constant)
