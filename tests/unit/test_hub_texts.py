"""Texts in the hub: what is refused before it is tokenized, whose turn it is, and what was done in vain."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import weakref
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, Literal

import pytest
from msgspec.msgpack import Ext

from engine import toy_model
from midstream import protocol
from midstream.protocol import Fork, Function, Grammar, Message, Params, Tool
from realtime.http.listener import HttpListener
from realtime.hub import long_texts, output_rules
from realtime.hub.frame_tokenizing import tokenize
from realtime.hub.hub import LONG_TEXT, RESTORED_S
from realtime.hub.observers import Caller
from realtime.hub.tokenizing_pool import Line
from realtime.refusal import Refusal
from realtime.stream.context import COUNTED_S
from realtime.stream.stream import Stream
from realtime.tenants.allowance import Allowance
from realtime.tenants.quota import Quotas
from realtime.text import grammar
from realtime.text.grammar import OutputRules
from realtime.text.served_model import ServedModel
from realtime.text.tokenizer import Tokenizer
from realtime.work_ledger import PayerWork
from tests.fakes.recording_listener import RecordingListener
from tests.fakes.simulated_client import LONG, SIZE, rest, settled, start
from tests.fakes.simulated_server import Clock, EngineSize, SimulatedServer, toy_tokenizer
from tests.fakes.work_clock import a_millisecond_a_piece

WIDE = EngineSize(kv_tokens=4096, block=16, step_tokens=4096, slots=100)
CERTAIN = "word " * 50_000
TOO_LONG = 3 * LONG  # which is known only when it is tokenized
ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
HI = [Message(role="user", content="Hi")]


def looping(server: SimulatedServer, template: str = ENDLESS) -> SimulatedServer:
    """A server whose model brings such a template."""
    definition = json.loads((toy_model.FOLDER / "tokenizer.json").read_text())
    model = ServedModel("toy", Tokenizer(definition, template), toy_model.VOCAB, 4096, "fp")
    server.hub.engine_lost(0)
    server.hub.engine_ready(0, model, SIZE.block)
    return server


def limited(tokens_per_minute: int) -> SimulatedServer:
    clock, allowance = Clock(), Allowance(tokens_per_minute=tokens_per_minute)
    return SimulatedServer(WIDE, clock=clock, quotas=Quotas(lambda tenant: allowance, clock))


def heard(listener: RecordingListener) -> list[str]:
    return [type(event).__name__ for event in listener.heard]


# -- before anything is tokenized ------------------------------------------------------------------


def test_a_prompt_that_is_certain_to_be_too_long_is_refused_at_once() -> None:
    """There is no event loop here: nothing could wait for anything."""
    server = SimulatedServer(SIZE)
    listener = RecordingListener(server)
    listener.send(start(prompt=CERTAIN))
    error = listener.error()
    assert error.code == "context_too_long"
    assert "The prompt has at least" in error.message
    assert "the model's context holds 4096" in error.message
    listener.send(start())
    listener.send(protocol.Inject(request_id="a", text=CERTAIN))
    error = listener.error()
    assert error.code == "context_too_long"
    assert "The inject has at least" in error.message
    listener.hear_token()


@pytest.mark.parametrize(
    "frame",
    [
        protocol.Start(request_id="a", prompt="some words"),
        protocol.Start(request_id="a", messages=[Message(role="user", content="some words")]),
        protocol.Inject(request_id="a", text="some words"),
        protocol.Inject(request_id="a", messages=[Message(role="user", content="some words")]),
    ],
)
def test_text_of_tokens_that_a_model_has_no_weights_for_is_refused(
    frame: protocol.Start | protocol.Inject,
) -> None:
    tokens = tokenize(frame, ServedModel("toy", toy_tokenizer(), toy_model.VOCAB, 4096, "fp"))
    assert isinstance(tokens, list)
    fewer = ServedModel("toy", toy_tokenizer(), max(tokens), 4096, "fp")
    with pytest.raises(
        Refusal, match=f"token {max(tokens)} of the tokenizer of this model, whose own tokens"
    ):
        tokenize(frame, fewer)


async def test_a_conversation_that_is_certain_to_be_too_long_is_rendered_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(toy_tokenizer(), "_library", None)
    listener = RecordingListener(SimulatedServer(SIZE))
    listener.send(start(prompt=None, messages=[Message(role="user", content=CERTAIN)]))
    await settled()
    assert listener.error().code == "context_too_long"


async def test_what_needs_no_tokens_is_not_tokenized(monkeypatch: pytest.MonkeyPatch) -> None:
    server = SimulatedServer(SIZE)
    listener = RecordingListener(server)
    listener.send(start(prompt=LONG[: LONG_TEXT + 1]))
    await settled()
    monkeypatch.setattr(toy_tokenizer(), "_library", None)
    listener.send(start(prompt=LONG[: LONG_TEXT + 1]))
    listener.send(protocol.Inject(request_id="nobody", text=LONG))
    await settled()
    assert heard(listener).count("Attached") == 1, "it was started before"
    assert listener.error().code == "unknown_request"
    assert listener.errors == []


async def test_what_is_done_behind_a_text_is_paid_for_by_whoever_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a_millisecond_a_piece(monkeypatch)
    listener = RecordingListener(SimulatedServer(SIZE))
    listener.send(start(prompt=LONG[: LONG_TEXT + 1]))
    for temperature in (0.1, 0.2, 0.3):
        listener.send(protocol.Adjust(request_id="a", params=Params(temperature=temperature)))
    assert not listener.paid_s
    await settled()
    assert listener.paid_s == pytest.approx(0.004)


# -- whose turn it is ------------------------------------------------------------------------------


@pytest.mark.parametrize("tenant", ["tenant", "other"])
async def test_a_client_s_prompt_waits_for_no_crowd_of_another_s(tenant: str) -> None:
    server = SimulatedServer(WIDE)
    crowd, other = RecordingListener(server), RecordingListener(server, tenant)
    refused_before: list[int] = []
    other.flush = lambda: refused_before.append(len(crowd.errors))  # type: ignore[method-assign]
    for n in range(50):
        crowd.send(start(f"crowd{n}", prompt=TOO_LONG))
    other.send(start(prompt=LONG[: LONG_TEXT + 1]))
    await settled()
    assert [error.code for error in crowd.errors] == 50 * ["context_too_long"]
    assert refused_before[0] <= 3, "those that were begun with, and one more that was done at the same time"


RULED: list[dict[str, Any]] = [
    {"prompt": "Once", "params": Params(grammar=Grammar(regex="a"))},
    {"prompt": None, "messages": HI, "tools": [Tool(function=Function(name="look"))]},
]


@pytest.mark.parametrize("asks", RULED)
@pytest.mark.parametrize("known", [{"prompt": LONG[: LONG_TEXT + 1]}, *RULED])
async def test_neither_a_prompt_nor_a_known_grammar_waits_for_another_s_that_are_compiled(
    monkeypatch: pytest.MonkeyPatch, asks: dict[str, Any], known: dict[str, Any]
) -> None:
    """However long that takes, which is done one by one."""
    monkeypatch.setattr(grammar, "_known_problems", OrderedDict[str, str]())
    server = SimulatedServer(WIDE)
    crowd, other = RecordingListener(server), RecordingListener(server)
    other.send(start("known", **known))
    await settled()
    assert heard(other) == ["Started"]
    compiled, begun = threading.Event(), asyncio.Event()

    def compiles(source: str, most_s: float) -> str:
        compiled.wait()
        return ""

    monkeypatch.setattr(grammar._checker, "problem_of", compiles)
    fresh = {"params": Params(grammar=Grammar(choice=[repr(asks)]))} if "params" in asks else {}
    tools = {"tools": [Tool(function=Function(name=name)) for name in ("look", "elsewhere")]}
    try:
        for n in range(6):
            crowd.send(start(f"crowd{n}", **(asks | (fresh or tools))))
        other.flush = begun.set  # type: ignore[method-assign]
        other.send(start("again", **known))
        begun.clear()
        await asyncio.wait_for(begun.wait(), 10)
        assert crowd.heard == []
    finally:
        compiled.set()
    await settled()
    assert heard(crowd) == 6 * ["Started"]


async def test_another_s_grammar_waits_for_one_of_those_that_somebody_s_tools_need(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where they cannot be followed together each is tried, and all that could take as long."""
    monkeypatch.setattr(grammar, "_known_problems", OrderedDict[str, str]())
    server = SimulatedServer(WIDE)
    crowd, other = RecordingListener(server), RecordingListener(server)
    waits, compiled, rendered = threading.Event(), list[str](), list[bool]()
    encode_chat = Tokenizer.encode_chat

    def compiles(source: str, most_s: float) -> str:
        waits.wait()
        compiled.append("other" if "the other" in source else "crowd")
        return "" if "the other" in source else "it is none"

    def encodes(*given: Any, **named: Any) -> list[int]:
        rendered.append(True)
        return encode_chat(*given, **named)

    monkeypatch.setattr(grammar._checker, "problem_of", compiles)
    monkeypatch.setattr(Tokenizer, "encode_chat", encodes)
    tools = [Tool(function=Function(name=f"tool{n}")) for n in range(8)]
    crowd.send(start("crowd", prompt=None, messages=HI, tools=tools))
    other.send(start("b", params=Params(grammar=Grammar(regex="the other"))))
    compiling = server.hub._long_texts._pool._lines[Line.COMPILED]
    while not compiling.queue:  # noqa: ASYNC110 - it waits there
        await asyncio.sleep(0)
    waits.set()
    await settled()
    assert heard(crowd) == heard(other) == ["Started"]
    assert compiled[:3].count("other") == 1
    assert len(compiled) == 10, "all together, and each"
    assert len(rendered) == 2, "before they were known, and behind that"


@pytest.mark.parametrize("strict", [None, True])
async def test_all_of_many_tools_are_looked_at_a_few_times_however_many_are_tried_one_by_one(
    strict: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look takes up to 100 ms of the interpreter, and there was one behind each that was tried."""
    monkeypatch.setattr(grammar, "_known_problems", OrderedDict[str, str]())
    listener = RecordingListener(SimulatedServer(WIDE))
    looks, compiled, rules = list[str](), list[str](), output_rules._rules

    def looking(*given: Any) -> OutputRules | None:
        looks.append("")
        return rules(*given)

    def compiles(source: str, most_s: float) -> str:
        compiled.append(source)
        return "it is none"

    monkeypatch.setattr(output_rules, "_rules", looking)
    monkeypatch.setattr(grammar._checker, "problem_of", compiles)
    tools = [Tool(function=Function(name=f"tool{n}", strict=strict)) for n in range(output_rules.MOST_TRIED)]
    listener.send(start(prompt=None, messages=HI, tools=tools))
    await settled()
    assert len(looks) == 4, "until it is known of all together, and of each, and before and behind these"
    assert len(compiled) == 1 + (1 if strict else output_rules.MOST_TRIED)
    if strict:
        assert "`tools[0].function.parameters` cannot be followed" in listener.error().message
    else:
        assert heard(listener) == ["Started"]


class Prompt(list[int]):
    """Of which one can tell whether it is kept."""


async def test_no_prompt_is_kept_while_the_grammar_of_its_tools_waits_to_be_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is made again then, and its tokens take many times as much as its text counts."""
    monkeypatch.setattr(grammar, "_known_problems", OrderedDict[str, str]())
    server = SimulatedServer(WIDE)
    listener = RecordingListener(server)
    kept, waits = list[weakref.ref[Prompt]](), threading.Event()
    encode_chat = Tokenizer.encode_chat

    def compiles(source: str, most_s: float) -> str:
        waits.wait()
        return ""

    def encodes(*given: Any, **named: Any) -> list[int]:
        kept.append(weakref.ref(prompt := Prompt(encode_chat(*given, **named))))
        return prompt

    monkeypatch.setattr(grammar._checker, "problem_of", compiles)
    monkeypatch.setattr(Tokenizer, "encode_chat", encodes)
    compiling = server.hub._long_texts._pool._lines[Line.COMPILED]
    try:
        for n in range(3):
            tools = [Tool(function=Function(name=f"tool{n}"))]
            listener.send(start(str(n), prompt=None, messages=HI, tools=tools))
        async with asyncio.timeout(10):
            while len(kept) < 3 or not compiling.queue or any(one() for one in kept):  # noqa: ASYNC110
                await asyncio.sleep(0)
    finally:
        waits.set()
    await settled()
    assert heard(listener) == 3 * ["Started"]


async def test_for_whoever_has_gone_no_grammar_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others would wait for that, for as long as each takes, and nobody pays for it any more."""
    monkeypatch.setattr(grammar, "_known_problems", OrderedDict[str, str]())
    server = SimulatedServer(WIDE)
    gone, other = RecordingListener(server), RecordingListener(server)
    waits, compiled = threading.Event(), list[str]()

    def compiles(source: str, most_s: float) -> str:
        compiled.append(source)
        waits.wait()
        return ""

    monkeypatch.setattr(grammar._checker, "problem_of", compiles)
    compiling = server.hub._long_texts._pool._lines[Line.COMPILED]
    try:
        for n in range(8):
            gone.send(start(str(n), params=Params(grammar=Grammar(regex=f"gone{n}"))))
        ruled = server.hub._long_texts._pool._lines[Line.RULED]
        while not compiled or ruled.queue or not ruled.free:  # noqa: ASYNC110 - the others wait there then
            await asyncio.sleep(0)
        assert compiling.queue
        gone.leave()
        other.send(start("b", params=Params(grammar=Grammar(regex="other"))))
    finally:
        waits.set()
    await settled()
    assert heard(other) == ["Started"]
    assert len(compiled) == 2


def fork(name: str, of: str) -> protocol.Start:
    return protocol.Start(request_id=name, fork=Fork(request_id=of, at=0))


async def test_a_fork_waits_until_the_stream_that_it_forks_is_there() -> None:
    """As where both are said again at another server, which has to find it."""
    server = SimulatedServer(WIDE)
    listener = RecordingListener(server)
    listener.send(start("a", prompt=LONG))
    listener.send(fork("b", "a"))
    listener.send(fork("c", "b"))
    await settled()
    assert listener.errors == []
    assert [stream.request_id for stream in server.hub.streams] == ["a", "b", "c"]


async def test_forks_that_have_waited_begin_one_after_the_other() -> None:
    """A thousand of a long prompt would hold everybody up for seconds in one turn."""
    server = SimulatedServer(WIDE)
    listener = RecordingListener(server)
    listener.send(start("a", prompt=LONG))
    for n in range(20):
        listener.send(fork(f"fork{n}", "a"))
    streams = [0]
    while server.hub._long_texts.keys:
        await asyncio.sleep(0)
        streams.append(len(server.hub.streams))
    assert streams[-1] == 21
    assert max(after - before for before, after in pairwise(streams)) == 1
    assert not server.hub._long_texts._forking


@pytest.mark.parametrize("until", ["it is there", "it has read what was injected"])
async def test_of_a_crowd_of_forks_that_wait_for_a_stream_some_go_on_in_each_turn(
    until: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_texts, "WOKEN_A_TURN", 2)
    server = SimulatedServer(WIDE)
    listener = RecordingListener(server)
    reads = until != "it is there"
    listener.send(start("a", prompt="a" if reads else LONG))
    with monkeypatch.context() as reading:
        if reads:
            reading.setattr(Stream, "reads_injected", True)
        for n in range(5):
            listener.send(fork(f"fork{n}", "a"))
        await asyncio.sleep(0)
    for entry in server.hub._registry.entries:
        entry.tell_read()
    for woken in (2, 4, 5):
        while len(server.hub.streams) < 1 + woken:  # noqa: ASYNC110 - a thread makes tokens
            await asyncio.sleep(0)
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(server.hub.streams) == 1 + woken
        server.clock.advance(0)
    assert not server.hub._long_texts.keys


async def test_a_fork_of_what_does_not_begin_is_refused_and_forks_of_each_other_do_not_wait_for_ever() -> (
    None
):
    server = SimulatedServer(WIDE)
    listener = RecordingListener(server)
    listener.send(start("a", prompt=TOO_LONG))
    listener.send(fork("b", "a"))
    listener.send(fork("a", "b"))
    await settled()
    assert [error.code for error in listener.errors] == ["context_too_long", *2 * ["unknown_request"]]
    assert server.hub.streams == []


async def test_a_fork_of_what_was_refused_in_this_very_turn_is_refused_and_counted_no_longer() -> None:
    """For one more turn there is a queue of that name, with nothing in it."""
    server = SimulatedServer(WIDE)
    listener = RecordingListener(server)
    listener.send(start("a", prompt=TOO_LONG))
    while not listener.errors:  # noqa: ASYNC110 - so that it comes in the next turn
        await asyncio.sleep(0)
    for n in range(5):
        listener.send(fork(f"fork{n}", "a"))
        await asyncio.sleep(0)
    await settled()
    assert [error.code for error in listener.errors] == ["context_too_long", *5 * ["unknown_request"]]
    assert not server.hub._long_texts._waiting_frames._frames


async def test_who_has_gone_leaves_no_work_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    listener = RecordingListener(SimulatedServer(WIDE))
    for n in range(20):
        listener.send(start(str(n), prompt=TOO_LONG))
    listener.leave()
    monkeypatch.setattr(toy_tokenizer(), "_library", None)
    await settled()
    assert listener.errors == []


async def test_what_waits_is_bounded_and_what_is_beyond_is_refused_at_once() -> None:
    server = SimulatedServer(WIDE)
    listener, other = RecordingListener(server), RecordingListener(server)
    texts = 0
    while not listener.errors:
        listener.send(protocol.Inject(request_id="none", text=TOO_LONG))
        texts += 1
        assert texts * len(TOO_LONG) <= 9 << 20
    error = listener.error()
    assert (error.code, error.retry_after_ms) == ("rate_limited", 1000)
    other.send(start(prompt=LONG[: LONG_TEXT + 1]))
    await settled()
    assert heard(other) == ["Started"]
    assert len(listener.errors) == texts - 1, "each has its answer"


async def test_what_is_no_json_weighs_as_if_it_were_long_where_it_waits_to_be_refused() -> None:
    """As a fork's tools may, which MessagePack can say: they are looked at when there is what it forks."""
    listener = RecordingListener(SimulatedServer(WIDE))
    listener.send(start("a", prompt=LONG))
    tools = [Tool(function=Function(name="look", parameters={"x": Ext(5, b"x" * 1000)}))]
    for n in range(3):
        listener.send(protocol.Start(request_id=str(n), fork=Fork(request_id="a", at=0), tools=tools))
    assert [error.code for error in listener.errors] == 3 * ["rate_limited"]
    await settled()
    assert heard(listener) == ["Started"]


async def test_the_threads_are_not_those_that_the_server_uses_itself() -> None:
    """As it does when it loads a tokenizer."""
    executor = ThreadPoolExecutor()
    executor.shutdown()
    asyncio.get_running_loop().set_default_executor(executor)
    listener = RecordingListener(SimulatedServer(SIZE))
    listener.send(start(prompt=LONG[: LONG_TEXT + 1]))
    await settled()
    assert heard(listener) == ["Started"]


async def test_what_stops_is_never_refused() -> None:
    server = SimulatedServer(WIDE)
    listener = RecordingListener(server)
    listener.send(start(prompt=LONG[: LONG_TEXT + 1]))
    while not listener.errors:
        listener.send(protocol.Grant(request_id="a", limit=1))
    listener.send(protocol.Pause(request_id="a", ref="pause"))
    listener.send(protocol.Cancel(request_id="a", ref="cancel"))
    assert listener.error().code == "rate_limited"
    assert listener.errors == []
    await settled()
    rest(server)
    assert (heard(listener)[0], heard(listener)[-1]) == ("Started", "Final")
    assert listener.errors == []


async def test_what_stops_again_is_refused_like_other_frames_and_each_stop_that_says_more_is_not() -> None:
    server = SimulatedServer(WIDE)
    listener = RecordingListener(server)
    listener.send(start(prompt=LONG[: LONG_TEXT + 1]))
    listener.send(protocol.Resume(request_id="a"))
    sent = 0
    while not listener.errors:
        listener.send(protocol.Cancel(request_id="a"))
        sent += 1
        assert sent <= 2000
    assert listener.error().code == "rate_limited"
    for frame in (protocol.Pause(request_id="a"), protocol.Pause(request_id="a", kv="release")):
        listener.send(frame)
        assert listener.errors == []
        listener.send(frame)
        assert listener.error().code == "rate_limited"
    other = RecordingListener(server)
    other.send(protocol.Pause(request_id="a"))
    assert other.errors == [], "the first may be gone before it is its turn"
    await settled()


async def test_stops_that_are_never_refused_count_against_nobody() -> None:
    server = SimulatedServer(WIDE)
    listeners = [RecordingListener(server) for _ in range(10)]
    listeners[0].send(start(prompt=LONG[: LONG_TEXT + 1]))
    before = dict(server.hub._long_texts._waiting_frames._frames)
    for listener in listeners:
        listener.send(protocol.Cancel(request_id="a"))
    assert server.hub._long_texts._waiting_frames._frames == before
    await settled()
    assert not server.hub._long_texts._waiting_frames._frames


async def test_others_have_their_turn_between_frames_that_waited() -> None:
    listener = RecordingListener(SimulatedServer(WIDE))
    listener.send(start(prompt=LONG[: LONG_TEXT + 1]))
    for _ in range(5):
        listener.send(protocol.Rewind(request_id="a", to=99))  # each is refused at once
    turns: set[int] = set()
    while len(listener.errors) < 5:
        turns.add(len(listener.errors))
        await asyncio.sleep(0)
    assert turns == {0, 1, 2, 3, 4}
    await settled()


# -- templates -------------------------------------------------------------------------------------


async def test_a_template_that_loops_delays_nobody_and_is_refused() -> None:
    server = looping(SimulatedServer(SIZE))
    listener, other = RecordingListener(server), RecordingListener(server)
    listener.send(start(prompt=None, messages=HI))
    assert listener.errors == [], "it is not rendered here"
    other.send(start("b"))
    assert heard(other) == ["Started"]
    await settled()
    error = listener.error()
    assert error.code == "invalid_frame"
    assert "more to do for these messages than the limit allows" in error.message


async def test_templates_that_loop_keep_nobody_from_tokenizing() -> None:
    server = looping(SimulatedServer(WIDE))
    crowd, other = RecordingListener(server), RecordingListener(server)
    for n in range(6):
        crowd.send(start(str(n), prompt=None, messages=HI))
    other.send(start("b", prompt=LONG[: LONG_TEXT + 1]))
    await settled()
    assert heard(other) == ["Started"]
    assert [error.code for error in crowd.errors] == 6 * ["invalid_frame"]


async def test_a_short_conversation_that_takes_long_is_rendered_behind_what_came_before_it() -> None:
    template = "{% for i in range(20000) %}{% endfor %}{{ messages[0].content }}"
    server = looping(SimulatedServer(SIZE), template)
    listener = RecordingListener(server)
    listener.send(start(prompt=None, messages=HI))
    listener.send(protocol.Pause(request_id="a", ref="1"))
    assert heard(listener) == []
    await settled()
    server.tick()
    assert heard(listener)[0] == "Started"
    assert "Paused" in heard(listener)
    assert listener.errors == []


async def test_a_conversation_without_a_character_can_take_long_too() -> None:
    server = looping(SimulatedServer(SIZE))
    listener = RecordingListener(server)
    listener.send(start(prompt=None, messages=[Message(role="user", content="")]))
    await settled()
    assert listener.error().code == "invalid_frame"
    listener.send(start())
    assert heard(listener) == ["Started"]


# -- what is done in vain --------------------------------------------------------------------------


async def test_a_long_text_that_is_refused_is_charged_to_its_tenant() -> None:
    server = limited(1000)
    listener = RecordingListener(server)
    listener.send(start(prompt=TOO_LONG))
    await settled()
    assert listener.error().code == "context_too_long"
    listener.send(start())
    assert listener.error().code == "rate_limited"


async def test_of_many_texts_those_that_wait_behind_the_limit_are_not_tokenized() -> None:
    listener = RecordingListener(limited(1000))
    for n in range(20):
        listener.send(start(str(n), prompt=TOO_LONG))
    await settled()
    codes = [error.code for error in listener.errors]
    assert len(codes) == 20
    assert codes.count("context_too_long") <= 3


async def test_a_conversation_that_the_template_refuses_is_charged() -> None:
    server = looping(limited(1000))
    listener = RecordingListener(server)
    listener.send(start(prompt=None, messages=[Message(role="user", content=LONG)]))
    await settled()
    assert listener.error().code == "invalid_frame"
    listener.send(start())
    assert listener.error().code == "rate_limited"


def test_a_short_text_that_is_refused_is_charged_and_tokens_are_not() -> None:
    listener = RecordingListener(limited(100))
    bad = protocol.Params(logit_bias={9999: 1.0})
    for _ in range(10):
        listener.send(start(prompt=[1] * 90, params=bad))
        assert listener.error().code == "invalid_params"
    listener.send(start(prompt="x" * 90, params=bad))
    assert listener.error().code == "invalid_params"
    listener.send(start(prompt="x" * 90, params=bad))
    assert listener.error().code == "invalid_params"
    listener.send(start())
    assert listener.error().code == "rate_limited"


async def test_what_was_refused_holds_no_text_however_long_its_refusal_is_kept() -> None:
    """Its frames would be a cycle with the listener that keeps it, until somebody collects that."""
    server = SimulatedServer(SIZE)
    gc.collect()
    gc.disable()
    try:
        listener = HttpListener(server.hub, Caller("http", tenant="tenant"), PayerWork(), keeps_events=False)
        server.hub.receive_frame("tenant", start(prompt=TOO_LONG), listener)
        while listener.failure is None:
            await listener.wait_for_news()
        assert listener.failure.code == "context_too_long"
        await server.hub.wait_until_empty()
        await asyncio.sleep(0)  # the task that tokenized it ends
        listener.leave()
        gone = weakref.ref(listener)
        del listener
        assert gone() is None
    finally:
        gc.enable()


async def test_many_messages_that_say_nothing_are_put_in_words_in_a_thread() -> None:
    server = SimulatedServer(SIZE)
    listener = RecordingListener(server)
    listener.send(start(prompt=None, messages=[Message(role="user", content="")] * 100))
    assert heard(listener) == []
    await settled()
    assert heard(listener) != []


def test_who_begins_a_stream_whose_penalties_count_a_long_text_pays_for_the_counting() -> None:
    """The engine counts it for as long as it takes to decode several tokens; later what is another alone."""
    begun, steered = [], []
    for params in (Params(), Params(frequency_penalty=0.5)):
        listener = RecordingListener(SimulatedServer(WIDE))
        listener.send(start(prompt=[65] * 1000, params=params))
        begun.append(listener.owed_s)
        listener.send(protocol.Rewind(request_id="a", to=0))
        steered.append(listener.owed_s - begun[-1])
    assert begun[1] - begun[0] == pytest.approx(1000 * COUNTED_S, rel=0.1)
    assert steered == [0, 0]


@pytest.mark.parametrize(
    "frame",
    [protocol.Resume(request_id="a"), protocol.Inject(request_id="a", tokens=[65], resume=True)],
    ids=["resume", "inject"],
)
def test_who_has_memory_looked_for_again_pays_by_the_context(frame: protocol.StreamFrame) -> None:
    paid = []
    kinds: list[Literal["hold", "release"]] = ["hold", "release"]
    for kv in kinds:
        listener = RecordingListener(SimulatedServer(WIDE))
        listener.send(start(prompt=[65] * 1000))
        listener.send(protocol.Pause(request_id="a", kv=kv))
        before = listener.owed_s
        listener.send(frame)
        paid.append(listener.owed_s - before)
    assert paid == [0, pytest.approx(1000 * RESTORED_S, rel=0.1)]
