"""The spelling of one model: its formats of calls and of reasoning, and their delimiters among its tokens."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from enum import IntEnum

from realtime.tools.braced_call import BracedCall
from realtime.tools.call_reader import CallReader
from realtime.tools.delimiters import Delimiters
from realtime.tools.formats import (
    BY_NAME,
    FALLBACK,
    ReasoningFormat,
    ToolFormat,
    find,
    find_headers,
    find_reasoning,
    knows_tools,
)
from realtime.tools.json_call import JsonCall
from realtime.tools.named_call import NamedCall
from realtime.tools.pythonic_call import PythonicCall
from realtime.tools.tagged_call import TaggedCall

AUTO = "auto"
TAIL_TOKENS = 16  # of a prompt, whose text tells where it leaves the model


class Mark(IntEnum):
    """What a delimiter between spans means."""

    CALL = 1
    REASONING = 2
    FILL = 3
    SECTION = 4


class Spelling:
    """`pieces`: what each token adds to the output; `leading_spaces`: how many the decoder takes off its
    beginning. `in_template`: whether the model's template tells tools and calls itself."""

    def __init__(
        self,
        tools: ToolFormat,
        reasoning: ReasoningFormat | None,
        *,
        pieces: Mapping[int, bytes],
        added: Mapping[str, int],
        special: frozenset[int],
        leading_spaces: int = 0,
        in_template: bool = True,
    ) -> None:
        self.tools = tools
        self.pieces = pieces
        self.leading_spaces = leading_spaces
        self.in_template = in_template
        self.has_headers = tools.header.content is not None
        self.reasoning = reasoning
        self.delimiters = Delimiters(_texts(tools, reasoning), added, special)
        self.delimiters_as_text = Delimiters((), {}, frozenset())
        mark = self.delimiters.mark
        closes = (reasoning.close,) if reasoning else tools.fills if self.has_headers else ()
        self.reasoning_closes = frozenset(map(mark, closes))
        self._tool_marks = {mark(text): Mark.SECTION for text in tools.sections}
        self._tool_marks |= {mark(text): Mark.CALL for text in tools.opens}
        self._fills = {mark(text): Mark.FILL for text in tools.fills}
        self._reasoning_marks = {mark(reasoning.open): Mark.REASONING} if reasoning else {}

    @property
    def has_reasoning(self) -> bool:
        """Whether output has spans where no tools are offered, too."""
        return self.reasoning is not None or self.has_headers

    @property
    def reasoning_end(self) -> str:
        """What a model writes where it stops reasoning and goes on."""
        if self.has_headers:
            return self.tools.fills[0] + self.tools.writing.head
        return "" if self.reasoning is None else self.reasoning.end or self.reasoning.close

    def marks(self, *, with_tools: bool) -> dict[str, Mark]:
        """What may stand in the midst of content: where messages have headers, their ends too."""
        ends = self._fills if self.has_headers else {}
        return ends | self._reasoning_marks | (self._tool_marks if with_tools or self.has_headers else {})

    def marks_in_gap(self, *, with_tools: bool) -> dict[str, Mark]:
        """And where a span has just ended, or nothing was said yet."""
        return (self._fills if with_tools else {}) | self.marks(with_tools=with_tools)

    def call_reader(self, opened_by: str, other_kinds: Mapping[str, Collection[str]]) -> CallReader:
        """Of the call that this delimiter has opened. `other_kinds`: of each tool the arguments that are no
        text."""
        match self.tools.body:
            case "json":
                return JsonCall(self.delimiters)
            case "named":
                return NamedCall(self.tools.header, self.delimiters)
            case "pythonic":
                return PythonicCall(self.delimiters)
            case "braced":
                return BracedCall(self.tools.quote, self.delimiters)
            case "tagged":
                tags = self.tools.tags
                opened = opened_by == self.delimiters.mark(tags.name_open)
                return TaggedCall(tags, self.delimiters, other_kinds, opened=opened)

    def reasons_behind(self, prompt: Sequence[int]) -> bool:
        """Whether this prompt leaves the model in the midst of its reasoning: many a template opens it."""
        return self.reasoning is not None and self._tail(prompt).rstrip().endswith(self.reasoning.open)

    def heads_behind(self, prompt: Sequence[int]) -> bool:
        """Whether this prompt leaves the model in the midst of a message's header."""
        return self.has_headers and self._tail(prompt).endswith(
            tuple(f"{o}assistant" for o in self.tools.opens)
        )

    def _tail(self, prompt: Sequence[int]) -> str:
        marks = self.delimiters.by_token
        return self.delimiters.spelt(
            "".join(
                marks.get(token) or self.pieces.get(token, b"").decode(errors="replace")
                for token in prompt[-TAIL_TOKENS:]
            )
        )


def spelling_of(
    template: str,
    tool_format: str,
    *,
    pieces: Mapping[int, bytes],
    added: Mapping[str, int],
    special: frozenset[int],
    leading_spaces: int,
) -> Spelling:
    """Of a model with this chat template. A template that knows no tools, or shows them in no way that is
    known, is told of none: `fallback` speaks for it."""
    found = find(template) if tool_format == AUTO else BY_NAME[tool_format]
    in_template = found is not None and knows_tools(template)
    return Spelling(
        found if found is not None and in_template else find_headers(template) or FALLBACK,
        find_reasoning(template),
        pieces=pieces,
        added=added,
        special=special,
        leading_spaces=leading_spaces,
        in_template=in_template,
    )


def _texts(tools: ToolFormat, reasoning: ReasoningFormat | None) -> list[str]:
    """Every delimiter of these formats."""
    tags, writing = tools.tags, tools.writing
    return [
        *re.findall(r"<[^<>]*>", writing.begin + writing.call + "".join(writing.messages)),
        *((reasoning.open, reasoning.close) if reasoning else ()),
        *(*tools.opens, *tools.sections, *tools.fills, *tools.header.ends, tools.quote),
        *(tags.name_open, *tags.name_ends, tags.key_open, tags.key_end, tags.other_key_end),
        *(tags.value_open, tags.value_end, tags.call_end),
    ]
