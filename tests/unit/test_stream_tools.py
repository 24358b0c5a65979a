"""Reasoning and calls in a stream's events: the same however they are delivered, rewound, replayed."""

from __future__ import annotations

import gc
import itertools
import json
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from engine import api, toy_model
from midstream import protocol
from midstream.protocol import (
    Credit,
    Function,
    Message,
    Params,
    Past,
    PastInject,
    Reasoning,
    Rewound,
    Tool,
    ToolArguments,
    ToolCallDone,
)
from realtime.refusal import Refusal
from realtime.stream.engine_commands import SteeringFrame
from realtime.stream.past import begun
from realtime.stream.spanned_text import COPY_EVERY, READ_AT_ONCE, TEXT_BYTES, TOKEN_BYTES, call_id_of
from realtime.text.served_model import ServedModel
from realtime.text.tokenizer import Tokenizer
from realtime.tools.offered import argument_kinds, no_texts
from realtime.tools.span_reader import SpanReader
from tests.fakes.counted_work import counted
from tests.fakes.folded_spans import FoldedSpans
from tests.fakes.lone_stream import CANCELLED, RUN_OUT, LoneStream, kinds
from tests.fakes.spelt_calls import Told

TEMPLATE = "{% if tools %}<tool_call>{% endif %}{% for m in messages %}<think>{{ m.content }}{% endfor %}"
MODEL = ServedModel(
    "toy",
    Tokenizer(json.loads((toy_model.FOLDER / "tokenizer.json").read_text()), TEMPLATE),
    vocab=toy_model.VOCAB,
    context=4096,
    fingerprint="toy",
)
TOOLS = [Tool(function=Function(name="find")), Tool(function=Function(name="stop"))]
ASKED = {"messages": [Message(role="user", content="Hi")], "tools": TOOLS}
FIND = '<tool_call>{"name": "find", "arguments": {"q": "é</tool_call>"}}</tool_call>'
STOP = '<tool_call>{"name": "stop", "arguments": {}}</tool_call>'
TEXT = f"<think>Hm</think>So <it:\n{FIND}\n{STOP}Done"
EOS = api.Finish("eos")


def lone(**asked: Any) -> LoneStream:
    credit = asked.pop("credit", Credit(limit=2000))
    return LoneStream(model=MODEL, credit=credit, on_disconnect="continue", asked=ASKED | asked)


def told(text: str = TEXT) -> FoldedSpans:
    """Of the whole text, told a token at a time."""
    one, client = lone(), FoldedSpans()
    for byte in text.encode():
        one.write(chr(byte)) if byte < 128 else _write(one, byte)
        client.read(one.take())
    one.answer(finish=EOS)
    client.read(one.take())
    return client


def _write(one: LoneStream, *tokens: int) -> None:
    one.stream.receive_news(api.News(7, index=one.index, tokens=list(tokens)), one.now)
    one.index += len(tokens)


def cuts(length: int) -> Iterator[list[int]]:
    yield from ([], list(range(length)), *([at] for at in range(1, length, 3)))
    chance = random.Random(3)
    yield from map(list, chance.sample(list(itertools.combinations(range(1, length), 2)), 30))
    for _ in range(30):
        yield sorted(chance.sample(range(1, length), 20))


def test_what_is_told_of_all_of_it() -> None:
    client = told()
    content, reasoning, calls = client.said
    assert (content, reasoning) == ("So <it:\nDone", "Hm")
    assert [(name, json.loads(arguments)) for name, arguments, _, _ in calls] == [
        ("find", {"q": "é</tool_call>"}),
        ("stop", {}),
    ]
    for (_, _, index, end), spelt in zip(calls, (FIND, STOP), strict=True):
        begin = TEXT.encode().index(spelt.encode())
        assert (index, end) == (begin, begin + len(spelt.encode()) - len("</tool_call>"))
    assert client.final is not None
    assert (client.final.finish_reason, client.final.stop_reason) == ("tool_calls", "eos")
    assert client.final.usage.reasoning_tokens == len("Hm</think>")
    assert len({call["id"] for call in client.calls}) == 2


def test_the_same_is_told_in_any_pieces() -> None:
    expected, tokens = told().said, list(TEXT.encode())
    for places in cuts(len(tokens)):
        one, client = lone(), FoldedSpans()
        for begin, end in itertools.pairwise([0, *places, len(tokens)]):
            _write(one, *tokens[begin:end])
            client.read(one.take())
        one.answer(finish=EOS)
        client.read(one.take())
        assert client.said == expected, places


def test_each_is_told_in_the_step_in_which_it_is_known() -> None:
    one = lone()
    one.write('<tool_call>{"name": "find')
    one.take()
    one.write('"')
    assert kinds(one.take()) == ["Token", "ToolCall"]
    one.write(', "arguments": ')
    assert kinds(one.take()) == ["Token"]
    for char in '{"a": 1':
        one.write(char)
        _, arguments = one.take()
        assert isinstance(arguments, ToolArguments)
        assert (arguments.delta, arguments.index, arguments.count) == (char, one.index - 1, 1)
    one.write("}")
    one.take()
    one.write("}")
    _, done = one.take()
    assert isinstance(done, ToolCallDone)
    assert (done.index, done.end) == (0, one.index)


def test_what_piles_up_is_few_events() -> None:
    one = lone()
    one.write(TEXT)
    events = one.take()
    assert sum(isinstance(event, Reasoning) for event in events) == 1
    assert len(events) < 30, kinds(events)


@pytest.mark.parametrize("every", [1, 1000])
def test_rewound_to_anywhere_it_is_as_if_it_had_never_gone_further(every: int) -> None:
    tokens = list(TEXT.encode())
    expected = told().said
    for to in range(0, len(tokens) + 1, 5):
        one, client = lone(), FoldedSpans()
        for begin in range(0, len(tokens), every):
            _write(one, *tokens[begin : begin + every])
            client.read(one.take())
        one.steer(protocol.Rewind(request_id="a", to=to))
        one.answer(api.Truncated(to))
        client.read(one.take())
        assert client.said == _so_far(tokens[:to])
        _write(one, *tokens[to:])
        one.answer(finish=EOS)
        client.read(one.take())
        assert client.said == expected


def _so_far(tokens: list[int]) -> Any:
    one, client = lone(), FoldedSpans()
    _write(one, *tokens)
    client.read(one.take())
    return client.said


@pytest.mark.parametrize("whole_arguments", [False, True])
def test_tokens_that_wait_and_say_nothing_beside_are_nothing_for_the_collector(whole_arguments: bool) -> None:
    """Half a million of them were a list each: to look at all held everybody up for a quarter of a second,
    and they took half as much memory again as was counted."""
    one = lone(credit=Credit(limit=0, prefetch=500), whole_arguments=whole_arguments)
    one.write("So it is" + '<tool_call>{"name": "find", "arguments": {"q": "So it is' * whole_arguments)
    silent = [pending for pending in one.stream.outbox.unsent if not pending.beside]
    assert len(silent) >= len("So it is")
    assert not any(gc.is_tracked(pending.beside) for pending in silent)


def test_a_rewind_reads_anew_no_more_than_a_little(monkeypatch: pytest.MonkeyPatch) -> None:
    one = lone()
    one.write('<tool_call>{"name": "find", "arguments": {"q": "' + "x" * 1000)
    one.take()
    spans = one.stream.output.spans
    assert spans is not None
    fed, feed = 0, type(spans._reader).feed

    def counting(reader: Any, token: int, index: int) -> Any:
        nonlocal fed
        fed += 1
        return feed(reader, token, index)

    monkeypatch.setattr(type(spans._reader), "feed", counting)
    one.steer(protocol.Rewind(request_id="a", to=1000))
    one.answer(api.Truncated(1000))
    assert fed <= 64
    injected, inject = 0, type(spans._reader).inject

    def counting_injected(reader: Any, tokens: Any, index: int) -> Any:
        nonlocal injected
        injected += len(tokens)
        return inject(reader, tokens, index)

    monkeypatch.setattr(type(spans._reader), "inject", counting_injected)
    for piece in ("y" * 2000, "z", "w"):
        one.steer(protocol.Inject(request_id="a", text=piece, tokens=list(piece.encode())))
        one.answer(api.Appended(1000, len(piece)))
    assert injected == 2002
    for _ in range(3):
        one.steer(protocol.Rewind(request_id="a", to=1000))
        one.answer(api.Truncated(1000))
    assert injected == 2008, "a long injection is not read anew"


def test_void_calls_and_new_ones_have_other_ids() -> None:
    one, client = lone(), FoldedSpans()
    one.write(STOP)
    client.read(one.take())
    before = client.calls[0]["id"]
    one.steer(protocol.Rewind(request_id="a", to=0))
    one.answer(api.Truncated(0))
    one.write(STOP)
    client.read(one.take())
    assert before != client.calls[0]["id"]


@pytest.mark.parametrize("at", range(0, len(TEXT), 9))
def test_whoever_comes_back_has_all_of_it(at: int) -> None:
    """By the same events again, or by a snapshot."""
    one = lone()
    tokens = list(TEXT.encode())
    known, fresh = FoldedSpans(), FoldedSpans()
    _write(one, *tokens[:at])
    known.read(one.take())
    one.stream.acknowledge(at, known.seq)
    _write(one, *tokens[at : at + 9])
    one.take()
    one.detach()
    known.read(one.attach(known.seq))
    fresh.read(one.attach(-1))
    assert known.said == fresh.said == _so_far(tokens[: at + 9])
    _write(one, *tokens[at + 9 :])
    one.answer(finish=EOS)
    fresh.read(one.take())
    assert fresh.said == told().said


@pytest.mark.parametrize(
    "text", [b"<think>Hm</thi", b"<think>Hm \xf0\x9f", b"So <too", b"So \xf0\x9f", b"<tool_call>{"]
)
def test_whoever_comes_behind_its_end_has_what_was_held_back_until_then(text: bytes) -> None:
    one, known, fresh = lone(), FoldedSpans(), FoldedSpans()
    _write(one, *text)
    one.answer(finish=RUN_OUT)
    known.read(one.take())
    one.stream.acknowledge(len(text), known.seq)
    fresh.read(one.attach(-1))
    assert fresh.said == known.said


@pytest.mark.parametrize("begun", [FIND, FIND.removesuffix("</tool_call>"), FIND[:20], "So"])
@pytest.mark.parametrize("whole_arguments", [False, True])
def test_a_snapshot_has_the_calls_that_were_put_in_and_told_where_others_wait(
    begun: str, whole_arguments: bool
) -> None:
    one = lone(whole_arguments=whole_arguments)
    for text in (begun, STOP, "x" * 3_000 + STOP):
        one.steer(protocol.Inject(request_id="a", tokens=list(text.encode())))
    known, fresh = FoldedSpans(), FoldedSpans()
    one.answer(api.Appended(0, len(begun.encode())))
    known.read(one.take())
    one.stream.outbox.acknowledge(known.seq)
    one.answer(api.Appended(0, len(STOP)), api.Appended(0, 3_000 + len(STOP)))
    snapshot, attached, *later = one.attach(-1)
    assert isinstance(snapshot, protocol.Snapshot)
    fresh.read([snapshot])
    assert fresh.said == known.said
    while one.stream.reading:
        one.answer()
    fresh.read([attached, *later, *one.take()])
    calls = [(call.name, "".join(call.arguments), call.index, call.end) for call in one.stream.output.calls]
    assert fresh.said[2] == calls


@pytest.mark.parametrize("at", [None, 0])
def test_a_snapshot_is_followed_by_nothing_of_calls_that_are_void_by_then(at: int | None) -> None:
    """They were put in, and others in their place, while nobody read."""
    one, client = lone(), FoldedSpans()
    one.write("So")
    for text in (FIND, FIND.partition("é")[0], "abc"):
        one.stream.outbox.acknowledge(len(one.take()))
        one.steer(protocol.Inject(request_id="a", tokens=list(text.encode())))
        one.answer(api.Appended(2, len(text.encode())))
    if at is None:
        call = one.stream.output.calls[0]
        frame = protocol.Amend(request_id="a", call_id=call.call_id, arguments={"q": "ab"})
        one.stream.steer_call(frame, 0, one.now)
    else:
        one.steer(protocol.Inject(request_id="a", tokens=list(STOP.encode()), at=at))
    put_in = one.commands[-1]
    assert isinstance(put_in, api.Append)
    one.answer(api.Appended(2 if at is None else 0, len(put_in.tokens)))
    client.read(one.attach(-1))
    calls = [(call.name, "".join(call.arguments), call.index, call.end) for call in one.stream.output.calls]
    assert client.said[2] == calls


def test_a_rewind_that_a_snapshot_has_told_of_changes_nothing() -> None:
    one = lone()
    one.write(TEXT[:60])
    one.stream.acknowledge(60, one.stream.outbox.seq + 100)
    one.take()
    one.stream.acknowledge(60, one.stream.outbox.seq - 1)
    for to in (50, 40):
        one.steer(protocol.Rewind(request_id="a", to=to))
        one.answer(api.Truncated(to))
    client = FoldedSpans()
    client.read(one.attach(-1))
    client.read(one.take())
    assert client.said == _so_far(list(TEXT[:40].encode()))


def test_behind_a_snapshot_nobody_is_taken_back_to_where_void_arguments_were_put_in() -> None:
    one, client = lone(), FoldedSpans()
    one.write("So <it:\n")
    one.take()
    one.steer(protocol.Inject(request_id="a", tokens=list(STOP.encode())))
    one.answer(api.Appended(8, len(STOP)))
    for to in (8, 2):
        one.steer(protocol.Rewind(request_id="a", to=to))
        one.answer(api.Truncated(to))
    one.stream.outbox.acknowledge(one.stream.outbox.seq - 1)
    one.write("me")
    events = one.attach(-1)
    client.read(events)
    assert [event.index for event in events if isinstance(event, Rewound)] == [2, 2]
    assert (client.content, client.index) == ("Some", 4)


def test_another_engine_is_given_what_stands_and_the_call_goes_on() -> None:
    one, client = lone(), FoldedSpans()
    one.admit()
    one.write(TEXT[:70])
    client.read(one.take())
    one.lose_engine()
    client.read(one.take())
    submit = one.new_engine()
    assert len(submit.tokens) == (submit.prompt or 0) + 70
    one.admit()
    one.write(TEXT[70:])
    one.answer(finish=EOS)
    client.read(one.take())
    assert client.said == told().said


# -- ends ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", range(0, len(TEXT), 9))
def test_what_is_cut_off_is_no_call(length: int) -> None:
    one, client = lone(), FoldedSpans()
    one.write(TEXT[:length])
    client.read(one.take())
    one.answer(finish=api.Finish("length"))
    client.read(one.take())
    assert client.final is not None
    assert client.final.finish_reason == "length"
    assert all(call["end"] is not None for call in client.calls[:-1])


@pytest.mark.parametrize(
    "call",
    [
        r'{"name": "\ud834", "arguments": {}}',
        r'{"name": "find", "arguments": "\ud834"}',
    ],
)
def test_half_a_character_is_no_part_of_a_call(call: str) -> None:
    one = lone()
    one.write(f"<tool_call>{call}</tool_call>")
    one.answer(finish=EOS)
    events = one.take()
    assert msgspec.json.encode(events), "each can be said"
    assert not any(isinstance(event, ToolCallDone) for event in events)


def test_an_end_within_a_call_is_no_end_by_calls() -> None:
    one, client = lone(), FoldedSpans()
    one.write(FIND + STOP[:40])
    one.answer(finish=EOS)
    client.read(one.take())
    assert client.final is not None
    assert client.final.finish_reason == "stop"
    assert [call["end"] is not None for call in client.calls] == [True, False]


def test_where_one_call_is_enough_it_ends_the_stream() -> None:
    one, client = lone(parallel_tool_calls=False), FoldedSpans()
    one.write(FIND + STOP)
    client.read(one.take())
    assert [call["name"] for call in client.calls] == ["find"]
    assert client.final is not None
    assert (client.final.finish_reason, client.final.stop_reason) == ("tool_calls", None)
    assert one.commands[-1] == api.Cancel(7)


def test_one_call_is_enough_though_another_broke_off_before_it() -> None:
    one, client = lone(parallel_tool_calls=False), FoldedSpans()
    one.write('<tool_call>{"name": "find", "arguments": {x' + STOP + FIND)
    client.read(one.take())
    assert [(call["name"], call["end"] is not None) for call in client.calls] == [
        ("find", False),
        ("stop", True),
    ]
    assert client.final is not None
    assert (client.final.finish_reason, client.final.stop_reason) == ("tool_calls", None)


@pytest.mark.parametrize("parallel", [True, False])
def test_a_call_that_was_put_in_right_before_a_turn_is_none_of_that_turn(parallel: bool) -> None:
    one, client = lone(parallel_tool_calls=parallel), FoldedSpans()
    one.write("So")
    one.steer(protocol.Inject(request_id="a", tokens=list(FIND.encode())))
    one.answer(api.Appended(2, len(FIND.encode())))
    one.steer(protocol.Inject(request_id="a", messages=[Message(role="user", content="No")], tokens=[33]))
    one.answer(api.Appended(2, 1))
    one.write("Done")
    one.answer(finish=EOS)
    client.read(one.take())
    assert [call["end"] for call in client.calls] == [2]
    assert client.content == "SoDone"
    assert client.final is not None
    assert (client.final.finish_reason, client.final.stop_reason) == ("stop", "eos")


def test_a_call_that_was_put_in_right_before_a_turn_is_amended_where_it_stands() -> None:
    one, client = lone(), FoldedSpans()
    one.write("So")
    one.steer(protocol.Inject(request_id="a", tokens=list(STOP.encode())))
    one.answer(api.Appended(2, len(STOP.encode())))
    one.steer(protocol.Inject(request_id="a", messages=[Message(role="user", content="No")], tokens=[33]))
    one.answer(api.Appended(2, 1))
    client.read(one.take())
    call_id = client.calls[0]["id"]
    one.stream.steer_call(
        protocol.Amend(request_id="a", call_id=call_id, arguments={"q": 1}, partial=False), 0, one.now
    )
    amended = one.commands[-1]
    assert isinstance(amended, api.Append)
    one.answer(api.Appended(2, len(amended.tokens)))
    client.read(one.take())
    assert [(call["id"], call["arguments"]) for call in client.calls] == [(call_id, '{"q": 1}')]


def test_a_result_that_stood_behind_what_is_amended_is_missing_again() -> None:
    """Both stand before the same output token."""
    one, client = lone(on_tool_call="continue"), FoldedSpans()
    one.write(STOP + '<tool_call>{"name": "find", "arguments": {"q": "a')
    client.read(one.take())
    stop, find = client.calls
    result = protocol.ToolResult(request_id="a", call_id=stop["id"], content="Stopped")
    one.steer(msgspec.structs.replace(one.stream.inject_of(result), tokens=[33]))
    one.answer(api.Appended(one.index, 1))
    with pytest.raises(Refusal, match="waits for no result"):
        one.stream.inject_of(result)
    one.stream.steer_call(
        protocol.Amend(request_id="a", call_id=find["id"], arguments='{"q": "ab', partial=True), 0, one.now
    )
    amended = one.commands[-1]
    assert isinstance(amended, api.Append)
    one.answer(api.Appended(one.index, len(amended.tokens)))
    assert [bytes(tokens.tolist()) for _, tokens in one.stream.output.injections] == [b"b"]
    assert one.stream.inject_of(result).result == result


@pytest.mark.parametrize("behind_a_turn", [True, False])
def test_what_is_put_in_where_a_turn_begins_is_kept_with_it(behind_a_turn: bool) -> None:
    """A conversation that has the turn again had the call without its beginning."""
    one, begun = lone(), '<tool_call>{"name": "stop", "arguments": '
    if behind_a_turn:
        one.write("So")
        one.steer(protocol.Inject(request_id="a", messages=[Message(role="user", content="No")], tokens=[33]))
        one.answer(api.Appended(2, 1))
    one.steer(protocol.Inject(request_id="a", tokens=list(begun.encode())))
    one.answer(api.Appended(one.index, len(begun)))
    one.write("{}}</tool_call>")
    _write(one, 463)  # its end
    one.answer(finish=EOS)
    (turn,) = one.stream.take_decoded_turns()
    assert (bytes(turn.tokens.tolist()).decode(), [call.name for call in turn.calls]) == (STOP, ["stop"])


@pytest.mark.parametrize(("min_tokens", "text"), [(4, "So "), (5, "So <t")])
def test_what_is_held_at_the_end_came_with_the_last_token(min_tokens: int, text: str) -> None:
    one, client = lone(), FoldedSpans()
    one.stream.output.set_stop(("<t",), min_tokens)
    one.write("So <t", finish=RUN_OUT)
    client.read(one.take())
    assert client.content == text


def test_a_stop_string_is_looked_for_in_content_alone() -> None:
    one, client = lone(), FoldedSpans()
    one.stream.output.set_stop(("st", "Hm", "find"), 0)
    one.write(f"<think>Hm</think>{FIND}last")
    client.read(one.take())
    assert client.final is not None
    assert (client.final.finish_reason, client.final.stop_reason) == ("stop", "st")
    assert client.said[:2] == ("la", "Hm")


def test_credit_is_of_tokens_whatever_they_are() -> None:
    one = LoneStream(model=MODEL, credit=Credit(limit=20), asked=ASKED)
    client = FoldedSpans()
    one.write(FIND[:40])
    client.read(one.take())
    assert client.index == 20
    one.answer(finish=EOS)
    assert client.final is None
    one.stream.grant(100, one.now)
    client.read(one.take())
    assert client.index == 40
    assert client.final is not None


# -- injections ------------------------------------------------------------------------------------


def inject(one: LoneStream, text: str, client: FoldedSpans) -> None:
    tokens = list(text.encode())
    one.steer(protocol.Inject(request_id="a", text=text, tokens=tokens))
    one.answer(api.Appended(one.index, len(tokens)))
    client.read(one.take())


def test_a_call_has_what_is_injected_into_it() -> None:
    one, client = lone(), FoldedSpans()
    one.write('<tool_call>{"name": "find", "arguments": {"q": "')
    client.read(one.take())
    inject(one, "Par", client)
    assert client.calls[0]["arguments"].endswith('"Par')
    one.write('is"}}</tool_call>')
    client.read(one.take())
    assert json.loads(client.calls[0]["arguments"]) == {"q": "Paris"}
    for to in (one.index, 49, 48, 47):
        one.steer(protocol.Rewind(request_id="a", to=to))
        one.answer(api.Truncated(to))
        client.read(one.take())
        injected = '"Par' in client.calls[0]["arguments"]
        assert injected == (to >= 48)
    fresh = FoldedSpans()
    one.stream.acknowledge(0, 100)
    fresh.read(one.attach(-1))
    assert fresh.said == client.said


def test_reasoning_is_closed_by_an_injection() -> None:
    one, client = lone(), FoldedSpans()
    one.write("<think>Hm")
    inject(one, "</think>So ", client)
    one.write("yes")
    client.read(one.take())
    assert client.said[:2] == ("yes", "Hm")


def test_a_call_is_made_by_an_injection() -> None:
    one, client = lone(), FoldedSpans()
    inject(one, STOP, client)
    assert client.said[2] == [("stop", "{}", 0, 0)]


def test_what_waits_of_an_injection_is_void_with_what_was_behind_it() -> None:
    one, client = lone(), FoldedSpans()
    one.write('<tool_call>{"name": "find", "arguments": {"q": "')
    client.read(one.take())
    one.write("abc")
    one.steer(protocol.Inject(request_id="a", text="x", tokens=[120]))
    one.answer(api.Appended(one.index, 1))
    one.steer(protocol.Rewind(request_id="a", to=48))
    one.answer(api.Truncated(48))
    client.read(one.take())
    assert client.calls[0]["arguments"] == '{"q": "'
    one.answer(finish=CANCELLED)
    client.read(one.take())


def test_another_turn_lets_out_what_was_held_and_has_calls_of_its_own() -> None:
    one, client = lone(), FoldedSpans()
    one.write(f"{STOP}So <too")
    client.read(one.take())
    messages = [Message(role="tool", content="42")]
    one.steer(protocol.Inject(request_id="a", messages=messages, tokens=[1, 2]))
    one.answer(api.Appended(one.index, 2))
    one.write("l_call>Done")
    one.answer(finish=EOS)
    client.read(one.take())
    assert client.content == "So <tool_call>Done"
    assert client.final is not None
    assert client.final.finish_reason == "stop"


# -- without ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "asked", [{"tools": None}, {"tool_choice": "none"}, {"messages": None, "prompt": "Hi", "tools": None}]
)
def test_where_no_tools_are_offered_a_call_is_text(asked: dict[str, Any]) -> None:
    one, client = lone(**asked), FoldedSpans()
    one.write("<think>Hm</think>" + STOP)
    one.answer(finish=EOS)
    client.read(one.take())
    reads = asked.get("prompt") is None
    assert client.said == (STOP if reads else "<think>Hm</think>" + STOP, "Hm" if reads else "", [])
    assert client.final is not None
    assert client.final.finish_reason == "stop"


def test_a_stream_without_spans_has_no_reader() -> None:
    one = LoneStream(asked={"messages": [Message(role="user", content="Hi")]})
    assert one.stream.output.spans is None
    one.steer(protocol.Rewind(request_id="a", to=0))
    one.answer(api.Truncated(0))
    rewound = one.take()[-1]
    assert isinstance(rewound, Rewound)
    assert (rewound.reasoning_length, rewound.tool_calls) == (0, 0)


# -- at random -------------------------------------------------------------------------------------

PIECES = [
    *("<think>", "Hm é", "</think>", "\n", "So <it ", "<tool", "_call>", FIND, STOP, FIND[:30], FIND[30:50]),
    *('{"name": "find", ', '"arguments": {"q": "', "x</tool_call>", '"}', "}", ", ", "</tool_call>", "日本"),
]


class Wanderer:
    """A stream that is steered at random, and what stands of it."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.one, self.client = lone(), FoldedSpans()
        self.one.admit()
        self.tokens: list[int] = []
        self.injected: list[tuple[int, list[int]]] = []

    def act(self) -> None:
        getattr(
            self, self.chance.choice(["write"] * 6 + ["take"] * 3 + ["rewind", "inject", "come_back", "die"])
        )()

    def write(self) -> None:
        tokens = list(self.chance.choice(PIECES).encode())
        at = 0
        while at < len(tokens):
            count = self.chance.choice([1, 2, 5, 40])
            _write(self.one, *tokens[at : at + count])
            at += count
        self.tokens += tokens

    def take(self) -> None:
        self.client.read(self.one.take())

    def rewind(self) -> None:
        to = self.chance.randrange(self.one.stream.outbox.sent + 1)
        to = max(to, self.chance.choice([0, len(self.tokens) - 30]))
        to = min(to, self.one.stream.outbox.sent)
        self.one.steer(protocol.Rewind(request_id="a", to=to))
        self.one.answer(api.Truncated(to))
        del self.tokens[to:]
        self.injected = [(index, tokens) for index, tokens in self.injected if index <= to]

    def inject(self) -> None:
        tokens = list(self.chance.choice(PIECES).encode())
        self.one.steer(protocol.Inject(request_id="a", text="x", tokens=tokens))
        self.one.answer(api.Appended(len(self.tokens), len(tokens)))
        self.injected.append((len(self.tokens), tokens))

    def come_back(self) -> None:
        """Somebody else, who knows nothing, or who knows all that was taken."""
        self.one.stream.acknowledge(self.chance.randrange(1 + len(self.tokens)), self.chance.randrange(200))
        self.one.detach()
        if self.chance.random() < 0.5:
            self.client = FoldedSpans()
        self.client.read(self.one.attach(self.client.seq))

    def die(self) -> None:
        self.one.lose_engine()
        self.one.new_engine()
        self.one.admit()

    def expected(self) -> Any:
        reader = SpanReader(MODEL.tokenizer.spelling, no_texts(argument_kinds(TOOLS)), [])
        told, injected, content = Told(), list(self.injected), ""
        for index in range(len(self.tokens) + 1):
            while injected and injected[0][0] == index:
                told.add(reader.inject(injected.pop(0)[1], index))
            if index < len(self.tokens):
                told.add(reader.feed(self.tokens[index], index))
                content = told.content  # what an injection lets out goes out with the next token
        return content, told.reasoning, [tuple(call) for call in told.calls]


@pytest.mark.parametrize("seed", range(15))
def test_whatever_happens_a_reader_knows_what_stands(seed: int) -> None:
    wanderer = Wanderer(seed)
    for _ in range(40):
        wanderer.act()
        if len(wanderer.tokens) > 1500:
            break
        wanderer.take()
        assert wanderer.client.said == wanderer.expected()


@pytest.mark.parametrize("seed", range(15, 30))
def test_also_one_that_reads_late(seed: int) -> None:
    wanderer = Wanderer(seed)
    for _ in range(40):
        wanderer.act()
        if len(wanderer.tokens) > 1500:
            break
    wanderer.take()
    assert wanderer.client.said == wanderer.expected()


def test_a_long_injection_is_read_in_slices() -> None:
    """Each with news, be they none; and whatever else happens to the stream finds all of it read."""
    text = '<tool_call>{"name": "find", "arguments": {"q": "' + "x" * 3900
    for others in (0, 1, 3):
        one, client = lone(), FoldedSpans()
        one.write("Well. ")
        one.steer(protocol.Inject(request_id="a", text=text, tokens=list(text.encode())))
        one.answer(api.Appended(one.index, len(text)))
        assert one.stream.reading
        client.read(one.take())
        assert client.calls == [], "what it takes to read of it is in no turn with others' news"
        one.answer()
        client.read(one.take())
        assert len(client.calls[0]["arguments"]) < 1500
        for _ in range(others):
            one.answer()
        assert one.stream.reading == (others < 3)
        one.write('"}}')
        client.read(one.take())
        assert len(client.calls[0]["arguments"]) == 3900 + len('{"q": ""}')


class ReadTokens:
    """How many tokens that were injected readers have read since this was asked last."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._read = 0
        inject = SpanReader.inject

        def counted(reader: SpanReader, tokens: Sequence[int], index: int) -> list[Any]:
            self._read += len(tokens)
            return inject(reader, tokens, index)

        monkeypatch.setattr(SpanReader, "inject", counted)

    def take(self) -> int:
        read, self._read = self._read, 0
        return read


SLICE = READ_AT_ONCE // TOKEN_BYTES  # tokens


def put_in(one: LoneStream, tokens: int, ref: str | None = None) -> api.Appended:
    """Returns what its engine will say."""
    one.steer(protocol.Inject(request_id="a", ref=ref, tokens=[ord("<")] * tokens))
    return api.Appended(one.index, tokens)


@pytest.mark.parametrize("lengths", [[3000, 1], [SLICE - 1] * 3, [1, 3000], [3000]])
@pytest.mark.parametrize("finish", [None, CANCELLED])
def test_whatever_else_comes_in_its_step_it_is_read_in_slices(
    lengths: list[int], finish: api.Finish | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, read = LoneStream(model=MODEL, asked=ASKED, reasoning_tokens=100), ReadTokens(monkeypatch)
    changes = [put_in(one, length, str(at)) for at, length in enumerate(lengths)]
    if finish is not None:
        one.cancel("end")
    one.answer(*changes, finish=finish)
    turns = [read.take()]
    while one.stream.reading:
        one.answer()
        turns.append(read.take())
    assert sum(turns) == sum(lengths)
    assert max(turns) < 2 * SLICE
    refs = [*map(str, range(len(lengths))), *(["end"] if finish else [])]
    assert [event.ref for event in one.take() if getattr(event, "ref", None)] == ["start", *refs]


def test_it_ends_once_where_its_reasoning_cannot_and_its_client_cancels_it_meanwhile() -> None:
    one = LoneStream(model=MODEL, asked=ASKED, reasoning_tokens=1)
    one.write("<think>H")
    assert isinstance(one.commands[-1], api.Append)
    one.cancel("end")
    one.answer(api.Refused(one.index), finish=CANCELLED)
    finals = [event for event in one.take() if isinstance(event, protocol.Final)]
    assert [(final.ref, final.finish_reason) for final in finals] == [("end", "length")]


def test_a_call_that_is_put_in_is_told_as_soon_as_it_is_read_also_to_who_has_paused() -> None:
    one, client = LoneStream(model=MODEL, asked=ASKED, reasoning_tokens=100), FoldedSpans()
    text = FIND.replace("é", "x" * 3000)
    one.steer(protocol.Pause(request_id="a"))
    one.steer(protocol.Inject(request_id="a", tokens=list(text.encode())))
    one.answer(api.Paused(0), api.Appended(0, len(text)))
    while one.stream.reading:
        one.answer()
    client.read(one.take())
    assert [call["end"] for call in client.calls] == [0]


def test_so_it_is_to_who_is_told_of_several_tokens_at_once() -> None:
    """There may be none to wait for."""
    one = LoneStream(model=MODEL, interval=4, asked=ASKED)
    one.steer(protocol.Pause(request_id="a"))
    one.steer(protocol.Inject(request_id="a", tokens=list(STOP.encode())))
    one.answer(api.Paused(0), api.Appended(0, len(STOP)))
    assert kinds(one.take())[-1] == "ToolCallDone"


def test_one_of_a_past_is_read_in_slices_too(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, read = [ord("<")] * 3000, ReadTokens(monkeypatch)
    past = Past(tokens=[97], steering=[PastInject(index=1, tokens=tokens)])
    start = protocol.Start(request_id="a", past=past, **ASKED)  # type: ignore[arg-type]
    params = lone().stream.context.params
    turns = [read.take() for _ in begun(start, [1], params, None, MODEL, [tokens])]
    assert sum(turns) == len(tokens)
    assert max(turns) <= SLICE


@pytest.mark.parametrize("put_in", [[], [list(STOP.encode())]])
def test_one_of_a_past_that_one_call_had_ended_ends_with_that(put_in: list[list[int]]) -> None:
    """One that was put in ended it with the next token."""
    tokens = list(b"So!" if put_in else STOP.removesuffix("</tool_call>").encode())
    past = Past(tokens=tokens, steering=[PastInject(index=2, tokens=call) for call in put_in])
    asked: dict[str, Any] = ASKED | {"parallel_tool_calls": False, "past": past}
    params = lone().stream.context.params
    *_, context = begun(protocol.Start(request_id="a", **asked), [1], params, None, MODEL, put_in)
    one = LoneStream(model=MODEL, credit=Credit(limit=2000), asked=asked, context=context)
    one.answer(finish=CANCELLED)
    final = one.final()
    assert (final.finish_reason, final.stop_reason) == ("tool_calls", None)


@pytest.mark.parametrize("put_in", [[list(STOP.encode())], []])
def test_one_of_a_past_goes_on_to_the_token_behind_the_call_that_was_put_in(put_in: list[list[int]]) -> None:
    """Which is what ends it, wherever its engine is lost, and whoever of the two put it in."""
    past = Past(tokens=list(b"So"), steering=[PastInject(index=2, tokens=call) for call in put_in])
    asked: dict[str, Any] = ASKED | {"parallel_tool_calls": False, "past": past}
    params = lone().stream.context.params
    *_, context = begun(protocol.Start(request_id="a", **asked), [1], params, None, MODEL, put_in)
    one = LoneStream(model=MODEL, credit=Credit(limit=2000), asked=asked, context=context)
    if not put_in:
        one.steer(protocol.Inject(request_id="a", tokens=list(STOP.encode())))
        one.answer(api.Appended(2, len(STOP)))
    one.lose_engine()
    submit = one.new_engine()
    assert not submit.paused
    assert not submit.whole
    one.admit()
    _write(one, ord("!"))
    final = one.final()
    assert (final.index, final.finish_reason, final.stop_reason) == (3, "tool_calls", None)


@pytest.mark.parametrize(
    ("ids", "told", "those", "next_one"),
    [
        ([], None, [1, 2], 3),
        (["x", "y"], 7, ["x", "y"], 8),
        (["x"], 7, ["x", 8], 9),
        ([call_id_of("a", 3)], None, [3, 2], 4),
    ],
    ids=["counted", "others had been taken back", "one was not heard of", "as one to come would have"],
)
def test_calls_of_a_past_have_the_ids_that_they_had_and_no_other_has(
    ids: list[str], told: int | None, those: list[str | int], next_one: int
) -> None:
    known = Past(tokens=list(f"{FIND}\n{STOP}".encode()), call_ids=ids, told_calls=told)
    asked: dict[str, Any] = ASKED | {"past": known}
    params = lone().stream.context.params
    *_, context = begun(protocol.Start(request_id="a", **asked), [1], params, None, MODEL, [])
    one = LoneStream(model=MODEL, credit=Credit(limit=2000), asked=asked, context=context)
    expected = [call_id_of("a", name) if isinstance(name, int) else name for name in those]
    assert [call.call_id for call in one.stream.output.calls] == expected
    context.cut(len(FIND.encode()))
    for token in STOP.encode():
        context.output.add(token)
    stand = [call.call_id for call in context.output.calls]
    assert stand == [expected[0], call_id_of("a", next_one)]


@pytest.mark.parametrize("all_told", [True, False])
@pytest.mark.parametrize(
    ("written", "length"),
    [(b"<think>Hm<", 3), (b'<tool_call>{"name": "find", "arguments": {"q": "\xc3', 8), (b"So <", 4)],
    ids=["reasoning", "arguments", "content"],
)
def test_what_the_end_alone_had_told_stands_in_a_past_where_all_of_it_was(
    written: bytes, length: int, all_told: bool
) -> None:
    """And comes with the end where it was not."""
    ended = lone()
    for token in written:
        _write(ended, token)
    ended.answer(finish=RUN_OUT)
    before = FoldedSpans()
    before.read(ended.take())
    lengths = [len(before.content), len(before.reasoning), len("".join(c["arguments"] for c in before.calls))]
    assert length in lengths
    text, reasoning, arguments = (told and told - (not all_told) for told in lengths)
    known = Past(
        tokens=list(written), text_length=text, reasoning_length=reasoning, arguments_length=arguments
    )
    asked: dict[str, Any] = ASKED | {"past": known}
    params = ended.stream.context.params
    *_, context = begun(protocol.Start(request_id="a", **asked), [1], params, None, MODEL, [])
    one = LoneStream(model=MODEL, credit=Credit(limit=2000), asked=asked, context=context)
    begins = FoldedSpans()
    begins.read(one.take())
    assert (begins.said == before.said) == all_told
    one.answer(finish=RUN_OUT)
    begins.read(one.take())
    assert begins.said == before.said


@pytest.mark.parametrize("on_tool_call", ["pause", "continue"])
@pytest.mark.parametrize(("waits", "is_answered"), [(True, False), (True, True), (False, False)])
def test_a_past_that_waits_for_results_begins_so_whatever_was_put_in_behind_its_calls(
    on_tool_call: str, waits: bool, is_answered: bool
) -> None:
    """But where none is missing: it was about to go on."""
    index, answer = len(FIND.encode()), [Message(role="tool", tool_call_id="c", content="42")]
    put_in = PastInject(index=index, messages=answer) if is_answered else PastInject(index=index, text="So")
    known = Past(tokens=list(FIND.encode()), call_ids=["c"], waits=waits, steering=[put_in])
    asked: dict[str, Any] = ASKED | {"past": known, "on_tool_call": on_tool_call}
    params = lone().stream.context.params
    *_, context = begun(protocol.Start(request_id="a", **asked), [1], params, None, MODEL, [[*b"So"]])
    one = LoneStream(model=MODEL, credit=Credit(limit=2000), asked=asked, context=context)
    one.index = index
    (submit,) = one.commands
    assert isinstance(submit, api.Submit)
    _, snapshot = one.take()
    assert isinstance(snapshot, protocol.Snapshot)
    assert submit.paused == (snapshot.paused == "tool_call") == (waits and not is_answered)
    if submit.paused:
        result = one.stream.inject_of(protocol.ToolResult(request_id="a", call_id="c", content="42"))
        one.steer(replace(result, tokens=[5] * 9))
        one.answer(api.Appended(index, 9), api.Resumed(index))
        assert kinds(one.take()) == ["Injected", "Resumed"]
        assert one.stream.paused is None


@pytest.mark.parametrize("to", [None, 3, 1])
def test_the_end_token_of_a_past_behind_which_its_engine_was_told_something_does_not_stand(
    to: int | None,
) -> None:
    """The engine had taken it back, and put there what came in the very step."""
    asked: dict[str, Any] = ASKED | {"past": Past(tokens=[*b"So", toy_model.EOS]), "on_tool_call": "continue"}
    params = lone().stream.context.params
    *_, context = begun(protocol.Start(request_id="a", **asked), [1], params, None, MODEL, [])
    one = LoneStream(model=MODEL, credit=Credit(limit=2000), asked=asked, context=context)
    client = FoldedSpans()
    client.read(one.take())
    at = 2 if to is None else min(to, 2)
    changes: list[api.AnyChange] = [api.Appended(at, 2)]
    if to is not None:
        one.steer(protocol.Rewind(request_id="a", to=to))
        changes.insert(0, api.Truncated(at))
    one.steer(protocol.Inject(request_id="a", tokens=[70, 71]))
    one.answer(*changes, finish=api.Finish("eos", held=True))
    client.read(one.take())
    assert one.commands[-1] == api.Resume(7)
    assert list(one.stream.output.context()) == [*b"So"[:at], 70, 71]
    assert client.content == one.stream.output.content() == "So"[:at]


@pytest.mark.parametrize("answered", [True, False])
def test_an_engine_that_goes_on_behind_an_end_it_held_at_is_not_let_go_on_twice(answered: bool) -> None:
    """It may hold again by then, since a call that was put in ends its turn: results are waited for."""
    one = lone(on_tool_call="pause")
    one.write("So")
    one.steer(protocol.Inject(request_id="a", tokens=list(STOP.encode())))
    one.steer(protocol.Resume(request_id="a"))
    told = one.commands[:]
    changes: list[api.AnyChange] = [api.Appended(2, len(STOP)), api.Resumed(2)]
    now = changes if answered else changes[:1]
    end = api.News(7, index=2, tokens=[toy_model.EOS], changes=now, finish=api.Finish("eos", held=True))
    one.stream.receive_news(end, one.now)
    if not answered:
        one.answer(api.Resumed(2))
    assert one.commands == told
    held = api.News(7, index=2, tokens=[toy_model.EOS], finish=api.Finish("eos", held=True))
    one.stream.receive_news(held, one.now)
    assert one.stream.paused == "tool_call"
    assert one.stream.num_waiting == 0


def test_text_that_came_late_is_looked_at_anew_where_its_token_is_taken_back() -> None:
    """As one does that begins with this past: other stop strings may be in force by then."""
    one = lone()
    one.write("<tool")
    one.steer(protocol.Inject(request_id="a", tokens=[ord("x")]))
    one.answer(api.Appended(5, 1))
    one.write("y")
    one.take()
    one.steer(protocol.Adjust(request_id="a", params=Params(stop=["<too"])))
    one.steer(protocol.Rewind(request_id="a", to=5))
    one.answer(api.Adjusted(6), api.Truncated(5))
    assert one.stream.output.content() == ""
    one.write("z")
    final = one.final()
    assert (final.finish_reason, final.stop_reason, final.index) == ("stop", "<too", 6)


def test_whoever_comes_back_lets_no_stream_go_on_that_waits_for_results() -> None:
    """Its turn had ended before it was paused since nobody listened."""
    one = LoneStream(model=MODEL, credit=Credit(limit=2000), on_disconnect="pause", asked=ASKED)
    one.write(STOP)
    one.detach()
    held = api.News(
        7,
        index=one.index,
        tokens=[toy_model.EOS],
        changes=[api.Paused(one.index)],
        finish=api.Finish("eos", held=True),
    )
    one.stream.receive_news(held, one.now)
    told = one.commands[:]
    assert kinds(one.attach())[-1] == "Paused"
    assert (one.commands, one.stream.paused) == (told, "tool_call")


def test_one_that_is_about_to_go_on_behind_its_calls_is_paused_where_nobody_listens() -> None:
    """It went on all the same."""
    one = LoneStream(model=MODEL, credit=Credit(limit=2000), on_disconnect="pause", asked=ASKED)
    one.write(STOP)
    held = api.News(7, index=one.index, tokens=[toy_model.EOS], finish=api.Finish("eos", held=True))
    one.stream.receive_news(held, one.now)
    one.steer(protocol.Resume(request_id="a"))
    one.detach()
    assert one.commands[-2:] == [api.Resume(7), api.Pause(7)]
    one.answer(api.Resumed(one.index), api.Paused(one.index))
    assert one.stream.paused == "detached"
    one.attach()
    assert one.commands[-1] == api.Resume(7)


def test_so_is_one_that_goes_on_by_itself_behind_what_was_on_its_way_as_its_reader_left() -> None:
    """It waited for results: a rewind takes back their calls."""
    one = left_after(STOP, ends=True, asked=lambda one: protocol.Rewind(request_id="a", to=2))
    one.answer(api.Truncated(2), api.Paused(2))
    assert api.Resume(7) not in one.commands
    assert kinds(one.take()) == ["Rewound", "Resumed", "Paused"], "it waits for no results now"
    assert one.stream.paused == "detached"
    one.attach()
    assert one.commands[-1] == api.Resume(7)


def test_and_one_whose_results_were_there_before_its_turn_ended() -> None:
    """The pause came behind that end, and found it waiting for them."""
    one = left_after(STOP, ends=False, asked=early_result)
    end = api.Finish("eos", held=True)
    changes: list[api.AnyChange] = [api.Appended(one.index, 0), api.Paused(one.index)]
    one.stream.receive_news(
        api.News(7, index=one.index, tokens=[toy_model.EOS], changes=changes, finish=end), one.now
    )
    assert one.commands[-1] == api.Append(7, [5] * 9, True)
    one.answer(api.Appended(one.index, 9))
    assert api.Resume(7) not in one.commands
    assert one.stream.paused == "detached"


def test_but_not_one_that_somebody_who_does_not_listen_had_go_on_since() -> None:
    one = left_after(STOP, ends=False, asked=lambda one: protocol.Resume(request_id="a"))
    one.answer(api.Resumed(one.index), api.Paused(one.index))
    one.steer(protocol.Resume(request_id="a"))
    end = api.Finish("eos", held=True)
    one.answer(api.Resumed(one.index))
    one.stream.receive_news(api.News(7, index=one.index, tokens=[toy_model.EOS], finish=end), one.now)
    one.steer(protocol.Rewind(request_id="a", to=2))
    one.answer(api.Truncated(2))
    assert one.commands[-2:] == [api.Truncate(7, 2), api.Resume(7)]


def test_nor_one_that_waits_for_results_while_parameters_have_no_answer_yet() -> None:
    """These let nothing go on. It was paused for that, too, and stood still behind its results, which
    somebody who did not listen had put in before the answer came."""
    params = protocol.Params(temperature=0.5)
    one = left_after(STOP, ends=True, asked=lambda _: protocol.Adjust(request_id="a", params=params))
    assert api.Pause(7) not in one.commands
    one.steer(early_result(one))
    one.answer(api.Adjusted(one.index), api.Appended(one.index, 9))
    assert one.commands[-1] == api.Resume(7)


def left_after(text: str, *, ends: bool, asked: Callable[[LoneStream], SteeringFrame]) -> LoneStream:
    """A stream whose reader has left as it wrote this, and asked for something last."""
    fields = ASKED | {"on_tool_call": "pause"}
    one = LoneStream(model=MODEL, credit=Credit(limit=2000), on_disconnect="pause", asked=fields)
    one.write(text)
    if ends:
        end = api.Finish("eos", held=True)
        one.stream.receive_news(api.News(7, index=one.index, tokens=[toy_model.EOS], finish=end), one.now)
    one.take()
    one.steer(asked(one))
    one.detach()
    return one


def early_result(one: LoneStream) -> SteeringFrame:
    (call,) = one.stream.output.calls
    inject = one.stream.inject_of(protocol.ToolResult(request_id="a", call_id=call.call_id, content="42"))
    return replace(inject, tokens=[5] * 9)


def test_nor_does_who_comes_back_before_its_engine_has_said_that_it_was_paused() -> None:
    """By then its turn may have ended, and is told with that."""
    one = LoneStream(model=MODEL, credit=Credit(limit=2000), on_disconnect="pause", asked=ASKED)
    one.write(STOP)
    one.detach()
    one.attach()
    assert one.commands[-1] == api.Pause(7)
    held = api.News(7, index=one.index, tokens=[toy_model.EOS], finish=api.Finish("eos", held=True))
    one.stream.receive_news(held, one.now)
    one.answer(api.Paused(one.index))
    assert (one.commands[-1], one.stream.paused) == (api.Pause(7), "tool_call")


def test_one_of_a_past_that_met_a_stop_string_with_its_end_token_ends_with_that() -> None:
    """It came behind a turn, which had shown that what stood before was no delimiter."""
    turn = PastInject(index=8, messages=[Message(role="user", content="x")])
    asked: dict[str, Any] = ASKED | {"past": Past(tokens=[*b"So <tool", toy_model.EOS], steering=[turn])}
    params = msgspec.structs.replace(lone().stream.context.params, stop=["<too"])
    *_, context = begun(protocol.Start(request_id="a", **asked), [1], params, None, MODEL, [[2, 3]])
    one = LoneStream(model=MODEL, credit=Credit(limit=2000), asked=asked, context=context)
    one.answer(finish=EOS)
    final = one.final()
    assert (final.finish_reason, final.stop_reason) == ("stop", "<too")


def test_so_it_does_where_a_result_is_missing_whatever_its_engine_holds_at() -> None:
    """As it had where its end token was sampled: nothing of that is taken back."""
    said = STOP.encode() + b"So <tool"
    turn = PastInject(index=len(said), messages=[Message(role="user", content="x")])
    past = Past(tokens=[*said, toy_model.EOS], steering=[turn])
    asked: dict[str, Any] = ASKED | {"past": past, "on_tool_call": "continue"}
    params = msgspec.structs.replace(lone().stream.context.params, stop=["<too"])
    *_, context = begun(protocol.Start(request_id="a", **asked), [1], params, None, MODEL, [[2, 3]])
    one = LoneStream(model=MODEL, credit=Credit(limit=2000), asked=asked, context=context)
    one.answer(finish=api.Finish("eos", held=True))
    one.answer(finish=CANCELLED)
    events = one.take()
    assert kinds(events) == ["Started", "Snapshot", "Final"]
    assert isinstance(final := events[-1], protocol.Final)
    assert (final.index, final.finish_reason, final.stop_reason) == (len(said) + 1, "stop", "<too")


def test_one_of_a_past_of_which_all_was_told_and_that_goes_on_is_rewound_to_where_it_began() -> None:
    """Read again, what its end had told is no beginning of a call that is put in: it was content."""
    asked: dict[str, Any] = ASKED | {"past": Past(tokens=[*b"a<"], text_length=2)}
    params = lone().stream.context.params
    *_, context = begun(protocol.Start(request_id="a", **asked), [1], params, None, MODEL, [])
    one = LoneStream(model=MODEL, credit=Credit(limit=2000), asked=asked, context=context)
    one.index = 2
    put = FIND[1:48].encode()
    one.steer(protocol.Inject(request_id="a", tokens=list(put)))
    one.answer(api.Appended(2, len(put)))
    one.write("x")
    one.take()
    one.steer(protocol.Rewind(request_id="a", to=2))
    one.answer(api.Truncated(2))
    one.write("yz")
    assert one.stream.output.calls == []
    assert one.stream.output.content() == "a<yz"


def test_what_nobody_can_refuse_is_heard_when_it_is_read() -> None:
    """Whoever adopts the stream reads it at once: the end of its reasoning comes before."""
    one = LoneStream(model=MODEL, on_disconnect="pause", asked=ASKED, reasoning_tokens=100)
    one.write("<think>Hm")
    appended = put_in(one, 3000)
    one.steer(protocol.Adjust(request_id="a", params=Params(reasoning_tokens=1)))
    one.answer(appended, api.Adjusted(one.index))
    sent = len(one.commands)
    one.detach()
    while len(one.commands) == sent:
        assert one.stream.reading
        one.answer()
    assert [type(command) for command in one.commands[sent:]] == [api.Append, api.Pause]


def test_what_its_engine_has_answered_behind_it_is_asked_of_no_other() -> None:
    one = lone()
    one.write("Well. ")
    appended = put_in(one, 3000)
    one.steer(protocol.Pause(request_id="a", ref="pause"))
    one.answer(appended, api.Paused(one.index))
    assert one.stream.reading
    one.lose_engine()
    assert one.new_engine().paused
    assert one.commands == []
    assert [event.ref for event in one.take() if isinstance(event, protocol.Paused)] == ["pause"]


def test_its_slices_go_by_how_long_tokens_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """And so do the copies that a rewind goes on from."""
    long = 200
    pieces = MODEL.tokenizer.spelling.pieces
    monkeypatch.setattr(MODEL.tokenizer.spelling, "pieces", {**pieces, long: b"1," * 40})
    read = list[int]()
    inject = SpanReader.inject

    def counted(self: SpanReader, tokens: Sequence[int], index: int) -> list[Any]:
        read.append(sum(len(self._spelling.pieces[token]) for token in tokens))
        return inject(self, tokens, index)

    monkeypatch.setattr(SpanReader, "inject", counted)
    one = lone()
    tokens = [*b'<tool_call>{"name": "find", "arguments": {"q": [', *[long] * 1000]
    one.steer(protocol.Inject(request_id="a", tokens=tokens))
    one.answer(api.Appended(0, len(tokens)))
    while one.stream.reading:
        one.answer()
    assert sum(read) > 80_000
    assert max(read) < 10_000
    read.clear()
    one.steer(protocol.Rewind(request_id="a", to=0))
    one.answer(api.Truncated(0))
    assert sum(read) < 10_000


def test_a_rewind_reads_little_anew_however_much_was_injected_since(monkeypatch: pytest.MonkeyPatch) -> None:
    read = 0
    inject = SpanReader.inject

    def counted(self: SpanReader, tokens: list[int], index: int) -> list[Any]:
        nonlocal read
        read += len(tokens)
        return inject(self, tokens, index)

    one = lone()
    for _ in range(100):
        one.steer(protocol.Inject(request_id="a", tokens=[*b"1,1,"]))
        one.answer(api.Appended(0, 4))
        one.steer(protocol.Rewind(request_id="a", to=0))
        one.answer(api.Truncated(0))
        one.take()
    monkeypatch.setattr(SpanReader, "inject", counted)
    one.steer(protocol.Rewind(request_id="a", to=0))
    one.answer(api.Truncated(0))
    assert read <= 2 * COPY_EVERY


def test_what_a_reader_holds_is_copied_a_few_times_and_weighs() -> None:
    one = lone()
    one.write('<tool_call>{"arguments": {"q": "' + "a" * 3_500)
    spans = one.stream.output.spans
    assert spans is not None
    held = [copy.reader.held for copy in spans._copies]
    assert max(held) > 3_000
    assert len(held) < 40
    assert sum(held) < 16 * max(held)
    assert spans.weight > 2 * sum(held)
    weighed = spans.weight
    one.take()
    one.steer(protocol.Rewind(request_id="a", to=0))
    one.answer(api.Truncated(0))
    assert spans.weight < weighed / 5


def test_a_rewind_weighs_what_it_takes_back_and_not_all_that_was_called() -> None:
    lines = []
    for length in (10, 12_000):
        asked = ASKED | {"on_tool_call": "continue"}
        one = LoneStream(model=MODEL, credit=Credit(limit=100_000), asked=asked)
        _write(one, *(FIND.replace("é", "x" * length) + TEXT.replace("é", "e")).encode())
        one.take()
        one.steer(protocol.Rewind(request_id="a", to=one.index - 8))
        with counted() as work:
            one.answer(api.Truncated(one.index - 8))
        lines.append(work.lines)
        spans = one.stream.output.spans
        assert spans is not None
        texts = [*spans.reasoning, *(text for call in spans.calls for text in call.arguments)]
        assert spans._text_bytes == sum(TEXT_BYTES + len(text) for text in texts)
    assert lines[1] < lines[0] + 6_000


def test_what_is_offered_weighs() -> None:
    keys = {f"key {number}": {"type": "integer"} for number in range(1_000)}
    tools = [Tool(function=Function(name="find", parameters={"properties": keys}))]
    assert lone(tools=tools).stream.bytes > lone().stream.bytes + 100 * len(keys)


def test_a_fork_says_itself_whether_it_ends_with_the_first_call() -> None:
    parent = lone(parallel_tool_calls=False)
    parent.write("So")
    parent.take()
    context = parent.stream.fork("b", None, protocol.Params())
    asked = {"fork": protocol.Fork(request_id="a"), "on_tool_call": "pause"}
    fork = LoneStream(model=MODEL, credit=Credit(limit=2000), asked=asked, context=context)
    fork.index = 2
    fork.write(FIND.encode().decode("latin-1"))
    assert fork.stream.final is None
    fork.stream.receive_news(
        api.News(7, index=fork.index, tokens=[toy_model.EOS], finish=api.Finish("eos", held=True)), fork.now
    )
    assert fork.stream.paused == "tool_call"


def test_a_call_that_is_put_in_and_taken_back_in_one_step_leaves_no_token_that_was_never_there() -> None:
    one, client = lone(), FoldedSpans()
    one.write("So")
    client.read(one.take())
    one.steer(protocol.Inject(request_id="a", tokens=list(FIND.encode())))
    one.steer(protocol.Rewind(request_id="a", to=0))
    one.answer(api.Appended(2, len(FIND.encode())), api.Truncated(0))
    client.read(one.take())
    assert client.said == ("", "", [])
    assert one.stream.outbox.sent == 0
    assert len(one.stream.fork("b", None, protocol.Params()).output) == 0
    one.stream.outbox.acknowledge(100)
    snapshot = one.attach(-1)[0]
    assert isinstance(snapshot, protocol.Snapshot)
    assert snapshot.index == 0
