"""A stream with many calls, at its reader: no token has anybody look at all of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import midstream
from midstream.protocol import Params, Snapshot, SnapshotCall, Started, Token
from midstream.session import Session
from midstream.stream_channel import Channel
from midstream.stream_core import StreamCore
from midstream.tool_tasks import ToolTasks
from tests.fakes.counted_work import counted

MANY = 500
BY_HAND: dict[str, Any] = {"function": {"name": "f", "parameters": {}}}


def told(seq: int) -> Snapshot:
    """Anew, as it is read once more from a server: nothing of it is the same object."""
    calls = [SnapshotCall(index=n, call_id=str(n), name="f", arguments="{}", end=n + 1) for n in range(MANY)]
    about: Any = {"text": "", "model": "toy", "prompt_tokens": 1, "params": Params(), "injected_tokens": 0}
    return Snapshot(request_id="a", seq=seq, index=MANY, tool_calls=calls, **about)


def with_many() -> tuple[Channel, ToolTasks]:
    channel = Channel(cast(Session, None), "a", StreamCore(), None, kept=False)
    tasks = ToolTasks(channel, midstream.Agent(tools=[BY_HAND]))
    channel.receive(Started(request_id="a", seq=0, model="toy", prompt_tokens=1, params=Params()))
    channel.receive(told(1))
    assert all(read(channel, tasks))
    return channel, tasks


def read(channel: Channel, tasks: ToolTasks) -> Iterator[bool]:
    while (event := channel.core.take_event()) is not None:
        tasks.receive(event)
        yield True


def test_a_token_has_nobody_look_at_all_calls() -> None:
    channel, tasks = with_many()
    with counted() as work:
        channel.receive(Token(request_id="a", seq=2, index=MANY, count=1, delta="a"))
        assert list(read(channel, tasks)) == [True]
    assert work.lines < MANY


def test_a_snapshot_is_held_against_what_stood_by_looking_at_each_once() -> None:
    channel, _ = with_many()
    with counted() as work:
        channel.receive(told(9))
    assert work.lines < 30 * MANY
