"""Records of steered streams, replayed: on the same server, on one that was started anew, and on others."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import midstream
from midstream.protocol import Params
from midstream.record_format import (
    Adjust,
    Final,
    Forked,
    Guard,
    Inject,
    Line,
    Lost,
    Pause,
    Record,
    Resume,
    Rewind,
    Start,
    Tokens,
    ToolResult,
    encode_line,
)
from tests.server.server_process import PATIENCE_S, Served, environment

PROMPT = "Once upon a time"
WARM: dict[str, Any] = {"temperature": 1.0, "seed": 11}
END = 463  # the toy's end token
PLAYS = 25  # of each kind, on a machine that others keep busy, too; `bench.reliability records` has thousands
Move = tuple[str, Any]  # what somebody does, and how


# -- somebody who steers ---------------------------------------------------------------------------


MOVES = st.one_of(
    st.tuples(st.just("read"), st.integers(1, 12)),
    st.tuples(
        st.just("adjust"),
        st.sampled_from(
            [
                {"temperature": 0.0},
                {"temperature": 1.7, "top_p": 0.9},
                {"seed": 99},
                {"stop": [" the"]},
                {"ignore_eos": True, "min_tokens": 10},
                {"max_tokens": 30},
                {"repetition_penalty": 1.3, "logit_bias": {300: 4.0}},
                {"logprobs": None},
            ]
        ),
    ),
    st.tuples(st.just("adjust at"), st.integers(0, 9)),
    st.tuples(st.just("inject"), st.sampled_from([" But", " é", " never again"])),
    st.tuples(st.just("inject at"), st.integers(0, 9)),
    st.tuples(st.just("ask"), st.just("Why?")),
    st.tuples(st.just("rewind"), st.integers(0, 20)),
    st.tuples(st.just("pause"), st.sampled_from(["hold", "release"])),
    st.tuples(st.just("resume"), st.none()),
)
STARTS = st.fixed_dictionaries(
    {
        "window": st.sampled_from([1, 3, 64]),
        "credit": st.sampled_from([None, "auto", {"limit": 4, "prefetch": 8}]),
        "stream_interval": st.sampled_from([1, 4]),
        "max_tokens": st.integers(10, 60),
        "seed": st.integers(0, 99),
    }
)


async def move(stream: midstream.Stream, what: str, how: Any) -> None:
    back = max(0, stream.consumed - how) if isinstance(how, int) else 0
    acts: dict[str, Callable[[], Awaitable[object]]] = {
        "read": lambda: read(stream, how),
        "adjust": lambda: stream.adjust(**how),
        "adjust at": lambda: stream.adjust(at=back, temperature=0.8, seed=how),
        "inject": lambda: stream.inject(text=how),
        "inject at": lambda: stream.inject(at=back, tokens=[300, 301]),
        "ask": lambda: stream.inject(messages=[{"role": "user", "content": how}]),
        "rewind": lambda: stream.rewind(back),
        "pause": lambda: stream.pause(kv=how),
        "resume": stream.resume,
    }
    await acts[what]()


async def read(stream: midstream.Stream, tokens: int) -> None:
    end = stream.consumed + tokens
    while stream.consumed < end and await stream.next() is not None:
        pass


async def read_past_pauses(stream: midstream.Stream) -> None:
    while stream.final is None:
        if stream.try_next() is None:
            await (stream.resume() if stream.state == "paused" else stream.channel.wait())


async def steer(stream: midstream.Stream, moves: list[Move], *, to_the_end: bool = True) -> None:
    """Whatever somebody does to a stream, whether or not it is still there."""
    with suppress(midstream.RequestFinished):
        for what, how in moves:
            if stream.state == "paused" and what == "read":
                await stream.resume()
            await move(stream, what, how)
    if stream.state == "paused":
        with suppress(midstream.RequestFinished):
            await stream.resume()
    while to_the_end and await stream.next() is not None:
        pass
    await stream.cancel()


async def recorded(
    server: Served, file: Path, moves: list[Move], *, to_the_end: bool = True, **options: Any
) -> Record:
    async with asyncio.timeout(PATIENCE_S), midstream.connect(server.http) as client:
        with client.record(file):
            await steer(await client.start(prompt=PROMPT, **options), moves, to_the_end=to_the_end)
    (record,) = midstream.read_records(file)
    return record


async def replayed(server: Served, record: Record) -> midstream.Replay:
    async with asyncio.timeout(PATIENCE_S), midstream.connect(server.http) as client:
        return await client.replay(record)


# -- on the same server ----------------------------------------------------------------------------


@settings(max_examples=PLAYS, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(moves=st.lists(MOVES, max_size=8), start=STARTS, to_the_end=st.booleans())
def test_whatever_is_done_to_a_stream_is_replayed_equally(
    shared: Served, moves: list[Move], start: dict[str, Any], to_the_end: bool
) -> None:
    with TemporaryDirectory() as folder:
        record = asyncio.run(recorded(shared, Path(folder, "r"), moves, to_the_end=to_the_end, **start))
    replay = asyncio.run(replayed(shared, record))
    assert replay.difference is None
    assert replay.tokens == sum(len(line.tokens) for line in record.lines if isinstance(line, Tokens))
    assert replay.same_fingerprint


async def forked(
    server: Served, file: Path, moves: list[Move], back: int, others: list[Move], **options: Any
) -> Record:
    """Of a fork of a stream that was steered, so many tokens before where that was read to."""
    async with asyncio.timeout(PATIENCE_S), midstream.connect(server.http) as client:
        with client.record(file):
            stream = await client.start(prompt=PROMPT, **options)
            await steer(stream, moves, to_the_end=False)
            at = max(0, stream.consumed - back)
            await steer(await client.fork(stream, at=at, window=4, max_tokens=80), others)
    _, record = midstream.read_records(file)
    return record


@settings(max_examples=PLAYS, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    moves=st.lists(MOVES, min_size=1, max_size=8),
    back=st.integers(0, 20),
    others=st.lists(MOVES, max_size=3),
    start=STARTS,
)
def test_so_is_a_fork_of_it(
    shared: Served, moves: list[Move], back: int, others: list[Move], start: dict[str, Any]
) -> None:
    with TemporaryDirectory() as folder:
        record = asyncio.run(forked(shared, Path(folder, "r"), moves, back, others, **start))
    assert record.start.fork is None
    assert asyncio.run(replayed(shared, record)).difference is None


ENDS: dict[str, dict[str, Any]] = {
    "length": {"max_tokens": 10, "ignore_eos": True},
    "stop": {"stop": ["e"]},
    "eos": {"logit_bias": {END: 8.0}},
    "guard": {"guards": [{"name": "g", "do": "finish", "regex": "e"}]},
}


@pytest.mark.parametrize("end", ENDS)
async def test_a_fork_may_go_on_where_its_stream_had_ended(shared: Served, tmp_path: Path, end: str) -> None:
    async with midstream.connect(shared.http) as client:
        with client.record(tmp_path / "r"):
            stream = await client.start(prompt=PROMPT, window=1, **(WARM | ENDS[end]))
            async for _ in stream:
                pass
            assert stream.final is not None
            assert end in (stream.final.finish_reason, stream.final.stop_reason)
            fork = await client.fork(stream, max_tokens=stream.index + 9)
            async for _ in fork:
                pass
            again = await client.fork(fork, max_tokens=fork.index + 9, guards=[], seed=11)
            async for _ in again:
                pass
    for record, one in zip(midstream.read_records(tmp_path / "r"), (stream, fork, again), strict=True):
        replay = await replayed(shared, record)
        assert (replay.difference, replay.tokens) == (None, one.index)


GUARDS = [
    {"do": "rewind", "regex": "e", "times": 16, "then": "pause"},
    {"do": "rewind", "regex": "a.{2,6}", "times": 6},
    {"do": "pause", "regex": "[aeiou] [a-z]+ "},
    {"do": "finish", "regex": "he"},
    {"do": "tell", "regex": "t"},
    {"do": "pause", "budget": {"tokens": 12}},
]
BUDGET: Any = {"name": "g", "do": "pause", "budget": {"tokens": 6}}


@pytest.mark.parametrize("guard", GUARDS, ids=str)
@pytest.mark.parametrize("read", [{"window": 1}, {"window": 64}, {"credit": {"limit": 4, "prefetch": 8}}])
async def test_what_guards_did_they_do_again(
    shared: Served, tmp_path: Path, guard: dict[str, Any], read: dict[str, Any]
) -> None:
    async with midstream.connect(shared.http) as client:
        with client.record(tmp_path / "r"):
            guards: Any = [guard | {"name": "g"}]
            stream = await client.start(prompt=PROMPT, seed=5, max_tokens=40, guards=guards, **read)
            await read_past_pauses(stream)
    (record,) = midstream.read_records(tmp_path / "r")
    acts = [line for line in record.lines if isinstance(line, Guard)]
    assert bool(acts) == (guard["do"] != "tell")
    assert not any(isinstance(line, Rewind | Lost) for line in record.lines)
    replay = await replayed(shared, record)
    assert replay.difference is None


async def test_what_a_guard_takes_back_that_has_looked_ahead_was_never_told(
    shared: Served, tmp_path: Path
) -> None:
    guards: Any = [{"name": "g", "do": "rewind", "regex": "e[a-z ]{12}"}]
    record = await recorded(shared, tmp_path / "r", [], seed=5, max_tokens=40, window=1, guards=guards)
    acts = [at for at, line in enumerate(record.lines) if isinstance(line, Guard)]
    before, at = acts[1:3]
    guard, told = record.lines[at], record.lines[before + 1 : at]
    assert isinstance(guard, Guard)
    stood = [line for line in told if isinstance(line, Tokens) and line.index < guard.index]
    assert 0 < len(stood) < len(told), "the others it took back"
    lines = [*record.lines[: before + 1], guard, *stood, *record.lines[at + 1 :]]
    assert (await replayed(shared, Record(record.start, lines))).difference is None


async def test_a_pause_of_a_guard_that_nobody_heard_of_in_time_is_one(shared: Served, tmp_path: Path) -> None:
    """Who goes on meanwhile lets nothing through, and it pauses there again. And what took effect right at
    the end may come too late."""
    async with midstream.connect(shared.http) as client:
        with client.record(tmp_path / "r"):
            stream = await client.start(prompt=PROMPT, max_tokens=12, ignore_eos=True, guards=[BUDGET])
            await read_past_pauses(stream)
    (record,) = midstream.read_records(tmp_path / "r")
    at = next(at for at, line in enumerate(record.lines) if isinstance(line, Guard))
    unheard = [Resume(stream=1, index=6), record.lines[at]]
    end = Resume(stream=1, index=12)
    lines = [*record.lines[: at + 1], *unheard, *record.lines[at + 1 : -1], end, record.lines[-1]]
    replay = await replayed(shared, Record(record.start, lines))
    assert (replay.difference, replay.tokens) == (None, 12)


async def test_one_that_is_paused_may_be_ended_by_what_is_adjusted(shared: Served, tmp_path: Path) -> None:
    async with midstream.connect(shared.http) as client:
        with client.record(tmp_path / "r"):
            stream = await client.start(prompt=PROMPT, window=1, max_tokens=40, ignore_eos=True)
            await read(stream, 9)
            await stream.pause()
            await stream.adjust(max_tokens=5)
            while stream.final is None:
                await stream.channel.wait()
    (record,) = midstream.read_records(tmp_path / "r")
    assert (await replayed(shared, record)).difference is None


async def test_a_stream_may_end_before_where_a_guard_had_found_what_it_took_back(
    shared: Served, tmp_path: Path
) -> None:
    """Up to there it is granted, and at its end before anybody could hold it."""
    guards: Any = [{"name": "g", "do": "rewind", "regex": "a.{2,6}", "times": 6}]
    options: dict[str, Any] = {"temperature": 0, "stop": ["e "], "guards": guards}
    record = await recorded(shared, tmp_path / "r", [], max_tokens=29, **options)
    *_, guard, last, final = record.lines
    assert isinstance(guard, Guard)
    assert isinstance(last, Tokens)
    assert isinstance(final, Final)
    assert final.stop_reason == "e "
    assert (await replayed(shared, record)).difference is None


async def test_a_fork_of_a_stream_that_a_guard_has_paused_is_paused_by_its_own(
    shared: Served, tmp_path: Path
) -> None:
    async with midstream.connect(shared.http) as client:
        with client.record(tmp_path / "r"):
            options: Any = {"seed": 5, "max_tokens": 12, "ignore_eos": True, "guards": [BUDGET]}
            stream = await client.start(prompt=PROMPT, **options)
            await read(stream, 6)
            forks = []
            for seed in (5, 6):
                while stream.pause_reason != "guard":
                    await stream.channel.wait()
                forks.append(await client.fork(stream, at=6, seed=seed))
            await stream.resume()
            await read(stream, 2)
            forks.append(await client.fork(stream, at=6, seed=5))
            for one in forks:
                await read_past_pauses(one)
    _, *records = midstream.read_records(tmp_path / "r")
    for record in records:
        assert (await replayed(shared, record)).difference is None
    of_nothing, behind_that = Resume(stream=2, index=6), Pause(stream=4, index=6)
    for record, line in ((records[0], of_nothing), (records[-1], behind_that)):
        at = next(at for at, one in enumerate(record.lines) if isinstance(one, Forked))
        record.lines.insert(at, line)
        assert (await replayed(shared, record)).difference is None


@pytest.mark.parametrize("change", [{"temperature": 0.0}, {"guards": [BUDGET]}, None], ids=str)
async def test_whoever_pauses_behind_a_guard_and_goes_on_has_let_nothing_through(
    shared: Served, tmp_path: Path, change: dict[str, Any] | None
) -> None:
    async with midstream.connect(shared.http) as client:
        with client.record(tmp_path / "r"):
            options: Any = {"max_tokens": 12, "ignore_eos": True, "guards": [BUDGET]}
            stream = await client.start(prompt=PROMPT, **WARM, **options)
            await read(stream, 6)
            while stream.pause_reason != "guard":
                await stream.channel.wait()
            await stream.pause()
            await (stream.rewind(6) if change is None else stream.adjust(**change))
            await read_past_pauses(stream)
    (record,) = midstream.read_records(tmp_path / "r")
    acts = [line.index for line in record.lines if isinstance(line, Guard)]
    assert acts == [6, 6]
    replay = await replayed(shared, record)
    assert (replay.difference, replay.tokens) == (None, 12)


async def test_a_fork_is_recorded_as_its_stream_up_to_there_and_then_as_it_goes_on(
    shared: Served, tmp_path: Path
) -> None:
    async with midstream.connect(shared.http) as client:
        outside = await client.start(prompt=PROMPT, max_tokens=30)
        await read(outside, 5)
        with client.record(tmp_path / "r"):
            stream = await client.start(prompt=PROMPT, max_tokens=60, ignore_eos=True, window=4, **WARM)
            await read(stream, 20)
            await stream.rewind(12)
            await stream.adjust(temperature=0.7)
            await read(stream, 6)
            await stream.pause()
            fork = await client.fork(stream, at=15, seed=3, temperature=1.5, window=4)
            await read(fork, 9)
            again = await client.fork(fork, at=10)
            lost = await client.fork(outside, at=4)
            await stream.resume()
            for one in (stream, fork, again, lost):
                async for _ in one:
                    pass
    first, *forks, unknown = midstream.read_records(tmp_path / "r")
    for record, one in zip([first, *forks], [stream, fork, again], strict=True):
        replay = await replayed(shared, record)
        assert (replay.difference, replay.replayed_prompt_tokens) == (None, stream.prompt_tokens)
        assert one.final is not None
        assert replay.tokens >= one.final.index
    assert unknown.start.fork is not None
    with pytest.raises(midstream.ReplayError, match="cannot be played"):
        await replayed(shared, unknown)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("grammar", {"regex": "[a-m ]{20}[n-z ]*"}),
        ("guards", [{"name": "g", "do": "finish", "regex": "[^~]{30}"}]),
    ],
    ids=str,
)
async def test_what_was_put_in_again_behind_a_fork_begins_with_that(
    shared: Served, tmp_path: Path, name: str, value: object
) -> None:
    changes: dict[int, Any] = {6: {name: value}, 10: {name: None}, 16: {name: value}}
    async with midstream.connect(shared.http) as client:
        with client.record(tmp_path / "r"):
            stream = await client.start(prompt=PROMPT, max_tokens=18, ignore_eos=True, window=1, **WARM)
            for index, change in changes.items():
                await read(stream, index - stream.consumed)
                await stream.adjust(**change)
            fork = await client.fork(stream, at=9, max_tokens=40)
            twice = await client.fork(fork, at=9, max_tokens=40)
            for one in (stream, fork, twice):
                async for _ in one:
                    pass
    for record in midstream.read_records(tmp_path / "r"):
        assert (await replayed(shared, record)).difference is None


async def test_a_result_of_a_call_that_never_was_is_told(server: Served, tmp_path: Path) -> None:
    start, tokens = await told(server, tmp_path / "r", max_tokens=3, window=1, **WARM)
    lines: list[Line] = [*tokens[:1], ToolResult(stream=1, index=1, call=4, content="so"), *tokens[1:]]
    with pytest.raises(midstream.ReplayError, match="token 1 is about call 4, and 0 stand"):
        await replayed(server, Record(start, lines))


async def test_what_was_decoded_and_taken_back_is_compared_too(server: Served, tmp_path: Path) -> None:
    moves: list[Move] = [("read", 20), ("rewind", 15), ("adjust", {"seed": 5}), ("read", 3), ("adjust at", 2)]
    record = await recorded(server, tmp_path / "r", moves, max_tokens=40, window=1, **WARM)
    places = [index for index, line in enumerate(record.lines) if isinstance(line, Tokens)]
    assert (await replayed(server, record)).difference is None
    for index in (places[18], places[21], places[-1]):
        replay = await replayed(server, forged(record, index))
        assert replay.difference is not None
        line = record.lines[index]
        assert isinstance(line, Tokens)
        assert replay.difference.index == line.index
        assert replay.difference.replayed is not None
        assert replay.difference.replayed.token == line.tokens[0]


def forged(record: Record, at: int) -> Record:
    """The same, with another token at the head of that line."""
    line = record.lines[at]
    assert isinstance(line, Tokens)
    tokens = [line.tokens[0] ^ 1, *line.tokens[1:]]
    other = Tokens(stream=1, index=line.index, text="?", tokens=tokens, logprobs=line.logprobs)
    return Record(record.start, [*record.lines[:at], other, *record.lines[at + 1 :]])


async def test_behind_a_rewind_it_stands_where_it_stood_and_comes_to_no_other_end(
    server: Served, tmp_path: Path
) -> None:
    """What was granted before lets it run past the next control, and there it would come to an end."""
    options = {"ignore_eos": True, "max_tokens": 30, "window": 1}
    start, tokens = await told(server, tmp_path / "r", **options, **WARM)
    words = "".join(line.text for line in tokens[17:21])
    lines: list[Line] = [
        *tokens,
        Rewind(stream=1, index=10),
        Adjust(stream=1, index=10, params=Params(stop=[words])),
        *tokens[10:12],
        Pause(stream=1, index=12),
        Adjust(stream=1, index=12, params=Params(stop=[])),
        Resume(stream=1, index=12),
        *tokens[12:25],
        Adjust(stream=1, index=25, params=Params(temperature=1.0)),
        *tokens[25:],
    ]
    start.params.max_tokens = 40
    replay = await replayed(server, Record(start, lines))
    assert (replay.difference, replay.tokens) == (None, 30 + 20)


async def test_a_record_by_hand_may_leave_parameters_to_the_server(server: Served, tmp_path: Path) -> None:
    """Behind a rewind it runs on to where it was granted, with parameters that are then as they were."""
    start, tokens = await told(server, tmp_path / "r", max_tokens=15, window=1, **WARM)
    lines: list[Line] = [
        *tokens,
        Rewind(stream=1, index=5),
        *tokens[5:8],
        Adjust(stream=1, index=8, params=Params(logit_bias={END: 100.0})),
        Tokens(stream=1, index=8, text="", tokens=[END]),
        Final(stream=1, index=9, finish_reason="stop", stop_reason="eos"),
    ]
    start.params = Params(**WARM)
    replay = await replayed(server, Record(start, lines))
    assert (replay.difference, replay.tokens) == (None, 15 + 4)


async def told(server: Served, file: Path, **options: Any) -> tuple[Start, list[Tokens]]:
    """A stream that nobody steers, a line a token."""
    record = await recorded(server, file, [], **options)
    tokens = [line for line in record.lines if isinstance(line, Tokens)]
    assert all(len(line.tokens) == 1 for line in tokens)
    return record.start, tokens


async def test_a_longer_and_a_shorter_end_are_differences(server: Served, tmp_path: Path) -> None:
    options: dict[str, Any] = {"ignore_eos": True, **WARM}
    long = await recorded(server, tmp_path / "long", [], max_tokens=12, **options)
    short = await recorded(server, tmp_path / "short", [], max_tokens=8, **options)
    for start, lines, recorded_there, replayed_there in (
        (long.start, short.lines, False, True),
        (short.start, long.lines, True, False),
    ):
        difference = (await replayed(server, Record(start, lines))).difference
        assert difference is not None
        assert difference.index == 8
        assert (difference.recorded is not None, difference.replayed is not None) == (
            recorded_there,
            replayed_there,
        )


async def test_a_record_that_breaks_off_is_replayed_as_far_as_it_goes(server: Served, tmp_path: Path) -> None:
    record = await recorded(server, tmp_path / "r", [("read", 9), ("inject", " But")], max_tokens=30, **WARM)
    for count in range(0, len(record.lines), 5):
        lines = record.lines[:count]
        replay = await replayed(server, Record(record.start, lines))
        assert replay.difference is None
        assert replay.tokens == sum(len(line.tokens) for line in lines if isinstance(line, Tokens))


# -- on others -------------------------------------------------------------------------------------

MOVES_OF_ONE: list[Move] = [
    ("read", 12),
    ("adjust", {"temperature": 1.5}),
    ("read", 7),
    ("pause", "release"),
    ("inject at", 3),
    ("resume", None),
    ("read", 9),
    ("rewind", 5),
    ("ask", "Why?"),
]


async def test_on_a_server_that_was_started_anew_it_is_equal_and_so_is_the_fingerprint(
    server: Served, serve: Callable[..., Served], tmp_path: Path
) -> None:
    record = await recorded(server, tmp_path / "r", MOVES_OF_ONE, max_tokens=60, **WARM)
    other = serve("--block-size", "8", "--step-tokens", "16", "--kv-tokens", "512")
    replay = await replayed(other, record)
    assert (replay.difference, replay.same_fingerprint) == (None, True)


async def test_an_engine_that_dies_in_a_replay_changes_nothing(
    serve: Callable[..., Served], tmp_path: Path
) -> None:
    slow = serve("--toy-step-ms", "10")
    record = await recorded(slow, tmp_path / "r", MOVES_OF_ONE, max_tokens=60, **WARM)
    replaying = asyncio.create_task(replayed(slow, record))
    await slow.until(lambda metrics: metrics["midstream_tokens_total"] > 80)
    os.kill(slow.engine, signal.SIGKILL)
    assert (await replaying).difference is None


# -- at the terminal -------------------------------------------------------------------------------


def command(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "midstream", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=environment() | {"PYTHONUTF8": "1"},
        check=False,
    )


@pytest.fixture(scope="module")
def ran(shared: Served, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `midstream run --record` wrote of two requests that ran at once."""
    folder = tmp_path_factory.mktemp("run")
    requests = [
        {"prompt": "Once", "params": {"max_tokens": 20, "ignore_eos": True, "seed": 3}},
        {
            "messages": [{"role": "user", "content": "Hi\x1b[31m"}],
            "params": {"max_tokens": 9},
            "stream": False,
        },
    ]
    (folder / "requests.json").write_text(json.dumps(requests))
    done = command(
        *("run", "--url", shared.http, "--input", str(folder / "requests.json")),
        *("--record", str(folder / "record.jsonl"), "--parallel", "2"),
    )
    assert (done.stderr, done.returncode) == ("", 0)
    return folder / "record.jsonl"


def test_a_run_that_was_recorded_is_replayed(shared: Served, ran: Path) -> None:
    done = command("replay", "--url", shared.http, str(ran))
    assert (done.stderr, done.returncode) == ("", 0)
    lines = done.stdout.splitlines()
    assert lines[0] == "stream 1: Once"
    assert lines[1] == "  equal: 20 tokens"
    assert lines[2].startswith("  the fingerprints are equal, fp_")
    assert lines[3] == "stream 2: Hi␛[31m"
    again = command("replay", "--url", shared.http, "-", stdin=ran.read_text())
    assert again.stdout == done.stdout


def test_the_first_token_that_differs_is_shown_with_both_log_probabilities(
    shared: Served, ran: Path, tmp_path: Path
) -> None:
    first, *_ = midstream.read_records(ran)
    line = first.lines[4]
    assert isinstance(line, Tokens)
    assert line.logprobs is not None
    first.start.fingerprint = "fp_other"
    other = forged(first, 4)
    (tmp_path / "r").write_bytes(b"".join(map(encode_line, [other.start, *other.lines])))
    done = command("replay", "--url", shared.http, str(tmp_path / "r"))
    assert (done.stderr, done.returncode) == ("", 1)
    _, differs, recorded_there, here, fingerprints = done.stdout.splitlines()
    assert differs == f"  differs at token {line.index}, {line.index} tokens having been equal"
    assert recorded_there.startswith(f"  recorded: {line.tokens[0] ^ 1} ")
    assert re.match(rf"  here:     {line.tokens[0]}\b", here)
    assert f"log probability {line.logprobs[0]:.4f}" in recorded_there
    assert f"log probability {line.logprobs[0]:.4f}" in here
    assert fingerprints.startswith("  the fingerprints differ: recorded fp_other, here fp_")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "there is no record in it: its first line would be a `start`"),
        (b"\xff", "byte 0 is not UTF-8"),
        (b'{"prompt": "a"}', "line 1: Object missing required field `type`"),
        (None, "No such file or directory"),
    ],
)
def test_a_wrong_file_is_told_in_a_sentence(tmp_path: Path, content: bytes | None, why: str) -> None:
    file = tmp_path / "r"
    if content is not None:
        file.write_bytes(content)
    done = command("replay", str(file))
    assert (done.stdout, done.stderr, done.returncode) == ("", f"midstream: {file}: {why}\n", 2)


def test_without_a_server_nothing_is_compared(ran: Path) -> None:
    done = command("replay", "--url", "http://127.0.0.1:9", str(ran))
    assert "no server answers at http://127.0.0.1:9" in done.stderr
    assert done.returncode == 2


def test_what_the_server_refuses_is_told_and_the_others_are_replayed(
    shared: Served, ran: Path, tmp_path: Path
) -> None:
    first, second = midstream.read_records(ran)
    refused = Record(first.start, [Inject(stream=1, index=0, tokens=[99_999]), first.lines[-1]])
    told = [refused, second]
    (tmp_path / "r").write_bytes(
        b"".join(encode_line(line) for one in told for line in (one.start, *one.lines))
    )
    done = command("replay", "--url", shared.http, str(tmp_path / "r"))
    assert done.returncode == 2
    assert "  not replayed: " in done.stdout
    assert "  equal: " in done.stdout
