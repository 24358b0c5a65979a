"""The chat template of a model: messages in, one string out, in the sandbox that such templates are written
for.

It knows where a model folder keeps its template and which names Hugging Face promises to templates
(`transformers.utils.chat_template_utils`). It knows no token: which parts of the string are special tokens is
the tokenizer's business.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import jinja2.ext

from realtime.text.conversation import characters
from realtime.text.template_sandbox import Budget, BudgetSpentError, MeteredEnvironment

# What a rendering may do: far more than templates do that go through their messages some dozen times, and a
# matter of a second.
BUDGET, BUDGET_PER_CHARACTER, BUDGET_PER_MESSAGE = 10_000_000, 50, 10_000
BRIEF_BUDGET = 200_000  # and of a millisecond or two


class TextError(Exception):
    """A sentence for whoever sent the text, or runs the model. It carries no path."""


class NotBriefError(TextError):
    """A rendering that was to be brief is not."""


class ChatTemplate:
    """A compiled template. `variables` are the special tokens' names that it may use, such as `bos_token`."""

    def __init__(self, source: str, variables: Mapping[str, str]) -> None:
        self._variables = dict(variables)
        try:
            with Budget(BUDGET).spending():  # it computes what is constant
                self._template = _environment().metered_template(source)
        except (jinja2.TemplateError, RecursionError):
            raise TextError("The model's chat template is not a valid Jinja template.") from None

    def render(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool,
        brief: bool = False,
    ) -> str:
        """The template is the model's code: whatever it raises, it raises about these messages.

        `brief`: raise `NotBriefError` rather than take long.
        """
        try:
            with Budget(BRIEF_BUDGET if brief else _budget(messages, tools)).spending():
                return self._render(messages, tools, add_generation_prompt)
        except BudgetSpentError:
            if brief:
                raise NotBriefError("This conversation takes the model's chat template long.") from None
            raise TextError(
                "The model's chat template has more to do for these messages than the limit allows."
            ) from None

    def _render(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        add_generation_prompt: bool,
    ) -> str:
        variables: dict[str, Any] = {**self._variables, "tools": tools, "documents": None}
        try:
            return self._template.render(
                messages=messages, add_generation_prompt=add_generation_prompt, **variables
            )
        except BudgetSpentError:
            raise
        except jinja2.TemplateError as error:
            raise TextError(f"The model's chat template refuses these messages: {error}") from None
        except Exception:  # noqa: BLE001 - a template can raise anything
            raise TextError("The model's chat template fails on these messages.") from None


def template_source(folder: Path, config: Mapping[str, Any]) -> str | None:
    """The template that a model folder brings: a file of its own, or a field of `tokenizer_config.json`."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    source = config.get("chat_template")
    if isinstance(source, list):
        named = {entry["name"]: entry["template"] for entry in source}
        source = named.get("default")
    return source if isinstance(source, str) else None


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks what a model is trained on. For prompting, it is its contents."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _budget(messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> int:
    length = characters(messages) + characters(tools)
    return BUDGET + BUDGET_PER_CHARACTER * length + BUDGET_PER_MESSAGE * len(messages)


def _environment() -> MeteredEnvironment:
    environment = MeteredEnvironment([_Generation, jinja2.ext.loopcontrols], {"tojson": _tojson})
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().astimezone().strftime(pattern)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes HTML; a model reads plain JSON."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
