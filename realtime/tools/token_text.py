"""The text of tokens: their bytes, as characters once they are whole, without the spaces that a decoder takes
off the beginning."""

from __future__ import annotations

import copy
from codecs import utf_8_decode


class TokenText:
    def __init__(self, leading_spaces: int) -> None:
        self._partial = b""  # the beginning of a character
        self._leading_spaces = leading_spaces

    def copy(self) -> TokenText:
        return copy.copy(self)

    @property
    def within_character(self) -> bool:
        return bool(self._partial)

    def add(self, data: bytes | bytearray, *, ends: bool = False) -> str:
        """What is whole with these. `ends`: what is left of a character never becomes one."""
        data = self._partial + data
        text, used = utf_8_decode(data, "replace", ends)
        self._partial = data[used:]
        while self._leading_spaces and text:
            if text[0] != " ":
                self._leading_spaces = 0
                break
            text = text[1:]
            self._leading_spaces -= 1
        return text
