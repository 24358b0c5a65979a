"""The format of records: what is written is read again, and a wrong file is told what is wrong with it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, get_args

import pytest

from midstream.protocol import Message, Params
from midstream.record_format import (
    Adjust,
    Amend,
    Final,
    Forked,
    Guard,
    Inject,
    Line,
    Lost,
    Moved,
    Pause,
    RecordError,
    RecordLine,
    Resume,
    Rewind,
    Start,
    Tokens,
    ToolResult,
    Waits,
    encode_line,
    parse_records,
)

START = Start(
    stream=1,
    record=1,
    request_id="a",
    model="toy",
    fingerprint="fp_1",
    prompt="Once\n\u2028 upon",
    prompt_tokens=3,
    params=Params(temperature=0.5, seed=-(2**63), stop=["\n"], logit_bias={7: -1.5}, logprobs=0),
)
LINES: list[Line] = [
    Tokens(stream=1, index=0, text="é", tokens=[195, 169], logprobs=[-0.1, -1e-30]),
    Adjust(stream=1, index=2, params=Params(temperature=0, logprobs=None)),
    Inject(stream=1, index=2, text=" But"),
    Inject(stream=1, index=2, messages=[Message(role="user", content="Why?")]),
    Inject(stream=1, index=2, tokens=[1, 2]),
    Tokens(stream=1, index=2, text="", tokens=[240]),
    Pause(stream=1, index=3, kv="release"),
    ToolResult(stream=1, index=3, call=1, content="20 degrees"),
    ToolResult(stream=1, index=3, call=0, error="no such place"),
    Amend(stream=1, index=3, call=1, arguments='{"city":"Par', partial=True),
    Waits(stream=1, index=3),
    Forked(stream=1, index=3, params=Params(seed=4), on_tool_call="pause"),
    Rewind(stream=1, index=1),
    Resume(stream=1, index=1),
    Moved(stream=1, index=1, fingerprint="fp_2"),
    Final(stream=1, index=1, finish_reason="stop", stop_reason="eos"),
]


def text(*lines: Line) -> str:
    return b"".join(map(encode_line, lines)).decode()


def test_what_is_written_is_read_again() -> None:
    (record,) = parse_records(text(START, *LINES))
    assert (record.start, record.lines) == (START, LINES)
    assert all(json.loads(line)["stream"] == 1 for line in text(START, *LINES).split("\n")[:-1])


def test_an_end_as_a_newer_server_has_it_is_read_again() -> None:
    end = Final(stream=1, index=0, finish_reason="moved_on")
    assert parse_records(text(START, end))[0].lines == [end]


def test_a_line_says_first_what_it_is_and_of_which_stream() -> None:
    assert text(Rewind(stream=1, index=1)) == '{"type":"rewind","stream":1,"index":1}\n'


def test_streams_stand_beside_and_behind_each_other() -> None:
    other = Start(
        stream=2,
        record=1,
        request_id="b",
        model="toy",
        fingerprint=None,
        messages=[Message(role="user", content="Hi")],
        prompt_tokens=3,
        params=Params(),
    )
    mixed = [START, other, Tokens(stream=2, index=0, text="x", tokens=[1]), *LINES, START]
    first, second, third = parse_records("\ufeff\n" + text(*mixed))
    assert first.lines == LINES
    assert (second.start, len(second.lines), second.title) == (other, 1, "Hi")
    assert (third.start, third.lines) == (START, []), "one that breaks off is one all the same"


def start(**fields: Any) -> dict[str, Any]:
    whole: dict[str, Any] = json.loads(text(START))
    return {name: value for name, value in (whole | fields).items() if value is not ...}


def test_a_guard_looks_ahead_of_what_was_sent() -> None:
    lines: list[Line] = [
        Tokens(stream=1, index=0, text="a", tokens=[97]),
        Guard(stream=1, index=3, name="g", do="rewind"),
        Tokens(stream=1, index=1, text="bcd", tokens=[98, 99, 100]),
    ]
    assert parse_records(text(START, *lines))[0].lines == lines


TOKENS: dict[str, Any] = {"type": "tokens", "stream": 1, "index": 0, "text": "a", "tokens": [97]}


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([], "there is no record in it: its first line would be a `start`"),
        (['{"type"'], "line 1, column 8: this is not JSON"),
        (["[" * 99_999], "line 1: it is nested too deep"),
        (["9" * 5000], "line 1: Exceeds the limit"),
        (['["start"]'], "line 1: Expected `object`, got `array`"),
        ([{"prompt": "a"}], "line 1: Object missing required field `type`"),
        ([start(record=2)], "line 1: it is a record of version 2; this client reads 1"),
        ([start(record="x" * 99)], "line 1: it is a record of version"),
        ([start(record=2, type="unheard")], "line 1: it is a record of version 2"),
        ([start(prompt_tokens=...)], "line 1: Object missing required field `prompt_tokens`"),
        ([start(params={"temperature": 3})], "line 1: params.temperature: Expected `float` <= 2"),
        ([start(prompt=...)], "line 1: a start has one of `messages`, `prompt` and `fork`"),
        ([start(), TOKENS | {"token": 1}], "line 2: there is no field `token`"),
        ([start(), TOKENS | {"type": "talk"}], "line 2: type: Invalid value 'talk'"),
        ([start(), TOKENS | {"stream": 2}], "line 2: stream 2 has no `start` before it, or has ended"),
        ([start(), TOKENS | {"index": 4}], "line 2: token 4 stands where token 0 is due"),
        ([start(), TOKENS | {"logprobs": []}], "line 2: 1 tokens have 0 logprobs"),
        (
            [start(), TOKENS, {"type": "rewind", "stream": 1, "index": 2}],
            "line 3: it rewinds to token 2, but 1",
        ),
        (
            [start(), TOKENS, {"type": "forked", "stream": 1, "index": 0, "params": {}}],
            "line 3: it is forked at token 0, but 1 stand",
        ),
        ([start(), {"type": "inject", "stream": 1, "index": 0}], "line 2: an inject has one of `text`"),
        (
            [start(), json.loads(text(LINES[-1])), TOKENS],
            "line 3: stream 1 has no `start` before it, or has ended",
        ),
    ],
)
def test_a_wrong_file_is_told_where_and_what(lines: list[Any], why: str) -> None:
    said = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    with pytest.raises(RecordError) as told:
        parse_records(said)
    assert str(told.value).startswith(why)
    assert "\n" not in str(told.value)


def test_what_is_no_unicode_is_no_record() -> None:
    with pytest.raises(RecordError):
        parse_records(json.dumps(start()).replace("Once", "\udcff"))


def test_lost_ends_what_is_known() -> None:
    lost = Lost(stream=1, index=0, why="the connection was lost")
    (record,) = parse_records(text(START, lost))
    assert record.lines == [lost]


# -- the document ----------------------------------------------------------------------------------

DOCUMENT = (Path(__file__).parents[2] / "docs" / "records.md").read_text()


@pytest.mark.parametrize("kind", get_args(Line), ids=lambda kind: kind.__name__)
def test_every_line_is_documented_with_all_its_fields(kind: type[RecordLine]) -> None:
    tag = kind.__struct_config__.tag
    (row,) = re.findall(rf"^\| `{tag}` \|([^|]+)\|", DOCUMENT, re.MULTILINE)
    assert set(re.findall(r"\w+", row)) >= set(kind.__struct_fields__) - {"stream"}


def test_the_documents_lines_are_lines() -> None:
    shown = DOCUMENT.rpartition("```\n{")[2].partition("```")[0].replace(", …", "").replace("…", "")
    (record,) = parse_records("{" + shown)
    assert [type(line) for line in record.lines] == [Tokens, Tokens, Adjust, Tokens, Final]
