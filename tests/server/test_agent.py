"""Agents, with a model that says what it is told to: tools run as they are called, in one stream."""

from __future__ import annotations

import asyncio
import enum
import gc
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

import midstream
from midstream import Agent, Call, JsonTool, ToolOutcome, ToolProgress
from midstream.protocol import Guard, Injected, Rewound, Token, ToolCall, ToolCallDone
from midstream.record_format import Inject, Line, Record, Resume, Rewind, Waits
from tests.fakes.scripts import saying, spelt
from tests.server.server_process import Metrics, Served

PHASES = ("prefill", "decode")
DISCARDED = "midstream_tokens_discarded_total"
PARIS, ROME = spelt({"city": "Paris"}), spelt({"city": "Rome"})


@pytest.fixture
async def client(scripted: Served) -> AsyncIterator[midstream.Client]:
    async with midstream.connect(scripted.http) as client:
        yield client


def weather(city: str) -> str:
    if city == "Rome":
        raise LookupError("no such place")
    return f"mild in {city}"


class Gate:
    """A tool that waits until it is let go, and knows what became of it."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.go = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def weather(self, city: str) -> str:
        self.begun.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return f"mild in {city}"


async def test_tools_run_as_they_are_called_and_the_model_is_told(client: midstream.Client) -> None:
    agent = Agent(tools=[weather], system="Be kind.")
    run = await client.run(agent, saying(f"So.{PARIS}{ROME}", f"Mild.{PARIS}", "Thanks."))
    events = [event async for event in run]
    assert await run.answer() == "Thanks."
    assert run.stream.text == "So.Mild.Thanks."
    assert [(one.content, one.error) for one in run.outcomes] == [
        ("mild in Paris", None),
        (None, "no such place"),
        ("mild in Paris", None),
    ]
    kinds = [type(event) for event in events if not isinstance(event, Token)]
    assert kinds.index(ToolOutcome) < kinds.index(Injected)
    roles = [(one.role, one.content, len(one.tool_calls or ())) for one in run.messages]
    assert roles == [
        ("system", "Be kind.", 0),
        ("user", run.messages[1].content, 0),
        ("assistant", "So.", 2),
        ("tool", "mild in Paris", 0),
        ("tool", '{"error":"no such place"}', 0),
        ("assistant", "Mild.", 1),
        ("tool", "mild in Paris", 0),
        ("assistant", "Thanks.", 0),
    ]
    again = await client.run(agent, [*run.messages, {"role": "user", "content": saying("Well.")}])
    assert await again.answer() == "Well."


async def test_a_tool_starts_while_the_next_call_is_being_written(client: midstream.Client) -> None:
    gate = Gate()
    run = await client.run(Agent(tools=[gate.weather]), saying(PARIS + ROME, "Thanks."), window=1)
    async for event in run:
        if isinstance(event, ToolCallDone):
            break_at = event.end
            break
        assert not gate.begun.is_set()
    await gate.begun.wait()
    assert run.stream.index < break_at + len(ROME), "the second call is not whole yet"


async def test_a_call_is_told_in_the_step_of_its_last_token(client: midstream.Client) -> None:
    run = await client.run(Agent(tools=[weather]), saying(PARIS + ROME, "Thanks."), window=1)
    end = 0
    async for event in run:
        if isinstance(event, Token):
            end = event.index + event.count
        elif isinstance(event, ToolCallDone):
            assert event.end == end


async def test_a_loop_of_twenty_calls_computes_each_token_once(
    client: midstream.Client, scripted: Served
) -> None:
    """The prompt, what is said, and the results with their markup; but for the end, which nobody reads, and
    for what is computed in vain where a mask comes too late, as on a busy machine."""
    before = await scripted.until_idle()
    run = await client.run(Agent(tools=[weather]), saying(*[PARIS] * 20, "Thanks."))
    assert await run.answer() == "Thanks."
    assert run.stream.final is not None
    usage = run.stream.final.usage
    assert len(run.outcomes) == 20
    known = usage.prompt_tokens + usage.injected_tokens + usage.completion_tokens
    after = await scripted.until_idle()
    in_vain = after[DISCARDED] - before[DISCARDED] - usage.discarded_tokens
    assert computed(after) - computed(before) - in_vain + usage.cached_tokens == known - 1


def computed(metrics: Metrics) -> float:
    """Tokens that went through the model, drafts that were right among them."""
    phases = sum(metrics[f'midstream_tokens_computed_total{{phase="{phase}"}}'] for phase in PHASES)
    accepted = (metrics[f'midstream_accepted_drafts_total{{kind="{kind}"}}'] for kind in ("lookup", "model"))
    return phases + sum(accepted)


async def test_they_run_side_by_side_also_those_that_block(client: midstream.Client) -> None:
    meeting = threading.Barrier(2, timeout=30)

    def weather(city: str) -> str:
        meeting.wait()
        return f"mild in {city}"

    run = await client.run(Agent(tools=[weather]), saying(PARIS + ROME, "Thanks."))
    assert await run.answer() == "Thanks."
    assert [one.content for one in run.outcomes] == ["mild in Paris", "mild in Rome"]


async def test_one_that_is_known_to_wait_is_begun_in_no_thread(
    client: midstream.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def weather(city: str) -> str:
        return f"mild in {city}"

    def forbidden(target: object, **_: object) -> None:
        raise AssertionError(f"a thread for {target}")

    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    of_json = midstream.JsonTool(name="weather", function=weather, parameters=schema)
    for tool in (weather, of_json):
        run = await client.run(Agent(tools=[tool]), saying(PARIS, "Thanks."))
        with monkeypatch.context() as patch:
            patch.setattr(threading, "Thread", forbidden)
            assert await run.answer() == "Thanks."
        assert [one.content for one in run.outcomes] == ["mild in Paris"]


async def test_a_tool_says_how_far_it_is(client: midstream.Client) -> None:
    def weather(city: str) -> str:
        midstream.progress(1, 2, city)
        return "mild"

    run = await client.run(Agent(tools=[weather]), saying(PARIS, "Thanks."))
    told = [event for event in [one async for one in run] if isinstance(event, ToolProgress)]
    assert [(one.call.name, one.done, one.total, one.message) for one in told] == [("weather", 1, 2, "Paris")]
    midstream.progress(1)  # where nobody asks it is nothing


async def test_a_tool_that_takes_too_long_is_cancelled_and_the_model_told(client: midstream.Client) -> None:
    gate = Gate()
    run = await client.run(Agent(tools=[gate.weather], tool_timeout_s=0.01), saying(PARIS, "Pity."))
    assert await run.answer() == "Pity."
    assert gate.cancelled.is_set()
    assert run.outcomes[0].error == "it took longer than 0.01 s"


async def cancelled_by_itself() -> None:
    """Whoever waits for this cancels its own task."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


async def test_a_tool_that_cancels_itself_has_failed(client: midstream.Client) -> None:
    async def weather(city: str) -> None:
        await cancelled_by_itself()

    run = await client.run(Agent(tools=[weather]), saying(PARIS, "Pity."))
    async with asyncio.timeout(30):
        assert await run.answer() == "Pity."
    assert run.outcomes[0].error == "it ended in CancelledError()"


async def test_a_tool_that_does_not_end_where_it_is_cancelled_is_not_waited_for(
    client: midstream.Client, caplog: pytest.LogCaptureFixture
) -> None:
    """As one that catches whatever comes, and tries again."""
    freed = asyncio.Event()

    async def weather(city: str) -> str:
        for _ in range(2):
            with suppress(asyncio.CancelledError):
                await freed.wait()
        raise RuntimeError("too late")

    run = await client.run(Agent(tools=[weather], tool_timeout_s=0.01), saying(PARIS, "Pity."))
    async with asyncio.timeout(30):
        assert await run.answer() == "Pity."
    assert run.outcomes[0].error == "it took longer than 0.01 s"
    freed.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    gc.collect()
    assert not caplog.text, "what it raises then is nobody's"


async def test_what_is_no_text_is_told_as_an_error(client: midstream.Client) -> None:
    """As the name of a file that has other bytes in it."""

    def weather(city: str) -> str:
        if city == "Rome":
            raise FileNotFoundError("caf\udce9")
        return "caf\udce9"

    run = await client.run(Agent(tools=[weather]), saying(PARIS + ROME, "Pity."))
    async with asyncio.timeout(30):
        assert await run.answer() == "Pity."
    told = [one.error or "" for one in run.outcomes]
    assert "surrogates not allowed" in told[0]
    assert told[1] == r"caf\udce9"


class Ended(BaseException):
    """What is no Exception, as that of a test which has failed."""


class Unsayable(Exception):
    """Whoever wrote it has not tried to print it."""

    def __str__(self) -> str:
        return self.args[1]  # type: ignore[no-any-return]


@pytest.mark.parametrize("ending", [asyncio.CancelledError, SystemExit, Ended])
async def test_a_tool_that_ends_itself_has_failed(
    client: midstream.Client, ending: type[BaseException]
) -> None:
    async def weather(city: str) -> str:
        raise ending

    run = await client.run(Agent(tools=[weather]), saying(PARIS, "Pity."))
    async with asyncio.timeout(30):
        assert await run.answer() == "Pity."
    assert run.outcomes[0].error == f"it ended in {ending()!r}"


async def test_an_error_that_cannot_be_printed_is_told_by_its_name(client: midstream.Client) -> None:
    def weather(city: str) -> str:
        raise Unsayable(city)

    run = await client.run(Agent(tools=[weather]), saying(PARIS, "Pity."))
    async with asyncio.timeout(30):
        assert await run.answer() == "Pity."
    assert run.outcomes[0].error == "Unsayable"


@pytest.mark.parametrize(
    ("times", "why"),
    [(30_000, "The tool_result has at least "), (300_000, "it would be a message of 1500")],
    ids=["fits no context", "fits no message"],
)
async def test_an_error_of_any_length_ends_no_run(client: midstream.Client, times: int, why: str) -> None:
    """As where a tool's own server answers with a page."""

    def weather(city: str) -> str:
        raise ValueError(city * times)

    run = await client.run(Agent(tools=[weather]), saying(PARIS, "Pity."))
    assert await run.answer() == "Pity."
    (told,) = (one.error or "" for one in run.outcomes)
    assert told.startswith(f"the error cannot be told: {why}")


class Text(str):
    """As libraries return it, such as numpy."""

    __slots__ = ()


async def test_a_text_of_any_kind_is_told_as_it_is(client: midstream.Client) -> None:
    class Weather(enum.StrEnum):
        MILD = "mild"

    def weather(city: str) -> str:
        return Weather.MILD if city == "Rome" else Text("mild")

    run = await client.run(Agent(tools=[weather]), saying(PARIS + ROME, "Thanks."))
    assert await run.answer() == "Thanks."
    assert [(one.content, type(one.content)) for one in run.outcomes] == [("mild", str)] * 2


async def test_more_calls_than_it_may_make_end_it(client: midstream.Client, scripted: Served) -> None:
    run = await client.run(Agent(tools=[weather], max_calls=2), saying(PARIS, PARIS, PARIS, "Never."))
    with pytest.raises(midstream.LimitReached, match="more than 2 calls"):
        await run.answer()
    assert len(run.outcomes) == 2
    await scripted.until_idle()


async def test_a_call_beyond_them_does_not_run(client: midstream.Client) -> None:
    run_for = list[str]()

    async def noted(city: str) -> None:
        run_for.append(city)

    agent = Agent(tools=[JsonTool(name="weather", function=noted, parameters={})], max_calls=1)
    run = await client.run(agent, saying(PARIS + ROME, "Never."))
    with pytest.raises(midstream.LimitReached):
        await run.answer()
    await run.stream.cancel()
    assert "Rome" not in run_for


async def test_a_call_that_was_taken_back_is_one_of_them(client: midstream.Client) -> None:
    by_hand = midstream.tool_of(weather)  # so that the stream waits
    run = await client.run(Agent(tools=[by_hand], max_calls=1), saying(f"So.{PARIS}", "Never."))

    async def take_it_back() -> None:
        async for event in run:
            if isinstance(event, ToolCallDone):
                await run.stream.rewind(0)
                await run.stream.resume()  # it may have waited for the result already

    with pytest.raises(midstream.LimitReached):
        await take_it_back()


@pytest.mark.parametrize("how", ["cancel", "leave", "drop", "block"])
async def test_whatever_ends_the_stream_ends_its_tools(
    client: midstream.Client, scripted: Served, how: str
) -> None:
    gate = Gate()

    async def begun() -> midstream.Run:
        return await client.run(Agent(tools=[gate.weather]), saying(PARIS, "Never."))

    async def until_begun(run: midstream.Run) -> None:
        async for _ in run:
            if gate.begun.is_set():
                break

    if how == "cancel":
        run = await begun()
        reading = asyncio.create_task(run.answer())
        await gate.begun.wait()
        await run.stream.cancel()
        await reading
    elif how == "leave":
        run = await begun()
        reading = asyncio.create_task(run.answer())
        await gate.begun.wait()
        reading.cancel()
    elif how == "drop":
        reading = asyncio.create_task((await begun()).answer())
        await gate.begun.wait()
        reading.cancel()
        del reading
    else:
        async with await begun() as run:
            reading = asyncio.create_task(run.answer())
            await gate.begun.wait()
        await reading
    async with asyncio.timeout(30):
        await gate.cancelled.wait()
    await scripted.until_idle()


async def test_a_call_that_is_taken_back_takes_its_tool_with_it(client: midstream.Client) -> None:
    gates = [Gate(), Gate()]
    calls = iter(gates)

    async def weather(city: str) -> str:
        return await next(calls).weather(city)

    run = await client.run(Agent(tools=[weather]), saying(f"So.{PARIS}", "Thanks."))
    reading = asyncio.create_task(run.answer())
    await gates[0].begun.wait()
    await run.stream.rewind(2)
    await run.stream.resume()
    await gates[1].begun.wait()
    assert gates[0].cancelled.is_set()
    gates[1].go.set()
    assert await reading == "Thanks."
    assert len(run.outcomes) == 1


async def test_a_result_that_is_taken_back_is_told_again_and_runs_once(client: midstream.Client) -> None:
    made: list[str] = []

    def weather(city: str) -> str:
        made.append(city)
        return "mild"

    run = await client.run(Agent(tools=[weather]), saying(PARIS, "Thanks a lot."), window=1)
    rewound = False
    async for event in run:
        if isinstance(event, Token) and event.delta == "k" and not rewound:
            rewound = True
            await run.stream.rewind(run.stream.calls[0].end or 0)
            assert run.stream.text == ""
    assert await run.answer() == "Thanks a lot."
    assert made == ["Paris"]


async def test_a_call_is_answered_by_hand_or_refused(client: midstream.Client) -> None:
    gate = Gate()
    by_hand = msgspec.to_builtins(midstream.tool_of(weather))
    by_hand["function"]["name"] = "ask"
    asked = spelt({"city": "Oslo"}, "ask")
    run = await client.run(Agent(tools=[gate.weather, by_hand]), saying(PARIS + asked, "Thanks."))

    async for event in run:
        if isinstance(event, ToolCallDone):
            call = next(one for one in run.stream.calls if one.call_id == event.call_id)
            if call.name == "ask":
                await run.give(call, {"degrees": -3})
            else:
                await run.refuse(call)
    assert [(one.content, one.error) for one in run.outcomes] == [
        (None, "the user said no"),
        ('{"degrees":-3}', None),
    ]
    assert not gate.begun.is_set() or gate.cancelled.is_set()
    assert await run.answer() == "Thanks."
    with pytest.raises(midstream.RequestFinished):
        await run.give(call, "late")
    assert run.outcomes[1].content == '{"degrees":-3}', "what was said stands"


async def test_a_call_waits_for_a_yes_or_a_no(client: midstream.Client) -> None:
    made: list[str] = []

    def weather(city: str) -> str:
        made.append(city)
        return f"mild in {city}"

    def approve(call: Call) -> Any:
        return {"Paris": True, "Rome": "not that one"}[call.parsed["city"]]

    agent = Agent(tools=[weather], approve=approve)
    run = await client.run(agent, saying(PARIS + ROME, PARIS, "Thanks."))
    assert await run.answer() == "Thanks."
    assert made == ["Paris", "Paris"]
    assert [one.error for one in run.outcomes] == [None, "not that one", None]


async def test_a_call_that_is_amended_is_made_as_amended(client: midstream.Client) -> None:
    asked: list[str] = []

    async def approve(call: Call) -> Any:
        asked.append(call.parsed["city"])
        return {"city": "Rom"}

    def weather(city: str) -> str:
        return f"mild in {city}"

    call = spelt({"city": "Rome"})
    run = await client.run(
        Agent(tools=[weather], approve=approve), saying(call, '"}}\n</tool_call>', "Thanks.")
    )
    kinds = [type(event) for event in [one async for one in run]]
    assert Rewound in kinds
    assert asked == ["Rome"]
    assert run.outcomes[0].content == "mild in Rom"


async def test_without_somebody_to_ask_the_events_are_answered(client: midstream.Client) -> None:
    run = await client.run(Agent(tools=[weather], approvals=True), saying(PARIS, "Thanks."))
    async for event in run:
        if isinstance(event, ToolCallDone):
            assert event.approval
            await run.approve(run.stream.calls[0])
    assert run.outcomes[0].content == "mild in Paris"


async def test_so_does_what_is_no_verdict(client: midstream.Client) -> None:
    run = await client.run(Agent(tools=[weather], approve=lambda call: None), saying(PARIS, "Never."))  # type: ignore[arg-type, return-value]
    with pytest.raises(TypeError, match="returned None"):
        await run.answer()


async def test_what_the_one_who_is_asked_raises_ends_the_run(
    client: midstream.Client, scripted: Served
) -> None:
    def approve(call: Call) -> bool:
        raise KeyError(call.name)

    run = await client.run(Agent(tools=[weather], approve=approve), saying(PARIS, "Never."))
    with pytest.raises(KeyError, match="weather"):
        await run.answer()
    await scripted.until_idle()


async def test_one_who_is_asked_and_cancels_its_own_task_ends_the_run(client: midstream.Client) -> None:
    async def approve(call: Call) -> bool:
        await cancelled_by_itself()
        return True

    run = await client.run(Agent(tools=[weather], approve=approve), saying(PARIS, "Never."))
    async with asyncio.timeout(30):
        with pytest.raises(RuntimeError, match="it ended in CancelledError"):
            await run.answer()


async def test_the_model_writes_on_while_a_tool_runs(client: midstream.Client) -> None:
    gate = Gate()
    agent = Agent(tools=[gate.weather], on_tool_call="continue")
    run = await client.run(agent, saying(f"{PARIS}Meanwhile, this.", "Mild, I hear."))
    async for _ in run:
        if run.stream.text == "Meanwhile, this.":
            gate.go.set()
    assert await run.answer() == "Mild, I hear."
    assert [one.content for one in run.messages[1:]] == ["Meanwhile, this.", "mild in Paris", "Mild, I hear."]


async def test_what_is_put_in_between_is_a_turn_of_the_conversation(client: midstream.Client) -> None:
    run = await client.run(Agent(tools=[weather]), saying("Well.", f"I see.{PARIS}", "Thanks."), window=1)
    async for event in run:
        if isinstance(event, Token) and run.stream.text == "Well":
            await run.stream.inject(messages=[{"role": "user", "content": "Hurry!"}])
    roles = [(one.role, one.content) for one in run.messages[1:]]
    assert roles[:2] == [("assistant", run.messages[1].content), ("user", "Hurry!")]
    assert roles[2:] == [("assistant", "I see."), ("tool", "mild in Paris"), ("assistant", "Thanks.")]


class Report(msgspec.Struct):
    city: str
    degrees: int


async def test_an_answer_of_a_type(client: midstream.Client) -> None:
    agent = Agent(tools=[weather], output=Report)
    run = await client.run(agent, saying(PARIS, '{"city":"Paris","degrees":20}'))
    assert await run.answer() == Report("Paris", 20)
    run = await client.run(agent, saying(PARIS, '{"city":"Paris","degrees":20}'), max_tokens=len(PARIS) + 9)
    with pytest.raises(midstream.ParseError, match="ended before it was whole"):
        await run.answer()


async def test_a_fork_knows_what_came_of_its_calls(client: midstream.Client) -> None:
    made: list[str] = []

    def weather(city: str) -> str:
        made.append(city)
        return "mild"

    run = await client.run(Agent(tools=[weather]), saying(PARIS, f"Mild.{ROME}", "Thanks."))
    forks: list[midstream.Run] = []
    async for event in run:
        behind_the_first = isinstance(event, Injected) and not forks
        if behind_the_first or (isinstance(event, ToolOutcome) and "Rome" in event.call.arguments):
            forks.append(await run.fork())
    for fork in forks:
        assert await fork.answer() == "Thanks."
        assert fork.messages[2].content == "mild"
        assert len(fork.outcomes) == 2
    assert sorted(made) == ["Paris", "Rome", "Rome"]


async def test_who_said_yes_to_a_call_said_it_to_that_of_a_fork(client: midstream.Client) -> None:
    asked: list[midstream.Call] = []

    def approve(call: midstream.Call) -> bool:
        asked.append(call)
        return True

    run = await client.run(Agent(tools=[weather], approve=approve), saying(PARIS, "Thanks."))
    assert await run.answer() == "Thanks."
    fork = await run.fork(at=run.stream.calls[0].end)
    assert await fork.answer() == "Thanks."
    assert (len(asked), len(fork.outcomes)) == (1, 1)


def test_without_async(scripted: Served) -> None:
    with midstream.sync.connect(scripted.http) as client:
        run = client.run(Agent(tools=[weather]), saying(f"So.{PARIS}", "Thanks."))
        kinds = {type(event) for event in run}
        assert {ToolCall, ToolCallDone, ToolOutcome} <= kinds
        assert run.answer() == "Thanks."
        assert run.outcomes[0].content == "mild in Paris"
        assert run.messages[-1].content == "Thanks."
        assert run.fork().answer() == "Thanks."
        with client.run(Agent(tools=[weather]), saying("Never.")) as left:
            pass
        assert left.stream.final is not None


# -- records ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["pause", "continue"])
async def test_a_run_is_recorded_and_plays_the_same_without_its_tools(
    client: midstream.Client, tmp_path: Path, how: Any
) -> None:
    file, gate = tmp_path / "run.jsonl", Gate()
    agent = Agent(tools=[gate.weather], on_tool_call=how)
    with client.record(file):
        run = await client.run(
            agent, saying(f"So.{PARIS}And.{PARIS}More.", f"Now.{PARIS}Or.", "Mild.", "Thanks.")
        )
        async for event in run:
            if isinstance(event, Token) and event.index + event.count > len(f"So.{PARIS}And.{PARIS}"):
                gate.go.set()
    (record,) = midstream.read_records(file)
    assert [type(line).__name__ for line in record.lines].count("ToolResult") == len(run.outcomes) >= 2
    replay = await client.replay(record)
    assert replay.equal
    assert replay.tokens == run.stream.index


async def test_a_fork_that_goes_on_behind_its_streams_calls_plays_the_same(
    client: midstream.Client, tmp_path: Path
) -> None:
    file = tmp_path / "calls.jsonl"
    with client.record(file):
        asked = [{"role": "user", "content": saying(f"So.{PARIS}", "Thanks.")}]
        stream = await client.start(messages=asked, tools=[weather])
        async for _ in stream:
            pass
        assert stream.final is not None
        assert stream.final.finish_reason == "tool_calls"
        for how in ("finish", "pause"):
            fork = await client.fork(stream, max_tokens=stream.index + 8, ignore_eos=True, on_tool_call=how)
            await fork.tool_result(stream.calls[0], "mild") if how == "pause" else None
            async for _ in fork:
                pass
    for record in midstream.read_records(file)[1:]:
        assert (await client.replay(record)).equal


async def recorded_run(client: midstream.Client, tmp_path: Path) -> Record:
    """Of a run that called once, and thanked for the result."""
    file = tmp_path / "run.jsonl"
    with client.record(file):
        run = await client.run(Agent(tools=[weather]), saying(f"So.{PARIS}", "Thanks."))
        assert await run.answer() == "Thanks."
    (record,) = midstream.read_records(file)
    return record


async def test_where_a_guard_pauses_it_before_the_turns_end_as_the_record_does_not_they_differ_there(
    client: midstream.Client, tmp_path: Path
) -> None:
    record = await recorded_run(client, tmp_path)
    record.start.params.guards = [Guard(name="g", do="pause", regex="So")]
    replay = await client.replay(record)
    assert not replay.equal
    assert replay.difference is not None
    assert replay.difference.replayed is None


async def test_one_that_had_gone_on_without_results_and_was_taken_back_stands_there(
    client: midstream.Client, tmp_path: Path
) -> None:
    """What waits for results would go on by itself where its calls are taken back."""
    record = await recorded_run(client, tmp_path)
    at, waits = next((at, line) for at, line in enumerate(record.lines) if isinstance(line, Waits))
    steered: list[Line] = [Resume(stream=1, index=waits.index), Rewind(stream=1, index=2)]
    steered += [Inject(stream=1, index=2, text=" But")] * 9
    assert (await client.replay(Record(record.start, [*record.lines[: at + 1], *steered]))).equal


async def test_a_run_that_was_steered_plays_the_same(client: midstream.Client, tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    gate = Gate()
    with client.record(file):
        run = await client.run(
            Agent(tools=[gate.weather]), saying(f"So.{PARIS}", "Thanks a lot."), temperature=1.0
        )
        reading = asyncio.create_task(run.answer())
        await gate.begun.wait()
        while run.stream.pause_reason != "tool_call":
            await run.stream.channel.wait()
        await run.stream.adjust(temperature=0.5)
        gate.begun.clear()
        await run.stream.rewind(2)
        await run.stream.resume()
        await gate.begun.wait()
        gate.go.set()
        assert await reading == "Thanks a lot."
    (record,) = midstream.read_records(file)
    assert (await client.replay(record)).equal
