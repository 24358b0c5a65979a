"""The record of a fork: its stream's up to where it was forked, and then as the fork goes on. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from msgspec import UNSET
from msgspec.structs import asdict, replace

from midstream.protocol import Params
from midstream.record_format import Adjust, Final, Forked, Guard, Line, Lost, Record, Rewind, Start, Tokens

OnToolCall = Literal["finish", "pause", "continue"]
BEGINNING = ("grammar", "guards")  # which begin at a token, and go on where they are told to be as they are


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
    ended: dict[str, Any] = dict.fromkeys(_begun_anew(parent.lines, at, in_force, params))
    in_force |= ended
    changed = {name: value for name, value in asdict(params).items() if value != in_force[name]}
    told = [replace(line, stream=stream) for line in [parent.start, *lines]]
    if ended:
        told.append(Adjust(stream=stream, index=at, params=Params(**ended)))
    return [*told, Forked(stream=stream, index=at, params=Params(**changed), on_tool_call=on_tool_call)]


def _begun_anew(lines: Sequence[Line], at: int, in_force: dict[str, Any], params: Params) -> Iterator[str]:
    """What begins with the fork, though it is as before that token: behind it, it was another."""
    left_out = [
        line.params
        for line in lines[_gone_back(lines, at) :]
        if isinstance(line, Adjust | Forked) and line.index > at
    ]
    for name in BEGINNING:
        before = in_force[name]
        was_another = any(getattr(other, name) not in (UNSET, before) for other in left_out)
        if before and getattr(params, name) == before and was_another:
            yield name


def _gone_back(lines: Sequence[Line], at: int) -> int:
    """How many lines there are until it went back to there, or to before it, for the last time."""
    behind = 0
    for number, line in enumerate(lines, 1):
        if isinstance(line, Rewind | Guard) and line.index <= at:
            behind = number
    return behind


def _lines_until(lines: Sequence[Line], at: int) -> list[Line]:
    """What it takes to stand before output token `at`: what came behind that, and was not taken back to
    there or to before it, is left out."""
    behind = _gone_back(lines, at)
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
