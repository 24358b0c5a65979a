"""A grammar in llguidance's Lark, put together: rules and terminals by the names that they are given here.

What is said twice is one rule. A delimiter that is a single token is written by its id, since no text that
spells it alike is one. It knows no format and no tool.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from realtime.tools.delimiters import Delimiters

ANY, TEXT = "ANY", "TEXT"  # any text, and such as is not empty: no special token is text
# As a template's `tojson` spells it, by which the model is shown its own call again.
SPELT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_BETWEEN_SLASHES = {"/": r"\/", "\n": r"\n", "\\\n": r"\n"}


class Lark:
    def __init__(self, delimiters: Delimiters) -> None:
        self._delimiters = delimiters
        self._lines = {ANY: "ANY: /(?s:.*)/", TEXT: "TEXT: /(?s:.+)/"}  # by name
        self._names: dict[str, str] = {}  # by what is defined

    def source(self, start: str) -> str:
        return "\n".join([f"start: {start}", *self._lines.values()])

    def rule(self, body: str) -> str:
        return self._names.get(body) or self.define(self.new_name(), body)

    def terminal(self, body: str) -> str:
        return self._names.get(body) or self.define(f"T{len(self._lines)}", body)

    def new_name(self) -> str:
        """Of a rule that is spoken of before it is defined."""
        name = f"r{len(self._lines)}"
        self._lines[name] = ""
        return name

    def define(self, name: str, body: str) -> str:
        self._lines[name] = f"{name}: {body}"
        return self._names.setdefault(body, name)

    # -- what rules are made of --------------------------------------------------------------------

    def written(self, text: str) -> str:
        """A text of a format's, delimiters and all."""
        parts = self._delimiters.parts(self._delimiters.mark(text))
        return " ".join(f"<[{part}]>" if isinstance(part, int) else quoted(part) for part in parts)

    def until(self, end: str, body: str = ANY, *, empty: bool = True, without: Sequence[str] = ()) -> str:
        """A text, and then what ends it, which stands nowhere in it, and nor do those `without` which it is.
        `empty`: whether it may be."""
        before, rest = self._split(end)
        if not rest:
            nowhere = " & ".join(f"~({ANY} {quoted(one)} {ANY})" for one in (end, *without))
            return self.terminal(f"({body} & {nowhere}) {quoted(end)}")
        if before:
            return f"{self.terminal(f'{body} {quoted(before)}')} {rest}"
        text = TEXT if body == ANY else self.terminal(f"{body} & {TEXT}")
        return f"{text}{'?' if empty else ''} {rest}"

    def up_to(self, end: str, body: str = ANY) -> str:
        """As `until`, where the text may go on without that end, too: it ends as soon as it can."""
        if self._split(end)[1]:
            return self.until(end, body)
        terminal = self.terminal(f"{body} {quoted(end)}")
        name = f"lazy_{terminal.lower()}"
        self._lines[name] = f"{name}[lazy]: {terminal}"
        return name

    def _split(self, text: str) -> tuple[str, str]:
        """Into what is text, and the rest from the first single token on: no text goes on there."""
        marked = self._delimiters.mark(text)
        before = next(iter(self._delimiters.parts(marked)))
        if isinstance(before, int):
            return "", self.written(text)
        return before, self.written(self._delimiters.spelt(marked[len(before) :]))

    def json(self, schema: dict[str, Any]) -> str:
        return self.rule(f"%json {msgspec.json.encode(schema | {'x-guidance': SPELT}).decode()}")


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def one_of(alternatives: list[str]) -> str:
    return f"({' | '.join(dict.fromkeys(alternatives))})"


def slashed(regex: str) -> str:
    """As it stands between slashes, where no line may end."""
    return re.sub(r"\\.|/|\n", lambda found: _BETWEEN_SLASHES.get(found[0], found[0]), regex, flags=re.DOTALL)
