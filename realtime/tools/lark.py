"""A grammar in llguidance's Lark, put together: rules and terminals by the names that they are given here.

What is said twice is one rule. A delimiter that is a single token is written by its id, since no text that
spells it alike is one. It knows no format and no tool.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from realtime.tools.delimiters import Delimiters

ANY, TEXT = "ANY", "TEXT"  # any text, and such as is not empty: no special token is text
# As a template's `tojson` spells it, by which the model is shown its own call again.
SPELT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_MARKS = re.compile("([\ud800-\udfff])")


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
        parts = _MARKS.split(self._delimiters.mark(text))
        return " ".join(self._mark(part) if _MARKS.match(part) else quoted(part) for part in parts if part)

    def begins_with_token(self, text: str) -> bool:
        return bool(_MARKS.match(self._delimiters.mark(text)))

    def until(self, end: str, body: str = ANY, *, empty: bool = True) -> str:
        """A text, and then what ends it, which stands nowhere in it. `empty`: whether it may be."""
        if self.begins_with_token(end):
            text = TEXT if body == ANY else self.terminal(f"{body} & {TEXT}")
            return f"{text}{'?' if empty else ''} {self.written(end)}"
        return self.terminal(f"({body} & ~({ANY} {quoted(end)} {ANY})) {quoted(end)}")

    def up_to(self, end: str, body: str = ANY) -> str:
        """As `until`, where the text may go on without that end, too: it ends as soon as it can."""
        if self.begins_with_token(end):
            return self.until(end, body)
        terminal = self.terminal(f"{body} {quoted(end)}")
        name = f"lazy_{terminal.lower()}"
        self._lines[name] = f"{name}[lazy]: {terminal}"
        return name

    def json(self, schema: dict[str, Any]) -> str:
        return self.rule(f"%json {msgspec.json.encode(schema | {'x-guidance': SPELT}).decode()}")

    def _mark(self, mark: str) -> str:
        return f"<[{self._delimiters.tokens[mark]}]>"


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def one_of(alternatives: list[str]) -> str:
    return f"({' | '.join(dict.fromkeys(alternatives))})"
