"""Calls as each known format spells them, and tokens of any cut for a text: a tokenizer that is made as it is
asked, in which a token is any piece of bytes."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable
from typing import Any

from realtime.tools.formats import BY_NAME, REASONING_FORMATS, ReasoningFormat
from realtime.tools.parts import Arguments, CallBegun, CallEnded, Content, Part, Reasoning
from realtime.tools.span_reader import Offered, SpanReader
from realtime.tools.spelling import Spelling

Calls = list[tuple[str, dict[str, Any]]]
THINK = REASONING_FORMATS[0]
DSML = "｜DSML｜"  # a token, of which tags are made


class Pieces:
    """The tokens of one format: its delimiters as single tokens, or none; and whatever pieces a test cuts."""

    def __init__(self, name: str, *, single: bool, reasoning: ReasoningFormat | None = THINK) -> None:
        form = BY_NAME[name]
        tags = form.tags
        texts = [*form.opens, *form.sections, *form.fills, *form.header.ends, form.quote]
        texts += [tags.name_open, *tags.name_ends, tags.key_open, tags.key_end, tags.value_open]
        texts += re.findall(r"<[^<>]*>", form.writing.begin + form.writing.call)
        texts += [tags.value_end, tags.call_end, *((reasoning.open, reasoning.close) if reasoning else ())]
        tokens = {text for text in texts if text.endswith((">", "]")) and len(text) > 2 and "=" not in text}
        tokens = {DSML if DSML in text else text for text in tokens}
        tokens = {part for text in tokens for part in re.findall(r"<[^<]*>|\[[^\[]*\]|｜DSML｜", text)}
        self.single = sorted(tokens, key=len, reverse=True) if single else []
        self.added = {text: at for at, text in enumerate(self.single)}
        self.bytes = dict.fromkeys(range(len(self.single)), b"")
        self._ids: dict[bytes, int] = {}
        self._split = re.compile("(" + "|".join(map(re.escape, self.single)) + ")" if single else r"(?!)()")
        self.spelling = Spelling(
            form, reasoning, pieces=self.bytes, added=self.added, special=frozenset(self.bytes)
        )

    def tokens(self, text: str, cuts: Iterable[int] | None = None) -> list[int]:
        """The text cut at these bytes, and around each single token; without `cuts`, behind every byte."""
        wanted = None if cuts is None else set(cuts)
        tokens, at = list[int](), 0
        for part in self._split.split(text):
            data = part.encode()
            if part in self.added:
                tokens.append(self.added[part])
            elif data:
                places = (
                    range(1, len(data))
                    if wanted is None
                    else sorted(c - at for c in wanted if 0 < c - at < len(data))
                )
                bounds = [0, *places, len(data)]
                tokens += [self.token(data[a:b]) for a, b in itertools.pairwise(bounds)]
            at += len(data)
        return tokens

    def token(self, data: bytes) -> int:
        token = self._ids.setdefault(data, 1000 + len(self._ids))
        self.bytes[token] = data
        return token

    def reader(self, offered: Offered | None, prompt: list[int] | None = None) -> SpanReader:
        return SpanReader(self.spelling, offered, prompt or [])


class Told:
    """What parts say, put together."""

    def __init__(self) -> None:
        self.content = self.reasoning = ""
        self.calls: list[list[Any]] = []  # name, arguments, index, end

    def add(self, parts: Iterable[Part]) -> None:
        for part in parts:
            match part:
                case Content(text):
                    self.content += text
                case Reasoning(text):
                    self.reasoning += text
                case CallBegun(begin, name):
                    self.calls.append([name, "", begin, None])
                case Arguments(text):
                    self.calls[-1][1] += text
                case CallEnded(end):
                    self.calls[-1][3] = end

    @property
    def whole(self) -> Calls:
        return [(name, json.loads(arguments)) for name, arguments, _, end in self.calls if end is not None]

    @property
    def said(self) -> tuple[str, str, list[tuple[str, str, bool]]]:
        return (
            self.content,
            self.reasoning,
            [(name, args, end is not None) for name, args, _, end in self.calls],
        )


def told(reader: SpanReader, tokens: list[int]) -> Told:
    all_of_it = Told()
    for index, token in enumerate(tokens):
        all_of_it.add(reader.feed(token, index))
    all_of_it.add(reader.flush())
    return all_of_it


# -- spellings -------------------------------------------------------------------------------------


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _objects(calls: Calls, name: str = "name", arguments: str = "arguments") -> list[str]:
    return [_json({name: called, arguments: given}) for called, given in calls]


def _each(spell: Callable[[str, dict[str, Any]], str], between: str = "\n") -> Callable[[Calls], str]:
    return lambda calls: between.join(spell(name, given) for name, given in calls)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else _json(value)


def _python(name: str, given: dict[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in given.items())})"


def _braced(value: Any, quote: str) -> str:
    match value:
        case str():
            return f"{quote}{value}{quote}"
        case dict():
            return "{" + ",".join(f"{key}:{_braced(one, quote)}" for key, one in value.items()) + "}"
        case list():
            return "[" + ",".join(_braced(one, quote) for one in value) + "]"
    return _json(value)


def _qwen3_coder(name: str, given: dict[str, Any]) -> str:
    parameters = "".join(f"<parameter={key}>\n{_text(value)}\n</parameter>\n" for key, value in given.items())
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


def _minimax(calls: Calls) -> str:
    each = (
        f'<invoke name="{name}">\n'
        + "".join(f'<parameter name="{key}">{_text(value)}</parameter>\n' for key, value in given.items())
        + "</invoke>\n"
        for name, given in calls
    )
    return "<minimax:tool_call>\n" + "".join(each) + "</minimax:tool_call>"


def _dsml(calls: Calls) -> str:
    def spelt(key: str, value: Any) -> str:
        text = "true" if isinstance(value, str) else "false"
        return f'<｜DSML｜parameter name="{key}" string="{text}">{_text(value)}</｜DSML｜parameter>\n'

    each = (
        f'<｜DSML｜invoke name="{name}">\n'
        + "".join(spelt(key, value) for key, value in given.items())
        + "</｜DSML｜invoke>\n"
        for name, given in calls
    )
    return "<｜DSML｜function_calls>\n" + "".join(each) + "</｜DSML｜function_calls>"


def _glm(name: str, given: dict[str, Any]) -> str:
    pairs = "".join(f"<arg_key>{k}</arg_key>\n<arg_value>{_text(v)}</arg_value>\n" for k, v in given.items())
    return f"<tool_call>{name}\n{pairs}</tool_call>"


def _deepseek(inner: Callable[[str, str], str]) -> Callable[[Calls], str]:
    return lambda calls: (
        "<｜tool▁calls▁begin｜>"
        + "\n".join(
            f"<｜tool▁call▁begin｜>{inner(name, _json(given))}<｜tool▁call▁end｜>" for name, given in calls
        )
        + "<｜tool▁calls▁end｜>"
    )


def _kimi(calls: Calls) -> str:
    each = (
        f"<|tool_call_begin|>functions.{name}:{at}<|tool_call_argument_begin|>{_json(given)}<|tool_call_end|>"
        for at, (name, given) in enumerate(calls)
    )
    return "<|tool_calls_section_begin|>" + "".join(each) + "<|tool_calls_section_end|>"


SPELT: dict[str, Callable[[Calls], str]] = {
    "hermes": lambda calls: "\n".join(f"<tool_call>\n{one}\n</tool_call>" for one in _objects(calls)),
    "qwen3_coder": _each(_qwen3_coder),
    "minimax": _minimax,
    "deepseek_v32": _dsml,
    "glm": _each(_glm),
    "llama3_json": lambda calls: "<|python_tag|>" + "; ".join(_objects(calls, arguments="parameters")),
    "llama4_pythonic": lambda calls: (
        "<|python_start|>[" + ", ".join(_python(*c) for c in calls) + "]<|python_end|>"
    ),
    "lfm2": lambda calls: (
        "<|tool_call_start|>[" + ", ".join(_python(*c) for c in calls) + "]<|tool_call_end|>"
    ),
    "mistral": lambda calls: "[TOOL_CALLS] [" + ", ".join(_objects(calls)) + "]",
    "mistral_args": _each(lambda name, given: f"[TOOL_CALLS]{name}[ARGS]{_json(given)}", ""),
    "harmony": _each(
        lambda name, given: (
            f"<|start|>assistant<|channel|>commentary to=functions.{name} <|constrain|>json"
            f"<|message|>{_json(given)}<|call|>"
        ),
        "",
    ),
    "deepseek_v3": _deepseek(lambda name, given: f"function<｜tool▁sep｜>{name}\n```json\n{given}\n```"),
    "deepseek_v31": _deepseek(lambda name, given: f"{name}<｜tool▁sep｜>{given}"),
    "kimi_k2": _kimi,
    "gemma4": _each(lambda name, given: f"<|tool_call>call:{name}{_braced(given, QUOTE)}<tool_call|>", ""),
    "functiongemma": _each(
        lambda name, given: (
            f"<start_function_call>call:{name}{_braced(given, '<escape>')}<end_function_call>"
        ),
        "",
    ),
    "granite": lambda calls: "<|tool_call|>[" + ", ".join(_objects(calls)) + "]",
    "phi4": lambda calls: "<|tool_call|>[" + ", ".join(_objects(calls)) + "]<|/tool_call|>",
    "cohere": lambda calls: (
        "<|START_ACTION|>[\n" + ",\n".join(_objects(calls, "tool_name", "parameters")) + "\n]<|END_ACTION|>"
    ),
    "internlm": lambda calls: "\n".join(
        f"<|action_start|><|plugin|>\n{one}<|action_end|>" for one in _objects(calls, arguments="parameters")
    ),
}
QUOTE = '<|"|>'
BARE: dict[str, Callable[[Calls], str]] = {
    "llama3_json": lambda calls: "; ".join(_objects(calls, arguments="parameters")),
    "pythonic": lambda calls: "[" + ", ".join(_python(*call) for call in calls) + "]",
    "llama4_pythonic": lambda calls: "[" + ", ".join(_python(*call) for call in calls) + "]",
}
