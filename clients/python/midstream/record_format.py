"""The format of records: what was started, what came, and how it was steered, a line of JSON each. Pure.

A record is all lines of one stream, from its `start` to its `final`. A file may hold several: each line names
its stream by a number. `docs/records.md` says the same for people. It knows neither files nor clients.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from midstream.errors import MidstreamError
from midstream.protocol import (
    AnyFinishReason,
    Fork,
    Index,
    Messages,
    Params,
    TextPart,
    TokenId,
    ToolChoice,
    Tools,
)

VERSION = 1


class RecordError(MidstreamError):
    """A file is no record; the message says where and why."""


class RecordLine(
    Struct, tag_field="type", tag=str.lower, forbid_unknown_fields=True, omit_defaults=True, kw_only=True
):
    """`stream` is the number of the stream in its file."""

    stream: Annotated[int, Meta(ge=1)]


class Start(RecordLine, kw_only=True):
    """`params` are complete, the seed among them. `record` is the version of the format."""

    record: int
    request_id: str
    model: str
    fingerprint: str | None
    prompt: str | list[TokenId] | None = None
    messages: Messages | None = None
    fork: Fork | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool = True
    on_tool_call: Literal["finish", "pause", "continue"] = "finish"
    prompt_tokens: int
    params: Params


class Tokens(RecordLine, kw_only=True):
    """Output, the first token of it at `index`; `text` became whole with it."""

    index: Index
    text: str
    tokens: list[TokenId]
    logprobs: list[float] | None = None


class Pause(RecordLine, kw_only=True):
    index: Index
    kv: Literal["hold", "release"] = "hold"


class Resume(RecordLine, kw_only=True):
    index: Index


class Adjust(RecordLine, kw_only=True):
    """`params` are those that changed, for the token at `index` and those behind it."""

    index: Index
    params: Params


class Inject(RecordLine, kw_only=True):
    """One of the three, before the output token at `index`."""

    index: Index
    text: str | None = None
    messages: Messages | None = None
    tokens: list[TokenId] | None = None
    grammar: Literal["fit", "anew"] = "fit"


class ToolResult(RecordLine, kw_only=True, tag="tool_result"):
    """What came of a call, and stands before the output token at `index`, whenever it was told; `call` is its
    number among those that stood then, from 0."""

    index: Index
    call: Annotated[int, Meta(ge=0)]
    content: str | list[TextPart] | None = None
    error: str | None = None


class Amend(RecordLine, kw_only=True):
    """A call has these arguments, or begins with this text of them, from the output token at `index` on,
    behind the rewind to there; `call` as in a `tool_result`."""

    index: Index
    call: Annotated[int, Meta(ge=0)]
    arguments: str | dict[str, Any]
    partial: bool = False


class Waits(RecordLine, kw_only=True):
    """The model's turn ended before this token, with calls, whose results go in there."""

    index: Index


class Rewind(RecordLine, kw_only=True):
    """Output from `index` on is void."""

    index: Index


class Forked(RecordLine, kw_only=True):
    """The stream was forked, and this goes on as the fork does, from the token at `index` on. `params` are
    those in which it differs."""

    index: Index
    params: Params
    on_tool_call: Literal["finish", "pause", "continue"] = "finish"


class Guard(RecordLine, kw_only=True):
    """A guard acted: output from `index` on is void, and the stream went on, was paused, or ended."""

    index: Index
    name: str
    do: Literal["rewind", "pause", "finish"]


class Moved(RecordLine, kw_only=True):
    """It went on in an engine with this fingerprint."""

    index: Index
    fingerprint: str


class Lost(RecordLine, kw_only=True):
    """What happened from `index` on is not known, and not recorded."""

    index: Index
    why: str


class Final(RecordLine, kw_only=True):
    index: Index
    finish_reason: AnyFinishReason
    stop_reason: str | None = None


Control = Pause | Resume | Adjust | Inject | ToolResult | Amend | Rewind | Forked
Line = Start | Tokens | Control | Waits | Guard | Moved | Lost | Final
_decode_line = msgspec.json.Decoder(Line).decode
_encode_line = msgspec.json.Encoder().encode


class Record(Struct):
    """One stream's lines, those behind the first in their order."""

    start: Start
    lines: list[Line] = []

    @property
    def title(self) -> str:
        """Its last words, or what it continues."""
        if self.start.messages is not None:
            return "".join(self.start.messages[-1].texts)
        if self.start.fork is not None:
            return f"a fork of {self.start.fork.request_id}"
        prompt = self.start.prompt
        return prompt if isinstance(prompt, str) else f"{len(prompt or ())} tokens"


def encode_line(line: Line) -> bytes:
    return _encode_line(line) + b"\n"


def parse_records(text: str) -> list[Record]:
    """Every record of a file, in the order of their starts. Raises RecordError for the first line that is not
    right."""
    reader = _Reader()
    for place, line in _lines(text.removeprefix("\ufeff")):
        reader.read(line, place)
    if not reader.records:
        raise RecordError("there is no record in it: its first line would be a `start`")
    return reader.records


def _lines(text: str) -> Iterator[tuple[str, Line]]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            place = f"line {number}"
            _check_version(read_json(line, number, RecordError), place)
            yield place, _line(line, place)


def _line(text: str, place: str) -> Line:
    try:
        return _decode_line(text)  # type: ignore[no-any-return]
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise RecordError(f"{place}: {readable(str(error))}") from None


def _check_version(fields: Any, place: str) -> None:
    """Before anything else: what is wrong in a later version may be right."""
    version = fields.get("record", VERSION) if isinstance(fields, dict) else VERSION
    if version != VERSION:
        raise RecordError(
            f"{place}: it is a record of version {json.dumps(version)[:40]}; this client reads {VERSION}"
        )


def read_json(text: str, first_line: int, wrong: type[Exception]) -> Any:
    """The value that stands in a file from this line on. Raises `wrong`, which says where it is no JSON."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        line = first_line + error.lineno - 1
        raise wrong(f"line {line}, column {error.colno}: this is not JSON: {error.msg}") from None
    except RecursionError:
        raise wrong(f"line {first_line}: it is nested too deep") from None
    except ValueError as error:  # a number of thousands of digits
        raise wrong(f"line {first_line}: {error}") from None


def readable(message: str) -> str:
    """msgspec's message with the field in front: "Expected `int`, got `str` - at `$.params.seed`"."""
    what, _, path = message.partition(" - at `$")
    what = what.replace("Object contains unknown field", "there is no field")
    field = path.rstrip("`").lstrip(".")
    return f"{field}: {what}" if field else what


class _Reader:
    """Puts lines together, and holds each against what came before it."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self._open: dict[int, Record] = {}  # by the number of the stream
        self._end: dict[int, int] = {}  # of what stands of its output

    def read(self, line: Line, place: str) -> None:
        if isinstance(line, Start):
            self._begin(line, place)
            return
        record = self._open.get(line.stream)
        if record is None:
            raise RecordError(f"{place}: stream {line.stream} has no `start` before it, or has ended")
        self._check(line, place)
        record.lines.append(line)
        if isinstance(line, Lost | Final):
            del self._open[line.stream]

    def _begin(self, start: Start, place: str) -> None:
        if sum(given is not None for given in (start.messages, start.prompt, start.fork)) != 1:
            raise RecordError(f"{place}: a start has one of `messages`, `prompt` and `fork`")
        record = Record(start)
        self.records.append(record)
        self._open[start.stream], self._end[start.stream] = record, 0

    def _check(self, line: Line, place: str) -> None:
        end = self._end[line.stream]
        match line:
            case Tokens(index=index, tokens=tokens, logprobs=logprobs):
                if index != end:
                    raise RecordError(f"{place}: token {index} stands where token {end} is due")
                if logprobs is not None and len(logprobs) != len(tokens):
                    raise RecordError(f"{place}: {len(tokens)} tokens have {len(logprobs)} logprobs")
                self._end[line.stream] = index + len(tokens)
            case Rewind(index=index) | Guard(index=index):
                if index > end and isinstance(line, Rewind):  # a guard looks ahead of what was sent
                    raise RecordError(f"{place}: it rewinds to token {index}, but {end} stand")
                self._end[line.stream] = min(index, end)
            case Forked(index=index):
                if index != end:
                    raise RecordError(f"{place}: it is forked at token {index}, but {end} stand")
            case Inject():
                if sum(given is not None for given in (line.text, line.messages, line.tokens)) != 1:
                    raise RecordError(f"{place}: an inject has one of `text`, `messages` and `tokens`")
