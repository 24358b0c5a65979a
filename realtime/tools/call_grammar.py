"""The grammar of what a model may write where tools are offered: calls as its format writes them, of tools
that there are, with arguments by their schemas; and around them what the choice of tools leaves it.

It comes of the same table as the reading of calls (`span_reader.py`), which takes more spellings than this
lets a model write, and reads every one of these. It knows no stream and no client.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from realtime.tools.argument_grammar import ArgumentGrammar
from realtime.tools.formats import is_delimited
from realtime.tools.lark import ANY, TEXT, Lark, one_of
from realtime.tools.spelling import Spelling

NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
ANY_ARGUMENTS: Mapping[str, Any] = {"type": "object"}
_BLANKS = "/[ \\n]{1,4}/?"  # behind reasoning
_NUMBER = "/[0-9]{1,3}/"


class HeldTool(Struct, frozen=True):
    """`schema`: of the arguments that it can be called with."""

    name: str
    schema: Mapping[str, Any]


class CallGrammar:
    """`answer`: the rule of what the model writes if it calls nothing, empty where it must call, and None
    where that is any text. `parallel`: perhaps several. `reasons`, `headed`: where the prompt leaves the
    model. `as_text`: delimiters are spelt, for a matcher that knows no token."""

    def __init__(
        self,
        spelling: Spelling,
        tools: Sequence[HeldTool],
        *,
        answer: str | None = None,
        parallel: bool,
        reasons: bool = False,
        headed: bool = False,
        as_text: bool = False,
    ) -> None:
        self._spelling = spelling
        self._format = spelling.tools
        self._writing = spelling.tools.writing
        self._lark = Lark(spelling.delimiters_as_text if as_text else spelling.delimiters)
        self._arguments = {
            tool.name: ArgumentGrammar(self._format, self._lark, tool.schema).rule() for tool in tools
        }
        self._answer = answer
        self._parallel = parallel
        self._reasons = reasons
        self._headed = headed

    def lark(self) -> str:
        if self._spelling.has_headers:
            return self._lark.source(self._messages())
        if self._answer is None:
            return self._lark.source(self._among_text())
        return self._lark.source(self._instead_of_text())

    # -- calls -------------------------------------------------------------------------------------

    def _calls(self, behind: str = "") -> str:
        """All of them, or what is left of them behind this."""
        writing = self._writing
        first = writing.begin + writing.call
        calls = self._call(first.partition(behind)[2] or first if behind else first)
        if self._parallel:
            calls = f"{calls} ({self._lark.written(writing.between)} {self._call(writing.call)})*"
        return self._lark.rule(f"{calls} {self._lark.written(writing.end)}".strip())

    def _call(self, text: str) -> str:
        before, _, behind = text.partition("ARGUMENTS")
        close = self._lark.written(behind)
        if self._spelling.has_headers:
            close = f"({close})?"  # it may be what ends the answer, which is not the grammar's
        calls = (
            f"{self._opened(before, name)} {arguments} {close}" for name, arguments in self._arguments.items()
        )
        return self._lark.rule(" | ".join(calls))

    def _opened(self, text: str, name: str) -> str:
        parts = (re.sub(r"\bNAME\b", name, part) for part in text.split("NUMBER"))  # which a name may hold
        return f" {_NUMBER} ".join(map(self._lark.written, parts))

    # -- what there may be beside them -----------------------------------------------------------------

    def _instead_of_text(self) -> str:
        """Reasoning, and then calls or an answer."""
        end = one_of([*self._told_apart(), self._answer]) if self._answer else self._calls()
        reasoning = self._spelling.reasoning
        if reasoning is None:
            return end
        close = f"{self._lark.up_to(reasoning.close)} {_BLANKS}"
        opened = self._lark.written(reasoning.open)
        return f"{close} {end}" if self._reasons else f"({opened} {close})? {end}"

    def _told_apart(self) -> list[str]:
        """Calls that do not begin as an answer might."""
        if not self._arguments:
            return []
        if is_delimited(self._format):
            return [self._calls()]
        return [f"{self._lark.written(one)} {self._calls(one)}" for one in self._format.opens]

    def _among_text(self) -> str:
        """Reasoning, calls and any text, in any order."""
        begun = self._bare_or_text() if self._format.bare else self._text()
        reasoning = self._spelling.reasoning
        if self._reasons and reasoning is not None:
            return f"{self._lark.up_to(reasoning.close)} {self._text()} | {TEXT}?"
        return begun

    def _text(self) -> str:
        spans, calls = self._spans(), self._opened_calls()
        if self._goes_on:
            return f"{one_of([*spans, *calls])}* {self._last()}"
        before = f"{one_of(spans)}* " if spans else ""
        return before + one_of([*calls, self._last()])

    def _last(self) -> str:
        """Text, and perhaps reasoning that nobody closes."""
        reasoning = self._spelling.reasoning
        opened = [] if reasoning is None else [f"{self._lark.up_to(reasoning.open)} {TEXT}?"]
        return one_of([*opened, f"{TEXT}?"])

    @property
    def _goes_on(self) -> bool:
        """Whether text behind calls is text: without a delimiter it might be another of a list."""
        return self._parallel and (bool(self._format.fills) or self._format.body not in ("json", "pythonic"))

    def _spans(self, text: str = ANY) -> list[str]:
        """Text, and then reasoning, to its end."""
        reasoning = self._spelling.reasoning
        if reasoning is None:
            return []
        return [f"{self._lark.up_to(reasoning.open, text)} {self._lark.up_to(reasoning.close)}"]

    def _opened_calls(self, text: str = ANY) -> list[str]:
        """Text, and then calls behind each delimiter that opens them."""
        opens = [*self._format.opens, *(one for one in self._format.sections if one in self._writing.begin)]
        return [f"{self._lark.up_to(one, text)} {self._calls(one)}" for one in opens]

    def _bare_or_text(self) -> str:
        """Calls that no delimiter opens, or what begins otherwise."""
        before = self._writing.begin + self._writing.call.partition("NAME")[0]
        for one in self._format.opens:
            before = before.replace(one, "")
        names = "|".join(map(re.escape, self._arguments))
        blanks = r"\s*"
        begun = blanks.join(re.escape(char) for char in before if not char.isspace())
        behind = re.escape(self._writing.call.partition("NAME")[2][0])
        like = f"/(?s:{blanks}{begun}{blanks}(?:{names}){blanks}{behind}.*)/"
        unlike = self._lark.terminal(f"{ANY} & ~{like}")
        calls = self._calls(next((one for one in self._format.opens if one in self._writing.begin), ""))
        others = [*self._spans(unlike), *self._opened_calls(unlike)]
        rest = f"{one_of(others)} {self._text() if self._goes_on else ''}" if others else ""
        text = self._lark.terminal(f"{unlike} & {TEXT}")
        return " | ".join(filter(None, [calls, rest, f"{text}?"]))

    # -- where every message has a header --------------------------------------------------------------

    def _messages(self) -> str:
        head = self._writing.head if self._headed else ""
        if self._answer is None:
            whole = [self._message(opened) for opened in self._writing.messages]
            first = [self._message(opened.removeprefix(head)) for opened in self._writing.messages]
            return f"{one_of([*first, self._calls(head)])} {one_of([*whole, self._calls()])}*"
        reasoning, *_, final = self._writing.messages
        end, *others = self._format.fills  # each of which ends a message
        thought = self._lark.until(end, without=others)
        return one_of(
            [
                f"{self._lark.written(reasoning.removeprefix(head))} {thought} {self._end(final)}",
                self._end(final, head),
            ]
        )

    def _end(self, final: str, head: str = "") -> str:
        calls = [self._calls(head)] if self._arguments else []
        answer = [f"{self._lark.written(final.removeprefix(head))} {self._answer}"] if self._answer else []
        return one_of(calls + answer)

    def _message(self, opened: str) -> str:
        """One that is no call, to its end."""
        end = self._lark.written(self._format.fills[0])
        return f"{self._lark.written(opened)} {TEXT}? ({end})?"
