"""Reasoning that has an end: at one and the same token, whoever is quick, whatever is rewound or rebuilt,
with a model that would go on for ever."""

from __future__ import annotations

import functools
import json
import random
from typing import Any

import pytest

from engine import toy_model
from midstream import protocol
from midstream.protocol import Credit, Grammar, Message, Params
from realtime.text.tokenizer import Tokenizer
from realtime.tools.reasoning_count import REOPENED, ReasoningCount
from tests.fakes.folded_spans import FoldedSpans
from tests.fakes.recording_listener import RecordingListener
from tests.fakes.simulated_client import settled
from tests.fakes.simulated_server import EngineSize, SimulatedServer

SIZE = EngineSize(kv_tokens=4096, block=16, step_tokens=4096, slots=3)
OPENED = "{% for m in messages %}{{ m.role + m.content }}{% endfor %}<think>\n"
END = "\n</think>\n\n"


def tokenizer(template: str = OPENED) -> Tokenizer:
    return Tokenizer(json.loads((toy_model.FOLDER / "tokenizer.json").read_text()), template)


class Talk:
    """A stream of a model that writes bytes by chance, of which hardly any are a tag."""

    def __init__(self, *, overlap: bool = False, chance: random.Random | None = None) -> None:
        size = EngineSize(kv_tokens=4096, block=16, step_tokens=4096, slots=3, overlap=overlap)
        self.server = SimulatedServer(size, tokenizer=tokenizer())
        self.listener = RecordingListener(self.server)
        self.client = FoldedSpans()
        self._chance = chance

    def start(self, **fields: Any) -> None:
        params = {"max_tokens": 60, "ignore_eos": True, "seed": 7} | fields.pop("params", {})
        asked: dict[str, Any] = {"messages": [Message(role="user", content="Hi")], "return_tokens": True}
        asked["credit"] = Credit(limit=1000)
        self.listener.send(protocol.Start(request_id="a", params=Params(**params), **(asked | fields)))

    def move(self) -> None:
        if self._chance is None:
            self.server.tick()
        else:
            self._chance.choice([self.server.deliver_down, self.server.step, self.server.deliver_up])()

    def until(self, index: int) -> None:
        while self.index < index:
            self.move()

    def end(self) -> protocol.Final:
        while not isinstance(self.listener.heard[-1], protocol.Final):
            self.move()
        self.client.read(self.listener.heard)
        return self.listener.final

    @property
    def index(self) -> int:
        return sum(event.count for event in self.listener.heard if isinstance(event, protocol.Token))

    @property
    def told(self) -> list[tuple[int, list[int] | None]]:
        return [(e.index, e.tokens) for e in self.listener.heard if isinstance(e, protocol.Token)]

    @property
    def tokens(self) -> list[int]:
        return [token for _, tokens in self.told for token in tokens or ()]

    @property
    def closed(self) -> list[tuple[int, int, str | None]]:
        return [(e.index, e.count, e.reason) for e in self.listener.heard if isinstance(e, protocol.Injected)]


@functools.cache
def expected(limit: int) -> Talk:
    talk = Talk()
    talk.start(params={"reasoning_tokens": limit})
    talk.end()
    return talk


@pytest.mark.parametrize("limit", [0, 1, 7, 40])
def test_it_ends_where_it_has_as_many_tokens_as_it_may(limit: int) -> None:
    talk = expected(limit)
    ((index, count, reason),) = talk.closed
    assert limit <= index <= limit + 3, "or a little later, in the middle of a character"
    assert (count, reason) == (len(END), "reasoning_tokens")
    assert talk.client.content
    assert bool(talk.client.reasoning.strip()) == bool(limit)
    final = talk.listener.final
    assert (final.usage.completion_tokens, final.usage.injected_tokens) == (60, len(END))
    assert final.usage.discarded_tokens == 0


def test_without_a_limit_nothing_is_done() -> None:
    talk = Talk()
    talk.start()
    talk.end()
    assert (talk.closed, talk.client.content) == ([], "")


@pytest.mark.parametrize("seed", range(4))
def test_at_the_same_token_whoever_is_quick(seed: int) -> None:
    talk = Talk(overlap=seed % 2 == 1, chance=random.Random(seed))
    talk.start(params={"reasoning_tokens": 20})
    talk.end()
    assert (talk.client.said, talk.tokens) == (expected(20).client.said, expected(20).tokens)


@pytest.mark.parametrize("killed_at", [3, 20, 21, 40])
def test_in_an_engine_that_took_over(killed_at: int) -> None:
    talk = Talk()
    talk.start(params={"reasoning_tokens": 20})
    talk.until(killed_at)
    talk.server.kill_engine()
    talk.server.revive_engine()
    talk.end()
    assert (talk.client.said, talk.tokens) == (expected(20).client.said, expected(20).tokens)


@pytest.mark.parametrize("to", [0, 19, 20, 23, 40])
def test_rewound_to_anywhere(to: int) -> None:
    """Before the end it comes again where it was; behind it, it stands."""
    for seed in range(2):
        talk = Talk(overlap=seed % 2 == 1, chance=random.Random(seed))
        talk.start(params={"reasoning_tokens": 20})
        talk.until(45)
        talk.listener.send(protocol.Rewind(request_id="a", to=to, ref="r"))
        talk.end()
        assert talk.client.said == expected(20).client.said


def test_adjusted_in_the_middle_of_it() -> None:
    """It ends at the token at which less was asked for; asked for more, it goes on."""
    for seed in range(2):
        talk = Talk(overlap=seed % 2 == 1, chance=random.Random(seed))
        talk.start(params={"reasoning_tokens": 50})
        talk.until(30)
        talk.listener.send(
            protocol.Adjust(request_id="a", params=Params(reasoning_tokens=10), ref="now", at=30)
        )
        talk.end()
        assert 30 <= talk.closed[0][0] <= 33
        again = Talk()
        again.start(params={"reasoning_tokens": 10})
        again.until(5)
        again.listener.send(protocol.Adjust(request_id="a", params=Params(reasoning_tokens=30)))
        again.end()
        assert again.closed == expected(30).closed
        assert again.client.said == expected(30).client.said


@pytest.mark.parametrize("seed", range(2))
def test_adjusted_it_ends_at_the_index_that_is_told(seed: int) -> None:
    talk = Talk(overlap=seed % 2 == 1, chance=random.Random(seed))
    talk.start()
    talk.until(12)
    talk.listener.send(protocol.Adjust(request_id="a", params=Params(reasoning_tokens=0), ref="now"))
    talk.end()
    (adjusted,) = (event for event in talk.listener.heard if isinstance(event, protocol.Adjusted))
    assert adjusted.index <= talk.closed[0][0] <= adjusted.index + 3


def test_it_keeps_its_pace_while_it_is_adjusted_in_every_step() -> None:
    talk = Talk()
    talk.start(params={"reasoning_tokens": 40})
    steps = 0
    while talk.index < 30:
        talk.listener.send(protocol.Adjust(request_id="a", params=Params(logprobs=steps % 2)))
        talk.move()
        steps += 1
    assert steps < 60
    talk.listener.send(protocol.Adjust(request_id="a", params=Params(logprobs=None)))
    talk.end()
    assert talk.closed == expected(40).closed
    assert talk.tokens == expected(40).tokens


def test_a_client_may_end_it_before() -> None:
    talk = Talk()
    talk.start(params={"reasoning_tokens": 50}, credit=Credit(limit=10))
    talk.until(10)
    talk.listener.send(protocol.Inject(request_id="a", text="</think>Well, ", ref="i"))
    talk.listener.send(protocol.Grant(request_id="a", limit=1000))
    talk.end()
    assert talk.closed == [(10, len("</think>Well, "), None)]


async def test_an_answer_by_a_grammar_behind_it() -> None:
    """The grammar is the answer's, and not that of what stands before."""
    talk = Talk()
    grammar = Grammar(choice=["yes", "no"])
    talk.start(params={"reasoning_tokens": 12, "grammar": grammar, "ignore_eos": False})
    await settled()
    final = talk.end()
    assert final.finish_reason == "stop"
    assert talk.client.content in ("yes", "no")
    assert talk.client.reasoning


@pytest.mark.parametrize("steered", [False, True])
def test_where_no_room_is_left_for_its_end_the_stream_ends(
    steered: bool, caplog: pytest.LogCaptureFixture
) -> None:
    talk = Talk()
    talk.server = SimulatedServer(
        EngineSize(kv_tokens=64, block=16, step_tokens=64, slots=3), tokenizer=tokenizer()
    )
    talk.listener = RecordingListener(talk.server)
    prompt = len(tokenizer().encode_chat([Message(role="user", content="Hi")]))
    limit = 64 - prompt - 5
    talk.start(params={"reasoning_tokens": limit, "max_tokens": 64})
    talk.until(limit)
    if steered:  # in the very step that has no room
        talk.listener.send(protocol.Adjust(request_id="a", params=Params(temperature=1.0), ref="late"))
    assert talk.end().finish_reason == "length"
    assert sum(getattr(event, "ref", None) == "late" for event in talk.listener.heard) == steered
    assert "failed in the gateway" not in caplog.text


def test_a_span_that_is_opened_again_has_a_few() -> None:
    count = ReasoningCount()
    assert count.room(5) == 6
    count = count.opened()
    for left in (5, 4, 3, 2, 1, 0):
        assert count.room(5) == left
        count = count.token()
    count = count.closed()
    assert count.room(5) == 1 + REOPENED
    assert count.opened().token().room(5) == REOPENED - 1
    assert count.opened().room(100) == 94


@pytest.mark.parametrize(
    ("template", "end"),
    [
        (OPENED, END),
        ("{{ messages }}", ""),
        ("[THINK]", "[/THINK]"),
        ("<|channel|><|message|>", "<|end|><|start|>assistant"),
    ],
)
def test_the_end_is_the_models_own(template: str, end: str) -> None:
    spell = tokenizer(template)
    assert b"".join(map(spell.token_bytes, spell.reasoning_end)).decode() == end
