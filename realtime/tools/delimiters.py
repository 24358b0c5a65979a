"""The delimiters of a model's formats among its tokens.

One that is a single token is known by its id, and no text that spells it alike is taken for it: it goes
through the readers as one character that no text can contain. The others are spelt, and found in the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

_FIRST = 0xD800  # surrogates stand in no text that was decoded
_PARTS = re.compile("([\ud800-\udfff])")
_ANY = re.compile("[\ud800-\udfff]")
_ESCAPE = 6  # characters of one in JSON


class Delimiters:
    """`added`: the tokens that a tokenizer has beside what it was trained for, by what they spell; `special`:
    those of all tokens that are no text."""

    def __init__(self, texts: Iterable[str], added: Mapping[str, int], special: frozenset[int]) -> None:
        spelt = list(texts)
        single = [token for token in added if len(token) > 1 and any(token in text for text in spelt)]
        self._marks = {text: chr(_FIRST + at) for at, text in enumerate(single)}
        self._single = re.compile("|".join(map(re.escape, sorted(single, key=len, reverse=True))) or r"(?!)")
        self.by_token = {added[text]: mark for text, mark in self._marks.items()}
        self.tokens = {mark: token for token, mark in self.by_token.items()}
        self._spelt = {ord(mark): text for text, mark in self._marks.items()}
        # How many characters one may come to as it is read, in a string of JSON too.
        self.widest = max([_ESCAPE, *(2 * len(text) for text in single)])
        self._shown = {
            ord(mark): "" if added[text] in special else text for text, mark in self._marks.items()
        }

    def mark(self, text: str) -> str:
        """A delimiter as readers meet it: of tokens, text, or both."""
        return self._single.sub(lambda match: self._marks[match[0]], text)

    def parts(self, marked: str) -> list[str | int]:
        """The texts of it, and between them the tokens."""
        return [self.tokens.get(part, part) for part in _PARTS.split(marked) if part]

    def spelt(self, text: str) -> str:
        """With each delimiter as the model spells it: within a string it is text."""
        return text.translate(self._spelt) if _ANY.search(text) else text

    def shown(self, text: str) -> str:
        """As any text is shown: without special tokens."""
        return text.translate(self._shown) if _ANY.search(text) else text
