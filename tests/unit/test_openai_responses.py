"""From a stream's events to OpenAI's answers, over a whole server without sockets or time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream import protocol
from midstream.protocol import Fork, Params, Start, StreamFrame
from realtime.http.openai import chat_dialect, completion_in_progress, text_dialect
from realtime.http.openai.completion_in_progress import CompletionSource, Dialect
from realtime.http.openai.errors import error_object
from realtime.http.openai.logprobs import Places
from realtime.http.openai.response_types import ChatChoice, ChatLogprob, CompletionObject, TextChoice
from realtime.hub.ended_streams import EndedStreams
from realtime.hub.hub import LONG_TEXT
from realtime.hub.observers import Caller, Observer
from realtime.refusal import Refusal
from realtime.work_ledger import PayerWork
from tests.fakes.checking_client import Reader
from tests.fakes.simulated_client import settled
from tests.fakes.simulated_server import EngineSize, SimulatedServer, toy_tokenizer

CALLER = Caller("http", tenant="tenant")
T = TypeVar("T")
PROMPT = "Once upon a time there was a little engine, and a server by the sea"


class Asked:
    """A server with one request in it."""

    def __init__(
        self,
        dialect: Dialect = chat_dialect,
        *,
        n: int = 1,
        name: str = "x",
        usage: bool = False,
        limits: dict[str, Any] | None = None,
        **params: Any,
    ) -> None:
        """`limits` are the hub's."""
        size = EngineSize(kv_tokens=4096, block=4, step_tokens=4096)
        self.server = SimulatedServer(size, **limits or {})
        names = [name, *(f"{name}:{index}" for index in range(1, n))]
        self.starts = [
            Start(
                request_id=name,
                prompt=PROMPT,
                params=Params(**{"seed": seed, "max_tokens": 6, "ignore_eos": True} | params),
            )
            for seed, name in enumerate(names)
        ]
        self.answering = CompletionSource(
            self.server.hub, CALLER, dialect, [self.starts], PayerWork(), include_usage=usage
        )
        self.said = b""

    async def begin(self) -> Asked:
        assert await self.answering.begin() is None
        return self

    async def listen(self, ticks: int = 1) -> None:
        for _ in range(ticks):
            self.server.tick()
            self.said += await self.answering.take()
            self.answering.accepted()
            await self.answering.start_ready()

    async def to_the_end(self) -> None:
        while not self.answering.over:
            await self.listen()

    def steer(self, frame: StreamFrame) -> None:
        Reader(self.server, "tenant").send(frame)

    async def whole(self) -> CompletionObject | Refusal | None:
        waiting = asyncio.create_task(self.answering.whole())
        while not waiting.done():
            self.server.tick()
            await asyncio.sleep(0)
        return waiting.result()

    @property
    def data(self) -> list[str]:
        lines = self.said.decode().split("\n\n")
        assert lines.pop() == ""
        assert all(line.startswith("data: ") for line in lines)
        return [line.removeprefix("data: ") for line in lines]

    @property
    def chunks(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.data if line != "[DONE]"]

    def written(self, index: int = 0) -> str:
        choices = [
            choice for chunk in self.chunks for choice in chunk.get("choices", ()) if choice["index"] == index
        ]
        return "".join(choice.get("text", choice.get("delta", {}).get("content", "")) for choice in choices)


async def test_a_chat_begins_with_its_role_and_ends_with_reason_usage_and_done() -> None:
    completion = await Asked(usage=True).begin()
    await completion.to_the_end()
    first, *deltas, finish, usage = completion.chunks
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all(chunk["choices"][0]["finish_reason"] is None and chunk["usage"] is None for chunk in deltas)
    assert [len(chunk["choices"][0]["delta"]["content"]) > 0 for chunk in deltas] == [True] * 6
    assert (finish["choices"][0]["delta"], finish["choices"][0]["finish_reason"]) == ({}, "length")
    assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 6)
    assert completion.data[-1] == "[DONE]"
    names = ("id", "object", "model", "system_fingerprint")
    assert {tuple(chunk[name] for name in names) for chunk in completion.chunks} == {
        ("x", "chat.completion.chunk", "toy", "fp")
    }


@pytest.mark.parametrize("other", ["fp", "other"])
async def test_an_answer_of_several_engines_has_the_fingerprint_that_they_share_or_none(other: str) -> None:
    def move(server: SimulatedServer) -> None:
        server.kill_engine()
        server.revive_engine(other)

    completion = await Asked().begin()
    await completion.listen(3)
    move(completion.server)
    await completion.to_the_end()
    told = [chunk["system_fingerprint"] for chunk in completion.chunks]
    assert (told[0], told[-1]) == ("fp", other)

    asked = await Asked().begin()
    asked.server.tick()
    move(asked.server)
    answer = await asked.whole()
    assert isinstance(answer, CompletionObject)
    assert answer.system_fingerprint == ("fp" if other == "fp" else None)


@pytest.mark.parametrize("dialect", [chat_dialect, text_dialect])
async def test_whole_and_in_chunks_is_the_same_text(dialect: Dialect) -> None:
    completion = await Asked(dialect, n=2).begin()
    await completion.to_the_end()
    answer = await (await Asked(dialect, n=2).begin()).whole()
    assert isinstance(answer, CompletionObject)
    told = json.loads(msgspec.json.encode(answer))
    texts = [choice.get("text") or choice["message"]["content"] for choice in told["choices"]]
    assert texts == [completion.written(0), completion.written(1)]
    assert texts[0] != texts[1]
    assert [choice["finish_reason"] for choice in told["choices"]] == ["length", "length"]
    assert "usage" not in completion.chunks[0]
    prompt = told["usage"]["prompt_tokens"]
    assert told["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": 12,
        "total_tokens": prompt + 12,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


async def test_other_choices_find_the_prompt_of_the_first_computed() -> None:
    completion = await Asked(n=4).begin()
    assert len(completion.server.hub.streams) == 1, "the first goes ahead"
    await completion.listen(2)
    assert len(completion.server.hub.streams) == 4
    streams = {stream.request_id: stream for stream in completion.server.hub.streams}
    await completion.to_the_end()
    cached = {}
    for name, stream in streams.items():
        [final] = stream.outbox.since(stream.outbox.seq - 2) or []
        assert isinstance(final, protocol.Final)
        cached[name] = final.usage.cached_tokens
    prompt = streams["x"].prompt_tokens
    assert cached.pop("x") == 0
    assert all(prompt - 4 <= found < prompt for found in cached.values()), "all of it but the last block"


async def test_choices_that_end_before_the_last_begins_push_out_no_first() -> None:
    completion = Asked(max_tokens=1)
    server, fork = completion.server, Fork(request_id="x", at=0)
    forks = [Start(request_id=f"x:{index}", fork=fork, params=Params()) for index in range(1, 8)]

    class EndingWork(PayerWork):
        async def do(self, piece: Callable[[], T], price_s: float = 0.0) -> T:
            made = await super().do(piece, price_s)
            while server.hub.streams:
                server.tick()
            return made

    server.hub._registry._ended_streams = EndedStreams(stream_limit=4)
    completion.answering = CompletionSource(
        server.hub, CALLER, chat_dialect, [completion.starts + forks], EndingWork(), include_usage=False
    )
    answer = await (await completion.begin()).whole()
    assert isinstance(answer, CompletionObject), answer
    assert [choice.index for choice in answer.choices] == list(range(8))


async def test_the_words_of_log_probabilities() -> None:
    completion = await Asked(logprobs=2).begin()
    answer = await completion.whole()
    assert isinstance(answer, CompletionObject)
    (choice,) = answer.choices
    assert isinstance(choice, ChatChoice)
    assert choice.logprobs is not None
    content = [msgspec.json.decode(told, type=ChatLogprob) for told in choice.logprobs.content]
    assert "".join(told.token for told in content) == choice.message.content
    assert all(bytes(told.bytes).decode() == told.token for told in content)
    assert [len(told.top_logprobs) for told in content] == [2] * 6

    pieces = await Asked(text_dialect, logprobs=2).begin()
    await pieces.to_the_end()
    told = [chunk["choices"][0]["logprobs"] for chunk in pieces.chunks if chunk["choices"][0]["logprobs"]]
    assert [token for piece in told for token in piece["tokens"]] == [one.token for one in content]
    at = 0
    for piece in told:
        assert piece["text_offset"] == [at]
        at += len(piece["tokens"][0])
        assert 2 <= len(piece["top_logprobs"][0]) <= 3


def placed(text: str) -> tuple[list[bytes], list[int]]:
    """How its tokens are spelt, and where in it they begin."""
    tokenizer = toy_tokenizer()
    spellings = [tokenizer.token_bytes(token) for token in tokenizer.encode(text)]
    return spellings, Places().of(spellings, 0, len(text))


@pytest.mark.parametrize("text", ["one 🙂 two 🙂", "é🙂🙂é.", "plain"])
def test_a_token_s_place_in_a_text_counts_characters_of_several_tokens_once(text: str) -> None:
    for spelling, place in zip(*placed(text), strict=True):
        token = spelling.decode(errors="replace")
        assert "\ufffd" in token or text[place:].startswith(token)


@given(st.text(st.sampled_from("aé🙂"), min_size=1, max_size=12), st.data())
def test_a_token_s_place_is_the_same_in_chunks_whatever_is_held_back(text: str, data: st.DataObject) -> None:
    spellings, whole = placed(text)
    places, found, told = Places(), list[int](), 0
    while len(found) < len(spellings):
        taken = spellings[len(found) :][: data.draw(st.integers(1, 3))]
        known = len(b"".join(spellings[: len(found) + len(taken)]).decode(errors="ignore"))
        telling = data.draw(st.integers(0, known - told))
        found += places.of(taken, told, telling)
        told += telling
    assert found == whole


@pytest.mark.parametrize("text", ["🙂 and", "plain"])
def test_behind_a_rewind_a_token_s_place_is_known_once_all_is_told(text: str) -> None:
    """Of what was held back, or was half of a character, it may have heard the first part alone."""
    (first, *others, last), (*_, place) = placed(text)
    places = Places()
    places.of([first], 0, 0)
    places.rewind()
    places.of(others, 0, place)
    assert places.of([last], place, len(text) - place) == [place]


async def test_a_token_s_place_in_chunks_is_that_of_a_whole_answer_where_text_is_held_back() -> None:
    asked: dict[str, Any] = {"logprobs": 0, "max_tokens": 30}
    answer = await (await Asked(text_dialect, **asked).begin()).whole()
    assert isinstance(answer, CompletionObject)
    (choice,) = answer.choices
    assert isinstance(choice, TextChoice)
    stop = choice.text[5:7] + "\n"  # some of it may begin that
    pieces = await Asked(text_dialect, **asked, stop=stop).begin()
    await pieces.to_the_end()
    choices = [chunk["choices"][0] for chunk in pieces.chunks]
    assert any(not told["text"] for told in choices[:-1]), "some is held back"
    told = [place for told in choices if told["logprobs"] for place in told["logprobs"]["text_offset"]]
    assert choice.logprobs is not None
    assert told == choice.logprobs.text_offset


async def test_what_is_rewound_is_said_in_chunks_and_not_there_in_a_whole_answer() -> None:
    completion = await Asked(max_tokens=8).begin()
    await completion.listen(4)
    completion.steer(protocol.Rewind(request_id="x", to=1))
    await completion.to_the_end()
    (rewound,) = [c["choices"][0]["rewound"] for c in completion.chunks if "rewound" in c["choices"][0]]
    assert rewound["index"] == 1
    at = next(i for i, chunk in enumerate(completion.chunks) if "rewound" in chunk["choices"][0])
    before = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in completion.chunks[:at])
    after = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in completion.chunks[at:])

    other = await Asked(max_tokens=8, logprobs=0).begin()
    waiting = asyncio.create_task(other.answering.whole())
    for _ in range(4):
        other.server.tick()
        await asyncio.sleep(0)
    other.steer(protocol.Rewind(request_id="x", to=1))
    while not waiting.done():
        other.server.tick()
        await asyncio.sleep(0)
    answer = waiting.result()
    assert isinstance(answer, CompletionObject)
    (choice,) = answer.choices
    assert isinstance(choice, ChatChoice)
    assert choice.message.content == before[: rewound["text_length"]] + after
    assert choice.logprobs is not None
    assert len(choice.logprobs.content) == 8


async def test_a_whole_answer_has_the_log_probabilities_of_what_stands_also_where_some_have_none() -> None:
    """As behind an adjust that asks for none, and another that asks for them again."""
    completion = await Asked(max_tokens=12, logprobs=0).begin()
    waiting = asyncio.create_task(completion.answering.whole())

    async def tick(times: int) -> None:
        for _ in range(times):
            completion.server.tick()
            await asyncio.sleep(0)

    for logprobs in (None, 0):
        await tick(3)
        completion.steer(protocol.Adjust(request_id="x", params=Params(logprobs=logprobs)))
    await tick(4)
    completion.steer(protocol.Rewind(request_id="x", to=8))
    while not waiting.done():
        await tick(1)
    answer = waiting.result()
    assert isinstance(answer, CompletionObject)
    (choice,) = answer.choices
    assert isinstance(choice, ChatChoice)
    assert choice.logprobs is not None
    plain = await Asked(max_tokens=12, logprobs=0).whole()
    assert isinstance(plain, CompletionObject)
    (other,) = plain.choices
    assert isinstance(other, ChatChoice)
    assert other.logprobs is not None
    every = other.logprobs.content
    assert choice.logprobs.content == [*every[:3], *every[6:]]


async def test_whoever_asks_again_by_the_same_name_has_the_same_answer_once_computed() -> None:
    completion = await Asked().begin()
    await completion.listen(3)
    again = CompletionSource(
        completion.server.hub, CALLER, chat_dialect, [completion.starts], PayerWork(), include_usage=False
    )
    assert await again.begin() is None
    completion.said += await completion.answering.take()
    assert json.loads(completion.data[-1])["error"]["code"] == "request_taken"
    assert completion.answering.over
    first, completion.answering, completion.said = completion.written(), again, b""
    await completion.to_the_end()
    assert completion.written().startswith(first)
    late = CompletionSource(
        completion.server.hub, CALLER, chat_dialect, [completion.starts], PayerWork(), include_usage=False
    )
    assert await late.begin() is None
    answer = await late.whole()
    assert isinstance(answer, CompletionObject)
    assert isinstance(answer.choices[0], ChatChoice)
    assert answer.choices[0].message.content == completion.written()
    assert not completion.server.hub.streams


async def test_an_answer_that_is_asked_for_again_has_its_log_probabilities_too() -> None:
    completion = await Asked(logprobs=1).begin()
    first = await completion.whole()
    again = CompletionSource(
        completion.server.hub, CALLER, chat_dialect, [completion.starts], PayerWork(), include_usage=False
    )
    assert await again.begin() is None
    second = await again.whole()
    assert isinstance(first, CompletionObject)
    assert isinstance(second, CompletionObject)
    assert first.choices == second.choices


async def test_other_content_under_the_same_name_is_a_conflict() -> None:
    completion = await Asked().begin()
    completion.starts[0].params.seed = 9
    again = CompletionSource(
        completion.server.hub, CALLER, chat_dialect, [completion.starts], PayerWork(), include_usage=False
    )
    refusal = await again.begin()
    assert refusal is not None
    assert (refusal.status, refusal.code) == (409, "request_conflict")


async def test_nobody_left_is_no_answer_and_ends_the_work() -> None:
    completion = await Asked(n=3).begin()
    await completion.listen(3)
    completion.answering.leave()
    assert completion.answering.over
    assert await completion.answering.whole() is None
    completion.server.tick()
    completion.server.tick()
    assert not completion.server.hub.streams


async def test_a_refusal_behind_the_first_choice_ends_it_all_with_an_error() -> None:
    completion = Asked(n=2)
    completion.starts[1].priority = 3
    completion.starts[1].model = "another"
    await completion.begin()
    await completion.to_the_end()
    assert json.loads(completion.data[-1])["error"]["code"] == "model_not_found"
    assert completion.answering.over


@pytest.mark.parametrize(
    "why", ["the engine failed again and again", "The grammar leaves nothing but an end."]
)
async def test_a_stream_that_fails_is_an_error_that_may_be_tried_again(why: str) -> None:
    completion = await Asked().begin()
    await completion.listen(2)
    (stream,) = completion.server.hub.streams
    stream.fail(why, completion.server.clock())
    completion.server.hub.cancel_all()  # wakes its listener
    completion.said += await completion.answering.take()
    error = json.loads(completion.data[-1])["error"]
    assert (error["status"], error["code"], error["retryable"]) == (500, "engine_error", True)
    assert error["message"] == f"The answer could not be finished: {why.removesuffix('.')}."
    assert (
        "finish_reason" not in completion.data[-2]
        or completion.chunks[-2]["choices"][0]["finish_reason"] is None
    )


async def test_the_servers_end_is_an_error_and_somebodys_cancel_is_an_end() -> None:
    going = await Asked().begin()
    await going.listen(2)
    going.server.hub.draining = True
    going.server.hub.cancel_all()
    await going.to_the_end()
    assert json.loads(going.data[-1])["error"]["code"] == "draining"

    stopped = await Asked().begin()
    await stopped.listen(2)
    stopped.steer(protocol.Cancel(request_id="x"))
    await stopped.to_the_end()
    assert stopped.chunks[-1]["choices"][0]["finish_reason"] == "cancelled"
    assert stopped.data[-1] == "[DONE]"


async def test_a_reader_that_was_too_slow_may_try_again() -> None:
    completion = await Asked().begin()
    error = json.loads(completion.answering.too_slow_event().decode().removeprefix("data: "))["error"]
    assert (error["retryable"], error["retry_after_ms"]) == (True, 1000)


async def test_a_requests_starts_are_as_many_pieces_of_work() -> None:
    """Others have their turn in between."""
    completion = Asked(limits={"max_streams": 200})
    params = Params(max_tokens=1)
    prompts = [[Start(request_id=f"x{n}", prompt=PROMPT, params=params)] for n in range(128)]
    source = CompletionSource(
        completion.server.hub, CALLER, text_dialect, prompts, work := CountedWork(), include_usage=False
    )
    assert await source.begin() is None
    assert len(completion.server.hub.streams) == 128
    assert work.starts == 128


async def test_choices_begin_though_the_first_of_their_prompt_is_forgotten() -> None:
    """Of many prompts all first choices begin before any other, and short ones end before that."""
    completion = Asked()
    hub = completion.server.hub
    hub._registry._ended_streams = EndedStreams(byte_limit=1)
    params = Params(max_tokens=1, ignore_eos=True, seed=3)
    prompts = [
        [
            Start(request_id=f"x:{at}", prompt=PROMPT + str(at), params=params),
            Start(request_id=f"x:{at}b", fork=Fork(request_id=f"x:{at}", at=0), params=Params(seed=4)),
        ]
        for at in range(4)
    ]
    asked = CompletionSource(hub, CALLER, text_dialect, prompts, PayerWork(), include_usage=False)
    completion.answering = asked
    assert await asked.begin() is None
    assert asked._held_starts.bytes > 4 * len(PROMPT)
    whole = await completion.whole()
    assert isinstance(whole, CompletionObject)
    assert [choice.finish_reason for choice in whole.choices] == ["length"] * 8
    assert not asked._held_starts.bytes


async def test_of_a_request_that_is_refused_for_one_of_its_prompts_nothing_goes_on() -> None:
    """It has a name, and whoever goes away may come back: but not for this."""
    server = Asked().server
    prompts: list[str | list[int]] = [PROMPT, PROMPT, [1] * 5000, PROMPT]
    starts = [
        [Start(request_id=f"x:{at}", prompt=prompt, on_disconnect="continue")]
        for at, prompt in enumerate(prompts)
    ]
    source = CompletionSource(server.hub, CALLER, text_dialect, starts, PayerWork(), include_usage=False)
    refusal = await source.begin()
    assert refusal is not None
    assert refusal.code == "context_too_long"
    assert refusal.message.startswith("Of `prompt[2]`: The prompt has at least 5000 tokens")
    assert error_object(refusal)["error"]["param"] == "prompt[2]"
    source.leave()
    for _ in range(3):
        server.tick()
    assert not server.hub.streams


async def test_nor_does_what_begins_while_the_others_are_ended() -> None:
    """Its text is long in becoming tokens."""
    server = Asked().server
    prompts: list[str | list[int]] = ["a " * (LONG_TEXT // 2 + 1), PROMPT, [1] * 5000]
    starts = [
        [Start(request_id=f"x:{at}", prompt=prompt, on_disconnect="continue")]
        for at, prompt in enumerate(prompts)
    ]

    class SlowWork(PayerWork):
        async def do(self, piece: Callable[[], T], price_s: float = 0.0) -> T:
            done = await super().do(piece, price_s)
            if isinstance(piece, partial):  # an end
                await settled()
            return done

    source = CompletionSource(server.hub, CALLER, text_dialect, starts, SlowWork(), include_usage=False)
    assert await source.begin() is not None
    source.leave()
    for _ in range(3):
        server.tick()
    assert not server.hub.streams


class CountedWork(PayerWork):
    def __init__(self) -> None:
        super().__init__()
        self.starts = self.pieces = 0

    async def do(self, piece: Callable[[], T], price_s: float = 0.0) -> T:
        if price_s:  # the engine has to act on it
            self.starts += 1
        else:
            self.pieces += 1
        return await super().do(piece, price_s)


@pytest.mark.parametrize("dialect", [chat_dialect, text_dialect])
@pytest.mark.parametrize("streamed", [True, False])
async def test_log_probabilities_are_encoded_stream_by_stream(dialect: Dialect, streamed: bool) -> None:
    """A reader that was away finds those of all its choices at once: others have their turn in between."""
    completion = Asked(dialect, n=8, logprobs=20)
    completion.answering = source = CompletionSource(
        completion.server.hub,
        CALLER,
        dialect,
        [completion.starts],
        work := CountedWork(),
        include_usage=False,
    )
    await completion.begin()
    await completion.listen(2)
    assert work.starts == 8
    for _ in range(20):
        completion.server.tick()
    work.pieces = 0
    await (source.take() if streamed else source.whole())
    assert source.over or not streamed
    assert work.pieces == (8 if streamed else 8 + 8 * (1 + (dialect is text_dialect))), "and made so"


async def test_where_the_tokens_of_a_whole_answer_begin_is_found_piece_by_piece(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A long one has tens of thousands: others have their turn in between."""
    asked: dict[str, Any] = {"logprobs": 2, "max_tokens": 40, "seed": 1}
    expected = await (await Asked(text_dialect, **asked).begin()).whole()
    monkeypatch.setattr(text_dialect, "TOKENS_A_PIECE", 8)
    completion = Asked(text_dialect, **asked)
    starts, work = [completion.starts], CountedWork()
    completion.answering = CompletionSource(
        completion.server.hub, CALLER, text_dialect, starts, work, include_usage=False
    )
    answer = await (await completion.begin()).whole()
    assert isinstance(answer, CompletionObject)
    assert isinstance(expected, CompletionObject)
    assert answer.choices == expected.choices
    before = work.pieces
    assert await completion.answering.whole() == answer
    assert work.pieces - before == 40 // 8 + 1


@pytest.mark.parametrize("dialect", [chat_dialect, text_dialect])
async def test_what_is_kept_for_a_whole_answer_is_on_its_readers_account(dialect: Dialect) -> None:
    limits = {"total_stream_memory": 8 << 20}
    completion = await Asked(dialect, n=4, logprobs=20, max_tokens=40, limits=limits).begin()
    account = completion.server.hub.accounts.of_listener("tenant")
    answer = await completion.whole()
    assert isinstance(answer, CompletionObject)
    assert completion.answering.held_bytes > 4 * 40 * 20 * 20
    body = await completion.answering.body()
    assert isinstance(body, list)
    assert completion.answering.held_bytes > sum(map(len, body)), "until it is sent"
    assert not account.full
    completion.answering.leave()
    account.add((4 << 20) - 1)
    assert not account.full, "nothing else is held any more"


@pytest.mark.parametrize("dialect", [chat_dialect, text_dialect])
async def test_a_whole_answer_is_encoded_choice_by_choice(dialect: Dialect) -> None:
    named = 'x","choices":[' + "\\"
    completion = await Asked(dialect, n=3, logprobs=2, name=named).begin()
    answer = await completion.whole()
    assert isinstance(answer, CompletionObject)
    whole = msgspec.json.encode(answer)
    parts = await completion.answering.body()
    assert isinstance(parts, list)
    assert b"".join(parts) == whole
    assert max(map(len, parts)) < len(whole) / 2


async def test_the_events_of_many_choices_are_taken_in_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completion_in_progress, "EVENTS_A_TURN", 2)
    completion = Asked(n=5)
    await completion.begin()
    await completion.listen(2)
    for _ in range(20):
        completion.server.tick()
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    answer = await completion.answering.whole()
    counting.cancel()
    assert isinstance(answer, CompletionObject)
    assert turns >= 2


class RefusalsObserver(Observer):
    def __init__(self) -> None:
        self.refusals: list[tuple[str, Caller]] = []

    def refused(self, code: str, caller: Caller) -> None:
        self.refusals.append((code, caller))


async def test_more_than_may_be_kept_for_a_whole_answer_is_refused_and_counted() -> None:
    observer = RefusalsObserver()
    limits = {"stream_memory": 100_000, "observer": observer}
    completion = await Asked(logprobs=20, max_tokens=400, limits=limits).begin()
    refusal = await completion.whole()
    assert isinstance(refusal, Refusal)
    assert (refusal.code, refusal.status) == ("rate_limited", 429)
    assert "this connection" in refusal.message
    assert observer.refusals == [("rate_limited", CALLER)]
    completion.answering.leave()
    completion.server.tick()
    completion.server.tick()
    assert not completion.server.hub.streams
