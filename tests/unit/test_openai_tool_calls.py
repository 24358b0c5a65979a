"""Reasoning and calls in OpenAI's chat dialect: from a stream's events to chunks, and to a whole choice."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from engine import api
from midstream import protocol
from midstream.protocol import Rewound, Snapshot, StreamEvent, Token
from realtime.http.openai import chat_dialect
from realtime.http.openai.choice_accumulator import Choice
from realtime.pieces import at_once
from tests.fakes.lone_stream import LoneStream
from tests.unit.test_stream_tools import FIND, STOP, lone

TEXT = f"<think>Hm</think>So{FIND}\n{STOP}"


def events(one: LoneStream) -> list[StreamEvent]:
    return [event for event in one.take() if isinstance(event, StreamEvent)]


def deltas(choice: Choice, told: list[StreamEvent]) -> list[dict[str, Any]]:
    """Of each event, as it is written to a client."""
    found = []
    for event in told:
        choice.receive(event)
        match event:
            case Token(delta=delta) if delta:
                chunks = [chat_dialect.text_chunk(choice, delta, [])]
            case Snapshot():
                chunks = chat_dialect.snapshot_chunks(choice, event)
            case Token() | Rewound():
                chunks = []
            case _ if type(event).__name__ in ("Reasoning", "ToolCall", "ToolArguments", "ToolCallDone"):
                chunk = chat_dialect.beside_chunk(choice, event)  # type: ignore[arg-type]
                chunks = [] if chunk is None else [chunk]
            case _:
                chunks = []
        found += [msgspec.to_builtins(chunk)["delta"] for chunk in chunks]
    return found


def whole(choice: Choice) -> dict[str, Any]:
    made = at_once(chat_dialect.whole_choice(choice, "x"))
    message: dict[str, Any] = msgspec.to_builtins(made)["message"]
    return message


def told(one: LoneStream, text: str, choice: Choice) -> list[dict[str, Any]]:
    found = []
    for byte in text.encode():
        one.write(chr(byte)) if byte < 128 else one.stream.receive_news(_news(one, byte), one.now)
        found += deltas(choice, events(one))
    return found


def _news(one: LoneStream, byte: int) -> Any:
    one.index += 1
    return api.News(7, index=one.index - 1, tokens=[byte])


def put_together(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As OpenAI's clients do."""
    calls: list[dict[str, Any]] = []
    for delta in found:
        for call in delta.get("tool_calls", ()):
            if call["index"] == len(calls):
                assert call["type"] == "function"
                calls.append({"id": call["id"], "name": call["function"]["name"], "arguments": ""})
            calls[call["index"]]["arguments"] += call["function"]["arguments"]
    return calls


def test_chunks_put_together_are_the_whole() -> None:
    choice = Choice(0, logprobs=False)
    found = told(lone(), TEXT, choice)
    message = whole(choice)
    assert "".join(delta.get("reasoning_content", "") for delta in found) == "Hm"
    assert (message["reasoning_content"], message["content"]) == ("Hm", "So")
    calls = put_together(found)
    assert [json.loads(call["arguments"]) for call in calls] == [{"q": "é</tool_call>"}, {}]
    assert message["tool_calls"] == [
        {
            "id": call["id"],
            "type": "function",
            "function": {"name": call["name"], "arguments": call["arguments"]},
        }
        for call in calls
    ]


def test_whoever_asks_again_has_the_same_calls() -> None:
    one, choice = lone(), Choice(0, logprobs=False)
    told(one, TEXT, choice)
    again = Choice(0, logprobs=False)
    one.stream.acknowledge(len(TEXT), 10_000)
    snapshot = [event for event in one.attach(-1) if isinstance(event, StreamEvent)]
    assert [type(event) for event in snapshot] == [Snapshot]
    found = deltas(again, snapshot)
    assert put_together(found) == put_together(told(lone(), TEXT, Choice(0, logprobs=False)))
    assert whole(again) == whole(choice)


@pytest.mark.parametrize("to", [2, 9, 17, 40, 60, 80])
def test_what_is_rewound_is_not_in_a_whole_answer(to: int) -> None:
    one, choice = lone(), Choice(0, logprobs=False)
    told(one, TEXT[:90], choice)
    one.steer(protocol.Rewind(request_id="a", to=to))
    one.answer(api.Truncated(to))
    deltas(choice, events(one))
    fresh = Choice(0, logprobs=False)
    told(lone(), TEXT.encode()[:to].decode(), fresh)
    assert whole(choice) == whole(fresh)
    assert choice.bytes == fresh.bytes


def test_an_answer_of_calls_alone_has_no_content_and_one_without_has_no_calls() -> None:
    choice = Choice(0, logprobs=False)
    told(lone(), STOP, choice)
    assert whole(choice)["content"] is None
    plain = Choice(0, logprobs=False)
    told(lone(), FIND[:60], plain)
    assert whole(plain) == {"content": "", "role": "assistant", "refusal": None}
