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
from jinja2.sandbox import ImmutableSandboxedEnvironment


class TextError(Exception):
    """A sentence for whoever sent the text, or runs the model. It carries no path."""


class ChatTemplate:
    """A compiled template. `variables` are the special tokens' names that it may use, such as `bos_token`."""

    def __init__(self, source: str, variables: Mapping[str, str]) -> None:
        self._variables = dict(variables)
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateError:
            raise TextError("The model's chat template is not a valid Jinja template.") from None

    def render(self, messages: list[dict[str, str]], *, add_generation_prompt: bool) -> str:
        """The template is the model's code: whatever it raises, it raises about these messages."""
        variables: dict[str, Any] = {**self._variables, "tools": None, "documents": None}
        try:
            return self._template.render(
                messages=messages, add_generation_prompt=add_generation_prompt, **variables
            )
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


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
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
