"""What a docstring says: of the whole, and of each parameter. Google's manner (`Args:`) and Sphinx's (`:param
x:`). Pure."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import NamedTuple

_SECTION = re.compile(r"(Args|Arguments|Parameters|Returns|Raises|Yields|Examples?|Notes?):\s*$")
_PARAMETERS = ("Args", "Arguments", "Parameters")
_ENTRY = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?:\s*(.*)")
_FIELD = re.compile(r":param(?:eter)?\s+(?:[^:]*\s)?(\w+):\s*(.*)")


class Docstring(NamedTuple):
    description: str
    parameters: dict[str, str]


def read_docstring(text: str | None) -> Docstring:
    description: list[str] = []
    parameters: dict[str, str] = {}
    for name, line in _lines(inspect.cleandoc(text or "")):
        if name is None:
            description.append(line)
        else:
            parameters[name] = f"{parameters.get(name, '')} {line}".strip()
    parameters.pop("", None)
    return Docstring("\n".join(description).strip(), parameters)


def _lines(text: str) -> Iterator[tuple[str | None, str]]:
    """Each line, and of which parameter it speaks; "" is none that has a name, None the whole."""
    name: str | None = None
    section, indent = "", 0  # of a section's entries; what is indented more goes on with one
    for line in text.splitlines():
        depth = len(line) - len(line.lstrip())
        if begun := _SECTION.match(line):
            section, indent, name = begun[1], 0, ""
        elif line.startswith(":"):
            field = _FIELD.match(line)
            section, name = "", field[1] if field else ""
            yield name, field[2] if field else ""
        elif name is not None and line.strip() and depth == 0:
            section, name = "", None
            yield None, line
        elif (
            section in _PARAMETERS
            and (not indent or depth <= indent)
            and (entry := _ENTRY.match(line.strip()))
        ):
            indent, name = depth, entry[1]
            yield name, entry[2]
        else:
            yield name, line if name is None else line.strip()
