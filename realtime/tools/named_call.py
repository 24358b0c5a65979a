"""A call whose name stands in a header, and whose arguments are a JSON object behind it."""

from __future__ import annotations

import copy
import re

from realtime.tools.call_reader import LONGEST_NAME, Step
from realtime.tools.delimiters import Delimiters
from realtime.tools.formats import Header
from realtime.tools.json_scanner import JsonScanner


class NamedCall:
    def __init__(self, header: Header, delimiters: Delimiters) -> None:
        self.name: str | None = None
        self.told = ""
        self._header = header
        self._delimiters = delimiters
        self._ends = tuple(map(delimiters.mark, header.ends))
        self._read = ""  # of the header, or between it and the arguments
        self._scanner: JsonScanner | None = None  # of the arguments, once they have begun

    @property
    def in_arguments(self) -> int | None:
        return None if self._scanner is None else 1

    def take_plain(self, text: str, at: int) -> int:
        if self._scanner is None:
            return at
        end = self._scanner.pass_plain(text, at)
        self.told += text[at:end]
        return end

    def copy(self) -> NamedCall:
        again = copy.copy(self)
        again._scanner = copy.copy(self._scanner)
        return again

    def step(self, char: str) -> Step:
        if self._scanner is not None:
            return self._read_arguments(self._scanner, char)
        self._read += char
        if len(self._read) > LONGEST_NAME:
            return Step.BROKEN
        if self.name is None:
            end = next((end for end in self._ends if self._read.endswith(end)), None)
            found = Step.MORE if end is None else self._end_header(self._read[: -len(end)])
            if found is not Step.MORE:
                return found
        if char == "{":
            if self.name is None:
                return Step.BROKEN
            self._scanner = JsonScanner()
            return self._read_arguments(self._scanner, char)
        return Step.MORE

    def _end_header(self, read: str) -> Step:
        header = self._delimiters.spelt(read).strip()
        if len(header) > LONGEST_NAME:  # many delimiters that are one token each
            return Step.BROKEN
        named = re.search(self._header.name, header)
        if named is not None:
            self.name, self._read = named[1], ""
        elif self._header.reasoning is not None and re.search(self._header.reasoning, header):
            return Step.REASONING
        elif self._header.content is not None:
            return Step.CONTENT
        return Step.MORE

    def _read_arguments(self, scanner: JsonScanner, char: str) -> Step:
        if not scanner.takes(char):
            return Step.BROKEN
        self.told += char
        return Step.WHOLE if scanner.ends_with(char) else Step.MORE
