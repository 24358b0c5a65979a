"""The record of a fork: its stream's up to where it was forked, and then as the fork goes on. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import UNSET
from msgspec.structs import asdict, replace

from midstream.protocol import Params
from midstream.record_format import Adjust, Final, Forked, Guard, Line, Lost, Record, Rewind, Start, Tokens

OnToolCall = Literal["finish", "pause", "continue"]


def lines_of_fork(
    parent: Record, at: int, tokens: Sequence[int], params: Params, on_tool_call: OnToolCall, stream: int
) -> list[Line] | None:
    """How a fork's record begins, of which `tokens` stand and these `params` are in force. None where the
    other's does not come to that. `on_tool_call` is its own."""
    lines = _lines_until(parent.lines, at)
    if _standing(lines) != list(tokens):
        return None
    in_force = asdict(parent.start.params)
    for line in lines:
        if isinstance(line, Adjust | Forked):
            in_force |= {name: value for name, value in asdict(line.params).items() if value is not UNSET}
    changed = {name: value for name, value in asdict(params).items() if value != in_force[name]}
    told = [replace(line, stream=stream) for line in [parent.start, *lines]]
    return [*told, Forked(stream=stream, index=at, params=Params(**changed), on_tool_call=on_tool_call)]


def _lines_until(lines: Sequence[Line], at: int) -> list[Line]:
    """What it takes to stand before output token `at`: what came behind that, and was not taken back to
    there or to before it, is left out."""
    behind = 0
    for number, line in enumerate(lines, 1):
        if isinstance(line, Rewind | Guard) and line.index <= at:
            behind = number
    kept = list(lines[:behind])
    for line in lines[behind:]:
        if isinstance(line, Final | Lost) or (isinstance(line, Tokens) and line.index >= at):
            break
        if isinstance(line, Tokens) and line.index + len(line.tokens) > at:
            count = at - line.index
            logprobs = None if line.logprobs is None else line.logprobs[:count]
            kept.append(replace(line, text="", tokens=line.tokens[:count], logprobs=logprobs))
            break
        if (
            not isinstance(line, Start) and line.index <= at
        ):  # else it took effect ahead of what had been sent
            kept.append(line)
    return kept


def _standing(lines: Sequence[Line]) -> list[int]:
    tokens = list[int]()
    for line in lines:
        if isinstance(line, Tokens):
            tokens += line.tokens
        elif isinstance(line, Rewind | Guard):
            del tokens[line.index :]
    return tokens
