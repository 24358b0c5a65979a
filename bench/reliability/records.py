"""Records: streams that are steered at random are written down, read again, and played again: the same comes.

One that was wrong is played again by its seed: `python -m bench.reliability records --seed 50017`. What it
had written down is left in `bench/results/records/`, for `midstream replay`.
"""

from __future__ import annotations

import asyncio
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import midstream
from bench.reliability.recorded_plays import Play, Say
from bench.reliability.trial_server import complaints, serving
from midstream.record_format import (
    Adjust,
    Amend,
    Final,
    Forked,
    Guard,
    Inject,
    Lost,
    Record,
    Rewind,
    Start,
    Tokens,
    ToolResult,
    encode_line,
    parse_records,
)
from tests.server.server_process import Served

PLAYS, SEED = 2000, 50_000
AT_ONCE = 4
PATIENCE_S = 60.0  # for a play, and for a replay: neither takes a hundredth of it
KEPT = Path("bench/results/records")  # what did not come again
SAID = 400  # characters of what was wrong, at most


class Found(NamedTuple):
    happened: Counter[str]
    wrong: dict[int, str]  # by seed


async def measure(scale: float, seeds: Sequence[int] | None = None) -> dict[str, Any]:
    await asyncio.to_thread(KEPT.mkdir, parents=True, exist_ok=True)
    async with serving("--log-level", "warning", scripted=True) as served:
        if seeds is not None:
            found = await play_all(served, seeds, say=print)
        else:
            found = await play_all(served, range(SEED, SEED + max(int(PLAYS * scale), 1)))
        await served.until_idle()
        complained = complaints(served)
    return {
        "name": "records",
        **found.happened,
        "wrong": len(found.wrong),
        "their seeds, and why": dict(list(found.wrong.items())[:5]),
        "complaints": complained,
        "goal": f"all that is recorded in {PLAYS:,} plays is read again as it was written, and comes again",
        "met": not found.wrong and not complained,
    }


async def play_all(served: Served, seeds: Sequence[int], say: Say = lambda line: None) -> Found:
    found = Found(Counter(), {})
    left = iter(seeds)

    async def play_on() -> None:
        for seed in left:
            try:
                found.happened.update(await play(served, seed, say))
            except Exception as failure:  # noqa: BLE001 - whatever it is, it must not be
                found.wrong[seed] = f"{failure!r}"[:SAID] + traceback.format_exc(-1)[-SAID:]
                say(found.wrong[seed])

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(play_on())
    return found


async def play(served: Served, seed: int, say: Say) -> Counter[str]:
    """What happened in it. Raises where anything did not come again, and leaves its file."""
    file = KEPT / f"{seed}.jsonl"
    async with asyncio.timeout(PATIENCE_S):
        await Play(seed, say).write(served.http, file)
    say(file.read_text())
    records = midstream.read_records(file)
    assert parse_records("".join(map(written, records))) == records
    happened = Counter(plays=1, streams=len(records))
    async with midstream.connect(served.http) as client:
        for number, record in enumerate(records, 1):
            assert not any(isinstance(line, Lost) for line in record.lines), f"{number} is lost"
            say(f"replaying {number}")
            try:
                async with asyncio.timeout(PATIENCE_S):
                    replay = await client.replay(record)
                assert replay.equal, f"{number} differs: {replay.difference}"
            except (midstream.ReplayError, AssertionError):
                if not guards_may_differ(record):
                    raise
                happened["where guards did otherwise"] += 1
                continue
            happened.update(what_is_in(record))
            happened["tokens compared"] += replay.tokens
    file.unlink()
    return happened


def guards_may_differ(record: Record) -> bool:
    """As docs/records.md says: somebody has steered between the token that a guard went back to and the one
    with which it did, or steered or cancelled behind a rewind before the stream had come as far as before."""
    end = furthest = steered = 0
    guarded = False
    for line in [record.start, *record.lines]:
        match line:
            case Tokens(index=index, tokens=tokens):
                end = index + len(tokens)
                furthest = max(furthest, end)
            case Guard(index=index):
                if index < max(steered, furthest if end < furthest else 0):
                    return True
                end, steered = min(index, end), 0
            case Rewind(index=index):
                if guarded and end < furthest:
                    return True
                end, steered = index, 0
            case Adjust() | Inject() | ToolResult() | Amend() | Forked() | Final(finish_reason="cancelled"):
                if guarded and end < furthest:
                    return True
                steered = max(steered, line.index)
        if isinstance(line, Start | Adjust | Forked) and line.params.guards:
            guarded = True
    return False


def written(record: Record) -> str:
    return b"".join(encode_line(line) for line in [record.start, *record.lines]).decode()


def what_is_in(record: Record) -> Counter[str]:
    steered = [line for line in record.lines if not isinstance(line, Tokens | Final)]
    return Counter(
        {
            "acts of steering": len(steered),
            "rewinds": sum(isinstance(line, Rewind) for line in steered),
            "acts of guards": sum(isinstance(line, Guard) for line in steered),
        }
    )
