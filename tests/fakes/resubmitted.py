"""Streams given to another engine, as if theirs had died: what a gateway knows of a stream must bring it to
where the engine that has it stands."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from engine.engine import Engine
from engine.schedule.sequence import Sequence
from realtime.stream.stream import Stream
from tests.fakes.simulated_server import SimulatedServer, toy_engine


def check_engines(server: SimulatedServer) -> int:
    """Returns of how many streams it was tried: those of which nothing is under way, to their engine, from it
    and in it."""
    standing = list(_standing(server))
    other = toy_engine(dataclasses.replace(server.size, slots=len(standing) + 1))
    for stream, _ in standing:
        submit = stream.context.submission(
            stream.number,
            credit=stream.credit.granted,
            priority=0,
            owner=stream.owner,
            paused=stream._pausing.rests,
            hold_at_eos=stream._tools.holds_at_eos,
            yields=False,
            keep=None,
        )
        other.send([submit])
    other.step()  # takes them in, behind what it computes, which is nothing
    for stream, engine in standing:
        stands, would = (_seen_of(one.scheduler.sequences[stream.number]) for one in (engine, other))
        differs = {key: (stands[key], would[key]) for key in stands if stands[key] != would[key]}
        assert not differs, f"stream {stream.request_id} in its engine, and in another: {differs}"
    return len(standing)


def _standing(server: SimulatedServer) -> Iterator[tuple[Stream, Engine]]:
    for entry in server.hub._registry.entries:
        stream = entry.stream
        if entry.engine is None or stream.concluded:
            continue
        engine = server.engines[entry.engine.number]
        if not engine.heard_all or (server.size.overlap and not engine.at_rest):
            continue
        if not stream._commands.waiting:
            _check_paused(stream)
            yield stream, engine.engine
        else:
            assert not engine.at_rest, f"nothing is under way, and stream {stream.request_id} waits"


def _check_paused(stream: Stream) -> None:
    """With nothing under way it rests where something holds it, and there alone, and is told so."""
    pausing = stream._pausing
    if not stream.reads_injected and not stream._cancelling.asked:
        assert pausing.rests == bool(pausing.grounds), f"{stream.request_id}: {pausing.grounds}"
        assert not pausing.rests or pausing.reason in pausing.grounds, (
            f"{stream.request_id}: {pausing.reason}"
        )


def _seen_of(sequence: Sequence) -> dict[str, Any]:
    constraint = sequence.constraint
    return {
        "tokens": list(sequence.tokens),
        "injections": [tuple(one) for one in sequence.injections],
        "bans": sorted(zip(sequence.ban_indices, sequence.banned, strict=True)),
        "sampling": sequence.sampling,
        "paused": sequence.paused,
        "credit": sequence.credit,
        "grammar": None if constraint is None else (constraint.source, constraint._runs),
    }
