"""The formats of tool calls and of reasoning, as a table: delimiters, how a name and arguments are spelt, and
how calls follow each other.

Data alone: what is done with it lies beside, one reader for each kind of body, and the grammar of what a
model is to write. `find` tells from a model's chat template which of them it was trained on.
"""

from __future__ import annotations

import re
from typing import Literal

from msgspec import Struct

Body = Literal["json", "named", "pythonic", "tagged", "braced"]


class Tags(Struct, frozen=True):
    """The spelling of a call whose arguments stand each between tags of its own. A value ends at `value_end`
    only where another argument or the call's end follows: it may hold any text. `other_key_end`: of a key
    whose value is no text, where the spelling says so and not the tool's schema. `newlines`: whether one
    newline is put before and behind each value."""

    name_open: str = ""
    name_ends: tuple[str, ...] = ()
    key_open: str = ""
    key_end: str = ""
    other_key_end: str = ""
    value_open: str = ""
    value_end: str = ""
    call_end: str = ""
    newlines: bool = False


class Header(Struct, frozen=True):
    """The spelling of what stands before a call's arguments: one of `ends` completes it, and `name` finds the
    name in what stands before that, without blanks around it. Where every message of the model has a header,
    the others tell what follows them. They are looked for again at each of `ends`: each is to cost no more
    than to read the header once."""

    ends: tuple[str, ...]
    name: str
    reasoning: str | None = None
    content: str | None = None


class Writing(Struct, frozen=True):
    """How calls are written by a model that writes them as its template does: NAME, ARGUMENTS and NUMBER
    stand for what they say, and in an `argument` KEY, VALUE, and in IS_TEXT whether that is a text. A reader
    takes all of that, and more."""

    call: str
    begin: str = ""
    between: str = ""
    end: str = ""
    argument: str = ""  # where arguments are no JSON
    comma: str = ""  # between two of those
    head: str = ""  # with which every message begins, and which a prompt may have written
    messages: tuple[str, ...] = ()  # that are no call; the first is reasoning


class ToolFormat(Struct, frozen=True):
    """`opens` begin a call, or a list of them. `sections` stand before the first, and `fills` around and
    behind calls: they say nothing. `bare`: with which character an answer begins that is calls and nothing
    else, without a delimiter. `found_by`: texts of which one stands in templates of this format, with those
    beside it."""

    name: str
    body: Body
    opens: tuple[str, ...]
    writing: Writing
    sections: tuple[str, ...] = ()
    fills: tuple[str, ...] = ()
    bare: str = ""
    header: Header = Header((), "")
    tags: Tags = Tags()
    quote: str = ""  # that delimits strings, in braced bodies
    found_by: tuple[tuple[str, ...], ...] = ()


class ReasoningFormat(Struct, frozen=True):
    """`end`: how a template writes the close, with what stands around it, where that is not it alone."""

    open: str
    close: str
    end: str = ""


# The more exact a format's mark is, the earlier it stands.
TOOL_FORMATS = (
    ToolFormat(
        "harmony",  # gpt-oss
        "named",
        opens=("<|start|>", "<|channel|>"),
        writing=Writing(
            call="<|start|>assistant<|channel|>commentary to=functions.NAME "
            "<|constrain|>json<|message|>ARGUMENTS<|call|>",
            head="<|start|>assistant",
            messages=(
                "<|start|>assistant<|channel|>analysis<|message|>",
                "<|start|>assistant<|channel|>commentary<|message|>",
                "<|start|>assistant<|channel|>final<|message|>",
            ),
        ),
        fills=("<|end|>", "<|return|>", "<|call|>"),
        header=Header(
            ends=("<|message|>",),
            name=r"to=functions\.([^\s<]+)",
            reasoning=r"(?:^|<\|channel\|>)\s*analysis\b",
            content=r".*",
        ),
        found_by=(("<|channel|>", "<|message|>"),),
    ),
    ToolFormat(
        "kimi_k2",
        "named",
        opens=("<|tool_call_begin|>",),
        writing=Writing(
            "<|tool_call_begin|>functions.NAME:NUMBER<|tool_call_argument_begin|>ARGUMENTS<|tool_call_end|>",
            begin="<|tool_calls_section_begin|>",
            end="<|tool_calls_section_end|>",
        ),
        sections=("<|tool_calls_section_begin|>",),
        fills=("<|tool_call_end|>", "<|tool_calls_section_end|>"),
        header=Header(
            ends=("<|tool_call_argument_begin|>",),
            name=r"^(?:functions\.)?(.+?)(?::\d+)?$",
        ),
        found_by=(("<|tool_call_argument_begin|>",),),
    ),
    ToolFormat(
        "deepseek_v32",
        "tagged",
        opens=('<｜DSML｜invoke name="',),
        writing=Writing(
            '<｜DSML｜invoke name="NAME">\nARGUMENTS</｜DSML｜invoke>\n',
            begin="<｜DSML｜function_calls>\n",
            end="</｜DSML｜function_calls>",
            argument='<｜DSML｜parameter name="KEY" string="IS_TEXT">VALUE</｜DSML｜parameter>\n',
        ),
        sections=("<｜DSML｜function_calls>",),
        fills=("</｜DSML｜function_calls>",),
        tags=Tags(
            name_open='<｜DSML｜invoke name="',
            name_ends=('">',),
            key_open='<｜DSML｜parameter name="',
            key_end='" string="true">',
            other_key_end='" string="false">',
            value_end="</｜DSML｜parameter>",
            call_end="</｜DSML｜invoke>",
        ),
        found_by=(("｜DSML｜",),),
    ),
    ToolFormat(
        "deepseek_v3",
        "named",
        opens=("<｜tool▁call▁begin｜>",),
        writing=Writing(
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\nARGUMENTS\n```<｜tool▁call▁end｜>",
            begin="<｜tool▁calls▁begin｜>",
            between="\n",
            end="<｜tool▁calls▁end｜>",
        ),
        sections=("<｜tool▁calls▁begin｜>",),
        fills=("```", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"),
        header=Header(ends=("\n",), name=r"<｜tool▁sep｜>([^\s`<]+)$"),
        found_by=(("<｜tool▁sep｜>", "```json"),),
    ),
    ToolFormat(
        "deepseek_v31",
        "named",
        opens=("<｜tool▁call▁begin｜>",),
        writing=Writing(
            "<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>ARGUMENTS<｜tool▁call▁end｜>",
            begin="<｜tool▁calls▁begin｜>",
            end="<｜tool▁calls▁end｜>",
        ),
        sections=("<｜tool▁calls▁begin｜>",),
        fills=("<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"),
        header=Header(ends=("<｜tool▁sep｜>",), name=r"^(.+)$"),
        found_by=(("<｜tool▁sep｜>",),),
    ),
    ToolFormat(
        "mistral_args",
        "named",
        opens=("[TOOL_CALLS]",),
        writing=Writing("[TOOL_CALLS]NAME[ARGS]ARGUMENTS"),
        header=Header(ends=("[ARGS]", "{"), name=r"^([^\s\[{]+)\s*(?:\[CALL_ID\][^\[{]*)?$"),
        found_by=(("[TOOL_CALLS]", "[ARGS]"),),
    ),
    ToolFormat(
        "mistral",
        "json",
        opens=("[TOOL_CALLS]",),
        writing=Writing(
            '{"name": "NAME", "arguments": ARGUMENTS}', begin="[TOOL_CALLS][", between=", ", end="]"
        ),
        found_by=(("[TOOL_CALLS]",),),
    ),
    ToolFormat(
        "gemma4",
        "braced",
        opens=("<|tool_call>",),
        writing=Writing("<|tool_call>call:NAME{ARGUMENTS}<tool_call|>", argument="KEY:VALUE", comma=","),
        fills=("<tool_call|>",),
        quote='<|"|>',
        found_by=(("<|tool_call>", "call:"),),
    ),
    ToolFormat(
        "functiongemma",
        "braced",
        opens=("<start_function_call>",),
        writing=Writing(
            "<start_function_call>call:NAME{ARGUMENTS}<end_function_call>", argument="KEY:VALUE", comma=","
        ),
        fills=("<end_function_call>",),
        quote="<escape>",
        found_by=(("<start_function_call>",),),
    ),
    ToolFormat(
        "glm",
        "tagged",
        opens=("<tool_call>",),
        writing=Writing(
            "<tool_call>NAME\nARGUMENTS</tool_call>",
            between="\n",
            argument="<arg_key>KEY</arg_key>\n<arg_value>VALUE</arg_value>\n",
        ),
        tags=Tags(
            name_ends=("\n", "<arg_key>", "</tool_call>"),
            key_open="<arg_key>",
            key_end="</arg_key>",
            value_open="<arg_value>",
            value_end="</arg_value>",
            call_end="</tool_call>",
        ),
        found_by=(("<arg_key>",),),
    ),
    ToolFormat(
        "qwen3_coder",
        "tagged",
        opens=("<tool_call>", "<function="),
        writing=Writing(
            "<tool_call>\n<function=NAME>\nARGUMENTS</function>\n</tool_call>",
            between="\n",
            argument="<parameter=KEY>\nVALUE\n</parameter>\n",
        ),
        fills=("</tool_call>",),
        tags=Tags(
            name_open="<function=",
            name_ends=(">",),
            key_open="<parameter=",
            key_end=">",
            value_end="</parameter>",
            call_end="</function>",
            newlines=True,
        ),
        found_by=(("<function=", "<parameter="),),
    ),
    ToolFormat(
        "minimax",
        "tagged",
        opens=('<invoke name="',),
        writing=Writing(
            '<invoke name="NAME">\nARGUMENTS</invoke>\n',
            begin="<minimax:tool_call>\n",
            end="</minimax:tool_call>",
            argument='<parameter name="KEY">VALUE</parameter>\n',
        ),
        sections=("<minimax:tool_call>",),
        fills=("</minimax:tool_call>",),
        tags=Tags(
            name_open='<invoke name="',
            name_ends=('">',),
            key_open='<parameter name="',
            key_end='">',
            value_end="</parameter>",
            call_end="</invoke>",
        ),
        found_by=(("<minimax:tool_call>", "<invoke name="),),
    ),
    ToolFormat(
        "lfm2",
        "pythonic",
        opens=("<|tool_call_start|>",),
        writing=Writing(
            "NAME(ARGUMENTS)",
            begin="<|tool_call_start|>[",
            between=", ",
            end="]<|tool_call_end|>",
            argument="KEY=VALUE",
            comma=", ",
        ),
        fills=("<|tool_call_end|>",),
        found_by=(("<|tool_call_start|>",),),
    ),
    ToolFormat(
        "cohere",
        "json",
        opens=("<|START_ACTION|>",),
        writing=Writing(
            '{"tool_call_id": "NUMBER", "tool_name": "NAME", "parameters": ARGUMENTS}',
            begin="<|START_ACTION|>[\n    ",
            between=",\n    ",
            end="\n]<|END_ACTION|>",
        ),
        fills=("<|END_ACTION|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>"),
        found_by=(("<|START_ACTION|>",),),
    ),
    ToolFormat(
        "internlm",
        "json",
        opens=("<|action_start|><|plugin|>",),
        writing=Writing(
            '<|action_start|><|plugin|>\n{"name": "NAME", "parameters": ARGUMENTS}<|action_end|>',
            between="\n",
        ),
        fills=("<|action_end|>",),
        found_by=(("<|action_start|>",),),
    ),
    ToolFormat(
        "phi4",
        "json",
        opens=("<|tool_call|>",),
        writing=Writing(
            '{"name": "NAME", "arguments": ARGUMENTS}',
            begin="<|tool_call|>[",
            between=", ",
            end="]<|/tool_call|>",
        ),
        fills=("<|/tool_call|>",),
        found_by=(("<|/tool_call|>",),),
    ),
    ToolFormat(
        "granite",
        "json",
        opens=("<|tool_call|>",),
        writing=Writing(
            '{"name": "NAME", "arguments": ARGUMENTS}', begin="<|tool_call|>[", between=", ", end="]"
        ),
        found_by=(("<|tool_call|>",),),
    ),
    ToolFormat(
        "llama4_pythonic",
        "pythonic",
        opens=("<|python_start|>",),
        writing=Writing(
            "NAME(ARGUMENTS)",
            begin="<|python_start|>[",
            between=", ",
            end="]<|python_end|>",
            argument="KEY=VALUE",
            comma=", ",
        ),
        fills=("<|python_end|>",),
        bare="[",
        found_by=(("<|python_start|>",),),
    ),
    ToolFormat(
        "llama3_json",
        "json",
        opens=("<|python_tag|>",),
        writing=Writing('{"name": "NAME", "parameters": ARGUMENTS}', between="; "),
        bare="{",
        found_by=(("<|python_tag|>",), ('"parameters"', "<|eot_id|>")),
    ),
    ToolFormat(
        "pythonic",
        "pythonic",
        opens=(),
        writing=Writing(
            "NAME(ARGUMENTS)", begin="[", between=", ", end="]", argument="KEY=VALUE", comma=", "
        ),
        bare="[",
    ),  # Llama 3.2, where it was asked for
    ToolFormat(
        "hermes",  # Qwen 2.5, Qwen 3, SmolLM3, Granite 4
        "json",
        opens=("<tool_call>",),
        writing=Writing('<tool_call>\n{"name": "NAME", "arguments": ARGUMENTS}\n</tool_call>', between="\n"),
        fills=("</tool_call>",),
        found_by=(("<tool_call>",),),
    ),
)
BY_NAME = {known.name: known for known in TOOL_FORMATS}
FALLBACK = BY_NAME["hermes"]

REASONING_FORMATS = (
    ReasoningFormat("<think>", "</think>", "\n</think>\n\n"),
    ReasoningFormat("[THINK]", "[/THINK]"),
    ReasoningFormat("<|START_THINKING|>", "<|END_THINKING|>"),
    ReasoningFormat("<|channel>thought", "<channel|>"),
    ReasoningFormat("<seed:think>", "</seed:think>", "\n</seed:think>\n"),
)


def is_delimited(known: ToolFormat) -> bool:
    """Whether its calls, as they are written, begin with what nothing else begins with."""
    written = known.writing.begin + known.writing.call
    return any(written.startswith(text) for text in (*known.opens, *known.sections))


def knows_tools(template: str) -> bool:
    return re.search(r"\btools\b", template) is not None


def find(template: str) -> ToolFormat | None:
    """The format that a model's chat template shows, if it knows tools at all."""
    if not knows_tools(template):
        return None
    return next((known for known in TOOL_FORMATS if _fits(known, template)), None)


def _fits(known: ToolFormat, template: str) -> bool:
    return any(all(mark in template for mark in marks) for marks in known.found_by)


def find_reasoning(template: str) -> ReasoningFormat | None:
    return next((known for known in REASONING_FORMATS if known.open in template), None)


def find_headers(template: str) -> ToolFormat | None:
    """Of a model whose every message has a header, whether or not it knows tools."""
    with_headers = (known for known in TOOL_FORMATS if known.header.content is not None)
    return next((known for known in with_headers if _fits(known, template)), None)
