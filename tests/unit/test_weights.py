"""What a thing weighs is about what it takes in memory, whatever it is made of: accounts are of weights. Each
frame and each event is filled with much of whatever its type says that it may have."""

from __future__ import annotations

import gc
import json
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, get_args

import msgspec
import pytest
from msgspec.structs import replace

from engine import api, toy_model
from engine.history import ENTRY_BYTES, History
from midstream import protocol
from midstream.protocol import SUBPROTOCOLS, Credit, Guard, Params
from realtime.codec import Codec
from realtime.guards.pattern import Pattern
from realtime.http.openai import chat_dialect
from realtime.http.openai.choice_accumulator import Choice
from realtime.hub.told import encode_told, in_tokens
from realtime.pieces import at_once
from realtime.refusal import Refusal
from realtime.stream import credit
from realtime.stream import stream as stream_module
from realtime.stream.context import of_prompt
from realtime.stream.engine_commands import SteeringFrame
from realtime.stream.memory import event_bytes
from realtime.stream.outbox import Outbox
from realtime.stream.params import resolved
from realtime.stream.pending_commands import CallFrame
from realtime.stream.stream import STREAM_BYTES, Stream
from realtime.stream.weights import weight
from realtime.text.grammar import OutputRules
from realtime.text.served_model import ServedModel
from realtime.text.tokenizer import Tokenizer
from tests.fakes.lone_stream import MODEL, LoneStream
from tests.fakes.wire_values import WIDE, variants

FEW = 2_000  # bytes by which a weight may be too much, however little a thing takes
OF_NO_STREAM = (protocol.Ready, protocol.Pong, protocol.GoingAway)
STEERING = (*get_args(SteeringFrame), *get_args(CallFrame), protocol.Cancel)
ROOMY = ServedModel("toy", MODEL.tokenizer, vocab=MODEL.vocab, context=1 << 24, fingerprint="fp")
SENT = 300  # output tokens: a frame may be of a token there
KEPT = 40_000  # bytes that the interpreter and libraries keep, whatever is done
FREED = 200_000  # and of tuples that are free again, at most
OFFERS = "{% if tools %}<tool_call>{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}"
OFFERING = replace(
    ROOMY,
    tokenizer=Tokenizer(json.loads((toy_model.FOLDER / "tokenizer.json").read_text()), OFFERS),
)
START = protocol.Start(request_id="a", prompt="Hi")
LONG = toy_model.VOCAB  # a token
MATCHED = 80  # stop strings that others have too: each might be alone
EVENTS = [kind for kind in get_args(protocol.ServerEvent) if kind not in OF_NO_STREAM]


@pytest.fixture(scope="module", autouse=True)
def _alone() -> Iterator[None]:
    """What other tests have left is not looked at each time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@contextmanager
def traced() -> Iterator[Callable[[], int]]:
    gc.collect()
    tracemalloc.start()
    try:
        yield lambda: tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def weighs_wrong(make: Callable[[], Any], weigh: Callable[[Any], int], told: Callable[[Any], object]) -> str:
    """How, if it does."""
    things: list[Any] = [None] * (4 if weigh(make()) > FEW else 100)
    with traced() as taken_now:
        for at in range(len(things)):
            things[at] = make()
        weighed = weigh(things[0])
        for thing in things:
            told(thing)
        taken = taken_now() / len(things)
    return "" if 0.8 * taken < weighed < 8 * taken + FEW else f"takes {taken:.0f}, weighs {weighed}"


def wrong(
    kind: type[msgspec.Struct],
    encode: Callable[[Any], Any],
    decode: Callable[[Any], Any],
    weigh: Callable[[Any], int],
    told: Callable[[Any], object],
) -> dict[str, str]:
    found = {}
    for name, value in variants(kind):
        data = encode(value)
        found[name] = weighs_wrong(lambda data=data: decode(data), weigh, told)  # type: ignore[misc]
    return {name: how for name, how in found.items() if how}


@pytest.mark.parametrize("subprotocol", SUBPROTOCOLS)
@pytest.mark.parametrize("kind", get_args(protocol.StreamFrame), ids=lambda kind: kind.__name__)
def test_a_frame_weighs_what_it_takes(kind: type[msgspec.Struct], subprotocol: str) -> None:
    codec = Codec(subprotocol)
    encode: Any = (
        (lambda value: msgspec.json.encode(value).decode()) if codec.text else msgspec.msgpack.encode
    )
    assert wrong(kind, encode, codec.decode, weight, told=lambda frame: None) == {}


@pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.__name__)
def test_an_event_weighs_what_it_takes_once_it_was_told(kind: type[msgspec.Struct]) -> None:
    """Its name is its stream's; and no token answers a frame."""
    read: Callable[[bytes], Any] = msgspec.json.Decoder(kind).decode

    def decode(data: bytes) -> Any:
        event = read(data)
        event.request_id = "a"
        if isinstance(event, protocol.Token):
            event.ref = None
        return event

    encode = msgspec.json.Encoder().encode
    assert wrong(kind, encode, decode, event_bytes, told=encode) == {}


class Steered:
    """A stream of which something is asked again and again, with all that comes of that."""

    def __init__(self, kind: type[msgspec.Struct]) -> None:
        self.lone = lone = LoneStream(model=ROOMY, credit=Credit(limit=1 << 30))
        self.codec = Codec(None)
        lone.admit()
        lone.write("x" * SENT)
        lone.take()
        self.read()
        if kind in get_args(CallFrame):  # which wait until what was asked before is answered
            lone.steer(protocol.Pause(request_id="a"))

    def ask(self, frame: Any) -> None:
        lone = self.lone
        match frame:
            case protocol.Cancel():
                lone.stream.cancel(lone.now, 0, frame.ref or "", lambda event: None)
            case protocol.Approve():
                lone.stream.steer_call(frame, 0, lone.now)
            case protocol.Amend(arguments=asked):
                said = asked if isinstance(asked, dict) else json.dumps({"a": asked}, ensure_ascii=False)
                lone.stream.steer_call(replace(frame, arguments=said), 0, lone.now)
            case protocol.Inject():
                lone.steer(in_tokens(replace(frame, tokens=frame.tokens or [300] * 10)))
            case _:
                lone.steer(frame)
        lone.commands.clear()

    def answer(self) -> None:
        waiting = self.lone.stream._commands.waiting
        while waiting:
            match waiting[0].command:
                case None:
                    self.lone.answer()
                case api.Adjust():
                    self.lone.answer(api.Adjusted(SENT))
                case api.Append(tokens=tokens):
                    self.lone.answer(api.Appended(SENT, len(tokens)))
                case api.Truncate():
                    self.lone.answer(api.Truncated(SENT))
                case api.Pause():
                    self.lone.answer(api.Paused(SENT))
                case api.Resume():
                    self.lone.answer(api.Resumed(SENT))
        self.lone.commands.clear()

    def tell(self) -> None:
        for event in self.lone.take():
            self.codec.encode(event)

    def read(self) -> None:
        self.lone.stream.acknowledge(SENT, self.lone.stream.outbox.seq - 1)


def steering(kind: type[msgspec.Struct], data: str, times: int) -> dict[str, str]:
    steered, found = Steered(kind), dict[str, str]()
    stream = steered.lone.stream
    most = MATCHED if "stop" in data else 8

    def check(stage: str) -> None:
        taken, weighed = taken_now(), stream.bytes - before
        if not 0.8 * taken - KEPT < weighed < most * taken + times * FEW:
            found[stage] = f"takes {taken}, weighs {weighed}"

    before = stream.bytes
    with traced() as taken_now:
        for _ in range(times):
            steered.ask(steered.codec.decode(data))
        check("waits")
        steered.answer()
        check("is answered")
        steered.tell()
        check("was told")
        steered.read()
        check("was read")
    assert steered.lone.memory.held == stream.bytes
    return found


@pytest.mark.parametrize("kind", STEERING, ids=lambda kind: kind.__name__)
def test_what_is_asked_of_a_stream_weighs_until_its_answer_was_read(
    kind: type[msgspec.Struct], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_module, "UNREAD_LIMIT", 1 << 30)
    found, asked = dict[str, dict[str, str]](), 0
    for name, value in variants(kind, 4_000):
        data = msgspec.json.encode(value).decode()
        try:
            steering(kind, data, 1)
        except Refusal:
            continue
        asked += 1
        found[name] = steering(kind, data, 10 + 300_000 // (500 + 10 * len(data)))
    assert {name: how for name, how in found.items() if how} == {}
    assert asked > 8, "else it proves little"


def test_parameters_that_stand_weigh_what_they_take() -> None:
    found, read = dict[str, str](), msgspec.json.Decoder(Params).decode
    for name, value in variants(Params):
        data = msgspec.json.encode(value)
        most = MATCHED if "stop" in value else 8
        with suppress(Refusal):
            count = 4 if standing(read(data)).bytes > 2 * STREAM_BYTES else 50
            with traced() as taken_now:
                streams = [standing(read(data)) for _ in range(count)]
                taken, weighed = taken_now() / count, streams[0].bytes
            if not 0.8 * taken < weighed < most * taken:
                found[name] = f"takes {taken:.0f}, weighs {weighed}"
    assert found == {}


def standing(params: Params) -> Stream:
    """Who listens knows that they stand."""
    lone = LoneStream(model=ROOMY, **msgspec.structs.asdict(params))
    lone.take()
    lone.stream.acknowledge(0, lone.stream.outbox.seq - 1)
    return lone.stream


@pytest.mark.parametrize("offering", [False, True], ids=["plain", "with tools"])
def test_an_output_weighs_what_its_tokens_say(offering: bool) -> None:
    """A token may be of 80 characters, and somebody may say in a past that there are thousands of it."""
    told = json.loads((toy_model.FOLDER / "tokenizer.json").read_text())
    told["added_tokens"].append(
        told["added_tokens"][-1] | {"id": LONG, "content": "-" * 80, "special": False}
    )
    model = replace(ROOMY, tokenizer=Tokenizer(told, OFFERS))
    tools = [protocol.Tool(function=protocol.Function(name="find"))]
    asked = {"messages": [protocol.Message(role="user", content="Hi")], "tools": tools} if offering else {}
    lone = LoneStream(model=model, credit=Credit(limit=1 << 30), asked=asked)
    before = lone.stream.bytes
    with traced() as taken_now:
        lone.stream.receive_news(api.News(7, tokens=[LONG] * 5_000), lone.now)
        lone.take()
        lone.stream.acknowledge(5_000, lone.stream.outbox.seq - 1)
        taken, weighed = taken_now(), lone.stream.bytes - before
    assert taken > 80 * 5_000
    assert 0.8 * taken < weighed < 2 * taken


@pytest.mark.parametrize("letter", ["a", "é", "漢", "😀"])
def test_a_whole_answer_weighs_what_it_takes_once_it_was_told(letter: str) -> None:
    named: dict[str, Any] = {"request_id": "a", "seq": 0, "index": 0, "count": 1, "delta": 1000 * letter}
    with traced() as taken_now:
        choice = Choice(0, logprobs=False)
        choice.receive(protocol.ToolCall(request_id="a", seq=0, index=0, call_id="c", name="find"))
        for _ in range(100):
            choice.receive(protocol.Token(**named))
            choice.receive(protocol.Reasoning(**named))
            choice.receive(protocol.ToolArguments(call_id="c", **named))
        choice.receive(protocol.ToolCallDone(request_id="a", seq=0, index=0, call_id="c", end=1))
        weighed = choice.bytes
        msgspec.json.encode(at_once(chat_dialect.whole_choice(choice, "stop")))
        taken = taken_now()
    assert 0.8 * taken < weighed < 2 * taken


@pytest.mark.parametrize(("letter", "length"), [("x", 100), ("é", 100), ("漢", 100), ("漢", 7), ("😀", 8)])
def test_a_token_that_says_much_weighs_what_it_takes_while_it_waits(letter: str, length: int) -> None:
    outbox = Outbox("a", credit.Credit(None, window=64))
    with traced() as taken_now:
        for at in range(1_000):
            outbox.put_token(at, f"{letter}{at:0>{length}}", 65)
        taken = taken_now()
    assert 0.8 * taken < outbox.unread_bytes < 3 * taken, "once it is told a text may take twice as much"


@pytest.mark.parametrize(
    "told",
    [
        protocol.ToolResult(request_id="a", call_id="b", content="x" * 3_000),
        protocol.Inject(request_id="a", tokens=[65] * 750),
        api.News(1, tokens=[65] * 3_000),
    ],
    ids=lambda told: type(told).__name__,
)
def test_what_is_kept_for_other_gateways_weighs_what_it_takes(told: Any) -> None:
    """An encoder's bytes have room for half as much again."""
    history = History(0.0)
    with traced() as taken_now:
        for _ in range(100):
            if isinstance(told, api.News):
                history.tell(told, 0.0)
            else:
                history.note(0, encode_told(told), 0.0)
        taken, weighed = taken_now(), history.bytes
    assert weighed > 100 * (3_000 + ENTRY_BYTES)
    assert 0.9 * taken < weighed < 1.1 * taken


def test_what_is_asked_from_elsewhere_weighs_what_it_takes() -> None:
    lone, codec, told = LoneStream(model=ROOMY), Codec(None), list[object]()
    before = lone.stream.bytes
    with traced() as taken_now:
        for at in range(300):
            frame: Any = codec.decode(f'{{"type": "pause", "request_id": "a", "ref": "{at}"}}')
            lone.stream.steer(frame, 0, lone.now, partial(told.append, lone), told.append)
        taken, weighed = taken_now(), lone.stream.bytes - before
    assert 0.8 * taken < weighed < 2 * taken


CALLING = '<tool_call>{"name": "find", "arguments": {"q": {'
KEYS = ", ".join(f'"{"漢" * 80}{at}": 1' for at in range(50))


@pytest.mark.parametrize(
    ("guard", "written"),
    [
        (Guard(name="", do="tell", regex="never+"), "lorem ipsum " * 1_000),
        (Guard(name="", do="tell", regex="never+", in_=["content"]), "lorem ipsum " * 1_000),
        (Guard(name="", do="tell", tool="find", path="$.q.a[0].b", forbid="never+"), CALLING + KEYS),
    ],
    ids=["anywhere", "in the content", "a value"],
)
def test_guards_weigh_what_they_keep_to_go_back_to(guard: Guard, written: str) -> None:
    """Each of sixteen as it was every 64 tokens."""
    guards = [replace(guard, name=str(number)) for number in range(16)]
    tools = [protocol.Tool(function=protocol.Function(name="find"))]
    asked = {"messages": [protocol.Message(role="user", content="Hi")], "tools": tools}
    lone = LoneStream(model=OFFERING, credit=Credit(limit=1 << 30), asked=asked, guards=guards)
    before, tokens = lone.stream.bytes, written.encode()
    with traced() as taken_now:
        for at in range(0, len(tokens), 100):
            lone.stream.receive_news(api.News(7, index=at, tokens=list(tokens[at : at + 100])), lone.now)
            lone.take()
            lone.stream.acknowledge(at, lone.stream.outbox.seq - 1)
        taken, weighed = taken_now() - FREED, lone.stream.bytes - before
    assert 0.8 * taken < weighed < 2 * taken


@pytest.mark.parametrize(
    "source",
    [
        "a",
        "abcdefghij" * 50,
        f"[{''.join(map(chr, range(0x4E00, 0x5200, 2)))[:500]}]",
        "".join(map(chr, range(0x4E00, 0x4FF0))),
        "".join(f"[{chr(first)}-{chr(first + 999)}]" for first in range(0x4E00, 0x4E60)),
        "(a|b)?" * 40,
        r"(\ba\b|\Bb\B|^c$|^x\b)?" * 8,
    ],
    ids=["one", "many", "a set", "wide", "ranges", "many ways", "many gaps"],
)
def test_a_pattern_weighs_what_it_takes(source: str) -> None:
    """Guards of a thousand streams look for as many: one that counted as 100 bytes took 50,000."""
    with traced() as taken_now:
        patterns = [Pattern(source) for _ in range(20)]
        gc.collect()  # what it was parsed to
        taken = taken_now() / len(patterns)
    assert 0.8 * taken < patterns[0].bytes < 2 * taken


def test_what_tools_make_of_a_grammar_weighs_what_it_takes() -> None:
    """A name that is wide has all of it take four times as much, and more once it was told."""
    texts = ["".join(["x" * 9_999, WIDE]) for _ in range(4)]
    weighed = [
        of_prompt(START, [1], resolved(Params(), context_left=9, vocab=9), rules, MODEL).bytes
        for rules in (None, OutputRules(texts[0], texts[1], OutputRules(texts[2], texts[3])))
    ]
    assert weighed[1] - weighed[0] > sum(len(text.encode("utf-32")) + len(text.encode()) for text in texts)


def test_what_has_a_type_that_nobody_has_weighed_is_found_here_and_not_by_whoever_sends_it() -> None:
    class Odd(msgspec.Struct):
        what: set[str]

    with pytest.raises(TypeError, match="SetType"):
        weight(Odd({"a"}))
